"""Running the application with uvicorn: bounded connections, and an end that every client is told of."""

import asyncio
import socket
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from fastcore.server.connections import BACKLOG, connection_class, connections_that_fit

__all__ = ["Server", "run_server", "server_config"]

SHUTDOWN_SECONDS = 8.0  # below the ten that container runtimes wait before they kill
LAST_WORDS_SECONDS = 2.0  # of these, for telling clients
MAX_CONNECTIONS = 1000
HEADER_SECONDS = 10.0
SEND_SECONDS = 30.0


def server_config(
    app: ASGIApp,
    host: str,
    port: int,
    log_level: str = "info",
    *,
    max_connections: int = MAX_CONNECTIONS,
    header_seconds: float = HEADER_SECONDS,
    send_seconds: float = SEND_SECONDS,
    shutdown_seconds: float = SHUTDOWN_SECONDS,
) -> uvicorn.Config:
    """uvicorn with the parts that do not depend on what else is installed.

    max_connections, header_seconds, send_seconds: see `connections.connection_class`. shutdown_seconds: for requests
    under way when it is to end.
    """
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level=log_level,
        http=connection_class(connections_that_fit(max_connections), header_seconds, send_seconds),
        loop="asyncio",
        ws="none",
        lifespan="on",
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=shutdown_seconds,
    )


class Server(uvicorn.Server):  # type: ignore[misc]
    """Ends with exit code 0 when it is asked to, and tells clients whose requests take longer than there is time."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit: bool = self.should_exit  # asked twice
        self.should_exit: bool = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stop: Any = getattr(getattr(self.config.app, "state", None), "stop", None)
        if stop is not None:
            seconds = float(self.config.timeout_graceful_shutdown or SHUTDOWN_SECONDS)
            asyncio.get_running_loop().call_later(max(seconds / 2, seconds - LAST_WORDS_SECONDS), stop)
        await super().shutdown(sockets)


def run_server(
    app: ASGIApp,
    host: str,
    port: int,
    log_level: str = "info",
    *,
    max_connections: int = MAX_CONNECTIONS,
    header_seconds: float = HEADER_SECONDS,
    send_seconds: float = SEND_SECONDS,
    shutdown_seconds: float = SHUTDOWN_SECONDS,
) -> None:
    """Serve until interrupted or terminated; requests under way are finished first, as far as there is time."""
    config = server_config(
        app,
        host,
        port,
        log_level,
        max_connections=max_connections,
        header_seconds=header_seconds,
        send_seconds=send_seconds,
        shutdown_seconds=shutdown_seconds,
    )
    Server(config).run()
