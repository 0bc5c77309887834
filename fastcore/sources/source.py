"""What a source of a model is, and how a file that it gave is verified."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

from fastcore.errors import CheckpointError

__all__ = ["Source", "UnavailableError", "sha256_of", "verify"]


class Source(Protocol):
    """A place that a named model can be fetched from."""

    def fetch(self, workspace: Path, progress: bool) -> Path:
        """Make the verified model folder somewhere in `workspace`. Raises UnavailableError if it cannot serve.

        What an earlier, interrupted call left in `workspace` may be used if it verifies.
        """


class UnavailableError(Exception):
    """This source cannot serve the model now; the text says why."""


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def verify(path: Path, expected: str) -> None:
    """Remove a file that is not the pinned one, and say so."""
    if (found := sha256_of(path)) != expected:
        path.unlink()
        raise CheckpointError(
            f"{path.name} has sha256 {found}, expected {expected}; it was removed. Try again; if it stays so, the file "
            "was changed at its source"
        )
