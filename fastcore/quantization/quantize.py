"""A model written as a packed folder: measured against its source before it gets its name, or not written at all."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.checkpoints.folder import PACKED_NAME
from fastcore.checkpoints.open import ModelPath, as_path, open_checkpoint, opened
from fastcore.checkpoints.packed import write_packed
from fastcore.errors import QualityError, UnsupportedModelError
from fastcore.huge_pages import Arena
from fastcore.model.config import ModelConfig
from fastcore.model.weights import DTYPES, Weights
from fastcore.models import record_program
from fastcore.quantization.card import write_card
from fastcore.quantization.gate import Bounds, Figures, Text, measure_classifier, measure_language_model
from fastcore.sources.resolve import resolve
from fastcore.sources.source import sha256_of
from fastcore.threads import resolve_num_threads

__all__ = ["packed_copy", "quantize"]

_UNFINISHED = "packed.part"  # no name that a folder of it would load by
_OWN_FILES = {PACKED_NAME, "quantization.json"}


def quantize(
    model: ModelPath | Checkpoint | None,
    out: ModelPath,
    dtype: str,
    *,
    text: Text | None = None,
    bounds: Bounds | None = None,
    force: bool = False,
    num_threads: int | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> Figures:
    """Write a model as a packed folder that loads by mapping, and measure what was lost.

    dtype: auto | f32 | bf16 | f16 | int8 | int4, as `LLM` takes it. text: what to measure on; None is a text of our
    own. bounds: what may be lost at most. force: replace a packed folder that is there, and allow int4 of a token
    classifier. progress: called with a line now and then.

    The folder appears whole under its name, or not at all. One map is in memory at a time. Raises FileExistsError,
    QualityError beyond the bounds, and what loading raises.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    out, threads, bounds = as_path(out), resolve_num_threads(num_threads), bounds or Bounds()
    _check_target(out, force)
    with (
        opened(model if isinstance(model, Checkpoint) else resolve(model)) as source,
        _appearing(out) as folder,
    ):
        config = source.config()
        if config.is_token_classifier and dtype == "int4" and not force:
            raise UnsupportedModelError(
                "int4 moves labels of a token classifier, which then misses data that it should find; int8 keeps them, "
                "and --force writes int4 nevertheless"
            )
        facts = _write_folder(source, config, folder, dtype, threads, progress)
        with open_checkpoint(folder / _UNFINISHED) as packed:
            measure = measure_classifier if config.is_token_classifier else measure_language_model
            figures = measure(source, packed, text, threads, progress)
        if broken := bounds.broken_by(figures):
            raise QualityError(f"{source.path} as {dtype}: {'; '.join(broken)}. Nothing was written")
        write_card(folder, facts | {"figures": asdict(figures)})
        (folder / _UNFINISHED).rename(folder / PACKED_NAME)
    return figures


@contextmanager
def packed_copy(model: ModelPath | None, dtype: str, num_threads: int | None = None) -> Iterator[Path]:
    """A packed folder that gives the results of the model loaded as `dtype`, for several processes to share.

    It is the model's own where that is packed already, and else a temporary one, which goes away at the end.
    """
    path = resolve(model)
    with opened(path) as source:
        if source.packed and dtype == "auto":
            yield path
            return
        with tempfile.TemporaryDirectory(prefix="fastcore-packed-") as name:
            folder = Path(name)
            threads = resolve_num_threads(num_threads)
            _write_folder(source, source.config(), folder, dtype, threads, lambda line: None)
            (folder / _UNFINISHED).rename(folder / PACKED_NAME)
            yield folder


def _write_folder(
    source: Checkpoint,
    config: ModelConfig,
    folder: Path,
    dtype: str,
    threads: int,
    progress: Callable[[str], object],
) -> dict[str, Any]:
    """The weights, under a name that they do not load by yet, and the files beside them. Returns facts for the card."""
    facts = _write_weights(source, config, folder / _UNFINISHED, dtype, threads, progress)
    for name, content in source.companions().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return facts


def _write_weights(
    source: Checkpoint, config: ModelConfig, path: Path, dtype: str, threads: int, progress: Callable[[str], object]
) -> dict[str, Any]:
    weights = Weights(source, dtype, threads, source.packed)
    program = record_program(config, weights, lambda linear: linear)
    maps = list(dict.fromkeys(linear for linear in program.weights if linear is not None))
    within = {*weights.copies, *(name for linear in maps for name in linear.names)}
    facts: dict[str, Any] = {
        "source": source.path.name,
        "files": {file.name: sha256_of(file) for file in source.paths},
        "dtype": dtype,
        "maps": {"+".join(linear.names): linear.packed_dtype(dtype) for linear in maps},
    }
    last = 0

    def done(written: int, total: int) -> None:
        nonlocal last
        if 10 * written // total > last:
            last = 10 * written // total
            progress(f"packed {written / 1e6:.0f} of {total / 1e6:.0f} MB")

    with open(path, "wb") as file:
        dense = {name: tensor for name, tensor in source.items() if name not in within}
        identity = {"name": facts["source"], "files": facts["files"]}
        write_packed(file, maps, dtype, lambda linear: weights.packed_alone(linear, Arena()), dense, identity, done)
        file.flush()
        os.fsync(file.fileno())
    return facts | {"packed_sha256": sha256_of(path)}


# ---------------------------------------------------------------- the folder


def _check_target(out: Path, force: bool) -> None:
    if not out.absolute().parent.is_dir():
        raise FileNotFoundError(f"{out.absolute().parent} is no folder; make it first")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not _OWN_FILES & ({entry.name for entry in out.iterdir()} if out.is_dir() else set()):
        raise FileExistsError(f"{out} is there and is no packed folder; give another name, or remove it yourself")
    if not force:
        raise FileExistsError(f"{out} is a packed folder already; --force replaces it")


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A new folder beside `out` that takes its name if all goes well, and else goes away."""
    unfinished = out.absolute().with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    before = unfinished.with_suffix(".old")
    unfinished.mkdir()
    try:
        yield unfinished
        if out.exists():
            out.rename(before)
        try:
            unfinished.rename(out)
        except OSError:
            with suppress(OSError):
                before.rename(out)
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(before, ignore_errors=True)
