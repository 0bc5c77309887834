"""Where a model name leads: a folder, a file, a named model that is fetched once, or a hub id.

What fetches is imported where something may be fetched: a model on disk needs none of it.
"""

import os
from pathlib import Path

from fastcore.checkpoints.open import ModelPath, as_path
from fastcore.errors import ModelNotFoundError

__all__ = ["DEFAULT_MODEL", "pull", "resolve"]

DEFAULT_MODEL = "smollm2-135m"


def resolve(model: ModelPath | None = None, progress: bool = True) -> Path:
    """The folder or file of a model, fetched if need be.

    model: a folder or a file, as any path that `open` takes, a name of NAMED_MODELS, or a hub id "owner/name"; None is
    DEFAULT_MODEL. What is on disk comes first, and what was fetched before is used without asking the network.
    Raises ModelNotFoundError listing what was tried.
    """
    if model is None:
        return pull(DEFAULT_MODEL, progress)
    path = as_path(model)
    if os.fspath(model) in ("", b""):
        raise ModelNotFoundError("the name of the model is empty; expected a folder, a file, a named model or a hub id")
    if os.path.exists(path):
        return path
    from fastcore.sources.hub import cached_snapshot, is_hub_id, snapshot
    from fastcore.sources.named import NAMED_MODELS

    if isinstance(model, str):
        if model in NAMED_MODELS:
            return pull(model, progress)
        if is_hub_id(model):
            return cached_snapshot(model) or snapshot(model, progress)
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
    from fastcore.sources.hub import is_hub_id, snapshot
    from fastcore.sources.named import NAMED_MODELS, pull_named

    if name in NAMED_MODELS:
        return pull_named(NAMED_MODELS[name], progress)
    if is_hub_id(name):
        return snapshot(name, progress)
    raise ModelNotFoundError(
        f"no model {name!r} to fetch: known names are {', '.join(NAMED_MODELS)}; a hub id has the form owner/name"
    )
