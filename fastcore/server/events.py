"""Server-sent events: an answer that comes piece by piece, for as long as its client is there."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import anyio
from starlette.types import Receive, Scope, Send

from fastcore.server.answers import json_bytes
from fastcore.server.endpoint import until_gone

__all__ = ["DONE", "Events", "event"]

DONE = b"data: [DONE]\n\n"


def event(value: Any, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + json_bytes(value) + b"\n\n"


class Events:
    """An ASGI application that sends what `events` yields. The generator is closed when the client goes."""

    def __init__(self, events: Callable[[], AsyncGenerator[bytes, None]]) -> None:
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with anyio.create_task_group() as group:
            group.start_soon(until_gone, receive, group.cancel_scope.cancel)
            async with aclosing(self._events()) as events:
                async for data in events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            group.cancel_scope.cancel()
