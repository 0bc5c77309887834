"""What goes back: JSON, and every failure as a status with OpenAI's error object. Here alone errors become statuses."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import Response

from fastcore.errors import CacheFullError, ChatTemplateError, CheckpointError, ContextLengthError, Error, ForkError

__all__ = ["RequestError", "error_body", "error_response", "json_bytes", "json_response", "request_error"]

log = logging.getLogger("fastcore.server")

INTERNAL = "internal error; the server's log has the details"


CODES = {
    400: "invalid_value", 401: "invalid_api_key", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
    408: "request_timeout", 413: "request_too_large", 415: "unsupported_media_type", 421: "misdirected_request",
    429: "rate_limit_exceeded", 500: "server_error", 503: "service_unavailable",
}  # fmt: skip


class RequestError(Exception):
    """A request that cannot be answered.

    status: of HTTP. code: OpenAI's word for the kind; None is the status's own. param: the field at fault, if one is.
    """

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code or CODES.get(status)
        self.param = param


def request_error(error: BaseException, field_of: Callable[[str], str | None] = lambda message: None) -> RequestError:
    """What a client is told of any failure. What is not one of ours goes to the log.

    field_of: the field that a message of the model is about.
    """
    message = " ".join(str(error).split())
    param = field_of(message)
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ContextLengthError | CacheFullError):  # it would not fit if it were alone
        told = f"this model's maximum context length is exceeded: {message}"  # words that clients look for
        return RequestError(400, told, code="context_length_exceeded", param=param)
    if isinstance(error, ChatTemplateError):
        names = {"tools": "tools", "template_kwargs": "chat_template_kwargs"}
        return RequestError(400, message, param=names.get(message.split()[0].partition("[")[0], "messages"))
    if isinstance(error, MemoryError):
        return RequestError(503, message if isinstance(error, Error) else "there is no memory left for this request")
    if isinstance(error, CheckpointError | ForkError):
        return RequestError(500, message)
    if isinstance(error, RecursionError):
        return RequestError(400, "the body has too many lists and objects in one another", param=param)
    if isinstance(error, OverflowError):
        return RequestError(400, f"a number of the request is too large: {message}", param=param)
    if isinstance(error, ValueError):
        return RequestError(400, message, param=param)
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
