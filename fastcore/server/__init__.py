"""The HTTP server: `create_app` makes it around a model, `fastcore serve` runs it. Needs the extra `serve`."""

from fastcore.errors import MissingPackageError

try:
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise MissingPackageError("the server needs starlette and uvicorn: pip install 'fastcore-engine[serve]'") from error

from fastcore.server.app import create_app
from fastcore.server.run import run_server

__all__ = ["create_app", "run_server"]
