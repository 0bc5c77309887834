"""Chunks of work done by several processes, each with a model of its own: for more cores than one step can keep busy.

Threads of this process may share the others: each has its results in the order of its chunks.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from fastcore.errors import WorkerError

__all__ = ["Processes"]

C = TypeVar("C")
Work = Callable[[Any], Any]

_work: Work  # in a worker process


class Processes:
    """`start` is pickled and called once in each process; what it returns is called with each chunk."""

    def __init__(self, start: Callable[[], Work], num_processes: int) -> None:
        self._most = 2 * num_processes  # chunks on their way: what is read ahead
        self._num_running = 0
        self._lock = threading.Lock()
        self._pool = ProcessPoolExecutor(
            num_processes, multiprocessing.get_context("spawn"), initializer=_start, initargs=(start,)
        )

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def stop(self) -> None:
        """End soon: whoever waits for results gets an exception."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def map(self, chunks: Iterable[C], payload: Callable[[C], Any] = lambda chunk: chunk) -> Iterator[tuple[C, Any]]:
        """Each chunk and what the work makes of its payload, in order.

        An exception in a process is raised here; WorkerError where a process ended.
        """
        running: deque[tuple[C, Future[Any]]] = deque()
        try:
            for chunk in chunks:
                running.append((chunk, self._submit(payload(chunk))))
                # a caller has two chunks whatever the others have, and what they leave
                while len(running) > 2 and self._num_running > self._most:
                    yield self._next(running)
            while running:
                yield self._next(running)
        finally:
            for _, future in running:
                future.cancel()
            self._count(-len(running))

    def _submit(self, payload: Any) -> "Future[Any]":
        try:
            future = self._pool.submit(_do, payload)
        except BrokenProcessPool:
            raise _ended() from None
        self._count(1)
        return future

    def _next(self, running: "deque[tuple[C, Future[Any]]]") -> tuple[C, Any]:
        chunk, future = running[0]
        try:
            result = future.result()
        except BrokenProcessPool:
            raise _ended() from None
        running.popleft()
        self._count(-1)
        return chunk, result

    def _count(self, change: int) -> None:
        with self._lock:
            self._num_running += change


def _ended() -> WorkerError:
    return WorkerError(
        "a process of --jobs ended before its work was done: killed, perhaps for want of memory; what was finished is "
        "kept, and --resume goes on from it, with fewer --jobs if need be"
    )


def _start(start: Callable[[], Work]) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which stops the pool
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        _work = start()
    except Exception as error:
        _work = partial(_raise, error)


def _raise(error: Exception, payload: Any) -> None:
    raise error


def _end_with(parent: Any) -> None:
    """A parent that is killed cannot stop its pool."""
    parent.join()
    os._exit(1)


def _do(payload: Any) -> Any:
    return _work(payload)
