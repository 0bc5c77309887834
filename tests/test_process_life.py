"""A model in a process's life: fork before, during and after use, spawn, other runtimes beside it, shutdown.

FASTCORE_FORKS sets how many children are forked while threads work (default 40; 1000 is the full trial).
"""

import collections
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from fastcore import LLM, ForkError, SamplingParams, TokenClassifier

FORKS = int(os.environ.get("FASTCORE_FORKS", "40"))
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def in_child(work: Callable[[], int], seconds: float = 60) -> int:
    """The exit code of a child of fork that returns work(); -SIGKILL if it takes longer."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(script: str, seconds: float = 120) -> str:
    """What a fresh interpreter prints; nothing may come on stderr."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=seconds)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@needs_fork
@forks
@pytest.mark.fault("C5")
@pytest.mark.parametrize("num_threads", [1, 2])
def test_forks_while_threads_work(tiny_folder: Callable[..., Path], num_threads: int) -> None:
    """Each child answers or says ForkError; none hangs. Eight threads contend for one model and one classifier."""
    llm = LLM(tiny_folder("qwen2"), num_threads=num_threads)
    pii = TokenClassifier(tiny_folder("pii_masking"), num_threads=num_threads)
    expected = llm.generate([[5, 6, 7]], max_tokens=3)[0].token_ids
    found = pii("Alice")
    stop = threading.Event()

    def generate() -> None:
        while not stop.is_set():
            llm.generate([[3, 4]], SamplingParams(max_tokens=20, ignore_eos=True))
            llm.loglikelihood([3, 4], [5, 6])

    def classify() -> None:
        while not stop.is_set():
            pii(["Alice and Bob", "in Paris"])

    def ask() -> int:
        wrong = 0
        try:
            wrong += llm.generate([[5, 6, 7]], max_tokens=3)[0].token_ids != expected
            wrong += pii("Alice") != found
        except ForkError:
            return 7
        return wrong

    threads = [threading.Thread(target=work) for work in (generate, classify) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        codes = collections.Counter(in_child(ask) for _ in range(FORKS))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    print(dict(codes))
    assert set(codes) <= {0, 7}
    assert llm.generate([[5, 6, 7]], max_tokens=3)[0].token_ids == expected
    assert in_child(lambda: int(llm.generate([[5, 6, 7]], max_tokens=3)[0].token_ids != expected)) == 0


@needs_fork
@forks
@pytest.mark.fault("C5")
def test_a_lock_that_a_thread_has_and_does_not_know_of_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contended lock is handed over before its new owner runs: many forks at just such moments."""
    from fastcore.locks import Lock

    lock, stop = Lock(), threading.Event()

    def contend() -> None:
        while not stop.is_set():
            with lock.usable():
                sum(range(50))

    def use() -> int:
        try:
            with lock.usable():
                return 0
        except ForkError:
            return 7

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        codes = {in_child(use, 20) for _ in range(FORKS)}
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert codes <= {0, 7}


@needs_fork
@forks
@pytest.mark.parametrize("num_threads", [1, 2])
def test_fork_before_and_after_use(tiny_folder: Callable[..., Path], num_threads: int) -> None:
    """As a server that loads before it forks its workers: each answers, and so does a child's child."""
    llm = LLM(tiny_folder("falcon_h1"), num_threads=num_threads)
    expected = LLM(tiny_folder("falcon_h1"), num_threads=1).generate([[5, 6, 7]], max_tokens=5)[0].token_ids

    def answers() -> bool:
        return llm.generate([[5, 6, 7]], max_tokens=5)[0].token_ids == expected

    def grandchild() -> int:
        return 0 if answers() and in_child(lambda: 0 if answers() else 1) == 0 else 1

    assert [in_child(grandchild) for _ in range(4)] == [0] * 4  # before the first use
    assert answers()
    stream = llm.stream([5, 6, 7], max_tokens=5)
    next(stream)
    assert in_child(grandchild) == 0  # after use, and during another
    assert next(chunk.completion for chunk in stream if chunk.completion).token_ids == expected


@needs_fork
@forks
def test_a_pool_of_processes_gets_the_same_results(tiny_folder: Callable[..., Path]) -> None:
    for method in ("fork", "spawn", "forkserver"):
        script = f"""
import multiprocessing, warnings
from fastcore import LLM

def ask(prompt):
    global llm
    if "llm" not in globals():
        llm = LLM({str(tiny_folder("qwen3"))!r}, num_threads=2)
    return llm.generate([prompt], max_tokens=4)[0].token_ids

if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    multiprocessing.set_start_method({method!r})
    prompts = [[i, i + 1] for i in range(3, 9)]
    expected = [ask(prompt) for prompt in prompts]
    with multiprocessing.Pool(2) as pool:
        assert pool.map(ask, prompts) == expected
    print("same")
"""
        path = tiny_folder("qwen3").parent / f"pool_{method}.py"
        path.write_text(script)
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
        assert (done.stdout, done.stderr) == ("same\n", "")


@pytest.mark.parametrize("other", ["torch", "sklearn"])
@pytest.mark.parametrize("first", [True, False])
def test_beside_another_openmp_runtime(tiny_folder: Callable[..., Path], other: str, first: bool) -> None:
    if find_spec(other) is None:
        pytest.skip(f"{other} is not installed")
    use = {
        "torch": "import torch; torch.set_num_threads(2); (torch.ones(300, 300) @ torch.ones(300, 300)).sum().item()",
        "sklearn": "import numpy; from sklearn.cluster import KMeans; "
        "KMeans(3, n_init=1, random_state=0).fit(numpy.arange(900.0).reshape(300, 3))",
    }[other]
    script = f"""
import warnings
warnings.simplefilter("ignore")
{use if first else ""}
from fastcore import LLM
llm = LLM({str(tiny_folder("qwen2"))!r}, num_threads=2)
before = llm.generate([[5, 6, 7]], max_tokens=4)[0].token_ids
{use}
print(llm.generate([[5, 6, 7]], max_tokens=4)[0].token_ids == before, before)
"""
    expected = LLM(tiny_folder("qwen2"), num_threads=1).generate([[5, 6, 7]], max_tokens=4)[0].token_ids
    assert run(script) == f"True {expected}\n"


def test_two_models_at_once(tiny_folder: Callable[..., Path]) -> None:
    """Of one loaded Model and of two: in turns and from threads, each gets what it gets alone."""
    one = LLM(tiny_folder("qwen2"), num_threads=2)
    llms = [one, LLM.from_model(one.model, one.tokenizer, num_threads=2), LLM(tiny_folder("falcon_h1"), num_threads=2)]
    expected = [llm.generate([[5, 6, 7]], max_tokens=20)[0].token_ids for llm in llms]
    assert expected[0] == expected[1]
    found: list[list[list[int]]] = [[] for _ in llms]

    def work(i: int) -> None:
        found[i] = [llms[i].generate([[5, 6, 7]], max_tokens=20)[0].token_ids for _ in range(10)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(llms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[tokens] * 10 for tokens in expected]


@pytest.mark.parametrize("at_exit", ["idle", "stream open", "thread at work"])
def test_the_interpreter_shuts_down_clean(tiny_folder: Callable[..., Path], at_exit: str) -> None:
    script = f"""
import threading
from fastcore import LLM, SamplingParams
llm = LLM({str(tiny_folder("qwen2"))!r}, num_threads=2)
forever = SamplingParams(ignore_eos=True, max_tokens=100_000)
llm.generate([[3, 4]], max_tokens=2)
if {at_exit!r} == "stream open":
    stream = llm.stream([3, 4], forever)
    next(stream)
if {at_exit!r} == "thread at work":
    def work():
        while True:
            llm.generate([[3, 4]], forever)
    threading.Thread(target=work, daemon=True).start()
    threading.Event().wait(0.3)
print("bye")
"""
    assert run(script) == "bye\n"
