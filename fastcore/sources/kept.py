"""The models that were fetched: which there are, and letting go of one."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastcore.errors import ModelNotFoundError
from fastcore.sources.hub import cached_snapshot
from fastcore.sources.named import cache_dir, is_complete, locked

__all__ = ["KeptModel", "kept_models", "remove"]


@dataclass(frozen=True)
class KeptModel:
    """A model on disk, by the name that opens it. bytes: of its files, which for one of the hub may be of any kind."""

    name: str
    folder: Path
    bytes: int
    is_of_hub: bool


def kept_models() -> list[KeptModel]:
    """Named models, then those in the hub's cache that can be opened, by name."""
    return [*_named(), *_of_hub()]


def remove(model: KeptModel) -> None:
    """Delete its files. A process that runs it keeps what it has mapped until it ends."""
    if not model.is_of_hub:
        with locked(model.folder.with_name(f"{model.name}.lock"), progress=False):
            shutil.rmtree(model.folder)
        return
    from huggingface_hub import scan_cache_dir

    cache = scan_cache_dir()
    mine = [repo for repo in cache.repos if (repo.repo_type, repo.repo_id) == ("model", model.name)]
    revisions = [each.commit_hash for repo in mine for each in repo.revisions]
    if not revisions:
        raise ModelNotFoundError(f"{model.name} is not in the hub's cache any more")
    cache.delete_revisions(*revisions).execute()


def _named() -> Iterator[KeptModel]:
    home = cache_dir()
    for folder in sorted(home.iterdir()) if home.is_dir() else ():
        if folder.is_dir() and not folder.is_symlink() and is_complete(folder):
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            yield KeptModel(folder.name, folder, size, is_of_hub=False)


def _of_hub() -> Iterator[KeptModel]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repo in sorted(repos, key=lambda repo: str(repo.repo_id)):
        if repo.repo_type == "model" and (folder := cached_snapshot(repo.repo_id)) is not None:
            yield KeptModel(repo.repo_id, folder, repo.size_on_disk, is_of_hub=True)
