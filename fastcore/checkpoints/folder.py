"""Checkpoint files -> {name: Tensor}, memory mapped. Every number in a file is checked before it is used.

Opening reads headers only. It refuses a damaged file, a missing shard and a dtype outside DTYPES (float8 and the like),
naming the tensor, before any weight is touched. Nothing is ever written.
"""

import math
import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fastcore.checkpoints.strict_json import MAX_BYTES, parse_object, read_object
from fastcore.errors import CheckpointError, MissingShardError, ModelNotFoundError, UnsupportedModelError

if TYPE_CHECKING:
    from fastcore.checkpoints.gguf import GgufFile

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

# Stored dtype -> what `Tensor.array` holds. NumPy has no bfloat16: the bits are given as uint16.
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
_MAX_RANK = 8


class Source(Protocol):
    """Bytes that tensors are views of."""

    def buffer(self) -> Any: ...

    def release(self, begin: int, end: int) -> None: ...


class MappedFile:
    """A regular file mapped read-only. Arrays made from it stay valid after `close`: they keep the mapping alive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # O_NONBLOCK: opening a named pipe must not wait for a writer
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise CheckpointError(f"{path} is not a regular file")
                self.size = status.st_size
                # an empty file cannot be mapped
                self._map = mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ) if self.size else None
            finally:
                os.close(descriptor)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be opened: {error.strerror or error}") from error
        self._closed = False

    def buffer(self) -> Any:
        if self._closed:
            raise CheckpointError(f"{self.path} is closed; read tensors before closing their checkpoint")
        return b"" if self._map is None else self._map

    def release(self, begin: int, end: int) -> None:
        """Let the whole pages inside [begin, end) go from resident memory; they are read again when touched again."""
        first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        last = end // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first and not self._closed and self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        self._closed = True
        mapping, self._map = self._map, None
        if mapping is not None:
            with suppress(BufferError):  # an array still views the mapping, which then goes with the last of them
                mapping.close()


class _Memory:
    """Bytes of an array in memory, with the methods of a mapped file."""

    def __init__(self, array: np.ndarray) -> None:
        self._bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def buffer(self) -> Any:
        return self._bytes

    def release(self, begin: int, end: int) -> None:
        """Memory of our own is freed with the tensor."""


class Tensor:
    """One tensor of a checkpoint: its facts, and its values when asked for.

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
    def from_array(cls, name: str, array: np.ndarray, dtype: str | None = None) -> "Tensor":
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
    def array(self) -> np.ndarray:
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

    def f32(self) -> np.ndarray:
        """The values as a new f32 array of the same shape. F16, BF16 and F32 are exact, F64 is rounded."""
        if self.dtype == "BF16":
            bits = self.array.astype(np.uint32)
            bits <<= 16
            return bits.view(np.float32)
        if self.dtype in ("F16", "F32", "F64"):
            return self.array.astype(np.float32)
        raise CheckpointError(f"tensor {self.name!r} holds {self.dtype}, expected F32, F16 or BF16")

    def release(self) -> None:
        """Drop the tensor's pages from resident memory. It stays readable."""
        self._source.release(self._begin, self._begin + self.nbytes)

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.dtype}, {list(self.shape)})"


class Checkpoint(Mapping[str, Tensor]):
    """The tensors of a model by name, in file order. Use it in a `with` block, or close it."""

    def __init__(self, tensors: Mapping[str, Tensor], files: tuple[MappedFile, ...] = ()) -> None:
        self._tensors = dict(tensors)
        self._files = files

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold the tensors."""
        return tuple(file.path for file in self._files)

    @property
    def nbytes(self) -> int:
        """Size of all tensors as stored."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def close(self) -> None:
        """Unmap the files. Arrays already taken stay valid; tensors can no longer be read."""
        for file in self._files:
            file.close()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def open_checkpoint(path: str | Path) -> "Checkpoint | GgufFile":
    """Open a model folder, a .safetensors file or its index, a .fh1w or a .gguf file.

    A folder holds model.safetensors, or model.safetensors.index.json with its shards, or else one .fh1w file.
    Raises ModelNotFoundError, MissingShardError (every missing shard), CheckpointError or UnsupportedModelError.
    """
    path = Path(path)
    if path.is_dir():
        path = _weights_of_folder(path)
    elif not path.exists():
        raise ModelNotFoundError(f"{path} does not exist; expected a model folder or a checkpoint file")
    if path.name.endswith(".json"):
        return _open_sharded(path)
    if path.suffix == ".gguf":
        from fastcore.checkpoints.gguf import GgufFile

        return GgufFile(path)
    file = MappedFile(path)
    try:
        return Checkpoint(_read_file(file), (file,))
    except BaseException:
        file.close()
        raise


def _weights_of_folder(folder: Path) -> Path:
    for name in (WEIGHTS_NAME, INDEX_NAME):
        if (folder / name).exists():
            return folder / name
    packs = sorted(folder.glob("*.fh1w"))
    if len(packs) == 1:
        return packs[0]
    names = sorted(entry.name for entry in folder.iterdir())
    hint = "; save the model as safetensors first" if any(name.endswith((".bin", ".pth")) for name in names) else ""
    raise CheckpointError(
        f"{folder} holds no {WEIGHTS_NAME}, no {INDEX_NAME} and not exactly one .fh1w file; "
        f"found: {', '.join(names[:20]) or 'nothing'}{hint}"
    )


def _read_file(file: MappedFile) -> dict[str, Tensor]:
    magic = bytes(file.buffer()[:4])
    if magic == b"FH1W" or file.path.suffix == ".fh1w":
        from fastcore.checkpoints.fh1w import read_fh1w

        return read_fh1w(file)
    if magic == b"GGUF":
        raise UnsupportedModelError(f"{file.path} is a GGUF file, but its name does not end in .gguf")
    return _read_safetensors(file)


# ---------------------------------------------------------------- safetensors


def _read_safetensors(file: MappedFile) -> dict[str, Tensor]:
    """u64 header length, JSON header {name: dtype, shape, data_offsets}, then the data without holes."""
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
        tensors[name] = Tensor(name, dtype, shape, file, data_start + begin)
        spans.append((begin, end, name))
    _check_spans(sorted(spans), file.size - data_start, path)
    return tensors


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


def _open_sharded(index: Path) -> Checkpoint:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is missing or empty, expected an object of tensor name: file name")
    for name, shard in weight_map.items():
        # A shard is a file beside its index, never a path to somewhere else.
        if not isinstance(shard, str) or shard in ("", ".", "..") or set(shard) & set("/\\\0"):
            raise CheckpointError(
                f"{index}: tensor {name!r} is in {shard!r:.200}, expected a file name without folders"
            )
    shards = sorted(set(weight_map.values()))
    if missing := [shard for shard in shards if not (index.parent / shard).exists()]:
        raise MissingShardError(
            f"{index} names {len(shards)} files; missing: {', '.join(missing)}; complete the download"
        )

    files: list[MappedFile] = []
    tensors: dict[str, Tensor] = {}
    home: dict[str, str] = {}
    try:
        for shard in shards:
            files.append(MappedFile(index.parent / shard))
            for name, tensor in _read_safetensors(files[-1]).items():
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
    return Checkpoint(tensors, tuple(files))
