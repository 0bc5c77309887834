"""Weights by exact name: take, check the shape, pack. What is left over at the end is an error."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fastcore import _kernels
from fastcore._kernels import PackedLinear
from fastcore.errors import CheckpointError
from fastcore.huge_pages import Arena
from fastcore.model.tensor import Tensor

__all__ = ["DTYPES", "Weights"]

_STORED = {name.upper(): name for name in _kernels.STORED_AS}  # a tensor's dtype -> ours
DTYPES = ("auto", *_kernels.DTYPES)
SHARED_BYTES = 4 << 20  # threads share larger tensors; over smaller ones they wait longer than they work


class Weights:
    """Takes tensors out of a checkpoint, one at a time, and packs them; each name can be taken once.

    tensors: of a checkpoint, by name.
    dtype: of the packed linear maps; "auto" keeps each tensor's own (bf16 if it is quantised; f32 where stacked
        tensors differ).
    """

    def __init__(self, tensors: Mapping[str, Tensor], dtype: str = "auto", num_threads: int = 1) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
        self.dtype = dtype
        self.nbytes = 0  # of everything packed so far
        self._arena = Arena()
        self._tensors = tensors
        self._left = dict.fromkeys(tensors)
        self._num_threads = num_threads

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        """A 1-d tensor as f32 [size]."""
        tensor = self._take(name, (size,))
        value = tensor.f32()
        tensor.release()
        self.nbytes += value.nbytes
        return value

    def array(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A small tensor of any rank as f32."""
        tensor = self._take(name, shape)
        value = tensor.f32()
        tensor.release()
        self.nbytes += value.nbytes
        return value

    def linear(self, parts: Sequence[tuple[str, int]], in_features: int, dtype: str | None = None) -> PackedLinear:
        """The maps `parts` = (name, out_features), stacked, as one packed map; `dtype` replaces self.dtype."""
        tensors = [self._take(name, (rows, in_features)) for name, rows in parts]
        rows = sum(rows for _, rows in parts)
        packed = PackedLinear(rows, in_features, dtype or self._packed_dtype(tensors), self._arena)
        first = 0
        for tensor, (_, rows) in zip(tensors, parts, strict=True):
            self._pack(packed, tensor, first, 16)
            first += rows
        self.nbytes += packed.nbytes
        return packed

    def gate_up(self, gate: str, up: str, out_features: int, in_features: int) -> PackedLinear:
        """Gate and up projections with their rows interleaved in groups of 16."""
        tensors = [self._take(name, (out_features, in_features)) for name in (gate, up)]
        packed = PackedLinear(2 * _padded(out_features), in_features, self._packed_dtype(tensors), self._arena)
        for i, tensor in enumerate(tensors):
            self._pack(packed, tensor, 16 * i, 32)
        self.nbytes += packed.nbytes
        return packed

    def stacked_bias(self, parts: Sequence[tuple[str, int]]) -> NDArray[np.float32]:
        """The biases of stacked maps, in the same order."""
        return np.concatenate([self.vector(name, rows) for name, rows in parts])

    def gate_up_bias(self, gate: str, up: str, out_features: int) -> NDArray[np.float32]:
        """The biases that go with gate_up."""
        padded = np.zeros((2, _padded(out_features)), np.float32)
        for i, name in enumerate((gate, up)):
            padded[i, :out_features] = self.vector(name, out_features)
        return padded.reshape(2, -1, 16).swapaxes(0, 1).reshape(-1)

    def ignore(self, names: Iterable[str]) -> None:
        """Tensors that this architecture knows and does not need."""
        for name in names:
            self._left.pop(name, None)

    def finish(self) -> None:
        """Every tensor must have been taken."""
        if self._left:
            names = list(self._left)
            raise CheckpointError(
                f"{len(names)} tensors of the checkpoint are not part of this architecture: {', '.join(names[:8])}"
                f"{', ...' if len(names) > 8 else ''}; the config's model_type or architectures may be wrong"
            )

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self._left:
            raise CheckpointError(f"tensor {name!r} is missing from the checkpoint (expected shape {list(shape)})")
        tensor = self._tensors[name]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {list(tensor.shape)}; the config asks for {list(shape)}; one is wrong"
            )
        if tensor.dtype not in _STORED:
            raise CheckpointError(f"tensor {name!r} has dtype {tensor.dtype}; expected {' or '.join(_STORED)}")
        del self._left[name]
        return tensor

    def _packed_dtype(self, tensors: Sequence[Tensor]) -> str:
        if self.dtype != "auto":
            return self.dtype
        stored = {tensor.auto_dtype for tensor in tensors}
        return stored.pop() if len(stored) == 1 else "f32"

    def _pack(self, packed: PackedLinear, tensor: Tensor, first_row: int, group_stride: int) -> None:
        array = tensor.array
        threads = self._num_threads if array.nbytes >= SHARED_BYTES else 1
        packed.pack(array, _STORED[tensor.dtype], first_row, group_stride, threads)
        tensor.release()


def _padded(n: int) -> int:
    return -(-n // 16) * 16
