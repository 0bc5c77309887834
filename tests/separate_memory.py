"""A plugin for runs under the address sanitizer: every block of memory is one that it watches to the byte.

The package takes pages from the system and cuts arrays out of them: a read past the end of one would find the next.
Loaded with `pytest -p separate_memory`.
"""

import ctypes
import weakref

import numpy as np
from numpy.typing import NDArray

from fastcore import huge_pages

_libc = ctypes.CDLL(None)
FRESH_BYTES = 64 << 20  # from here on the sanitizer takes pages of its own for a block, which are zeros


def _zeros(nbytes: int) -> NDArray[np.uint8]:
    pointer = ctypes.c_void_p()
    if _libc.posix_memalign(ctypes.byref(pointer), huge_pages.ALIGNMENT, ctypes.c_size_t(nbytes)):
        raise MemoryError
    memory = (ctypes.c_uint8 * nbytes).from_address(pointer.value or 0)
    weakref.finalize(memory, _libc.free, pointer).atexit = False
    if nbytes < FRESH_BYTES:
        ctypes.memset(pointer, 0, nbytes)
    return np.frombuffer(memory, np.uint8)


class _Arena:
    def zeros(self, nbytes: int) -> NDArray[np.uint8]:
        return _zeros(nbytes)


huge_pages.zeros, huge_pages.Arena = _zeros, _Arena  # type: ignore[assignment, misc]
