"""A server under each attack of benchmarks/attack_server.py, for a moment: it answers as before, nothing is left."""

import importlib.util
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from serving import call, serving

from fastcore import LLM
from fastcore.server import RequestLimits

ATTACKS = Path(__file__).parents[1] / "benchmarks/attack_server.py"
MOST_GROWN = 96 << 20  # bytes: of bodies on their way, at most four at once, and what reading them takes
REQUESTS = int(os.environ.get("FASTCORE_REQUESTS", "150"))
FEW = RequestLimits(max_body_bytes=1 << 20, body_seconds=0.3, max_pending_bytes=4 << 20)
RUNNING = {"header_seconds": 2.0, "send_seconds": 0.3, "max_connections": 64}


spec = importlib.util.spec_from_file_location("attack_server", ATTACKS)
assert spec is not None
assert spec.loader is not None
attack_server = sys.modules["attack_server"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(attack_server)


@pytest.fixture(scope="module")
def llm(tiny_folder: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_folder("qwen2", max_position_embeddings=8192), num_threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def port(llm: LLM) -> Iterator[int]:
    with serving(llm, ["tiny"], limits=FEW, running=RUNNING) as port:
        yield port


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def is_idle(llm: LLM) -> bool:
    """Whether no work is left and the whole pool is free, within ten seconds."""
    for _ in range(1000):
        if llm._scheduler.num_requests == 0 and llm.pool.free_positions == llm.pool.max_positions:
            return True
        time.sleep(0.01)
    return False


def answers(port: int) -> list[Any]:
    """Of requests of each kind, whose answers must not change."""
    bodies = [
        {"prompt": "red green", "max_tokens": 8, "temperature": 0},
        {"prompt": "red green", "max_tokens": 8, "temperature": 1.0, "seed": 3, "logprobs": 2},
        {"prompt": [[5, 6, 7]] * 3, "max_tokens": 4, "temperature": 0},
    ]
    found = [call(port, "POST", "/v1/completions", body) for body in bodies]
    assert [status for status, _, _ in found] == [200] * 3
    return [[choice["text"] for choice in answer["choices"]] for _, answer, _ in found]


@pytest.mark.parametrize("name", attack_server.ATTACKS)
def test_an_attack_leaves_the_server_as_it_was(llm: LLM, port: int, name: str) -> None:
    expected, before = answers(port), resident_bytes()

    command = [sys.executable, ATTACKS, "-", "--attack", name, "--port", str(port), "--seconds", "0.5"]
    with subprocess.Popen(command) as attacker:
        while attacker.poll() is None:
            with suppress(OSError):  # its turn to give way
                assert call(port, "GET", "/health")[1]["status"] == "ok"
            time.sleep(0.05)
    assert attacker.returncode == 0
    assert is_idle(llm)
    assert answers(port) == expected
    assert resident_bytes() - before < MOST_GROWN


def test_clients_that_vanish_leave_no_work_and_no_memory(llm: LLM, port: int) -> None:
    """Each goes at a random moment of a request of any kind. Memory after all is what it was after a third of them."""
    rng, expected = random.Random(5), answers(port)
    grown = []
    for i in range(REQUESTS):
        if i % (REQUESTS // 3) == 0:
            assert is_idle(llm)
            grown.append(resident_bytes())
        kind = {"stream": rng.random() < 0.5, "n": rng.choice([1, 3])}
        body = json.dumps({"prompt": "red", "max_tokens": rng.choice([1, 50, 500]), "temperature": 1.0, **kind})
        data = attack_server.request_bytes("/v1/completions", body.encode(), port=port)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(data[: rng.choice([len(data), len(data) // 2])])
            client.settimeout(rng.uniform(0.001, 0.03))
            try:
                while client.recv(100):
                    pass
            except OSError:
                pass
            if rng.random() < 0.5:  # a reset
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    assert is_idle(llm)
    assert call(port, "GET", "/health")[1]["active_requests"] == 0
    assert answers(port) == expected
    assert resident_bytes() - grown[1] < 8 << 20


HALF_OPEN = """
import asyncio, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from fastcore.server.run import Server, ServerOptions, bound, server_config

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: print(what["message"], flush=True))
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        return await send({"type": "lifespan.shutdown.complete"})
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})

with bound("127.0.0.1", 0) as sockets:
    print(sockets[0].getsockname()[1], flush=True)
    Server(server_config(app, ServerOptions(log_level="critical"))).run(sockets)
"""


def test_connections_beyond_the_file_limit_never_run_out_of_files() -> None:
    """asyncio stops accepting for a second where there is no file left; it says so to the loop's handler."""
    with subprocess.Popen([sys.executable, "-c", HALF_OPEN], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for _ in range(200):
            with suppress(OSError):
                if call(port, "GET", "/")[0] == 200:
                    break
            time.sleep(0.05)
        server.send_signal(signal.SIGSTOP)  # so that all of them come at once
        opened = [socket.socket() for _ in range(700)]
        for each in opened:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        server.send_signal(signal.SIGCONT)
        for _ in range(3):
            assert call(port, "GET", "/")[:2] == (200, "ok")
        for each in opened:
            each.close()
        server.terminate()
        said = server.stdout.read()
    assert said == ""
    assert server.returncode == 0
