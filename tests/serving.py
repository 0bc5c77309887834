"""A running server on a free port of this machine, and requests to it."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fastcore.server import create_app
from fastcore.server.run import Server, ServerOptions, bound, server_config

__all__ = ["call", "raw", "serving"]


@contextmanager
def serving(
    model: Any, names: Sequence[str] = (), *, running: dict[str, Any] | None = None, **options: Any
) -> Iterator[int]:
    """The port of a running server. model, names, options: of create_app; running: of ServerOptions."""
    app = create_app(model, names, **options)
    with bound("127.0.0.1", 0) as sockets:
        server = Server(server_config(app, ServerOptions(log_level="critical", **(running or {}))))
        thread = threading.Thread(target=server.run, args=[sockets])
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield sockets[0].getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def call(port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None):
    """(status, JSON of the answer or its text, headers with lower-case names)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    try:
        connection.request(
            method, path, raw, ({"Content-Type": "application/json"} if raw is not None else {}) | (headers or {})
        )
        response = connection.getresponse()
        content = response.read()
        fields = {name.lower(): value for name, value in response.getheaders()}
    finally:
        connection.close()
    is_json = fields.get("content-type") == "application/json"
    return response.status, json.loads(content) if is_json else content.decode(), fields


def raw(port: int, *parts: bytes, pause: float = 0.0) -> bytes:
    """What the server answers to these bytes on one connection, up to its end."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer
