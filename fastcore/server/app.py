"""The application: which endpoints a model brings, and what all of them share: keys, CORS, and refusals as JSON."""

import hmac
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fastcore.server.http import Endpoint, Limits, RequestError, Service, error_response, json_response

if TYPE_CHECKING:
    from fastcore.classify import TokenClassifier
    from fastcore.llm import LLM

__all__ = ["create_app"]

OPEN_PATHS = ("/health",)  # asked for by machinery that has no key


def create_app(
    model: "TokenClassifier | LLM",
    names: Sequence[str],
    *,
    api_key: str | None = None,
    cors_origins: Sequence[str] = (),
    max_body_bytes: int = 16 << 20,
    body_seconds: float = 30.0,
) -> Starlette:
    """An ASGI application that serves one model: scores and masks of a classifier, completions of a language model.

    names: those that requests may call it by; the first is its own.
    api_key: wanted in every request as `Authorization: Bearer ...`, but for /health.
    cors_origins: web pages from these origins ("*": any) may call; none by default.
    max_body_bytes, body_seconds: a request whose body is larger gets 413, one whose body takes longer 408.
    """
    if not names:
        raise ValueError("names is empty; expected at least one name for the model")
    limits = Limits(max_body_bytes, body_seconds)
    service = _service(model)

    async def health(request: Request) -> Response:
        return json_response({"status": "ok", **service.status()})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await anyio.to_thread.run_sync(service.close)

    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/v1/models", _Models(names), methods=["GET"]),
        *(
            Route(path, Endpoint(handler, limits, names), methods=["POST"])
            for path, handler in service.handlers.items()
        ),
    ]
    middleware = []
    if cors_origins:  # outermost: a preflight request carries no key, and refusals need the CORS headers too
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )
        )
    if api_key is not None:
        middleware.append(Middleware(_ApiKey, api_key=api_key))
    return Starlette(
        routes=routes, middleware=middleware, exception_handlers={HTTPException: _refusal}, lifespan=lifespan
    )


def _service(model: "TokenClassifier | LLM") -> Service:
    from fastcore.classify import TokenClassifier

    if isinstance(model, TokenClassifier):
        from fastcore.server.pii import PiiService

        return PiiService(model)
    from fastcore.server.openai import OpenAIService

    return OpenAIService(model)


class _Models:
    def __init__(self, names: Sequence[str]) -> None:
        created = int(time.time())
        self._list = [{"id": name, "object": "model", "created": created, "owned_by": "fastcore"} for name in names]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await json_response({"object": "list", "data": self._list})(scope, receive, send)


async def _refusal(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path (404), another method (405)."""
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path}: {error.detail}"
    return error_response(RequestError(error.status_code, detail), error.headers)


class _ApiKey:
    """Lets only requests with the key through."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                error = RequestError(401, "the header `Authorization: Bearer KEY` is missing, or its key is wrong")
                await error_response(error, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
                return
        await self._app(scope, receive, send)
