"""What must be equal bit for bit, however a model is run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastcore import _kernels
from fastcore.verify.outcome import Outcome

__all__ = ["cut", "isa_law", "threads_law"]


def threads_law(equal: Callable[[int], bool]) -> Outcome:
    counts = (1, 2, 3)
    same = [count for count in counts if equal(count)]
    return len(same) == len(counts), "equal bits with 1, 2 and 3 threads", {"threads": list(counts), "equal": same}


def isa_law(equal: Callable[[], bool]) -> Outcome:
    isas = _kernels.available_isas()
    same = []
    for isa in isas:
        with _isa(isa):
            if equal():
                same.append(isa)
    return len(same) == len(isas), f"equal bits on {', '.join(isas)}", {"instruction_sets": list(isas), "equal": same}


@contextmanager
def _isa(name: str) -> Iterator[None]:
    before = _kernels.active_isa()
    _kernels.use_isa(name)
    try:
        yield
    finally:
        _kernels.use_isa(before)


def cut(count: int, size: int) -> list[int]:
    return [min(size, count - start) for start in range(0, count, size)]
