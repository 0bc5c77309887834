"""safetensors files and their index. Every number in a file is checked before it is used.

Reading is ours, not the safetensors package's: a hostile header is refused with the tensor's name before anything is
allocated, bfloat16 needs no torch, and pages that were packed are let go. Headers only are read here.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path

from fastcore.checkpoints.dense import DTYPES, DenseTensor
from fastcore.checkpoints.mapped import MappedFile
from fastcore.checkpoints.strict_json import MAX_BYTES, parse_object, read_object
from fastcore.errors import CheckpointError, MissingShardError, UnsupportedModelError

__all__ = ["missing_shards", "open_shards", "read_header", "read_safetensors", "read_weight_map"]

_MAX_RANK = 8


def read_safetensors(file: MappedFile) -> dict[str, DenseTensor]:
    """The tensors of a file, in the order of its header."""
    return read_header(file)[1]


def read_header(file: MappedFile) -> tuple[dict[str, str], dict[str, DenseTensor]]:
    """__metadata__ and tensors.

    u64 header length, JSON header {name: dtype, shape, data_offsets}, then the data without holes.
    """
    buffer, path = file.buffer(), file.path
    if file.size < 8:
        raise CheckpointError(f"{path} is {file.size} bytes, too short for a safetensors file; download it again")
    length = int.from_bytes(buffer[:8], "little")
    if not 0 < length <= min(MAX_BYTES, file.size - 8):
        raise CheckpointError(
            f"{path}: header length {length}, expected 1 to {min(MAX_BYTES, file.size - 8)} in a file of {file.size} "
            "bytes; it is truncated or not a safetensors file"
        )
    header = parse_object(buffer[8 : 8 + length], f"{path}: header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ must map strings to strings")

    data_start = 8 + length
    tensors, spans = {}, []
    for name, entry in header.items():
        dtype, shape, begin, end = _check_entry(entry, f"{path}: tensor {name!r}")
        tensors[name] = DenseTensor(name, dtype, shape, file, data_start + begin)
        spans.append((begin, end, name))
    _check_spans(sorted(spans), file.size - data_start, path)
    return metadata, tensors


def _check_entry(entry: object, where: str) -> tuple[str, tuple[int, ...], int, int]:
    """One header entry -> dtype, shape, begin, end, with the byte range equal to shape x dtype."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise CheckpointError(f"{where}: expected an object with dtype, shape and data_offsets, found {entry!r:.200}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UnsupportedModelError(f"{where}: unsupported dtype {dtype!r:.40}; supported: {', '.join(DTYPES)}")
    if not _are_sizes(shape) or len(shape) > _MAX_RANK:
        raise CheckpointError(
            f"{where}: shape {shape!r:.200}, expected at most {_MAX_RANK} integers that are not negative"
        )
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{where}: data_offsets {offsets!r:.200}, expected [begin, end]")
    begin, end = offsets
    size = math.prod(shape) * DTYPES[dtype].itemsize
    # A zero dimension hides the others from `size`, but NumPy still multiplies them.
    if math.prod(n or 1 for n in shape) > 2**59:
        raise CheckpointError(f"{where}: shape {shape!r:.200} is larger than any memory")
    if end - begin != size:
        raise CheckpointError(
            f"{where}: data_offsets {offsets} hold {end - begin} bytes, expected {size} for shape {shape} of {dtype}"
        )
    return dtype, tuple(shape), begin, end


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_spans(spans: list[tuple[int, int, str]], data_size: int, path: Path) -> None:
    """The byte ranges, sorted, must cover the data exactly: no overlap, no hole, nothing after the last."""
    position, previous = 0, "the header"
    for begin, end, name in spans:
        if end > data_size:
            raise CheckpointError(
                f"{path}: tensor {name!r} ends at byte {end} of {data_size}; the file is truncated, download it again"
            )
        if begin != position:
            kind = "overlaps" if begin < position else "leaves a hole after"
            raise CheckpointError(f"{path}: tensor {name!r} {kind} {previous}: begins at {begin}, expected {position}")
        position, previous = end, repr(name)
    if position != data_size:
        raise CheckpointError(f"{path}: {data_size - position} bytes follow {previous}, expected none")


def read_weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> file name, of an index."""
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is missing or empty, expected an object of tensor name: file name")
    for name, shard in weight_map.items():
        # A shard is a file beside its index, never a path to somewhere else.
        if not isinstance(shard, str) or shard in ("", ".", "..") or set(shard) & set("/\\") or not shard.isprintable():
            raise CheckpointError(
                f"{index}: tensor {name!r:.200} is in {shard!r:.200}, expected a file name without folders"
            )
    return weight_map


def missing_shards(index: Path, weight_map: Mapping[str, str]) -> list[str]:
    """The files of an index that are not beside it."""
    return [shard for shard in sorted(set(weight_map.values())) if not os.path.isfile(index.parent / shard)]


def open_shards(index: Path) -> tuple[dict[str, DenseTensor], tuple[MappedFile, ...]]:
    """The tensors of all files of an index. Each must be where the index says, and nowhere else."""
    weight_map = read_weight_map(index)
    shards = sorted(set(weight_map.values()))
    if missing := missing_shards(index, weight_map):
        names = f"{', '.join(missing[:20])}{', ...' if len(missing) > 20 else ''}"
        raise MissingShardError(f"{index} names {len(shards)} files; missing: {names}; complete the download")
    files: list[MappedFile] = []
    tensors: dict[str, DenseTensor] = {}
    home: dict[str, str] = {}
    try:
        for shard in shards:
            files.append(MappedFile(index.parent / shard))
            for name, tensor in read_safetensors(files[-1]).items():
                if name in home:
                    raise CheckpointError(f"{index.parent}: tensor {name!r} is in both {home[name]} and {shard}")
                home[name], tensors[name] = shard, tensor
        for name, shard in weight_map.items():
            if home.get(name) != shard:
                found = f"it is in {home[name]}" if name in home else "no shard has it"
                raise CheckpointError(f"{index}: tensor {name!r} should be in {shard}, but {found}")
    except BaseException:
        for file in files:
            file.close()
        raise
    return tensors, tuple(files)
