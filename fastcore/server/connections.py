"""Connections: how many there may be, how long one may take to say what it wants, and which gives way to a new one."""

import asyncio
import resource
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["ACCEPTS", "QUEUE", "connection_class", "connections_that_fit"]

ACCEPTS = 32  # connections that the event loop accepts in a turn
# It takes four turns from accepting a connection to closing the one that gives way to it.
UNSETTLED = 4 * ACCEPTS
OTHER_FILES = 64  # what the process keeps open besides
QUEUE = 2048  # connections that the system holds until they are accepted; beyond it a client tries again after a second


def connections_that_fit(wanted: int) -> int:
    """How many connections the limit of open files leaves room for, up to `wanted`; raises that limit if it may.

    Raises ValueError where there is room for none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + UNSETTLED + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    fitting = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - UNSETTLED - OTHER_FILES)
    if fitting < 1:
        least = 1 + UNSETTLED + OTHER_FILES
        raise ValueError(f"{soft} open files are allowed, and {least} are needed; see `ulimit -n`")
    return fitting


def connection_class(max_connections: int, header_seconds: float, send_seconds: float) -> type[H11Protocol]:
    """A protocol for uvicorn whose connections are bounded.

    One that has not sent a whole request head `header_seconds` after it could begin is closed, and so is one that has
    taken nothing of what is sent for `send_seconds`. Beyond max_connections, a new one takes the place of the one that
    has waited longest without a request, else of one whose body is on its way; it is closed itself where all have whole
    requests under way.
    """
    waiting: dict[H11Protocol, asyncio.TimerHandle] = {}  # without a request, in order of arrival

    class Connection(H11Protocol):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                given_up = next(iter(waiting), None) or next(filter(_sends_body, self.connections), self)
                given_up.close_now()
                if given_up is self:
                    return
            self._follow()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._follow()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._follow()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._send_timer = self.loop.call_later(send_seconds, self.close_now)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_sending()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            self._stop_sending()
            super().connection_lost(exc)

        def close_now(self) -> None:
            self._stop_waiting()
            self.connections.discard(self)
            self.transport.abort()

        def _follow(self) -> None:
            """Start or stop waiting for a request head, as the state of the connection has it."""
            if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
                self._stop_waiting()
            elif self not in waiting:
                waiting[self] = self.loop.call_later(header_seconds, self.close_now)

        def _stop_sending(self) -> None:
            timer: Any = getattr(self, "_send_timer", None)
            if timer is not None:
                timer.cancel()

        def _stop_waiting(self) -> None:
            timer: Any = waiting.pop(self, None)
            if timer is not None:
                timer.cancel()

    return Connection


def _sends_body(connection: H11Protocol) -> bool:
    return connection.cycle is not None and not connection.cycle.response_complete and connection.cycle.more_body
