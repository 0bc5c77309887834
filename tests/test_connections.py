"""Connections are bounded: in number, and in the time that a request's head may take."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from fastcore.server.connections import OTHER_FILES, UNSETTLED, connection_class

MAX_CONNECTIONS, HEADER_SECONDS = 4, 1.0
GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


class App:
    """Answers at once, or under /wait when told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while scope["path"] == "/wait" and not self.go_on.is_set():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def port(app: App) -> Iterator[int]:
    protocol = connection_class(MAX_CONNECTIONS, HEADER_SECONDS, 30.0)
    config = uvicorn.Config(app, port=0, http=protocol, ws="none", lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    app.go_on.set()
    server.should_exit = True
    thread.join()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes it before anything comes."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def answer(connection: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"ok"):
        more = connection.recv(100)
        assert more
        received += more
    return received


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\n"])
def test_a_head_that_does_not_come_closes_its_connection(port: int, start: bytes) -> None:
    with connect(port) as connection:
        connection.sendall(start)
        assert is_closed(connection)


def test_a_head_that_drips_closes_its_connection(port: int) -> None:
    with connect(port) as connection:
        connection.settimeout(0.05)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                connection.sendall(b"X")
                assert connection.recv(1) == b""
                return
            except TimeoutError:
                continue
            except ConnectionError:
                return
        pytest.fail("it is still open")


def test_a_later_head_on_the_same_connection_is_waited_for_as_long(port: int) -> None:
    with connect(port) as connection:
        for _ in range(3):
            connection.sendall(GET % b"/")
            assert answer(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET")
        assert is_closed(connection)


def test_a_request_under_way_is_not_cut(port: int, app: App) -> None:
    with connect(port) as connection:
        connection.sendall(GET % b"/wait")
        time.sleep(1.5 * HEADER_SECONDS)
        app.go_on.set()
        assert answer(connection).startswith(b"HTTP/1.1 200")


def test_the_one_that_has_waited_longest_gives_way(port: int) -> None:
    idle = [connect(port) for _ in range(MAX_CONNECTIONS)]
    with connect(port) as connection:
        connection.sendall(GET % b"/")
        assert answer(connection).startswith(b"HTTP/1.1 200")
        assert is_closed(idle[0])
    for each in idle:
        each.close()


def test_a_new_one_is_closed_where_all_have_requests_under_way(port: int, app: App) -> None:
    busy = [connect(port) for _ in range(MAX_CONNECTIONS)]
    for each in busy:
        each.sendall(GET % b"/wait")
    time.sleep(0.2)
    with connect(port) as connection:
        assert is_closed(connection)
    app.go_on.set()
    for each in busy:
        assert answer(each).startswith(b"HTTP/1.1 200")
        each.close()


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (64, 4000, "1000"),
        (1000, 1000, str(1000 - UNSETTLED - OTHER_FILES)),
        (UNSETTLED + OTHER_FILES, UNSETTLED + OTHER_FILES, "open files are allowed"),
    ],
)
def test_connections_leave_room_for_other_files(soft: int, hard: int, expected: str) -> None:
    script = f"""
import resource
from fastcore.server.connections import connections_that_fit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
try:
    print(connections_that_fit(1000))
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert expected in done.stdout
