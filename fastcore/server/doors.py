"""Who may come in: keys, and, on this machine's own address, only what cannot be a web page of somebody else's.

A page in a browser reaches servers on the loopback address, under a name of its own when it has one point there. So
there only known hosts are served, no foreign origin, and no POST of the kinds that a browser sends unasked.
"""

import hmac
import ipaddress
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from fastcore.server.answers import RequestError, error_response

__all__ = ["ApiKey", "JsonOnly", "LoopbackGuard"]

OPEN_PATHS = ("/", "/health")  # the page, which asks for the key; and what machinery asks that has none


class ApiKey:
    """Lets only requests with the key through."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            scheme, _, key = _headers(scope).get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._expected):
                message = "the header `Authorization: Bearer KEY` is missing, or its key is wrong"
                error = RequestError(401, message, code="invalid_api_key")
                await error_response(error, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
                return
        await self._app(scope, receive, send)


class JsonOnly:
    """Refuses a POST whose body says it is no JSON. One that says nothing does not come from a page of elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            headers = _headers(scope)
            given = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            is_json = given == b"application/json" or (given.startswith(b"application/") and given.endswith(b"+json"))
            if not is_json and (given or b"origin" in headers or b"sec-fetch-site" in headers):
                message = "the body must be JSON, with the header `Content-Type: application/json`"
                await error_response(RequestError(415, message))(scope, receive, send)
                return
        await self._app(scope, receive, send)


class LoopbackGuard:
    """On a loopback address, serves known hosts and origins alone."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str]) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._origins = set(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_loopback(scope):
            headers = _headers(scope)
            host = headers.get(b"host", b"").decode("latin-1").lower()
            if not self._is_known(host):
                message = "this server is not known by the name in the header Host; see --allow-host"
                await error_response(RequestError(421, message))(scope, receive, send)
                return
            origin = headers.get(b"origin")
            if origin is not None and not self._may_call(origin.decode("latin-1"), host):
                message = "pages of this origin may not call; see --cors"
                await error_response(RequestError(403, message))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        if "*" in self._hosts or host in self._hosts:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name.endswith(".localhost") or name in self._hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def _may_call(self, origin: str, host: str) -> bool:
        return "*" in self._origins or origin in self._origins or origin.lower() == f"http://{host}"


def _headers(scope: Scope) -> Mapping[bytes, bytes]:
    return dict(scope["headers"])


def _is_loopback(scope: Scope) -> bool:
    try:
        address = ipaddress.ip_address((scope.get("server") or ("",))[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
