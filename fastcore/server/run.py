"""Running the application with uvicorn: bounded connections, and an end that every client is told of."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from fastcore.machine import resident_bytes
from fastcore.running import RunningServer, announced
from fastcore.server.connections import ACCEPTS, QUEUE, connection_class, connections_that_fit
from fastcore.server.logs import log_config
from fastcore.server.served import ServedModels

__all__ = ["Server", "ServerOptions", "bound", "run_server", "server_config"]

log = logging.getLogger("fastcore.server")

LAST_WORDS_SECONDS = 2.0  # of those to shut down, for telling clients
NOTICE_SECONDS = 1  # between two looks at what `fastcore ps` shows
NOTICED_BYTES = 1 << 20


@dataclass(frozen=True)
class ServerOptions:
    """max_connections, header_seconds, send_seconds: see `connections.connection_class`. shutdown_seconds: for requests
    under way when the server is to end. log_format: text | json."""

    max_connections: int = 1000
    header_seconds: float = 10.0
    send_seconds: float = 30.0
    shutdown_seconds: float = 8.0  # below the ten that container runtimes wait before they kill
    log_level: str = "info"
    log_format: str = "text"


DEFAULTS = ServerOptions()


@contextmanager
def bound(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Sockets at a port of this host's addresses, which refuse connections until a server listens. 0: any free port.

    Raises OSError, which says why there can be none.
    """
    with ExitStack() as held:
        sockets: list[socket.socket] = []
        try:
            for family, kind, _, _, address in socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                made = held.enter_context(socket.socket(family, kind))
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                own = sockets[0].getsockname()[1] if sockets else port  # the same for all
                made.bind((address[0], own, *address[2:]))
                sockets.append(made)
        except OSError as error:
            message = f"cannot listen at {host}, port {port}: {error.strerror}; choose another with --port"
            raise OSError(message) from None
        yield sockets


def server_config(app: ASGIApp, options: ServerOptions = DEFAULTS) -> uvicorn.Config:
    """uvicorn with the parts that do not depend on what else is installed."""
    fitting = connections_that_fit(options.max_connections)
    return uvicorn.Config(
        app,
        log_level=options.log_level,
        log_config=log_config(options.log_format, options.log_level),
        http=connection_class(fitting, options.header_seconds, options.send_seconds),
        loop="asyncio",
        ws="none",
        lifespan="on",
        server_header=False,
        backlog=ACCEPTS,
        timeout_graceful_shutdown=options.shutdown_seconds,
    )


class Server(uvicorn.Server):  # type: ignore[misc]
    """Ends with exit code 0 when it is asked to, and tells clients whose requests take longer than there is time."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit: bool = self.should_exit  # asked twice
        self.should_exit: bool = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(QUEUE)  # asyncio has one number for this and for how many it accepts in a turn
            log.info("listening at %s", _url(listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stop: Any = getattr(getattr(self.config.app, "state", None), "stop", None)
        if stop is not None:
            seconds = float(self.config.timeout_graceful_shutdown or 0)
            asyncio.get_running_loop().call_later(max(seconds / 2, seconds - LAST_WORDS_SECONDS), stop)
        await super().shutdown(sockets)


def run_server(app: Starlette, sockets: Sequence[socket.socket], options: ServerOptions = DEFAULTS) -> None:
    """Serve until interrupted or terminated; requests under way are finished first, as far as there is time.

    app: of `create_app`. sockets: of `bound`.
    """
    config = server_config(app, options)
    with announced() as say:
        config.callback_notify, config.timeout_notify = _notice(app, sockets, say), NOTICE_SECONDS
        Server(config).run(list(sockets))


def _notice(
    app: Starlette, sockets: Sequence[socket.socket], say: Callable[[RunningServer], None]
) -> Callable[[], Coroutine[Any, Any, None]]:
    """What uvicorn calls now and then: tells `fastcore ps` how the server does."""
    url, started = _url(sockets[0]), time.time()
    models: ServedModels = app.state.models

    async def notice() -> None:
        loaded = {model.names[0]: model.service is not None for model in models}
        memory = resident_bytes() // NOTICED_BYTES * NOTICED_BYTES
        say(RunningServer(os.getpid(), url, started, loaded, models.active_requests, memory))

    return notice


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
