"""Memory in huge pages where the system has them: through small ones, reading gigabytes waits for translations."""

import mmap
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from fastcore.errors import OutOfMemoryError

__all__ = ["ALIGNMENT", "Arena", "zeros"]

ALIGNMENT = 64  # of arrays: a cache line
HUGE_PAGE = 2 << 20


class Arena:
    """Arrays side by side, so that small ones share huge pages. A chunk of them is freed with its last array."""

    def __init__(self) -> None:
        self._given = 0
        self._chunk = np.empty(0, np.uint8)

    def zeros(self, nbytes: int) -> NDArray[np.uint8]:
        """uint8 [nbytes] of zeros, starting on a cache line. Pages are touched when they are used.

        Raises OutOfMemoryError.
        """
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if size > len(self._chunk):
            self._chunk = _map(
                max(size, self._given)
            )  # chunks double: there are few, and what is left is never touched
        self._given += size
        array, self._chunk = self._chunk[:nbytes], self._chunk[size:]
        return array


def zeros(nbytes: int) -> NDArray[np.uint8]:
    """As Arena.zeros, in an arena of its own."""
    return Arena().zeros(nbytes)


def _map(nbytes: int) -> NDArray[np.uint8]:
    """At least nbytes of zeros in whole huge pages."""
    size = -(-nbytes // HUGE_PAGE) * HUGE_PAGE
    try:
        mapping = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise OutOfMemoryError(
            f"the system does not give {nbytes} more bytes ({error}); less is needed with dtype bf16 or f16 where the "
            "weights are f32, and with a smaller kv_cache_bytes or max_seq_len"
        ) from None
    memory = np.frombuffer(mapping, np.uint8)
    start = -memory.ctypes.data % HUGE_PAGE
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # not what is left at the ends: mappings of one kind side by side become one, and where that is larger than the
        # machine's memory, however little of it is used, the system refuses to fork
        with suppress(OSError):  # a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE, start, size)
    return memory[start:][:size]
