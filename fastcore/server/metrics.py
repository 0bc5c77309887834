"""/metrics: what the server does, in numbers that Prometheus collects. No text of any request is among them."""

import time
from collections.abc import Collection, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastcore.engine.request import Request
from fastcore.server.served import ServedModels

__all__ = ["Metrics", "RequestMetrics"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)  # bounds of histograms


class Metrics:
    """Counters of one application."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        requests = "HTTP requests that were answered"
        self.requests = Counter("fastcore_requests", requests, ["path", "status"], registry=self._registry)
        self.seconds = self._histogram("fastcore_request_seconds", "From a request's head to its answer's end", "path")
        of_model = {"labelnames": ["model"], "registry": self._registry}
        self._prompt = Counter("fastcore_prompt_tokens", "Tokens of prompts", **of_model)
        self._cached = Counter("fastcore_cached_tokens", "Of these, tokens found in the prefix cache", **of_model)
        self._new = Counter("fastcore_completion_tokens", "Tokens that were generated", **of_model)
        self._finished = Counter(
            "fastcore_completions", "Completions that ended", ["model", "finish_reason"], registry=self._registry
        )
        self._first = self._histogram("fastcore_first_token_seconds", "From a prompt to its first new token", "model")

    def watch(self, models: ServedModels) -> None:
        """Report the models' own numbers too."""
        self._registry.register(_Gauges(models))

    def completed(self, model: str, request: Request) -> None:
        """Count a completion that has ended, from any thread."""
        self._prompt.labels(model).inc(len(request.prompt_token_ids))
        self._cached.labels(model).inc(request.cached_tokens)
        self._new.labels(model).inc(len(request.token_ids))
        self._finished.labels(model, request.finish_reason).inc()
        if request.first_token is not None:
            self._first.labels(model).observe(request.first_token - request.submitted)

    def page(self) -> Response:
        return Response(generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _histogram(self, name: str, what: str, label: str) -> Histogram:
        return Histogram(name, what, [label], registry=self._registry, buckets=SECONDS)


class _Gauges(Collector):  # type: ignore[misc]
    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def collect(self) -> Iterator[GaugeMetricFamily]:
        loaded = GaugeMetricFamily("fastcore_model_loaded", "Whether a model is in memory", labels=["model"])
        numbers: dict[str, GaugeMetricFamily] = {}
        for model in self._models:
            service = model.service
            loaded.add_metric([model.names[0]], float(service is not None))
            for name, value in (service.status() if service is not None else {}).items():
                gauge = numbers.setdefault(
                    name, GaugeMetricFamily(f"fastcore_{name}", name.replace("_", " "), labels=["model"])
                )
                gauge.add_metric([model.names[0]], value)
        yield loaded
        yield from numbers.values()


class RequestMetrics:
    """Counts requests and their seconds. paths: those that have a name of their own; others share one."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else "other"
        start, status = time.perf_counter(), "none"

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._metrics.requests.labels(path, status).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - start)
