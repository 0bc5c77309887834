"""The models that a server answers for: which one a request means, loaded when it is needed, unloaded to make room."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from fastcore.server.answers import RequestError

if TYPE_CHECKING:
    from fastcore.classify import TokenClassifier
    from fastcore.llm import LLM
    from fastcore.server.endpoint import Service

__all__ = ["ServedModel", "ServedModels"]


@dataclass(eq=False)
class ServedModel:
    """A model that requests may call by any of its names; the first is its own.

    load: opens it. is_classifier: what it will be. weight_bytes: that it needs when it is loaded. at_once: it is loaded
    with the application, rather than by its first request. stays: it is never unloaded, nor closed at the end.
    """

    names: Sequence[str]
    load: "Callable[[], TokenClassifier | LLM]"
    is_classifier: bool
    weight_bytes: int = 0
    at_once: bool = False
    stays: bool = False
    service: "Service | None" = field(default=None, init=False)
    users: int = field(default=0, init=False)  # requests that hold it
    last_used: float = field(default=0.0, init=False)  # monotonic
    _model: "TokenClassifier | LLM | None" = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("names is empty; expected at least one name for the model")

    @classmethod
    def loaded(cls, model: "TokenClassifier | LLM", names: Sequence[str]) -> "ServedModel":
        """One that somebody else has loaded, and closes."""
        from fastcore.classify import TokenClassifier

        return cls(names, lambda: model, isinstance(model, TokenClassifier), at_once=True, stays=True)

    def open(self, serve: "Callable[[ServedModel, TokenClassifier | LLM], Service]") -> None:
        self._model = self.load()
        self.service = serve(self, self._model)
        self.last_used = time.monotonic()

    def unload(self) -> Callable[[], None]:
        """No request gets it any more. What is returned waits for its work to end, and frees its memory."""
        service, model = self.service, self._model
        self.service = self._model = None

        def close() -> None:
            if service is not None:
                service.close()
            if model is not None and not self.stays:
                model.close()

        return close


class ServedModels:
    """All models of a server.

    serve: makes the service of a model that was loaded. paths: those that a classifier answers at, and a language
    model. max_weight_bytes: of all that are loaded at once; None is no bound.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        serve: "Callable[[ServedModel, TokenClassifier | LLM], Service]",
        paths: Callable[[ServedModel], Mapping[str, Any]],
        max_weight_bytes: int | None = None,
    ) -> None:
        self.names: dict[str, ServedModel] = {}
        for model in models:
            for name in model.names:
                if self.names.setdefault(name, model) is not model:
                    raise ValueError(f"two models are called {name!r}; give them names of their own")
            if max_weight_bytes is not None and model.weight_bytes > max_weight_bytes:
                raise ValueError(
                    f"{model.names[0]} needs {model.weight_bytes / 1e6:.0f} MB of weights, and all models together may "
                    f"have {max_weight_bytes / 1e6:.0f} MB"
                )
        self._models = list(models)
        self._serve = serve
        self._paths = paths
        self._max_weight_bytes = max_weight_bytes
        self._turn = anyio.Lock()  # to load: one at a time
        self._is_stopped = False
        for model in models:
            if model.at_once:
                model.open(serve)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    @property
    def active_requests(self) -> int:
        services = [model.service for model in self._models]
        return sum(int(service.status()["active_requests"]) for service in services if service is not None)

    def find(self, name: str | None, path: str) -> ServedModel:
        """The model of that name, or the first that answers at the path. Raises RequestError."""
        if name is None:
            return next(model for model in self._models if path in self._paths(model))
        model = self.names.get(name)
        if model is None:
            message = f"the model {name!r:.200} is not served here; served: {', '.join(self.names)}"
            raise RequestError(404, message, code="model_not_found", param="model")
        if path not in self._paths(model):
            answers = ", ".join(self._paths(model))
            raise RequestError(
                400, f"the model {name!r} does not answer at {path}; it does at {answers}", param="model"
            )
        return model

    async def acquire(self, model: ServedModel) -> "Service":
        """The service of a model, loaded if need be. It stays until `release`."""
        model.users += 1
        try:
            if model.service is None:
                async with self._turn:
                    if model.service is None:
                        await self._make_room(model)
                        await anyio.to_thread.run_sync(model.open, self._serve)
            service = model.service
            if service is None or self._is_stopped:
                raise RequestError(503, "the server is shutting down")
            return service
        except BaseException:
            model.users -= 1
            raise

    def release(self, model: ServedModel) -> None:
        model.users -= 1
        model.last_used = time.monotonic()

    async def _make_room(self, wanted: ServedModel) -> None:
        """Unload what has not been used for longest until the wanted model fits. Raises RequestError."""
        while self._max_weight_bytes is not None:
            loaded = [model for model in self._models if model.service is not None]
            used = sum(model.weight_bytes for model in loaded)
            if used + wanted.weight_bytes <= self._max_weight_bytes:
                return
            idle = [model for model in loaded if not model.users and not model.stays]
            if not idle:
                message = (
                    f"{wanted.names[0]} needs {wanted.weight_bytes / 1e6:.0f} MB of weights; models that are in use "
                    f"have {used / 1e6:.0f} of {self._max_weight_bytes / 1e6:.0f} MB; try again later"
                )
                raise RequestError(503, message)
            await anyio.to_thread.run_sync(min(idle, key=lambda model: model.last_used).unload())

    def stop(self) -> None:
        """End what is under way."""
        self._is_stopped = True
        for model in self._models:
            if model.service is not None:
                model.service.stop()

    def close(self) -> None:
        for model in self._models:
            model.unload()()
