"""Fork while a model is at work, and turns of threads."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fastcore import LLM, ForkError, SamplingParams
from fastcore._kernels import TurnLock
from fastcore.locks import Lock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def in_child(work: Callable[[], int]) -> int:
    """The exit code of a child of fork that returns work()."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def use(lock: Lock) -> int:
    try:
        with lock.usable():
            return 0
    except ForkError:
        return 7


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_lock_that_another_thread_held_is_an_error_in_the_child() -> None:
    lock, held, done = Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock.usable():
            held.set()
            done.wait()

    assert in_child(lambda: use(lock)) == 0
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert in_child(lambda: use(lock)) == 7
    done.set()
    thread.join()
    assert in_child(lambda: use(lock) + use(lock)) == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_of_a_process_at_work_answers_or_says_why_not(tiny_folder: Callable[..., Path]) -> None:
    llm = LLM(tiny_folder("qwen2"), num_threads=1)
    expected = llm.generate([[5, 6, 7]], max_tokens=3)[0].token_ids
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            llm.generate([[3, 4]], SamplingParams(max_tokens=50, ignore_eos=True))

    def ask() -> int:
        try:
            return 0 if llm.generate([[5, 6, 7]], max_tokens=3)[0].token_ids == expected else 1
        except ForkError:
            return 7

    thread = threading.Thread(target=work)
    thread.start()
    try:
        codes = {in_child(ask) for _ in range(10)}
    finally:
        stop.set()
        thread.join()
    assert codes <= {0, 7}
    assert llm.generate([[5, 6, 7]], max_tokens=3)[0].token_ids == expected


# ---------------------------------------------------------------- turns


def test_a_turn_lock_goes_to_whoever_waits_longest() -> None:
    lock, order = TurnLock(), list[int]()
    lock.acquire()
    assert not lock.acquire(blocking=False)
    threads = []
    for i in range(5):

        def work(i: int = i) -> None:
            with lock:
                order.append(i)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        wait_until(lambda i=i: lock.num_waiting == i + 1)
    lock.release()
    for thread in threads:
        thread.join()
    assert order == list(range(5))
    assert lock.acquire(blocking=False)


def test_whoever_watches_a_turn_lock_sees_its_next_release() -> None:
    """And does not have it then; who has just let go may take it again."""
    lock, seen = TurnLock(), list[bool]()
    assert not lock.wait()
    lock.acquire()
    threads = [threading.Thread(target=lambda: seen.append(lock.wait())) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: lock.num_waiting == 3)
    assert seen == []
    lock.release()
    lock.acquire()
    for thread in threads:
        thread.join()
    assert seen == [True] * 3
    lock.release()


def test_an_interrupt_of_a_wait_leaves_the_turn_lock_to_others() -> None:
    lock = TurnLock()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    for call in (lock.acquire, lock.wait):
        lock.acquire()
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            call()
        lock.release()
        assert lock.acquire(blocking=False)
        lock.release()
    signal.signal(signal.SIGALRM, before)


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it did not come to be")
