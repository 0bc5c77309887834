"""Weights by exact name: take, check the shape, pack. What is left over at the end is an error."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore import _kernels
from fastcore._kernels import PackedLinear, packed_bytes
from fastcore.errors import CheckpointError
from fastcore.huge_pages import Arena
from fastcore.model.recipes import recipe_dtype
from fastcore.model.tensor import Tensor

__all__ = ["DTYPES", "LinearMap", "PackedMaps", "Weights"]

_STORED = {name.upper(): name for name in _kernels.STORED_AS}  # a tensor's dtype -> ours
DTYPES = ("auto", *_kernels.DTYPES)
SHARED_BYTES = 4 << 20  # threads share larger tensors; over smaller ones they wait longer than they work
QUANTIZED_BYTES = SHARED_BYTES // 16  # the same, where numbers are not moved but quantised


@dataclass(frozen=True, eq=False)
class LinearMap:
    """A linear map [out_features, in_features] as the checkpoint has it: one tensor, or several, not yet packed.

    Stacked tensors follow each other; of interleaved ones, 16 rows of each come in turns, the last of them filled up
    with rows of zeros. names: of the tensors in the checkpoint. bias: [out_features]. dtype: to pack it as, whatever
    the model is loaded as.
    """

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] = ()
    bias: NDArray[np.float32] | None = None
    dtype: str | None = None
    in_turns: bool = False

    @classmethod
    def stacked(cls, maps: Sequence["LinearMap"]) -> "LinearMap":
        """The maps as one, one after the other; their biases too, where they have any."""
        biases = [np.zeros(each.out_features, np.float32) if each.bias is None else each.bias for each in maps]
        bias = None if all(each.bias is None for each in maps) else np.concatenate(biases)
        return cls(*_joined(maps), bias, maps[0].dtype)

    @classmethod
    def interleaved(cls, maps: Sequence["LinearMap"]) -> "LinearMap":
        """The maps as one, 16 rows of each in turns; their biases too."""
        padded = np.zeros((len(maps), -(-maps[0].out_features // 16) * 16), np.float32)
        for row, each in zip(padded, maps, strict=True):
            row[: each.out_features] = 0 if each.bias is None else each.bias
        bias = padded.reshape(len(maps), -1, 16).swapaxes(0, 1).reshape(-1)
        unbiased = all(each.bias is None for each in maps)
        return cls(*_joined(maps), None if unbiased else bias, maps[0].dtype, in_turns=True)

    @property
    def in_features(self) -> int:
        return int(self.tensors[0].shape[1])

    @property
    def out_features(self) -> int:
        rows = [int(tensor.shape[0]) for tensor in self.tensors]
        return len(rows) * -(-rows[0] // 16) * 16 if self.in_turns else sum(rows)

    def packed_dtype(self, dtype: str) -> str:
        """What it is packed as in a model loaded as `dtype`: "auto" is the tensors' own; what is stored so stays."""
        if self.dtype is not None:
            return self.dtype
        stored = {tensor.auto_dtype for tensor in self.tensors}
        if dtype == "auto" or stored == {dtype}:
            return self.tensors[0].auto_dtype
        return recipe_dtype(dtype, self.names, self.in_features)

    def packed_bytes(self, dtype: str) -> int:
        return packed_bytes(self.out_features, self.in_features, self.packed_dtype(dtype))


def _joined(maps: Sequence[LinearMap]) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
    return tuple(t for each in maps for t in each.tensors), tuple(name for each in maps for name in each.names)


# Maps that a checkpoint stores packed, by the names of their tensors and whether these come in turns
PackedMaps = Mapping[tuple[tuple[str, ...], bool], PackedLinear]


@dataclass
class _Taken:
    """What is taken from a checkpoint so far. copies: of other tensors, which are not packed."""

    left: dict[str, None]
    copies: list[str] = field(default_factory=list)
    parameters: dict[str, int] = field(default_factory=dict)  # by stored dtype
    vector_bytes: int = 0


class Weights:
    """Takes tensors out of a checkpoint by their names under a prefix, each once, and packs them.

    tensors: of a checkpoint, by name.
    dtype: of the packed linear maps; "auto" keeps each tensor's own (bf16 where no format holds how it is quantised).
    stored: maps that lie packed in the checkpoint. One that is wanted as it is stored is not packed again.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        dtype: str = "auto",
        num_threads: int = 1,
        stored: PackedMaps | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
        self.dtype = dtype
        self._prefix = ""
        self._tensors = tensors
        self._taken = _Taken(dict.fromkeys(tensors))
        self._num_threads = num_threads
        self._arena = Arena()
        self._stored = {} if stored is None else stored
        self._packed: dict[LinearMap, PackedLinear] = {}

    def under(self, prefix: str) -> "Weights":
        """The same weights, by what follows `prefix` and a dot in their names."""
        scoped = copy(self)
        scoped._prefix = f"{self._prefix}{prefix}."
        return scoped

    def layers(self, prefix: str, count: int) -> Iterator[tuple[int, "Weights"]]:
        """Each layer's number and its weights, under prefix.number."""
        return ((layer, self.under(f"{prefix}.{layer}")) for layer in range(count))

    def __contains__(self, name: str) -> bool:
        return f"{self._prefix}{name}" in self._taken.left

    @property
    def parameters(self) -> dict[str, int]:
        """Numbers taken so far, by dtype in the checkpoint."""
        return self._taken.parameters

    @property
    def copies(self) -> Sequence[str]:
        """Names of tensors taken so far that hold what another does, and stand for it."""
        return self._taken.copies

    @property
    def vector_bytes(self) -> int:
        """Of the vectors and small arrays taken so far, as f32."""
        return self._taken.vector_bytes

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        """A 1-d tensor as f32 [size]."""
        return self.array(name, (size,))

    def array(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A small tensor of any rank as f32 [*shape]."""
        tensor = self._take(name, shape)
        value = tensor.f32()
        tensor.release()
        self._taken.vector_bytes += value.nbytes
        return value

    def linear(
        self, name: str, out_features: int, in_features: int, *, bias: bool = False, dtype: str | None = None
    ) -> LinearMap:
        """The map `name`.weight [out_features, in_features], with `name`.bias [out_features] if bias."""
        tensor = self._take(f"{name}.weight", (out_features, in_features))
        biases = self.vector(f"{name}.bias", out_features) if bias else None
        return LinearMap((tensor,), (f"{self._prefix}{name}.weight",), biases, dtype)

    def head(self, name: str, embedding: LinearMap, *, tied: bool) -> LinearMap:
        """The map `name`.weight to logits; if it is tied, the embedding, unless a head with other values is stored.

        So does transformers, which ties weights only where the checkpoint leaves one out.
        """
        rows, columns = embedding.out_features, embedding.in_features
        if tied and f"{name}.weight" not in self:
            return embedding
        head = self.linear(name, rows, columns)
        if not tied or not _equal(head.tensors[0], embedding.tensors[0]):
            return head
        self.parameters[head.tensors[0].dtype] -= rows * columns
        self._taken.copies += head.names
        return embedding

    def known(self, name: str, *shapes: tuple[int, ...], dtypes: Sequence[str] = tuple(_STORED)) -> None:
        """A tensor that this architecture may have and takes nothing from: where it is, it has one of these shapes."""
        if name in self:
            tensor = self._find(name)
            if tuple(tensor.shape) not in shapes or tensor.dtype not in dtypes:
                raise CheckpointError(
                    f"tensor {self._prefix + name!r} is {tensor.dtype} {list(tensor.shape)}; expected "
                    f"{' or '.join(dtypes)} {' or '.join(str(list(shape)) for shape in shapes)}"
                )
            del self._taken.left[self._prefix + name]

    def finish(self) -> None:
        """Every tensor must have been taken."""
        left = list(self._taken.left)
        if left:
            raise CheckpointError(
                f"{len(left)} tensors of the checkpoint are not part of this architecture: {', '.join(left[:8])}"
                f"{', ...' if len(left) > 8 else ''}; the config's model_type or architectures may be wrong"
            )

    def pack(self, linear: LinearMap) -> PackedLinear:
        """The packed form of a map; of the same map, the same."""
        if linear not in self._packed:
            self._packed[linear] = self.packed_alone(linear, self._arena)
        return self._packed[linear]

    def packed_alone(self, linear: LinearMap, arena: Arena | None = None) -> PackedLinear:
        """The packed form of a map, which only the caller holds."""
        dtype = linear.packed_dtype(self.dtype)
        stored = self._stored.get((linear.names, linear.in_turns))
        if stored is not None and stored.dtype == dtype:
            return stored
        packed = PackedLinear(linear.out_features, linear.in_features, dtype, arena)
        first, stride = 0, 16 * len(linear.tensors) if linear.in_turns else 16
        for tensor in linear.tensors:
            array = tensor.array
            least = QUANTIZED_BYTES if dtype in ("int8", "int4") else SHARED_BYTES
            threads = self._num_threads if array.nbytes >= least else 1
            try:
                packed.pack(array, _STORED[tensor.dtype], first, stride, threads)
            except ValueError as error:
                raise CheckpointError(f"tensor {tensor.name!r}: {error}; load it with dtype 'bf16'") from error
            tensor.release()
            first += 16 if linear.in_turns else tensor.shape[0]
        return packed

    def _find(self, name: str) -> Tensor:
        return self._tensors[f"{self._prefix}{name}"]

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self:
            raise CheckpointError(
                f"tensor {self._prefix + name!r} is missing from the checkpoint (expected shape {list(shape)})"
            )
        tensor, name = self._find(name), f"{self._prefix}{name}"
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {list(tensor.shape)}; the config asks for {list(shape)}; one is wrong"
            )
        if tensor.dtype not in _STORED:
            raise CheckpointError(f"tensor {name!r} has dtype {tensor.dtype}; expected {' or '.join(_STORED)}")
        del self._taken.left[name]
        self.parameters[tensor.dtype] = self.parameters.get(tensor.dtype, 0) + prod(shape)
        return tensor


def _equal(a: Tensor, b: Tensor, rows: int = 4096) -> bool:
    """Whether two tensors [n, m] hold the same values."""
    if a.dtype == b.dtype:
        pairs: Iterator[tuple[Any, Any]] = zip(_slices(a.array, rows), _slices(b.array, rows), strict=True)
    else:
        pairs = zip(_slices(a.f32(), rows), _slices(b.f32(), rows), strict=True)
    found = all(np.array_equal(x, y) for x, y in pairs)
    a.release()
    b.release()
    return found


def _slices(array: NDArray[Any], rows: int) -> Iterator[NDArray[Any]]:
    return (array[first : first + rows] for first in range(0, len(array), rows))
