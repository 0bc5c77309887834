"""FH1W, the f32 pack of Falcon-H1: little-endian, no padding.

Magic "FH1W", u32 tensor count; per tensor: u16 name length, name, u8 rank, u32 dims[rank], f32 values.
"""

import math
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fastcore.checkpoints.dense import DenseTensor
from fastcore.checkpoints.mapped import Cursor, MappedFile
from fastcore.errors import CheckpointError
from fastcore.model.tensor import Tensor

__all__ = ["MAGIC", "MAX_TENSORS", "read_fh1w", "write_fh1w"]

MAGIC = b"FH1W"
MAX_TENSORS = 50_000
MAX_NAME_BYTES = 1024
MAX_RANK = 4
MAX_ELEMENTS = 1_000_000_000
_U8, _U16, _U32 = (struct.Struct(f"<{code}") for code in "BHI")


def read_fh1w(file: MappedFile) -> dict[str, DenseTensor]:
    """The tensors of a pack, in file order. Values are read when asked for; a limit that does not hold is a
    CheckpointError."""
    reader = Cursor(file)
    if reader.take(4, "the magic") != MAGIC:
        raise CheckpointError(f"{file.path} does not begin with {MAGIC!r}; it is not an FH1W file")
    (count,) = reader.unpack(_U32, "the tensor count")
    if count > MAX_TENSORS:
        raise CheckpointError(f"{file.path}: tensor count {count}, expected at most {MAX_TENSORS}")
    tensors: dict[str, DenseTensor] = {}
    for i in range(count):
        where = f"tensor {i + 1} of {count}"
        (name_bytes,) = reader.unpack(_U16, f"the name length of {where}")
        if not 1 <= name_bytes <= MAX_NAME_BYTES:
            raise CheckpointError(
                f"{file.path}: {where} has a name of {name_bytes} bytes, expected 1 to {MAX_NAME_BYTES}"
            )
        try:
            name = reader.take(name_bytes, f"the name of {where}").decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{file.path}: the name of {where} is not UTF-8: {error}") from None
        if name in tensors:
            raise CheckpointError(f"{file.path}: duplicate tensor {name!r}")
        where = f"tensor {name!r}"
        (rank,) = reader.unpack(_U8, f"the rank of {where}")
        if not 1 <= rank <= MAX_RANK:
            raise CheckpointError(f"{file.path}: {where} has rank {rank}, expected 1 to {MAX_RANK}")
        shape = reader.unpack(struct.Struct(f"<{rank}I"), f"the shape of {where}")
        if math.prod(n or 1 for n in shape) > MAX_ELEMENTS:
            raise CheckpointError(
                f"{file.path}: {where} has shape {list(shape)}, expected at most {MAX_ELEMENTS} elements"
            )
        tensors[name] = DenseTensor(
            name, "F32", shape, file, reader.skip(4 * math.prod(shape), f"the values of {where}")
        )
    if reader.position != file.size:
        raise CheckpointError(f"{file.path}: {file.size - reader.position} bytes follow the last tensor, expected none")
    return tensors


def write_fh1w(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a pack, one tensor in memory at a time. The file appears whole under its name or not at all.

    Raises CheckpointError, before anything is written, for tensors that the format cannot hold.
    """
    path = Path(path)
    heads = {name: _head(name, tensor.shape) for name, tensor in tensors.items()}
    if len(heads) > MAX_TENSORS:
        raise CheckpointError(f"{len(heads)} tensors, but FH1W holds at most {MAX_TENSORS}")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(unfinished, "wb") as file:
            file.write(MAGIC + struct.pack("<I", len(heads)))
            for name, tensor in tensors.items():
                file.write(heads[name])
                _write_values(file, name, tensor)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()


def _head(name: str, shape: tuple[int, ...]) -> bytes:
    encoded = name.encode("utf-8")
    if not 1 <= len(encoded) <= MAX_NAME_BYTES:
        raise CheckpointError(f"tensor {name!r:.80}: name of {len(encoded)} bytes, FH1W holds 1 to {MAX_NAME_BYTES}")
    if not 1 <= len(shape) <= MAX_RANK or math.prod(n or 1 for n in shape) > MAX_ELEMENTS:
        raise CheckpointError(
            f"tensor {name!r} has shape {list(shape)}, FH1W holds rank 1 to {MAX_RANK} and {MAX_ELEMENTS} elements"
        )
    return struct.pack(f"<H{len(encoded)}sB{len(shape)}I", len(encoded), encoded, len(shape), *shape)


def _write_values(file: BinaryIO, name: str, tensor: Tensor) -> None:
    values = np.ascontiguousarray(tensor.f32(), dtype="<f4")
    if values.size != math.prod(tensor.shape):
        raise CheckpointError(f"tensor {name!r} gave {values.size} values for shape {list(tensor.shape)}")
    file.write(values.reshape(-1).view(np.uint8).data)
    tensor.release()
