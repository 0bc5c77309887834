"""Running the application with uvicorn."""

from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp

__all__ = ["run_server", "server_config"]

SHUTDOWN_SECONDS = 30


def server_config(app: ASGIApp, host: str, port: int, log_level: str = "info") -> uvicorn.Config:
    """uvicorn with the parts that do not depend on what else is installed."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level=log_level,
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def run_server(app: ASGIApp, host: str, port: int, log_level: str = "info") -> None:
    """Serve until interrupted; requests under way are finished first."""
    with suppress(KeyboardInterrupt):  # raised once more after the shutdown that it asked for
        uvicorn.Server(server_config(app, host, port, log_level)).run()
