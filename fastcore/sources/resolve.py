"""Where a model name leads: a folder, a file, a named model that is fetched once, or the hub.

What fetches is imported where something may be fetched: a model on disk needs none of it.
"""

import os
from pathlib import Path

from fastcore.checkpoints.open import ModelPath, as_path
from fastcore.errors import ModelNotFoundError

__all__ = ["DEFAULT_MODEL", "known_models", "pull", "resolve"]

DEFAULT_MODEL = "smollm2-135m"


def resolve(model: ModelPath | None = None, progress: bool = True) -> Path:
    """The folder or file of a model, fetched if need be.

    model: a folder or a file, as any path that `open` takes, a name of `known_models`, or a hub id "owner/name"; None
    is DEFAULT_MODEL. What is on disk comes first, and what was fetched before is used without asking the network.
    Raises ModelNotFoundError, which says what was tried and which names are near.
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
    from fastcore.sources.short_names import hub_id

    if isinstance(model, str):
        if model in NAMED_MODELS:
            return pull(model, progress)
        if is_hub_id(name := hub_id(model)):
            return cached_snapshot(name) or snapshot(name, progress)
    raise ModelNotFoundError(
        f"no model {str(model)!r}: there is no folder or file {path.absolute()}, and it is {_no_name(str(model))}"
    )


def pull(name: str, progress: bool = True) -> Path:
    """Fetch a named model, or bring one of the hub up to date, and return its folder.

    A named model is fetched once: when it is in the cache, nothing is asked of the network. A progress bar goes to
    stderr. Two processes may pull at once: one fetches, the other waits. Raises ModelNotFoundError when no source
    answers, CheckpointError when a file is not the one that was pinned.
    """
    from fastcore.sources.hub import is_hub_id, snapshot
    from fastcore.sources.named import NAMED_MODELS, pull_named
    from fastcore.sources.short_names import hub_id

    if name in NAMED_MODELS:
        return pull_named(NAMED_MODELS[name], progress)
    if is_hub_id(repository := hub_id(name)):
        return snapshot(repository, progress)
    raise ModelNotFoundError(f"no model {name!r} to fetch: it is {_no_name(name)}")


def known_models() -> dict[str, str]:
    """Names that lead somewhere, and where: a named model's first source, a short name's hub id."""
    from fastcore.sources.named import NAMED_MODELS
    from fastcore.sources.short_names import SHORT_NAMES

    named = {name: str(model.sources[0]).removeprefix("hub repository ") for name, model in NAMED_MODELS.items()}
    return dict(sorted({**SHORT_NAMES, **named}.items()))


def _no_name(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), known_models(), n=3)
    meant = f" (near it: {', '.join(near)})" if near else ""
    return f"no name that `fastcore list --known` shows{meant} and no hub id of the form owner/name"
