"""Compare this server with llama.cpp's, by turns on the same weights: many streams, and a warm turn of a chat.

    python benchmarks/serving_peers.py FILE.gguf [--dtype int4] [--rounds 3] [--peer-python PYTHON]

Both serve the file. PYTHON has llama-cpp-python[server], whose server answers one request after the other.
Printed: tokens per second of 8 streams together, and seconds to the first token of a chat's fourth turn.
"""

import argparse
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

STREAMS, TOKENS, THREADS = 8, 64, 2
STORY = "The lighthouse keeper wrote a letter about the storm, the ship and the long winter on the island. "
Message = dict[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable)
    args = parser.parse_args()
    own = [sys.executable, "-m", "fastcore", "serve", args.gguf, "--port", "8411", "--log-level", "error"]
    own += ["--threads", str(THREADS), "--dtype", args.dtype]
    peer = [args.peer_python, "-m", "llama_cpp.server", "--model", args.gguf, "--port", "8412", "--n_ctx", "4096"]
    peer += ["--n_threads", str(THREADS), "--n_threads_batch", str(THREADS), "--interrupt_requests", "False"]
    peer += ["--chat_format", "chatml"]
    with ExitStack() as held:
        for command, port in ((own, 8411), (peer, 8412)):
            held.enter_context(running(command, port))
        results: dict[str, list[tuple[float, float]]] = {"fastcore": [], "llama.cpp": []}
        for turn in range(args.rounds):
            for name, port in (("fastcore", 8411), ("llama.cpp", 8412)):
                results[name].append((rate_of_streams(port, turn), warm_turn(port, turn)))
    for name, values in results.items():
        rates, waits = zip(*values, strict=True)
        print(f"{name}: {STREAMS} streams {max(rates):.1f} tokens per second, warm turn {min(waits):.3f} s")
    (rate, wait), (other_rate, other_wait) = (
        (max(rates), min(waits)) for rates, waits in (zip(*values, strict=True) for values in results.values())
    )
    print(f"fastcore beside llama.cpp: {rate / other_rate:.2f} x the rate, {other_wait / wait:.2f} x as soon")
    return 0


@contextmanager
def running(command: Sequence[str], port: int) -> Iterator[None]:
    """A server, from when it answers."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/v1/models")
                if connection.getresponse().status == 200:
                    break
            except OSError:
                time.sleep(0.1)
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        yield
    finally:
        process.terminate()
        process.wait()


def pieces(port: int, messages: Sequence[Message], max_tokens: int) -> Iterator[str]:
    """The texts of a streamed answer, as they come."""
    body: dict[str, Any] = {"messages": list(messages), "max_tokens": max_tokens, "temperature": 0, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    for line in response:
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:])["choices"]
            if choices and choices[0]["delta"].get("content"):
                yield choices[0]["delta"]["content"]


def rate_of_streams(port: int, turn: int) -> float:
    """Pieces per second, of which each token gives one, but for parts of characters."""
    prompts = [
        [{"role": "user", "content": f"Round {turn}. Tell a long story about number {i}."}] for i in range(STREAMS)
    ]
    start = time.perf_counter()
    with ThreadPoolExecutor(STREAMS) as threads:
        counts = list(threads.map(lambda prompt: sum(1 for _ in pieces(port, prompt, TOKENS)), prompts))
    return sum(counts) / (time.perf_counter() - start)


def warm_turn(port: int, turn: int) -> float:
    """Seconds to the first piece of a chat's fourth answer."""
    messages = [{"role": "user", "content": f"Chat {turn}. {STORY * 20} Go on."}]
    for question in ("And then?", "Who came?", "Why?"):
        messages.append({"role": "assistant", "content": "".join(pieces(port, messages, 32))})
        messages.append({"role": "user", "content": question})
    start = time.perf_counter()
    next(pieces(port, messages, 8))
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
