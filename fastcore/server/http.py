"""One request: its body read within limits, its fields checked, the work done in a thread, failures told as JSON."""

import json
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fastcore.engine.scheduler import Results
from fastcore.errors import Error

__all__ = [
    "Body",
    "Endpoint",
    "Handler",
    "Limits",
    "RequestError",
    "Service",
    "collect",
    "error_body",
    "error_response",
    "json_bytes",
    "json_response",
    "until_gone",
]

T = TypeVar("T")
log = logging.getLogger("fastcore.server")


class RequestError(Exception):
    """A request that cannot be answered: the HTTP status, and a message for who sent it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """What a request's body may take."""

    max_body_bytes: int
    body_seconds: float


# ---------------------------------------------------------------- answers


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(value), status, headers, "application/json")


def json_bytes(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")  # a lone surrogate becomes its JSON escape


def error_response(error: RequestError, headers: Mapping[str, str] | None = None) -> Response:
    return json_response(error_body(error), error.status, headers)


def error_body(error: RequestError) -> dict[str, Any]:
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {"error": {"message": str(error), "type": kind, "code": error.status}}


# ---------------------------------------------------------------- requests


class Body:
    """The JSON object of a request. Each field is taken once; `finish` refuses what is left."""

    def __init__(self, raw: bytes) -> None:
        try:
            value = json.loads(raw, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise RequestError(400, f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise RequestError(400, f"the body is a JSON {_kind(value)}; expected an object")
        self._fields: dict[str, Any] = value

    def __contains__(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def take(self, name: str) -> Any:
        """The field's value; None where it is absent or null."""
        return self._fields.pop(name, None)

    def string(self, name: str, default: str | None = None) -> str | None:
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise RequestError(400, f"{name} is a JSON {_kind(value)}; expected a string")
        return default if value is None else value

    def number(self, name: str, default: float) -> float:
        value = self.take(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise RequestError(400, f"{name} is a JSON {_kind(value)}; expected a number")
        return default if value is None else value

    def integer(self, name: str) -> int | None:
        value = self.take(name)
        if value is not None and type(value) is not int:
            raise RequestError(400, f"{name} is a JSON {_kind(value)}; expected a whole number")
        return value

    def boolean(self, name: str) -> bool:
        """False where it is absent or null."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise RequestError(400, f"{name} is a JSON {_kind(value)}; expected true or false")
        return value is True

    def strings(self, name: str) -> list[str] | None:
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise RequestError(400, f"{name} is a JSON {_kind(value)}; expected a list of strings")
        for i, item in enumerate(value):
            if not isinstance(item, str):
                raise RequestError(400, f"{name}[{i}] is a JSON {_kind(item)}; expected a string")
        return value

    def finish(self) -> None:
        if self._fields:
            raise RequestError(400, f"unknown field {', '.join(map(repr, sorted(self._fields)))}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {bool: "boolean", str: "string", list: "list", dict: "object"}
    return names.get(type(value), "number")


Handler = Callable[[Request, Body, str], Awaitable[ASGIApp]]  # with the name that the request calls the model by


class Service(Protocol):
    """What a kind of model brings to the server: handlers by path, facts for /health, and an end."""

    @property
    def handlers(self) -> Mapping[str, Handler]: ...

    def status(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class Endpoint:
    """An ASGI application for one POST endpoint."""

    def __init__(self, handler: Handler, limits: Limits, names: Sequence[str]) -> None:
        self._handler = handler
        self._limits = limits
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response = await self._respond(request)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> ASGIApp:
        try:
            body = Body(await read_body(request, self._limits))
            return await self._handler(request, body, self._model(body.string("model")))
        except RequestError as error:
            headers = {"Connection": "close"} if error.status in (408, 413) else None
            return error_response(error, headers)
        except (Error, ValueError) as error:
            status = 400 if isinstance(error, ValueError) else 500
            return error_response(RequestError(status, str(error)))
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            return error_response(RequestError(500, "internal error; the server's log has the details"))

    def _model(self, name: str | None) -> str:
        if name is None:
            return self._names[0]
        if name not in self._names:
            raise RequestError(404, f"the model {name!r} is not served here; served: {', '.join(self._names)}")
        return name


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body. One that is too large is read to its end and thrown away: its sender listens only then."""
    header = request.headers.get("content-length", "")
    declared = int(header) if header.isdecimal() else 0
    too_large = RequestError(413, f"the body is larger than {limits.max_body_bytes} bytes")
    if declared > limits.max_body_bytes and "100-continue" in request.headers.get("expect", "").lower():
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        with anyio.fail_after(limits.body_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if max(size, declared) <= limits.max_body_bytes:
                    chunks.append(chunk)
                else:
                    chunks.clear()
    except TimeoutError:
        if max(size, declared) > limits.max_body_bytes:
            raise too_large from None
        raise RequestError(408, f"the body did not come within {limits.body_seconds:g} seconds") from None
    except ClientDisconnect:
        raise RequestError(400, f"the body ended after {size} of {declared} bytes") from None
    if max(size, declared) > limits.max_body_bytes:
        raise too_large
    return b"".join(chunks)


async def collect(request: Request, results: Results[T]) -> list[T]:
    """All results, worked out in a thread. The work is given up, within a step, when the client goes."""
    gone = threading.Event()
    collected: list[T] = []

    def work() -> None:
        try:
            for result in results:
                collected.append(result)
        finally:
            results.close()

    def leave() -> None:
        gone.set()
        results.leave()

    async with anyio.create_task_group() as group:
        group.start_soon(until_gone, request.receive, leave)
        error = await anyio.to_thread.run_sync(_caught, work)
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
