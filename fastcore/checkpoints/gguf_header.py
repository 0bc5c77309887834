"""The container of a GGUF file: its metadata, and where each tensor lies. Every number is checked before it is used.

Reading is ours, not the gguf package's: its reader trusts lengths and counts, and keeps every field as an array.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore.checkpoints.mapped import Cursor, MappedFile
from fastcore.errors import CheckpointError, UnsupportedModelError

__all__ = ["MAGIC", "StoredTensor", "read_header"]

MAGIC = b"GGUF"
_SCALARS = {
    kind: struct.Struct(f"<{code}")
    for kind, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_U32 = _SCALARS[4]
_STRING, _ARRAY = 8, 9
_MAX_RANK = 4
_MAX_DEPTH = 4
_MAX_ITEMS = 2**24  # of all arrays together: a vocabulary of 2**18 tokens takes 2**20
_MAX_SIDE = 2**40  # of a tensor, so that products stay numbers
_ALIGNMENT = 32  # unless general.alignment says otherwise


@dataclass(frozen=True)
class StoredTensor:
    """shape: [out_features, in_features]. type: of ggml."""

    name: str
    shape: tuple[int, ...]
    type: int
    byte_shape: tuple[int, ...]
    begin: int
    file: MappedFile

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes, uint8 `byte_shape`: the last axis is the bytes of a row. A view of the file."""
        count = math.prod(self.byte_shape)
        if not count:
            return np.empty(self.byte_shape, np.uint8)
        return np.frombuffer(self.file.buffer(), np.uint8, count, self.begin).reshape(self.byte_shape)


def read_header(file: MappedFile) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """(metadata, tensors) of a file. Arrays of the metadata are lists."""
    return _Reader(file).read()


class _Reader:
    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.path = file.path
        self.cursor = Cursor(file)
        self.items = 0

    def read(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        if self.cursor.take(4, "the magic") != MAGIC:
            raise CheckpointError(f"{self.path} is not a GGUF file: it does not begin with 'GGUF'")
        version = self.scalar(_U32, "the version")
        if version not in (2, 3):
            raise UnsupportedModelError(f"{self.path}: GGUF version {version}, expected 2 or 3, little-endian")
        num_tensors, num_fields = self.cursor.unpack(struct.Struct("<QQ"), "the counts")
        metadata: dict[str, Any] = {}
        for _ in range(num_fields):
            key = self.text("the name of a metadata field")
            if key in metadata:
                raise CheckpointError(f"{self.path}: metadata {key!r:.200} is there twice")
            metadata[key] = self.value(self.scalar(_U32, "a type"), key)
        entries = [self.entry() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20:
            raise CheckpointError(f"{self.path}: general.alignment is {alignment!r:.80}, expected 1 to {1 << 20}")
        start = -(-self.cursor.position // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, shape, kind, offset in entries:
            if name in tensors:
                raise CheckpointError(f"{self.path}: tensor {name!r:.200} is there twice")
            tensors[name] = self.tensor(name, shape, kind, start + offset)
        return metadata, tensors

    def scalar(self, layout: struct.Struct, what: str) -> Any:
        return self.cursor.unpack(layout, what)[0]

    def text(self, what: str) -> str:
        return self.cursor.strings(1, what)[0]

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], "a number")
        if kind == _STRING:
            return self.text("a string")
        if kind != _ARRAY or depth == _MAX_DEPTH:
            raise CheckpointError(f"{self.path}: metadata {key!r:.200} has unknown type {kind}")
        item, count = self.cursor.unpack(struct.Struct("<IQ"), "the size of an array")
        self.items += count
        if self.items > _MAX_ITEMS:
            raise CheckpointError(
                f"{self.path} is truncated or damaged: metadata {key!r:.200} has {count} items, expected at most "
                f"{_MAX_ITEMS} in all"
            )
        if item in _SCALARS:
            dtype = np.dtype(_SCALARS[item].format)
            return np.frombuffer(self.cursor.take(count * dtype.itemsize, "an array"), dtype).tolist()
        if item == _STRING:
            return self.cursor.strings(count, "a string")
        return [self.value(item, key, depth + 1) for _ in range(count)]

    def entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, rank = self.text("the name of a tensor"), self.scalar(_U32, "a rank")
        if rank > _MAX_RANK:
            raise CheckpointError(
                f"{self.path}: tensor {name!r:.200} has {rank} dimensions, expected at most {_MAX_RANK}"
            )
        *sides, kind, offset = self.cursor.unpack(struct.Struct(f"<{rank}QIQ"), f"tensor {name!r:.200}")
        return name, tuple(sides[::-1]), kind, offset

    def tensor(self, name: str, shape: tuple[int, ...], kind: int, begin: int) -> StoredTensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (ValueError, KeyError):
            raise UnsupportedModelError(f"{self.path}: tensor {name!r:.200} has unknown type {kind}") from None
        row = shape[-1] if shape else 1
        if row % block:
            raise CheckpointError(
                f"{self.path}: tensor {name!r:.200} has rows of {row}, expected a multiple of {block}"
            )
        byte_shape = (*shape[:-1], row // block * block_bytes)
        end = begin + math.prod(byte_shape)
        # a zero dimension hides the others from the product, but NumPy still multiplies them
        if end > self.file.size or math.prod(n or 1 for n in byte_shape) > _MAX_SIDE:
            raise CheckpointError(
                f"{self.path}: tensor {name!r:.200} ends at byte {end} of {self.file.size}; the file is truncated, "
                "download it again"
            )
        return StoredTensor(name, shape, kind, byte_shape, begin, self.file)
