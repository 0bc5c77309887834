"""Blocks of ggml that are groups of 32 integers with an f16 scale: they become elements of int8 and int4, exactly.

Q8_0   int8   scale * q                     the same bytes
Q5_0   int8   scale * (q - 16)
IQ4_NL int8   scale * q of a table of 16
Q4_1   int4   scale * q + minimum           the same bytes
Q4_0   int4   scale * (q - 8)               minimum = -8 * scale
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore.checkpoints.groups import int4_groups, int8_groups
from fastcore.errors import UnsupportedModelError

__all__ = ["EXACT", "Elements"]

Bytes = NDArray[np.uint8]  # [..., bytes of a row]

_IQ4_NL = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8)


def _q8_0(rows: Bytes) -> NDArray[Any]:
    return np.ascontiguousarray(rows).view("V34")


def _q4_1(rows: Bytes) -> NDArray[Any]:
    return np.ascontiguousarray(rows).view("V20")


def _q4_0(rows: Bytes) -> NDArray[Any]:
    scales, nibbles = _split(rows, 18)
    with np.errstate(over="ignore"):
        minima = scales * np.float16(-8)
    if (np.isinf(minima) & np.isfinite(scales)).any():
        raise UnsupportedModelError(f"it has a scale of {np.abs(scales).max()}; int4 maps hold those up to 8188")
    return int4_groups(scales, minima, nibbles)


def _q5_0(rows: Bytes) -> NDArray[Any]:
    scales, rest = _split(rows, 22)
    fifth_bits = np.unpackbits(rest[..., :4], axis=-1, bitorder="little")
    return int8_groups(scales, (_in_halves(rest[..., 4:]) | fifth_bits << 4).view(np.int8) - np.int8(16))


def _iq4_nl(rows: Bytes) -> NDArray[Any]:
    scales, nibbles = _split(rows, 18)
    return int8_groups(scales, _IQ4_NL[_in_halves(nibbles)])


def _split(rows: Bytes, block_bytes: int) -> tuple[NDArray[np.float16], Bytes]:
    """The scales [..., groups] that blocks begin with, and the bytes of each [..., groups, bytes] after them."""
    blocks = np.ascontiguousarray(rows).reshape(*rows.shape[:-1], -1, block_bytes)
    return np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0], blocks[..., 2:]


def _in_halves(nibbles: Bytes) -> Bytes:
    """[..., 16] -> [..., 32]: the low nibbles, then the high ones."""
    return np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)


Elements = Callable[[Bytes], NDArray[Any]]

# Type of ggml -> the dtype of a tensor of such elements, and what makes them of its bytes
EXACT: dict[str, tuple[str, Elements]] = {
    "Q8_0": ("INT8", _q8_0),
    "Q5_0": ("INT8", _q5_0),
    "IQ4_NL": ("INT8", _iq4_nl),
    "Q4_1": ("INT4", _q4_1),
    "Q4_0": ("INT4", _q4_0),
}
