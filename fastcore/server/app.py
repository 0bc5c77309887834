"""The application: which endpoints a model brings, and what all of them share: limits, doors, and refusals as JSON."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fastcore.server.answers import RequestError, error_response, json_response
from fastcore.server.bodies import Bodies
from fastcore.server.doors import ApiKey, JsonOnly, LoopbackGuard
from fastcore.server.endpoint import Endpoint, Service, Stopping
from fastcore.server.limits import RequestLimits

if TYPE_CHECKING:
    from fastcore.classify import TokenClassifier
    from fastcore.engine.sampling_params import SamplingParams
    from fastcore.llm import LLM

__all__ = ["create_app"]


def create_app(
    model: "TokenClassifier | LLM",
    names: Sequence[str],
    *,
    api_key: str | None = None,
    cors_origins: Sequence[str] = (),
    allowed_hosts: Sequence[str] = (),
    use_generation_config: bool = True,
    limits: RequestLimits | None = None,
    max_body_bytes: int | None = None,
    body_seconds: float | None = None,
) -> Starlette:
    """An ASGI application that serves one model: scores and masks of a classifier, completions of a language model.

    names: those that requests may call it by; the first is its own.
    api_key: wanted in every request as `Authorization: Bearer ...`, but for /health.
    cors_origins: web pages from these origins ("*": any) may call; none by default.
    allowed_hosts: names beside localhost that requests to a loopback address may have in their header Host.
    use_generation_config: sample as the checkpoint's generation_config.json says, where a request does not say how.
    limits: of requests; max_body_bytes and body_seconds replace two of them.
    """
    if not names:
        raise ValueError("names is empty; expected at least one name for the model")
    limits = limits or RequestLimits()
    if max_body_bytes is not None:
        limits = replace(limits, max_body_bytes=max_body_bytes)
    if body_seconds is not None:
        limits = replace(limits, body_seconds=body_seconds)
    service = _service(model, limits, use_generation_config)
    bodies, stopping = Bodies(limits), Stopping()
    models = _models(names, service)

    async def health(request: Request) -> Response:
        return json_response({"status": "ok", **service.status()})

    async def list_models(request: Request) -> Response:
        return json_response({"object": "list", "data": list(models.values())})

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in models:
            message = f"the model {name!r:.200} is not served here; served: {', '.join(names)}"
            return error_response(RequestError(404, message, code="model_not_found", param="model"))
        return json_response(models[name])

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        service.stop()
        await anyio.to_thread.run_sync(service.close)

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
    middleware.append(Middleware(LoopbackGuard, hosts=allowed_hosts, origins=cors_origins))
    if api_key is not None:
        middleware.append(Middleware(ApiKey, api_key=api_key))
    middleware.append(Middleware(JsonOnly))
    app = Starlette(
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/v1/models", list_models, methods=["GET"]),
            Route("/v1/models/{name:path}", one_model, methods=["GET"]),
            *(
                Route(path, Endpoint(handler, bodies, names, stopping), methods=["POST"])
                for path, handler in service.handlers.items()
            ),
        ],
        middleware=middleware,
        exception_handlers={HTTPException: _refusal},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirect would repeat whatever the header Host says
    app.state.stop = _stop(service, stopping)
    return app


def _stop(service: Service, stopping: Stopping) -> Callable[[], None]:
    """Tell every client whose request is under way that the server ends, and turn away those that still come."""

    def stop() -> None:
        stopping.set()
        service.stop()

    return stop


def _service(model: "TokenClassifier | LLM", limits: RequestLimits, use_generation_config: bool) -> Service:
    from fastcore.classify import TokenClassifier

    if isinstance(model, TokenClassifier):
        from fastcore.server.pii import PiiService

        return PiiService(model, limits)
    from fastcore.server.openai import OpenAIService

    return OpenAIService(model, limits, _sampling_defaults(model, use_generation_config))


def _sampling_defaults(llm: "LLM", use_generation_config: bool) -> "SamplingParams":
    """Temperature 1 as OpenAI has it, unless the checkpoint recommends something."""
    from fastcore.engine.sampling_params import SamplingParams

    generation = llm.config.generation if use_generation_config else {}
    defaults = SamplingParams.from_generation_config(generation)
    says = generation.get("temperature") is not None or generation.get("do_sample") is not None
    return defaults if says else defaults.replace(temperature=1.0)


def _models(names: Sequence[str], service: Service) -> dict[str, dict[str, object]]:
    created = int(time.time())
    return {
        name: {"id": name, "object": "model", "created": created, "owned_by": "fastcore", **service.facts()}
        for name in names
    }


async def _refusal(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path (404), another method (405)."""
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return error_response(RequestError(error.status_code, detail), error.headers)
