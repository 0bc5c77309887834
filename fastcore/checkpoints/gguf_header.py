"""The container of a GGUF file: its metadata, and where each tensor lies. Every number is checked before it is used."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastcore.checkpoints.folder import MappedFile
from fastcore.errors import CheckpointError, UnsupportedModelError

__all__ = ["StoredTensor", "read_header"]

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_RANK = 4
_MAX_DEPTH = 4
_ALIGNMENT = 32  # unless general.alignment says otherwise


@dataclass(frozen=True)
class StoredTensor:
    """shape: [out_features, in_features]. type: of ggml. data: uint8, the last axis the bytes of a row; a view."""

    name: str
    shape: tuple[int, ...]
    type: int
    data: np.ndarray


def read_header(file: MappedFile) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """(metadata, tensors) of a file. Arrays of the metadata are lists."""
    return _Reader(file).read()


class _Reader:
    def __init__(self, file: MappedFile) -> None:
        self.path = file.path
        self.buffer = file.buffer()
        self.size = file.size
        self.position = 0

    def read(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        if self.bytes(4) != b"GGUF":
            raise CheckpointError(f"{self.path} is not a GGUF file: it does not begin with 'GGUF'")
        version = self.scalar("<I")
        if version not in (2, 3):
            raise UnsupportedModelError(f"{self.path}: GGUF version {version}, expected 2 or 3, little-endian")
        num_tensors, num_fields = self.scalar("<Q"), self.scalar("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_fields):
            key = self.text()
            if key in metadata:
                raise CheckpointError(f"{self.path}: metadata {key!r} is there twice")
            metadata[key] = self.value(self.scalar("<I"), key)
        entries = [self.entry() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise CheckpointError(f"{self.path}: general.alignment is {alignment!r}")
        start = -(-self.position // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, shape, kind, offset in entries:
            if name in tensors:
                raise CheckpointError(f"{self.path}: tensor {name!r} is there twice")
            tensors[name] = self.tensor(name, shape, kind, start + offset)
        return metadata, tensors

    def bytes(self, count: int) -> bytes:
        end = self.position + count
        if end > self.size:
            raise CheckpointError(
                f"{self.path}: {count} bytes are expected at {self.position}, but the file ends at {self.size}; it is "
                "truncated or damaged, download it again"
            )
        data = self.buffer[self.position : end]
        self.position = end
        return bytes(data)

    def scalar(self, form: str) -> Any:
        return struct.unpack(form, self.bytes(struct.calcsize(form)))[0]

    def text(self) -> str:
        return self.bytes(self.scalar("<Q")).decode("utf-8", "replace")

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth == _MAX_DEPTH:
            raise CheckpointError(f"{self.path}: metadata {key!r} has unknown type {kind}")
        item, count = self.scalar("<I"), self.scalar("<Q")
        if item in _SCALARS:
            dtype = np.dtype(_SCALARS[item])
            return np.frombuffer(self.bytes(count * dtype.itemsize), dtype).tolist()
        return [self.value(item, key, depth + 1) for _ in range(count)]

    def entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, rank = self.text(), self.scalar("<I")
        if rank > _MAX_RANK:
            raise CheckpointError(f"{self.path}: tensor {name!r} has {rank} dimensions, expected at most {_MAX_RANK}")
        shape = tuple(self.scalar("<Q") for _ in range(rank))
        return name, shape[::-1], self.scalar("<I"), self.scalar("<Q")

    def tensor(self, name: str, shape: tuple[int, ...], kind: int, begin: int) -> StoredTensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (ValueError, KeyError):
            raise UnsupportedModelError(f"{self.path}: tensor {name!r} has unknown type {kind}") from None
        row = shape[-1] if shape else 1
        if row % block:
            raise CheckpointError(f"{self.path}: tensor {name!r} has rows of {row}, expected a multiple of {block}")
        byte_shape = (*shape[:-1], row // block * block_bytes)
        count = math.prod(byte_shape)
        if begin + count > self.size:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} ends at byte {begin + count} of {self.size}; the file is truncated, "
                "download it again"
            )
        data = np.frombuffer(self.buffer, np.uint8, count, begin) if count else np.empty(0, np.uint8)
        return StoredTensor(name, shape, kind, data.reshape(byte_shape))
