"""The application: which endpoints models bring, and what all of them share: limits, doors, and refusals as JSON."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

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
from fastcore.server.embeddings import EMBEDDINGS
from fastcore.server.endpoint import Endpoint, Handler, Service, Stopping
from fastcore.server.guard import Guard
from fastcore.server.limits import RequestLimits
from fastcore.server.metrics import Metrics, RequestMetrics
from fastcore.server.openai import OpenAIService
from fastcore.server.page import page
from fastcore.server.pii import PiiService
from fastcore.server.responses import RESPONSES
from fastcore.server.served import ServedModel, ServedModels
from fastcore.server.tokens import TOKENS

if TYPE_CHECKING:
    from fastcore.classify import TokenClassifier
    from fastcore.engine.sampling_params import SamplingParams
    from fastcore.llm import LLM

__all__ = ["create_app"]


def create_app(
    models: "TokenClassifier | LLM | Sequence[ServedModel]",
    names: Sequence[str] = (),
    *,
    api_key: str | None = None,
    cors_origins: Sequence[str] = (),
    allowed_hosts: Sequence[str] = (),
    use_generation_config: bool = True,
    limits: RequestLimits | None = None,
    max_body_bytes: int | None = None,
    body_seconds: float | None = None,
    max_weight_bytes: int | None = None,
    pii_guard: bool = False,
) -> Starlette:
    """An ASGI application that serves models: scores and masks of classifiers, completions of language models.

    models: one that is loaded, which requests may call by `names` (the first is its own); or several, loaded when a
    request needs them. max_weight_bytes: of those that are loaded at once.
    api_key: wanted in every request as `Authorization: Bearer ...`, but for /health and the page at /.
    cors_origins: web pages from these origins ("*": any) may call; none by default.
    allowed_hosts: names beside localhost that requests to a loopback address may have in their header Host.
    use_generation_config: sample as the checkpoint's generation_config.json says, where a request does not say how.
    pii_guard: mask personal data of every chat by the first classifier, rather than where a request asks for it.
    limits: of requests; max_body_bytes and body_seconds replace two of them.
    """
    limits = limits or RequestLimits()
    if max_body_bytes is not None:
        limits = replace(limits, max_body_bytes=max_body_bytes)
    if body_seconds is not None:
        limits = replace(limits, body_seconds=body_seconds)
    metrics = Metrics()
    given = models if isinstance(models, Sequence) else [ServedModel.loaded(models, names)]
    classifier = next((model for model in given if model.is_classifier), None)
    if pii_guard and classifier is None:
        raise ValueError("pii_guard needs a token classifier among the models")
    guard = None if classifier is None else Guard(lambda: served, classifier, pii_guard)

    def serve(served: ServedModel, model: "TokenClassifier | LLM") -> Service:
        if served.is_classifier:
            return PiiService(cast("TokenClassifier", model), limits)
        llm, done = cast("LLM", model), partial(metrics.completed, served.names[0])
        return OpenAIService(llm, limits, _sampling_defaults(llm, use_generation_config), done, guard)

    served = ServedModels(given, serve, handlers_of, max_weight_bytes)
    metrics.watch(served)
    bodies, stopping = Bodies(limits), Stopping()
    created = int(time.time())
    front = page()

    async def show_page(request: Request) -> Response:
        return front

    def facts(name: str) -> dict[str, Any]:
        model = served.names[name]
        facts: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "fastcore"}
        facts["kind"] = "token_classifier" if model.is_classifier else "language_model"
        return facts | {"loaded": False} if model.service is None else facts | {"loaded": True, **model.service.facts()}

    async def health(request: Request) -> Response:
        return json_response({"status": "ok", "active_requests": served.active_requests})

    async def list_models(request: Request) -> Response:
        return json_response({"object": "list", "data": [facts(name) for name in served.names]})

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in served.names:
            message = f"the model {name!r:.200} is not served here; served: {', '.join(served.names)}"
            return error_response(RequestError(404, message, code="model_not_found", param="model"))
        return json_response(facts(name))

    async def numbers(request: Request) -> Response:
        return metrics.page()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        served.stop()
        await anyio.to_thread.run_sync(served.close)

    handlers = {path: handler for model in served for path, handler in handlers_of(model).items()}
    routes = [
        Route("/", show_page, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", numbers, methods=["GET"]),
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", one_model, methods=["GET"]),
        *(
            Route(path, Endpoint(path, handler, bodies, served, stopping), methods=["POST"])
            for path, handler in handlers.items()
        ),
    ]
    middleware = [Middleware(RequestMetrics, metrics=metrics, paths=[route.path for route in routes])]
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
        routes=routes, middleware=middleware, exception_handlers={HTTPException: _refusal}, lifespan=lifespan
    )
    app.router.redirect_slashes = False  # a redirect would repeat whatever the header Host says
    app.state.stop = _stop(served, stopping)
    app.state.models = served
    return app


def handlers_of(model: ServedModel) -> Mapping[str, Handler[Any]]:
    """What answers at which path."""
    return (PiiService.handlers if model.is_classifier else OpenAIService.handlers | RESPONSES | EMBEDDINGS) | TOKENS


def _stop(models: ServedModels, stopping: Stopping) -> Callable[[], None]:
    """Tell every client whose request is under way that the server ends, and turn away those that still come."""

    def stop() -> None:
        stopping.set()
        models.stop()

    return stop


def _sampling_defaults(llm: "LLM", use_generation_config: bool) -> "SamplingParams":
    """Temperature 1 as OpenAI has it, unless the checkpoint recommends something."""
    from fastcore.engine.sampling_params import SamplingParams

    generation = llm.config.generation if use_generation_config else {}
    defaults = SamplingParams.from_generation_config(generation)
    says = generation.get("temperature") is not None or generation.get("do_sample") is not None
    return defaults if says else defaults.replace(temperature=1.0)


async def _refusal(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path (404), another method (405)."""
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return error_response(RequestError(error.status_code, detail), error.headers)
