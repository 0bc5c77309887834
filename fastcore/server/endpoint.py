"""One request: its body read, the work done, failures told, and the end when its client or the server goes."""

import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from fastcore.engine.scheduler import Results
from fastcore.server.answers import RequestError, error_response, request_error
from fastcore.server.bodies import Bodies
from fastcore.server.served import ServedModels

__all__ = ["Endpoint", "Handler", "Room", "Service", "Stopping", "collect", "until_gone"]

THREADS = 64  # requests at work at once; more wait for their turn

T = TypeVar("T")
F = TypeVar("F", bound=msgspec.Struct)

SUBJECTS = ("prompt", "messages", "input", "sequences", "query", "tokens")  # fields that hold what a model reads


@dataclass(frozen=True)
class Handler(Generic[F]):
    """What answers at a path.

    fields: a struct that has `model`; ignored: names of further ones that cannot change the answer; refused: name ->
    why. answer: called with the model's service, the request, its fields, and the name that it calls the model by.
    """

    fields: type[F]
    answer: Callable[[Any, Request, F, str], Awaitable[ASGIApp]]
    ignored: Collection[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def field_of(self, message: str) -> str | None:
        """The field that an error of the model is about: its message begins with it, or it is what the model reads."""
        names = self.fields.__struct_fields__
        first = message.partition(" ")[0].rstrip(":")
        return first if first in names else next((name for name in SUBJECTS if name in names), None)


class Service(Protocol):
    """A loaded model, as its endpoints use it.

    status: numbers of the moment, among them active_requests; facts: what /v1/models says. stop: end what is under way.
    """

    def status(self) -> dict[str, float]: ...

    def facts(self) -> dict[str, Any]: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


class Room:
    """For requests that run in threads: how many of them may be under way or waiting."""

    def __init__(self, max_requests: int) -> None:
        self.threads = anyio.CapacityLimiter(THREADS)
        self.taken = 0
        self._max_requests = max_requests

    @contextmanager
    def place(self) -> Iterator[None]:
        if self.taken >= self._max_requests:
            raise RequestError(429, f"{self.taken} requests are under way or waiting; try again later")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


class Stopping:
    """Requests under way that end with 503 when the server stops before they are answered."""

    def __init__(self) -> None:
        self.is_set = False
        self._scopes: set[anyio.CancelScope] = set()

    async def answered(self, work: Callable[[], Awaitable[ASGIApp]]) -> ASGIApp:
        """What `work` answers. Raises RequestError when the server stops first."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                if not self.is_set:
                    return await work()
            finally:
                self._scopes.discard(scope)
        raise RequestError(503, "the server is shutting down")

    def set(self) -> None:
        self.is_set = True
        for scope in list(self._scopes):
            scope.cancel()


class Endpoint:
    """An ASGI application for one path of POST requests, answered by the model that each of them names."""

    def __init__(
        self, path: str, handler: Handler[Any], bodies: Bodies, models: ServedModels, stopping: Stopping
    ) -> None:
        self._path = path
        self._handler = handler
        self._bodies = bodies
        self._models = models
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        with ExitStack() as held:  # the model, until the answer is sent
            try:
                response = await self._stopping.answered(lambda: self._answer(request, held))
            except Exception as error:
                response = error_response(request_error(error, self._handler.field_of))
            await response(scope, receive, send)

    async def _answer(self, request: Request, held: ExitStack) -> ASGIApp:
        handler = self._handler
        fields = await self._bodies.read(request, handler.fields, handler.ignored, handler.refused)
        model = self._models.find(fields.model, self._path)
        service = await self._models.acquire(model)
        held.callback(self._models.release, model)
        return await handler.answer(service, request, fields, fields.model or model.names[0])


async def collect(
    request: Request,
    results: Results[T],
    limiter: anyio.CapacityLimiter,
    check: Callable[[T], None] = lambda result: None,
) -> list[T]:
    """All results, worked out in a thread. The work is given up, within a step, when the client goes.

    check: raises for a result after which there is to be none.
    """
    gone = threading.Event()
    collected: list[T] = []

    def work() -> None:
        try:
            for result in results:
                check(result)
                collected.append(result)
        finally:
            results.close()

    async def watch() -> None:
        try:
            await until_gone(request.receive, gone.set)
        finally:  # the client has gone, the server stops, or the work is done
            results.leave()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        error = await anyio.to_thread.run_sync(_caught, work, limiter=limiter)
        group.cancel_scope.cancel()
    if error is not None:
        raise error
    if gone.is_set():
        raise RequestError(400, "the client went away")
    return collected


async def until_gone(receive: Receive, then: Callable[[], None]) -> None:
    """Wait until the client has gone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
    then()


def _caught(work: Callable[[], None]) -> Exception | None:
    """What went wrong; inside a task group it would come out wrapped."""
    try:
        work()
    except Exception as error:
        return error
    return None
