"""Running the application with uvicorn."""

from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp

from fastcore.server.connections import BACKLOG, connection_class, connections_that_fit

__all__ = ["HEADER_SECONDS", "MAX_CONNECTIONS", "run_server", "server_config"]

SHUTDOWN_SECONDS = 30
MAX_CONNECTIONS = 1000
HEADER_SECONDS = 10.0


def server_config(
    app: ASGIApp,
    host: str,
    port: int,
    log_level: str = "info",
    *,
    max_connections: int = MAX_CONNECTIONS,
    header_seconds: float = HEADER_SECONDS,
) -> uvicorn.Config:
    """uvicorn with the parts that do not depend on what else is installed.

    max_connections, header_seconds: see `connections.connection_class`.
    """
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level=log_level,
        http=connection_class(connections_that_fit(max_connections), header_seconds),
        backlog=BACKLOG,
        loop="asyncio",
        ws="none",
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def run_server(
    app: ASGIApp,
    host: str,
    port: int,
    log_level: str = "info",
    *,
    max_connections: int = MAX_CONNECTIONS,
    header_seconds: float = HEADER_SECONDS,
) -> None:
    """Serve until interrupted; requests under way are finished first. The options are those of server_config."""
    config = server_config(app, host, port, log_level, max_connections=max_connections, header_seconds=header_seconds)
    with suppress(KeyboardInterrupt):  # raised once more after the shutdown that it asked for
        uvicorn.Server(config).run()
