"""A request's body: read within limits, and decoded into a msgspec struct whose types say what each field may be.

In a struct of fields every field may be null, which is the same as absent whatever its name.
"""

import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn, TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import ClientDisconnect, Request

from fastcore.server.answers import RequestError
from fastcore.server.limits import RequestLimits

__all__ = ["Bodies", "decode"]

T = TypeVar("T", bound=msgspec.Struct)

SMALL_BYTES = 1 << 16  # decoded where it is; larger ones take turns in a thread
WORDS = {
    "int": "a whole number", "float": "a number", "str": "a string", "bool": "true or false", "array": "a list",
    "object": "an object",
}  # fmt: skip
KINDS = {"int": "number", "float": "number", "str": "string", "bool": "boolean", "array": "list"}


class Bodies:
    """Reads bodies for all endpoints, so that together they stay within limits too."""

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self._pending = 0  # bytes
        self._turns = anyio.CapacityLimiter(1)

    async def read(self, request: Request, fields: type[T], ignored: Collection[str], refused: Mapping[str, str]) -> T:
        """The fields of a request; see `decode`."""
        held = _Held(self)
        try:
            raw = await self._read(request, held)
            if len(raw) <= SMALL_BYTES:
                return decode(raw, fields, ignored, refused)

            def work() -> T:
                _check_size(raw, self.limits.max_json_values)
                return decode(raw, fields, ignored, refused)

            return await anyio.to_thread.run_sync(work, limiter=self._turns)
        finally:
            held.release()

    async def _read(self, request: Request, held: "_Held") -> bytes:
        """The whole body. One that is too large is read to its end and thrown away: its sender listens only then."""
        limits = self.limits
        header = request.headers.get("content-length", "")
        declared = int(header) if header.isdecimal() and len(header) < 20 else 0
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
                        held.add(len(chunk))
                        chunks.append(chunk)
                    else:
                        chunks.clear()
                        held.release()
        except TimeoutError:
            if max(size, declared) > limits.max_body_bytes:
                raise too_large from None
            raise RequestError(408, f"the body did not come within {limits.body_seconds:g} seconds") from None
        except ClientDisconnect:
            raise RequestError(400, f"the body ended after {size} of {declared} bytes") from None
        if max(size, declared) > limits.max_body_bytes:
            raise too_large
        return b"".join(chunks)


class _Held:
    """Bytes that one request has of those that all may have."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._count = 0

    def add(self, count: int) -> None:
        self._count += count
        self._bodies._pending += count
        if self._bodies._pending > self._bodies.limits.max_pending_bytes:
            raise RequestError(503, "the bodies of other requests take all the room there is; try again later")

    def release(self) -> None:
        self._bodies._pending -= self._count
        self._count = 0


def decode(raw: bytes, fields: type[T], ignored: Collection[str] = (), refused: Mapping[str, str] | None = None) -> T:
    """The JSON object as `fields`. Its other fields are refused unless null or ignored; refused: name -> why.

    Raises RequestError, which names the field.
    """
    try:
        try:
            names = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
            _check_names(
                [name for name, value in names.items() if bytes(value) != b"null"], fields, ignored, refused or {}
            )
            return msgspec.json.decode(raw, type=fields)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if _SURROGATE.search(raw) is None:
                raise
        values = json.loads(raw, parse_constant=_no_constant)  # reads half a surrogate pair, which msgspec does not
        if isinstance(values, dict):
            _check_names([name for name, value in values.items() if value is not None], fields, ignored, refused or {})
        return msgspec.convert(values, fields)
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from None
    except ValueError as error:
        raise RequestError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        message = "the body is not JSON that can be read: its lists and objects lie too deep"
        raise RequestError(400, message, code="invalid_json") from None


def _explained(message: str) -> RequestError:
    """msgspec's message in our words, with the field that it is about."""
    problem, _, path = message.partition(" - at `")
    path = path.rstrip("`").removeprefix("$").removeprefix(".")
    where = path or "the body"
    param = re.split(r"[.\[]", path)[0] or None
    found = re.fullmatch(r"Expected `(.*)`, got `(.*)`", problem)
    if found is None:
        code = "unknown_parameter" if "unknown field" in problem else None
        return RequestError(400, f"{where}: {problem}", code=code, param=param)
    expected = [WORDS.get(word, word) for word in found[1].split(" | ") if word != "null"]
    told = f"{where} is a JSON {KINDS.get(found[2], found[2])}; expected {' or '.join(expected)}"
    return RequestError(400, told, code="invalid_type", param=param)


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _check_names(
    given: Iterable[str], fields: type[msgspec.Struct], ignored: Collection[str], refused: Mapping[str, str]
) -> None:
    for name in given:
        if name not in fields.__struct_fields__ and name not in ignored:
            why = refused.get(name)
            message = f"unknown field {name!r:.80}" if why is None else f"{name} is not supported here: {why}"
            code = "unknown_parameter" if why is None else "unsupported_parameter"
            raise RequestError(400, message, code=code, param=name[:80])


def _check_size(raw: bytes, max_values: int) -> None:
    """Refuse what would become very many objects, before any is made."""

    def count(text: bytes) -> int:
        return text.count(b",") + text.count(b"[") + text.count(b"{")

    if count(raw) > max_values and count(_STRING.sub(b"", raw)) > max_values:
        raise RequestError(400, f"the body holds more than {max_values} values")


_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"' if sys.version_info >= (3, 11) else rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
