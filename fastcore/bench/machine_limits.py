"""What this machine can do at best: read memory, and multiply."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import flops_peak, time_read

__all__ = ["MAX_READ_BYTES", "MachineLimits", "read_buffer"]

STREAMS = 4  # contiguous streams a thread: the pattern that reads memory fastest
MAX_READ_BYTES = 1 << 28
WINDOW_SECONDS = 0.2


@dataclass(frozen=True)
class MachineLimits:
    """read: bytes per second that the threads read at best. compute: FLOP/s of the f32 kernel on operands in L1.

    Both over a fifth of a second, about as long as steps take, for memory that others use too is faster at moments.
    """

    read: float
    compute: float

    @classmethod
    def measure(cls, num_threads: int, data: NDArray[np.uint8]) -> "MachineLimits":
        """The better of two windows. data: what is read, more than the caches hold."""

        def read_seconds() -> float:
            return time_read(data, STREAMS, num_threads)

        def seconds_per_flop() -> float:
            return 1 / flops_peak(num_threads)

        return cls(
            read=data.nbytes / min(_mean_of_window(read_seconds) for _ in range(2)),
            compute=1 / min(_mean_of_window(seconds_per_flop) for _ in range(2)),
        )

    def best(self, other: "MachineLimits") -> "MachineLimits":
        return MachineLimits(max(self.read, other.read), max(self.compute, other.compute))


def _mean_of_window(seconds: Callable[[], float]) -> float:
    """The mean of what calls return during WINDOW_SECONDS."""
    results, end = list[float](), perf_counter() + WINDOW_SECONDS
    while not results or perf_counter() < end:
        results.append(seconds())
    return fmean(results)


def read_buffer(nbytes: int = MAX_READ_BYTES) -> NDArray[np.uint8]:
    return np.ones(nbytes, np.uint8)
