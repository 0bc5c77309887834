"""The hub: a repository pinned file by file, or any repository in the hub's own cache."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastcore.checkpoints.folder import CONFIG_NAME, weights_of_folder
from fastcore.checkpoints.safetensors import missing_shards, read_weight_map
from fastcore.errors import CheckpointError, ModelNotFoundError
from fastcore.sources.source import UnavailableError, verify

__all__ = ["HubSource", "cached_snapshot", "is_hub_id", "snapshot"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_SECONDS = 5.0
_HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.txt")
_HUB_IGNORED = ("*/*.safetensors", "*/*.json", "*/*.txt", "consolidated*")


def is_hub_id(name: str) -> bool:
    """Whether a name has the form owner/name."""
    return _HUB_ID.fullmatch(name) is not None


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
            raise UnavailableError(f"it lacks {', '.join(missing)}")
        for name, expected in self.sha256.items():
            verify(folder / name, expected)
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        return folder


def snapshot(repo_id: str, progress: bool) -> Path:
    """Fetch a repository's model files into the hub's own cache."""
    try:
        patterns = {"allow_patterns": list(_HUB_PATTERNS), "ignore_patterns": list(_HUB_IGNORED)}
        folder = _download(repo_id, progress, **patterns)
    except UnavailableError as error:
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


def cached_snapshot(repo_id: str) -> Path | None:
    """The repository in the hub's cache, if it is there and whole."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repo_id, local_files_only=True))
    except (OSError, ValueError):
        return None
    return folder if _has_weights(folder) else None


def _has_weights(folder: Path) -> bool:
    if not (folder / CONFIG_NAME).is_file():
        return False
    try:
        weights = weights_of_folder(folder)
        return weights.suffix != ".json" or not missing_shards(weights, read_weight_map(weights))
    except CheckpointError:
        return False


def _download(repo_id: str, progress: bool, **options: Any) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        raise UnavailableError("HF_HUB_OFFLINE is set")
    revision = options.get("revision")
    _within(_HUB_SECONDS, lambda: HfApi().model_info(repo_id, revision=revision, timeout=_HUB_SECONDS))
    try:
        with _hub_bars(progress):
            return Path(snapshot_download(repo_id, **options))
    # network, authorisation and disk errors of many classes, some from packages below the hub's
    except Exception as error:
        raise UnavailableError(_reason(error)) from error


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
        raise UnavailableError(f"no answer within {seconds:.0f} s")
    if outcome[0] is not None:
        raise UnavailableError(_reason(outcome[0])) from outcome[0]


def _reason(error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
