"""The HTTP server: `create_app` makes it around a model, `fastcore serve` runs it. Needs the extra `serve`."""

from fastcore.errors import MissingPackageError

try:
    import msgspec  # noqa: F401
    import prometheus_client  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise MissingPackageError(
        "the server needs msgspec, prometheus-client, starlette and uvicorn: pip install 'fastcore-engine[serve]'"
    ) from error

from fastcore.server.app import create_app
from fastcore.server.limits import RequestLimits
from fastcore.server.run import ServerOptions, bound, run_server
from fastcore.server.served import ServedModel

__all__ = ["RequestLimits", "ServedModel", "ServerOptions", "bound", "create_app", "run_server"]
