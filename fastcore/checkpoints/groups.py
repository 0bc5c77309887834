"""Groups of 32 integers with f16 scales, the elements of tensors that int8 and int4 maps hold as they are.

They lie as csrc/formats.h says, which is how ggml lays out Q8_0 and Q4_1.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["GROUP", "int4_groups", "int8_groups"]

GROUP = 32
_INT8 = np.dtype([("scale", "<f2"), ("q", "i1", GROUP)])
_INT4 = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("q", "u1", GROUP // 2)])


def int8_groups(scales: NDArray[np.float16], q: NDArray[np.int8]) -> NDArray[Any]:
    """scale * q. scales: [..., groups]. q: [..., groups, 32], from -127 to 127. Returns elements [..., groups]."""
    elements = np.empty(scales.shape, _INT8)
    elements["scale"], elements["q"] = scales, q
    return elements.view(f"V{_INT8.itemsize}")


def int4_groups(scales: NDArray[np.float16], minima: NDArray[np.float16], nibbles: NDArray[np.uint8]) -> NDArray[Any]:
    """scale * q + minimum. scales, minima: [..., groups]. nibbles: [..., groups, 16], of two q from 0 to 15 each, the
    low ones before the high ones. Returns elements [..., groups]."""
    elements = np.empty(scales.shape, _INT4)
    elements["scale"], elements["minimum"], elements["q"] = scales, minima, nibbles
    return elements.view(f"V{_INT4.itemsize}")
