"""A packed folder: linear maps stored as the kernels read them, so that loading maps the file and computes nothing.

packed.safetensors holds each map as one tensor of bytes, its panels from a multiple of 64 in the file on, and all other
tensors as they are. What the bytes mean stands in the header (docs/quantization.md): it names the tensors that each map
is made of, so that they are checked against the config as those of any checkpoint.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fastcore import _kernels
from fastcore._kernels import PackedLinear, packed_bytes
from fastcore.checkpoints.dense import DTYPES, DenseTensor
from fastcore.checkpoints.fields import MAX_SIZE, Fields
from fastcore.checkpoints.folder import FolderCheckpoint
from fastcore.checkpoints.groups import GROUP, int4_groups, int8_groups
from fastcore.checkpoints.mapped import MappedFile
from fastcore.checkpoints.strict_json import parse_object
from fastcore.errors import CheckpointError, UnsupportedModelError
from fastcore.huge_pages import ALIGNMENT
from fastcore.model.tensor import Tensor
from fastcore.model.weights import LinearMap, PackedMaps

__all__ = ["FORMAT", "PackedCheckpoint", "PackedTensor", "layout_checksum", "read_maps", "write_packed"]

FORMAT = "fastcore-packed"
VERSION = 1
PAGE = 4096  # the panels begin at a multiple of it
_ENDING = ".panels"
_ADVICE = "write the folder again with `fastcore quantize`"


@cache
def layout_checksum(dtype: str) -> str:
    """What a format's panels mean, in eight hex digits: the CRC-32 of the values that a fixed pattern unpacks to."""
    size = packed_bytes(16, 64, dtype)
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    panels = memory[-memory.ctypes.data % ALIGNMENT :][:size]
    panels[:] = np.arange(size) * 37 % 59  # below the bytes of which halves are infinite
    linear = PackedLinear(16, 64, dtype, panels=panels)
    values = np.stack([linear.row(i) for i in range(16)])
    return f"{zlib.crc32(values.astype('<f4').tobytes()):08x}"


class PackedTensor:
    """A tensor that is some rows of a packed map: 16 that follow each other, and then those `stride` rows further on.

    dtype: INT8 or INT4 where it is packed so, F32 else: every value of the other formats is an f32.
    """

    def __init__(self, name: str, linear: PackedLinear, num_rows: int, first_row: int, stride: int) -> None:
        self.name = name
        self.dtype = {"int8": "INT8", "int4": "INT4"}.get(linear.dtype, "F32")
        self.shape: tuple[int, ...] = (num_rows, linear.in_features)
        self.nbytes = linear.nbytes * num_rows // linear.out_features
        self._linear = linear
        self._first_row, self._stride = first_row, stride

    @property
    def auto_dtype(self) -> str:
        """What it is packed as."""
        return self._linear.dtype

    @property
    def array(self) -> NDArray[Any]:
        """The groups of an int8 or int4 map as they are, or the values as `f32` gives them."""
        if self.dtype == "F32":
            return self.f32()
        rows = self._rows()
        groups = -(-self.shape[1] // GROUP)
        panels = self._linear.panels.reshape(-(-self._linear.out_features // 16), groups, -1)
        quads = 8 if self.dtype == "INT8" else 4
        octets = panels[:, :, : quads * 64].reshape(-1, groups, quads, 16, 4)[rows // 16, :, :, rows % 16]
        octets = octets.reshape(len(rows), groups, quads * 4)
        halves = (
            panels[:, :, quads * 64 :].view("<f2").reshape(len(panels), groups, -1, 16)[rows // 16, :, :, rows % 16]
        )
        if self.dtype == "INT8":
            return int8_groups(halves[:, :, 0], octets.view(np.int8))
        return int4_groups(halves[:, :, 0], halves[:, :, 1], octets)

    def f32(self) -> NDArray[np.float32]:
        """The values that the packed ones stand for, as a new f32 array."""
        return np.stack([self._linear.row(row) for row in self._rows().tolist()])

    def _rows(self) -> NDArray[np.int64]:
        """Where its rows are in the map."""
        own = np.arange(self.shape[0])
        return self._first_row + own // 16 * self._stride + own % 16

    def release(self) -> None:
        """What is mapped stays: the model may run on it."""


class PackedCheckpoint(FolderCheckpoint):
    """A packed folder. Its maps are views of the mapped file, which all processes that load it share."""

    def __init__(
        self,
        path: Path,
        folder: Path,
        metadata: Mapping[str, str],
        tensors: Mapping[str, DenseTensor],
        file: MappedFile,
    ) -> None:
        parts, self._maps = read_maps(metadata, tensors, str(file.path))
        super().__init__(path, folder, parts, (file,), is_pack=False)

    @property
    def packed(self) -> PackedMaps:
        return self._maps


# ---------------------------------------------------------------- reading


def read_maps(
    metadata: Mapping[str, str], stored: Mapping[str, DenseTensor], where: str
) -> tuple[dict[str, Tensor], PackedMaps]:
    """The tensors of a model, packed ones among them, and its maps. stored: what the file holds."""
    if metadata.get("version") != str(VERSION):
        raise UnsupportedModelError(
            f"{where}: version {metadata.get('version')!r:.40} of packed folders, expected '{VERSION}'; {_ADVICE}"
        )
    layouts, described = (_object(metadata, name, where) for name in ("layouts", "maps"))
    left = dict(stored)
    tensors: dict[str, Tensor] = {}
    maps: dict[tuple[tuple[str, ...], bool], PackedLinear] = {}
    for panels, entry in described.items():
        if not isinstance(entry, dict):
            raise CheckpointError(f"{where}: map {panels!r:.200} is {entry!r:.80}, expected an object")
        fields = Fields(entry, where, f"maps.{panels:.200}.")
        dtype, rows, stride = _facts(fields, layouts)
        columns = fields.needed_integer("in_features")
        first, names = 0, tuple(rows)
        total = len(rows) * -(-rows[names[0]] // 16) * 16 if stride > 16 else sum(rows.values())
        linear = PackedLinear(total, columns, dtype, panels=_panels(left, panels, total, columns, dtype, fields))
        maps[names, stride > 16] = linear
        for name, num_rows in rows.items():
            if name in tensors:
                raise CheckpointError(f"{where}: tensor {name!r:.200} is in two maps")
            tensors[name] = PackedTensor(name, linear, num_rows, first, stride)
            first += 16 if stride > 16 else num_rows
    for name, tensor in left.items():
        if name in tensors or name.endswith(_ENDING):
            raise CheckpointError(f"{where}: tensor {name!r:.200} is not described by the header, or described twice")
        tensors[name] = tensor
    return tensors, maps


def _object(metadata: Mapping[str, str], name: str, where: str) -> dict[str, Any]:
    if name not in metadata:
        raise CheckpointError(f"{where}: {name} is missing from the header of this packed file; {_ADVICE}")
    return parse_object(metadata[name].encode("utf-8", "surrogatepass"), f"{where}: {name}")


def _facts(fields: Fields, layouts: Mapping[str, Any]) -> tuple[str, dict[str, int], int]:
    """dtype, rows of each tensor by name, and how far the panels of one tensor lie apart, in rows."""
    dtype = fields.string("dtype", "")
    if dtype not in _kernels.DTYPES:
        raise fields.unsupported("dtype", dtype, f"supported: {', '.join(_kernels.DTYPES)}")
    if layouts.get(dtype) != layout_checksum(dtype):
        raise UnsupportedModelError(
            f"{fields.where}: {dtype} panels are laid out as {layouts.get(dtype)!r:.40}, and this version of fastcore "
            f"reads {layout_checksum(dtype)!r}; {_ADVICE}"
        )
    given = fields.take("rows")
    if not isinstance(given, dict) or not given:
        raise fields.wrong("rows", given, "an object of tensor name: number of rows")
    if not all(type(number) is int and 1 <= number <= MAX_SIZE for number in given.values()):
        raise fields.wrong("rows", given, f"numbers of rows from 1 to {MAX_SIZE}")
    in_turns = fields.boolean("in_turns", False)
    if in_turns and len(set(given.values())) > 1:
        raise fields.wrong("rows", given, "equal numbers, since the tensors come in turns")
    total = -(-sum(given.values()) // 16) * 16 + 16 * len(given)
    if total > MAX_SIZE:
        raise fields.wrong("rows", given, f"at most {MAX_SIZE} in all")
    return dtype, given, 16 * len(given) if in_turns and len(given) > 1 else 16


def _panels(
    left: dict[str, DenseTensor], name: str, rows: int, columns: int, dtype: str, fields: Fields
) -> NDArray[np.uint8]:
    """The panels of a map, which are taken from `left`."""
    tensor = left.pop(name, None)
    size = packed_bytes(rows, columns, dtype)
    padded = -(-size // ALIGNMENT) * ALIGNMENT
    if tensor is None or not name.endswith(_ENDING):
        raise CheckpointError(f"{fields.where}: the panels {name!r:.200} of a map are missing from the file")
    if tensor.dtype != "U8" or tensor.shape != (padded,):
        raise CheckpointError(
            f"{fields.where}: panels {name!r:.200} are {tensor.dtype} {list(tensor.shape)}; expected U8 [{padded}] for "
            f"{rows} rows of {columns} in {dtype}"
        )
    array: NDArray[np.uint8] = tensor.array
    if array.ctypes.data % ALIGNMENT:
        raise CheckpointError(f"{fields.where}: panels {name!r:.200} do not begin at a multiple of {ALIGNMENT} bytes")
    return array[:size]


# ---------------------------------------------------------------- writing


def write_packed(
    file: BinaryIO,
    maps: Iterable[LinearMap],
    dtype: str,
    pack: Callable[[LinearMap], PackedLinear],
    dense: Mapping[str, Tensor],
    source: Mapping[str, Any],
    done: Callable[[int, int], object] = lambda written, total: None,
) -> None:
    """Write maps, each packed when its turn comes, and the other tensors of a model.

    dtype: that the model is loaded as; each map says what this makes of it. source: what the weights were made from,
    for those who ask. done: called after each map with the bytes written so far and in all.
    """
    maps = tuple(maps)
    described = {
        f"{linear.names[0].removesuffix('.weight')}{_ENDING}": {
            "dtype": linear.packed_dtype(dtype),
            "in_features": linear.in_features,
            "in_turns": linear.in_turns,
            "rows": {name: tensor.shape[0] for name, tensor in zip(linear.names, linear.tensors, strict=True)},
        }
        for linear in maps
    }
    kinds = sorted({linear.packed_dtype(dtype) for linear in maps})
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "dtype": dtype,
        "layouts": json.dumps({kind: layout_checksum(kind) for kind in kinds}),
        "maps": json.dumps(described),
        "source": json.dumps(source),
    }
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, linear in zip(described, maps, strict=True):
        begin, end = end, end + -(-linear.packed_bytes(dtype) // ALIGNMENT) * ALIGNMENT
        header[name] = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
    total = end
    # the widest elements first, so that all are aligned
    vectors = sorted(dense.items(), key=lambda item: -DTYPES[item[1].dtype].itemsize)
    for name, tensor in vectors:
        begin, end = end, end + math.prod(tensor.shape) * DTYPES[tensor.dtype].itemsize
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE)
    file.write(len(text).to_bytes(8, "little") + text)
    written = 0
    for linear in maps:
        panels = pack(linear).panels
        written += file.write(panels.data)
        written += file.write(bytes(-len(panels) % ALIGNMENT))
        done(written, total)
    for _, tensor in vectors:
        file.write(tensor.array.tobytes())
        tensor.release()
