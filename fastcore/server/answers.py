"""What goes back: JSON, and every failure as a status with OpenAI's error object. Here alone errors become statuses."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from fastcore.errors import CacheFullError, ChatTemplateError, CheckpointError, ContextLengthError, Error, ForkError

__all__ = ["RequestError", "error_body", "error_response", "json_bytes", "json_response", "request_error"]

log = logging.getLogger("fastcore.server")

INTERNAL = "internal error; the server's log has the details"


class RequestError(Exception):
    """A request that cannot be answered.

    status: of HTTP. code: OpenAI's word for the kind, if it has one. param: the field at fault.
    """

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


def request_error(error: BaseException) -> RequestError:
    """What a client is told of any failure. What is not one of ours goes to the log."""
    message = " ".join(str(error).split())
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ContextLengthError | CacheFullError):  # it would not fit if it were alone
        return RequestError(400, message, code="context_length_exceeded")
    if isinstance(error, ChatTemplateError):
        return RequestError(400, message, param="messages")
    if isinstance(error, MemoryError):
        return RequestError(503, message if isinstance(error, Error) else "there is no memory left for this request")
    if isinstance(error, CheckpointError | ForkError):
        return RequestError(500, message)
    if isinstance(error, RecursionError):
        return RequestError(400, "the body has too many lists and objects in one another")
    if isinstance(error, OverflowError):
        return RequestError(400, f"a number of the request is too large: {message}")
    if isinstance(error, ValueError):
        return RequestError(400, message)
    if isinstance(error, Error):
        return RequestError(500, message)
    log.error("a request failed", exc_info=error)
    return RequestError(500, INTERNAL)


def error_body(error: RequestError) -> dict[str, Any]:
    kinds = {429: "rate_limit_error"}
    kind = kinds.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def error_response(error: RequestError, headers: Mapping[str, str] | None = None) -> Response:
    if error.status in (408, 413):  # the rest of the body is not wanted
        headers = {**(headers or {}), "Connection": "close"}
    if error.status in (429, 503):
        headers = {**(headers or {}), "Retry-After": "1"}
    return json_response(error_body(error), error.status, headers)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(value), status, headers, "application/json")


def json_bytes(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")  # a lone surrogate becomes its JSON escape
