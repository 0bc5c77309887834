"""Texts classified by several processes, each with a model of its own: for more cores than one step can keep busy."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor

from fastcore.classify import Classification, TokenClassifier

__all__ = ["classify_in_processes"]

CHUNK_TEXTS = 256
CHUNK_CODE_POINTS = 32768  # a chunk is some steps long, so that most of them are full

_classifier: TokenClassifier  # in a worker process


def classify_in_processes(
    open_classifier: Callable[[], TokenClassifier], texts: Iterable[str], num_processes: int
) -> Iterator[Classification]:
    """The results of TokenClassifier(texts), in order. `open_classifier` is pickled, and called once in each process.

    Reads ahead by two chunks of texts for each process. An exception in a process is raised here.
    """
    chunks = _chunks(texts)
    pool = ProcessPoolExecutor(
        num_processes, multiprocessing.get_context("spawn"), initializer=_start, initargs=(open_classifier,)
    )
    try:
        running: deque[Future[list[Classification]]] = deque()
        for chunk in chunks:
            running.append(pool.submit(_classify, chunk))
            if len(running) == 2 * num_processes:
                yield from running.popleft().result()
        while running:
            yield from running.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if len(chunk) == CHUNK_TEXTS or size >= CHUNK_CODE_POINTS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _start(open_classifier: Callable[[], TokenClassifier]) -> None:
    global _classifier
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which stops the pool
    _classifier = open_classifier()


def _classify(texts: list[str]) -> list[Classification]:
    results: list[Classification] = _classifier(texts)
    return results
