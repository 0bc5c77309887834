"""Memory of weights, caches and workspaces."""

import mmap
import os
import re
import weakref
from pathlib import Path

import numpy as np
import pytest

from fastcore.errors import OutOfMemoryError
from fastcore.huge_pages import ALIGNMENT, HUGE_PAGE, Arena, zeros


def test_arrays_are_zero_aligned_and_apart():
    arena, arrays = Arena(), []
    for i, nbytes in enumerate([1, 64, 65, 1000, HUGE_PAGE, 3 * HUGE_PAGE + 1, 5, 0, 7]):
        array = arena.zeros(nbytes)
        assert array.dtype == np.uint8
        assert array.shape == (nbytes,)
        assert not array.any()
        assert array.ctypes.data % ALIGNMENT == 0
        array[:] = i + 1
        arrays.append(array)
    for i, array in enumerate(arrays):
        assert (array == i + 1).all()


def test_small_arrays_share_a_huge_page():
    arena = Arena()
    first, second = arena.zeros(1000), arena.zeros(1000)
    assert second.ctypes.data - first.ctypes.data == 1024
    assert first.ctypes.data % HUGE_PAGE == 0


def test_a_chunk_is_freed_with_its_last_array():
    arena = Arena()
    first, second = arena.zeros(100), arena.zeros(100)
    gone = weakref.ref(first.base)
    assert second.base is first.base
    del first, arena
    assert gone() is not None
    del second
    assert gone() is None


def test_memory_asks_for_huge_pages():
    if not hasattr(mmap, "MADV_HUGEPAGE") or not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this system has no transparent huge pages")
    array = zeros(HUGE_PAGE)
    for area in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        start, end = (int(x, 16) for x in area.split(" ", 1)[0].split("-"))
        if start <= array.ctypes.data < end:
            assert " hg" in re.search(r"VmFlags:.*", area)[0]
            return
    raise AssertionError("the array is in no mapping")


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="Linux tells what is mapped")
def test_what_lies_side_by_side_stays_apart():
    """The system refuses to fork where one mapping is larger than its memory, used or not."""
    arrays = [zeros(64 << 20) for _ in range(6)]
    with open("/proc/self/maps", encoding="ascii") as file:
        spans = [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in file]
    for array in arrays:
        (span,) = [span for span in spans if span[0] <= array.ctypes.data < span[1]]
        assert array.ctypes.data + array.nbytes <= span[1]
        assert span[1] - span[0] < 2 * array.nbytes


def test_memory_is_not_shared_with_a_child():
    array = zeros(HUGE_PAGE)
    child = os.fork()
    if child == 0:
        array[0] = 1
        os._exit(0)
    os.waitpid(child, 0)
    assert array[0] == 0


@pytest.mark.parametrize("nbytes", [1 << 60, 1 << 80])
def test_more_than_there_is_gives_an_error(nbytes):
    with pytest.raises(OutOfMemoryError, match="does not give"):
        zeros(nbytes)
