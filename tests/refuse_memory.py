"""Load a model and run it, while one request for memory is refused: MemoryError, or the right result, never a crash.

    LD_PRELOAD=failing_malloc.so python tests/refuse_memory.py core|pages FOLDER     # each request in turn
    python tests/refuse_memory.py objects FOLDER FIRST LAST STEP                     # each STEP-th of these

core, pages: what the C core and the mapping of pages ask of the system, by a library to preload
(tests/c/failing_malloc.c, Linux). objects: what the interpreter asks for its objects. After each MemoryError the next
run must give the right result. NumPy is left out: it does not survive refusals itself.
"""

import ctypes
import sys
from collections.abc import Iterable
from itertools import count
from typing import Protocol

import numpy as np

from fastcore import LLM, TokenClassifier
from fastcore.checkpoints.open import load_config

LIBRARIES = {"core": b"/_kernels.", "pages": b"/mmap."}


def work(folder: str) -> list[int] | bytes:
    """Load, and run once: nothing is kept from one call to the next."""
    if load_config(folder).is_token_classifier:
        logits, _ = TokenClassifier(folder, num_threads=2).logits([3, 4, 5])
        return np.asarray(logits).tobytes()
    llm = LLM(folder, num_threads=2, kv_cache_bytes=1 << 20)
    return list(llm.generate([3, 4, 5], max_tokens=4, temperature=0.8, seed=1, logprobs=2).token_ids)


class Hook(Protocol):
    may_mislead: bool  # where the interpreter itself makes another exception of a refusal

    def refuse(self, n: int) -> None:
        """Refuse the n-th request from now on."""

    def stop(self) -> bool:
        """Refuse no more. Whether there are requests beyond the n-th, or it is unknown."""


class Library:
    may_mislead = False

    def __init__(self, name: str) -> None:
        self._library = LIBRARIES[name]
        self._preloaded = ctypes.CDLL(None)
        self._preloaded.requests_seen.restype = ctypes.c_long
        self._n = 0

    def refuse(self, n: int) -> None:
        self._n = n
        self._preloaded.refuse_request(ctypes.c_long(n), self._library)

    def stop(self) -> bool:
        seen: int = self._preloaded.requests_seen()
        self._preloaded.refuse_request(ctypes.c_long(0), self._library)
        return seen >= self._n


class Objects:
    may_mislead = True

    def __init__(self) -> None:
        import _testcapi  # of CPython; some distributions leave it out

        self._hooks = _testcapi

    def refuse(self, n: int) -> None:
        self._hooks.set_nomemory(n, n + 1)

    def stop(self) -> bool:
        self._hooks.remove_mem_hooks()
        return True


def refuse_in_turn(folder: str, hook: Hook, numbers: Iterable[int]) -> tuple[int, int]:
    """Refuse the request of each number in a run of its own; how many runs, and how many ended in MemoryError."""
    expected = work(folder)
    runs = errors = 0
    for n in numbers:
        found = None
        hook.refuse(n)
        try:
            found = work(folder)
        except MemoryError:
            errors += 1
        except Exception:
            if not hook.may_mislead:
                raise
        finally:
            reached = hook.stop()
        if not reached:
            break
        runs += 1
        if found is None:
            found = work(folder)
        if found != expected:
            sys.exit(f"request {n} was refused, and now the result is another")
    return runs, errors


if __name__ == "__main__":
    kind, folder, *bounds = sys.argv[1:]
    if kind in LIBRARIES:
        runs, errors = refuse_in_turn(folder, Library(kind), count(1))
    else:
        first, last, step = map(int, bounds)
        runs, errors = refuse_in_turn(folder, Objects(), range(first, last, step))
    print(runs, "requests refused,", errors, "MemoryErrors")
