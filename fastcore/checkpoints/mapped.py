"""A file mapped read-only, and a cursor that reads it without passing its end."""

import errno
import mmap
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastcore.errors import CheckpointError, OutOfMemoryError

__all__ = ["Cursor", "MappedFile", "read_bytes"]

_U64 = struct.Struct("<Q")
_POINTER = b"version https://git-lfs.github.com/spec/"


class MappedFile:
    """A regular file mapped read-only. Arrays made from it stay valid after `close`: they keep the mapping alive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # O_NONBLOCK: opening a named pipe must not wait for a writer
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
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
            kind = OutOfMemoryError if error.errno == errno.ENOMEM else CheckpointError
            raise kind(f"{path} cannot be opened: {error.strerror or error}") from error
        self._closed = False
        try:
            _refuse_pointer(bytes(self.buffer()[: len(_POINTER)]), path)
        except CheckpointError:
            self.close()
            raise

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


class Cursor:
    """A position in a mapped file that never passes its end. Numbers are little-endian."""

    def __init__(self, file: MappedFile) -> None:
        self.path = file.path
        self.size = file.size
        self.position = 0
        self._buffer = file.buffer()

    def skip(self, size: int, what: str) -> int:
        """Pass over `size` bytes and return where they begin; `what` names them in the error of a file that ends."""
        begin = self.position
        if size > self.size - begin:
            raise CheckpointError(
                f"{self.path} is truncated: {what} needs bytes {begin} to {begin + size}, the file has {self.size}; "
                "download it again"
            )
        self.position = begin + size
        return begin

    def take(self, size: int, what: str) -> bytes:
        begin = self.skip(size, what)
        return bytes(self._buffer[begin : begin + size])

    def strings(self, count: int, what: str) -> list[str]:
        """Texts, each after its length in bytes as u64. What is not UTF-8 becomes U+FFFD."""
        texts = []
        buffer, last, unpack = self._buffer, self.size - 8, _U64.unpack_from
        for _ in range(count):
            begin = self.position + 8
            if self.position > last:
                self.skip(8, what)  # raises
            length = unpack(buffer, self.position)[0]
            if length > self.size - begin:
                self.skip(8 + length, what)  # raises
            self.position = begin + length
            texts.append(buffer[begin : self.position].decode("utf-8", "replace"))
        return texts

    def unpack(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        return layout.unpack_from(self._buffer, self.skip(layout.size, what))


def read_bytes(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit`."""
    file = MappedFile(path)
    try:
        if file.size > limit:
            raise CheckpointError(f"{path} is {file.size} bytes, expected at most {limit}")
        return bytes(file.buffer()[:])
    finally:
        file.close()


def _refuse_pointer(head: bytes, path: Path) -> None:
    """A clone without Git LFS holds a few lines of text in place of each large file."""
    if head.startswith(_POINTER):
        raise CheckpointError(
            f"{path} is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder, or download the file"
        )
