"""Running the application with uvicorn: bounded connections, and an end that every client is told of."""

import asyncio
import socket
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from fastcore.server.connections import BACKLOG, connection_class, connections_that_fit

__all__ = ["Server", "ServerOptions", "run_server", "server_config"]

LAST_WORDS_SECONDS = 2.0  # of those to shut down, for telling clients


@dataclass(frozen=True)
class ServerOptions:
    """max_connections, header_seconds, send_seconds: see `connections.connection_class`. shutdown_seconds: for requests
    under way when the server is to end."""

    max_connections: int = 1000
    header_seconds: float = 10.0
    send_seconds: float = 30.0
    shutdown_seconds: float = 8.0  # below the ten that container runtimes wait before they kill


DEFAULTS = ServerOptions()


def server_config(
    app: ASGIApp, host: str, port: int, log_level: str = "info", options: ServerOptions = DEFAULTS
) -> uvicorn.Config:
    """uvicorn with the parts that do not depend on what else is installed."""
    fitting = connections_that_fit(options.max_connections)
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level=log_level,
        http=connection_class(fitting, options.header_seconds, options.send_seconds),
        loop="asyncio",
        ws="none",
        lifespan="on",
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=options.shutdown_seconds,
    )


class Server(uvicorn.Server):  # type: ignore[misc]
    """Ends with exit code 0 when it is asked to, and tells clients whose requests take longer than there is time."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit: bool = self.should_exit  # asked twice
        self.should_exit: bool = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stop: Any = getattr(getattr(self.config.app, "state", None), "stop", None)
        if stop is not None:
            seconds = float(self.config.timeout_graceful_shutdown or 0)
            asyncio.get_running_loop().call_later(max(seconds / 2, seconds - LAST_WORDS_SECONDS), stop)
        await super().shutdown(sockets)


def run_server(app: ASGIApp, host: str, port: int, log_level: str = "info", options: ServerOptions = DEFAULTS) -> None:
    """Serve until interrupted or terminated; requests under way are finished first, as far as there is time."""
    Server(server_config(app, host, port, log_level, options)).run()
