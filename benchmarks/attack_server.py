"""A server under attack: while eight clients stream, what does each attack do to memory, /health and a neighbour?

    python benchmarks/attack_server.py MODEL [--seconds 10] [--only NAME ...]

Starts `fastcore serve MODEL` on this machine with a limit of open files, keeps eight streaming clients busy, and asks
/health and for a short completion (the neighbour) all the time: first undisturbed, then during each attack. The
address is always 127.0.0.1, attacks end by themselves. Prints a table in Markdown; fails when the server is not as it
was afterwards: every answer right, no request left, its pool free.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

STREAMS = 8
OPEN_FILES = 512  # of the server
HOST = "127.0.0.1"
Payload = dict[str, object] | bytes


def request_bytes(path: str, body: Payload, *, length: object = None, port: int) -> bytes:
    """A POST. length: what Content-Length claims, where that is not the truth."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    claimed = len(data) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\nContent-Length: {claimed}"
    return f"{head}\r\nConnection: close\r\n\r\n".encode() + data


def completion(max_tokens: int, *, stream: bool = False, **options: object) -> dict[str, object]:
    return {"prompt": "Once upon a time", "max_tokens": max_tokens, "temperature": 0, "stream": stream, **options}


class Server:
    """`fastcore serve` as a process of its own; without a model, one that is there already."""

    def __init__(self, port: int, model: str | None = None, options: Sequence[str] = ()) -> None:
        self.port = port
        if model is None:
            return
        command = [sys.executable, "-m", "fastcore", "serve", "--model", model, "--port", str(port), *options]

        def limit_files() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))

        self.process = subprocess.Popen(
            [*command, "--log-level", "error"], preexec_fn=limit_files, stderr=subprocess.DEVNULL
        )

    def resident_bytes(self) -> int:
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def send(self, data: bytes, *, seconds: float = 60) -> tuple[float, bytes]:
        """Send a request; seconds until the first byte of the answer's body, and the answer."""
        start = time.perf_counter()
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(HOST, self.port)
            try:
                with suppress(ConnectionError):  # refused before it was sent whole; the answer says why
                    writer.write(data)
                    await writer.drain()
                answer = await reader.readuntil(b"\r\n\r\n")
                answer += await reader.read(1)
                first = time.perf_counter() - start
                answer += await reader.read()
            finally:
                writer.close()
        return first, answer

    async def post(self, path: str, body: Payload, **options: object) -> tuple[float, bytes]:
        return await self.send(request_bytes(path, body, port=self.port, **options))  # type: ignore[arg-type]

    async def health(self) -> tuple[float, dict[str, object]]:
        get = f"GET /health HTTP/1.1\r\nHost: {HOST}:{self.port}\r\nConnection: close\r\n\r\n"
        start = time.perf_counter()
        _, answer = await self.send(get.encode())
        return time.perf_counter() - start, json.loads(answer.partition(b"\r\n\r\n")[2])

    async def wait_ready(self) -> None:
        while True:
            with suppress(OSError):
                await self.health()
                return
            if self.process.poll() is not None:
                raise SystemExit("the server ended before it answered")
            await asyncio.sleep(0.1)


@dataclass
class Seen:
    """What was seen while an attack ran. Seconds; bytes above those before it."""

    health: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    failures: int = 0
    grown_bytes: int = 0


# ---- Attacks: each runs until `end` at most, and leaves nothing open.

Attack = Callable[[Server, float], Awaitable[None]]


async def _repeat(count: int, end: float, one: Callable[[], Awaitable[object]]) -> None:
    """`count` attackers at once, each again and again."""

    async def attacker() -> None:
        while time.perf_counter() < end:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await one()
            await asyncio.sleep(0)

    await asyncio.gather(*(attacker() for _ in range(count)))


async def large_bodies(server: Server, end: float) -> None:
    body = b'{"prompt": "' + b"x" * (64 << 20) + b'"}'
    await _repeat(4, end, lambda: server.post("/v1/completions", body))


async def bad_bodies(server: Server, end: float) -> None:
    bodies: list[Payload] = [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800", "max_tokens": 1}',
        b'{"prompt": 1e400, "max_tokens": 1' + b"0" * 4000 + b"}",
        b"[" + b"0," * 4_000_000 + b"0]",
        b'{"stop": [' + b'"abc",' * 200_000 + b'"x"]}',
        b"{" + b",".join(b'"k%d": 0' % i for i in range(200_000)) + b"}",
        b'{"logit_bias": {' + b",".join(b'"%d": 1' % i for i in range(100_000)) + b"}}",
        completion(1, logprobs=10**6),
        completion(10**30),
        completion(1, n=10**6),
        completion(1, stop="x" * 10**6),
        {"prompt": ["a"] * 100_000, "max_tokens": 1},
        {"prompt": [list(range(50))] * 10_000, "max_tokens": 1},
    ]
    await _repeat(4, end, lambda: server.post("/v1/completions", random.choice(bodies)))


async def wrong_lengths(server: Server, end: float) -> None:
    async def one() -> None:
        length = random.choice([-1, "x", 10**30, 3, 10**9, "5, 6"])
        with suppress(TimeoutError):
            await server.send(
                request_bytes("/v1/completions", completion(1), length=length, port=server.port), seconds=2
            )

    await _repeat(16, end, one)


async def _hold(server: Server, end: float, count: int, opening: bytes, drip: bytes, pause: float) -> None:
    """`count` connections that begin with `opening` and go on with a drip every `pause` seconds."""

    async def one() -> None:
        _, writer = await asyncio.open_connection(HOST, server.port)
        try:
            writer.write(opening)
            while time.perf_counter() < end:
                await asyncio.sleep(min(pause, max(0.0, end - time.perf_counter())))
                writer.write(drip)
                await writer.drain()
        finally:
            writer.close()

    async def again() -> None:
        while time.perf_counter() < end:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(max(0.1, end - time.perf_counter())):
                    await one()
            await asyncio.sleep(0.2)

    await asyncio.gather(*(again() for _ in range(count)))


async def slow_bodies(server: Server, end: float) -> None:
    await _hold(server, end, 100, request_bytes("/v1/completions", b"{", length=1000, port=server.port), b" ", 1.0)


async def slow_headers(server: Server, end: float) -> None:
    await _hold(server, end, 200, b"POST /v1/completions HTTP/1.1\r\n", b"X-A: b\r\n", 1.0)


async def half_open(server: Server, end: float) -> None:
    await _hold(server, end, 2 * OPEN_FILES, b"", b"", 1000.0)


async def never_reading(server: Server, end: float) -> None:
    body = request_bytes("/v1/completions", completion(2000, stream=True, ignore_eos=True), port=server.port)

    async def one() -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (HOST, server.port))
            await asyncio.get_running_loop().sock_sendall(sock, body)
            await asyncio.sleep(max(0.0, end - time.perf_counter()))
        finally:
            sock.close()

    await _repeat(8, end, one)


async def vanishing(server: Server, end: float) -> None:
    """Requests of every kind whose client goes at a random moment, politely or by a reset."""

    async def one() -> None:
        body = completion(random.choice([1, 50, 500]), stream=random.random() < 0.5)
        reader, writer = await asyncio.open_connection(HOST, server.port)
        try:
            data = request_bytes("/v1/completions", body, port=server.port)
            writer.write(data[: random.choice([len(data), len(data) // 2])])
            with suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(0.0, 0.4)):
                    await reader.read()
            if random.random() < 0.5:
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        finally:
            writer.close()

    await _repeat(16, end, one)


async def at_the_caps(server: Server, end: float) -> None:
    stops = [f"never {i}" for i in range(4)]
    body = completion(64, logprobs=5, stop=stops, logit_bias={str(i): -1 for i in range(300)}, n=4)
    await _repeat(4, end, lambda: server.post("/v1/completions", body))


async def long_prompts(server: Server, end: float) -> None:
    def body() -> dict[str, object]:  # none of them known from the last
        return {"prompt": [[random.randrange(7, 1007) for _ in range(4000)]], "max_tokens": 1}

    async def one() -> None:
        data = request_bytes("/v1/completions", body(), port=server.port)
        await server.send(data, seconds=max(0.1, end - time.perf_counter()))

    await _repeat(2, end, one)


ATTACKS: dict[str, Attack] = {
    "bodies of 64 MB": large_bodies,
    "bodies of every bad kind": bad_bodies,
    "wrong Content-Length": wrong_lengths,
    "bodies of a byte a second": slow_bodies,
    "headers of a line a second": slow_headers,
    "connections beyond the file limit": half_open,
    "clients that never read": never_reading,
    "clients that vanish": vanishing,
    "fields at their caps": at_the_caps,
    "prompts of 4,000 tokens": long_prompts,
}


async def watch(server: Server, seen: Seen, stop: asyncio.Event) -> None:
    """Ask /health and for a short completion until told to stop; keep eight streams going."""
    before = server.resident_bytes()
    body = completion(8, stream=True)

    async def streaming() -> None:
        while not stop.is_set():
            try:
                await server.post("/v1/completions", completion(64, stream=True))
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                seen.failures += 1

    async def ask(what: Callable[[], Awaitable[float]], into: list[float], pause: float) -> None:
        while not stop.is_set():
            try:
                into.append(await what())
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                seen.failures += 1
            seen.grown_bytes = max(seen.grown_bytes, server.resident_bytes() - before)
            await asyncio.sleep(pause)

    async def health() -> float:
        return (await server.health())[0]

    async def neighbour() -> float:
        return (await server.post("/v1/completions", body))[0]

    await asyncio.gather(
        *(streaming() for _ in range(STREAMS)), ask(health, seen.health, 0.05), ask(neighbour, seen.first_token, 0.1)
    )


async def during(server: Server, seconds: float, attack: str | None) -> Seen:
    """Watch while a process of its own attacks, so that its work does not delay what is measured here."""
    seen, stop = Seen(), asyncio.Event()
    watching = asyncio.create_task(watch(server, seen, stop))
    await asyncio.sleep(0.5)
    if attack is None:
        await asyncio.sleep(seconds)
    else:
        arguments = ["--attack", attack, "--port", str(server.port), "--seconds", str(seconds)]
        attacker = await asyncio.create_subprocess_exec(sys.executable, __file__, "-", *arguments)
        await attacker.wait()
    stop.set()
    await watching
    return seen


async def idle(server: Server) -> dict[str, object]:
    """What /health says when all requests are done, in at most ten seconds."""
    status: dict[str, object] = {}
    for _ in range(100):
        _, status = await server.health()
        if not any(status.get(name) for name in ("running", "waiting", "requests")):
            break
        await asyncio.sleep(0.1)
    return status


async def run(model: str, seconds: float, names: list[str], options: list[str]) -> bool:
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    server = Server(port, model, options)
    try:
        await server.wait_ready()
        expected = (await server.post("/v1/completions", completion(32)))[1].partition(b'"text"')[2].partition(b'"')[2]
        before = await idle(server)
        print("| attack | /health, worst | first token of a neighbour, median (times quiet) | failures | memory |")
        print("|---|---|---|---|---|")
        quiet = 0.0
        for name in (None, *names):
            seen = await during(server, seconds, name)
            first = statistics.median(seen.first_token) if seen.first_token else float("inf")
            quiet = quiet or first
            worst = max(seen.health, default=float("inf"))
            print(
                f"| {name or 'none'} | {worst:.2f} s | {first:.2f} s ({first / quiet:.1f}) | {seen.failures} | "
                f"+{seen.grown_bytes / 1e6:.0f} MB |",
                flush=True,
            )
        after = await idle(server)
        text = (await server.post("/v1/completions", completion(32)))[1].partition(b'"text"')[2].partition(b'"')[2]
        print(f"\nbefore {before}, after {after}; the same text as before: {text == expected}")
        return text == expected and before == after
    finally:
        server.process.send_signal(signal.SIGTERM)
        print(f"exit status after SIGTERM: {server.process.wait(30)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack (default: 10)")
    parser.add_argument("--only", nargs="*", choices=ATTACKS, default=list(ATTACKS), metavar="NAME")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="options of `fastcore serve`")
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        asyncio.run(ATTACKS[args.attack](Server(args.port), time.perf_counter() + args.seconds))
        return 0
    return 0 if asyncio.run(run(args.model, args.seconds, args.only, args.serve)) else 1


if __name__ == "__main__":
    sys.exit(main())
