"""Tensors whose values are stored as they are: views of a mapped file, or of an array in memory."""

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastcore.errors import CheckpointError

__all__ = ["DTYPES", "DenseTensor", "bf16_bits", "bf16_to_f32"]

# Stored dtype -> what `DenseTensor.array` holds. NumPy has no bfloat16: the bits are given as uint16.
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}


class Source(Protocol):
    """Bytes that tensors are views of."""

    def buffer(self) -> Any: ...

    def release(self, begin: int, end: int) -> None: ...


class _Memory:
    """Bytes of an array in memory, with the methods of a mapped file."""

    def __init__(self, array: np.ndarray) -> None:
        self._bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def buffer(self) -> Any:
        return self._bytes

    def release(self, begin: int, end: int) -> None:
        """Memory of our own is freed with the tensor."""


class DenseTensor:
    """One tensor: its facts, and its values when asked for.

    name: as in the file. dtype: a key of DTYPES. shape: tuple of int, () for a scalar. nbytes: size as stored.
    """

    __slots__ = ("_begin", "_source", "dtype", "name", "nbytes", "shape")

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...], source: Source, begin: int) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.nbytes = math.prod(shape) * DTYPES[dtype].itemsize
        self._source = source
        self._begin = begin

    @classmethod
    def from_array(cls, name: str, array: np.ndarray, dtype: str | None = None) -> "DenseTensor":
        """A tensor over an array in memory. dtype: "BF16" for a uint16 array that holds bfloat16 bits."""
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if dtype is None:
            dtype = next((key for key, value in DTYPES.items() if key != "BF16" and value == little.dtype), None)
        if dtype is None or DTYPES.get(dtype) != little.dtype:
            raise TypeError(f"tensor {name!r}: dtype {dtype} does not go with an array of {array.dtype}")
        return cls(name, dtype, array.shape, _Memory(little), 0)

    @property
    def auto_dtype(self) -> str:
        """What dtype "auto" packs it as: its own."""
        return self.dtype.lower()

    @property
    def array(self) -> NDArray[Any]:
        """The stored values, read-only, C order, dtype DTYPES[self.dtype]: a view of the file, no copy.

        Only a tensor whose first byte is not aligned to its dtype is copied.
        """
        stored = DTYPES[self.dtype]
        if self.nbytes == 0:
            values = np.empty(self.shape, stored)
        elif self.dtype == "BOOL":
            raw = np.frombuffer(self._source.buffer(), np.uint8, self.nbytes, self._begin)
            if raw.max() > 1:
                raise CheckpointError(f"tensor {self.name!r}: BOOL byte {raw.max()}, expected 0 or 1")
            values = raw.view(np.bool_).reshape(self.shape)
        else:
            count = self.nbytes // stored.itemsize
            values = np.frombuffer(self._source.buffer(), stored, count, self._begin).reshape(self.shape)
            if not values.flags.aligned:
                values = values.copy()
        values.flags.writeable = False
        return values

    def f32(self) -> NDArray[np.float32]:
        """The values as a new f32 array of the same shape. F16, BF16 and F32 are exact, F64 is rounded."""
        if self.dtype == "BF16":
            return bf16_to_f32(self.array)
        if self.dtype in ("F16", "F32", "F64"):
            with np.errstate(over="ignore"):  # an f64 beyond f32 becomes infinite, as in transformers
                return self.array.astype(np.float32)
        raise CheckpointError(f"tensor {self.name!r} holds {self.dtype}, expected F32, F16 or BF16")

    def release(self) -> None:
        """Drop the tensor's pages from resident memory. It stays readable."""
        self._source.release(self._begin, self._begin + self.nbytes)

    def __repr__(self) -> str:
        return f"DenseTensor({self.name!r}, {self.dtype}, {list(self.shape)})"


def bf16_to_f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 bits as f32, of the same shape; exact."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """f32 to bfloat16 bits, rounded to nearest, ties to even; little-endian uint16 of the same shape."""
    bits = values.view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    nans = np.isnan(values)
    if nans.any():  # rounding up could carry a NaN into infinity
        rounded[nans] = bits[nans] >> 16 | 0x40
    return rounded.astype("<u2")
