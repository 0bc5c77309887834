"""Where results go: each file appears whole, under its name or on stdout, when all of it is there."""

import errno
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

__all__ = ["StandardOutput", "named_errors", "new_file"]

IN_MEMORY = 1 << 23  # bytes of an output for stdout; more wait in a temporary file
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextmanager
def named_errors(where: Path | str) -> Iterator[None]:
    """What the system says of a file, as a ValueError of one line."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ValueError(f"{where}: {error.strerror or error}") from None


@contextmanager
def new_file(path: Path, overwrite: bool, mode: int = 0o666, temporary: Path | None = None) -> Iterator[Path]:
    """A temporary path beside `path`, a new one or the one that is given, which takes its name if all goes well."""
    temporary = temporary or path.with_name(f".fastcore-{secrets.token_hex(4)}.part")
    with named_errors(path):
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield temporary
        with named_errors(path):
            _take_name(temporary, path, overwrite)
    finally:
        temporary.unlink(missing_ok=True)


def _take_name(temporary: Path, path: Path, overwrite: bool) -> None:
    if overwrite:
        temporary.replace(path)
        return
    try:
        os.link(temporary, path)  # fails where the name has been taken meanwhile
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        temporary.rename(path)


class StandardOutput:
    """Bytes for stdout, which `deliver` lets go; none are where a `with` ends in an error before."""

    def __init__(self) -> None:
        self._held = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115

    def __enter__(self) -> "StandardOutput":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.deliver()
        finally:
            self._held.close()

    def write(self, data: bytes) -> None:
        with named_errors(tempfile.gettempdir()):
            self._held.write(data)

    def deliver(self) -> None:
        """Print what is held."""
        target: BinaryIO = sys.stdout.buffer
        self._held.seek(0)
        try:
            shutil.copyfileobj(self._held, target)
            target.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            with open(os.devnull, "wb") as nothing:  # what is left in the buffer would fail again at exit
                os.dup2(nothing.fileno(), target.fileno())
            raise ValueError(f"stdout: {error.strerror or error}") from None
        self._held.seek(0)
        self._held.truncate()
