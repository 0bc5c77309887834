"""What a path is: the one place that tells formats apart."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.checkpoints.fh1w import MAGIC as FH1W_MAGIC
from fastcore.checkpoints.fh1w import read_fh1w
from fastcore.checkpoints.folder import FolderCheckpoint, explain_single_file, refuse_unpacked, weights_of_folder
from fastcore.checkpoints.gguf import GgufFile
from fastcore.checkpoints.gguf_header import MAGIC as GGUF_MAGIC
from fastcore.checkpoints.mapped import MappedFile
from fastcore.checkpoints.packed import FORMAT as PACKED_FORMAT
from fastcore.checkpoints.packed import PackedCheckpoint
from fastcore.checkpoints.safetensors import open_shards, read_header
from fastcore.errors import CheckpointError, ModelNotFoundError, OutOfMemoryError
from fastcore.model.config import ModelConfig

__all__ = ["ModelPath", "as_path", "load_config", "open_checkpoint", "opened"]

ModelPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def as_path(path: ModelPath) -> Path:
    """A path in any form that `open` takes, and with a leading ~."""
    try:
        return Path(os.fsdecode(path)).expanduser()
    except (RuntimeError, UnicodeDecodeError) as error:  # no home directory
        raise ModelNotFoundError(f"{path!r:.200} is not a path here: {error}") from None


def open_checkpoint(path: ModelPath) -> Checkpoint:
    """Open a model folder, a .safetensors file or its index, a .fh1w or a .gguf file.

    A folder holds model.safetensors, or model.safetensors.index.json with its shards, or packed.safetensors, or else
    one .fh1w or .gguf file. A file is what its first bytes say, or else its name; a .json file is an index. Headers
    only are read, and nothing is ever written. Raises ModelNotFoundError, MissingShardError (every missing shard),
    CheckpointError or UnsupportedModelError, before any weight is touched.
    """
    path = as_path(path)
    try:
        return _open(path)
    except MemoryError as error:
        raise OutOfMemoryError(f"{path}: there is not enough memory to read its headers") from error
    except OSError as error:
        if isinstance(error, ModelNotFoundError | CheckpointError):
            raise
        raise CheckpointError(f"{path} cannot be opened: {error.strerror or error}") from error


@contextmanager
def opened(model: ModelPath | Checkpoint) -> Iterator[Checkpoint]:
    """A checkpoint that is open already, and stays so; or one that is opened here, and closed at the end."""
    if isinstance(model, Checkpoint):
        yield model
    else:
        with open_checkpoint(model) as checkpoint:
            yield checkpoint


def load_config(source: ModelPath | Checkpoint) -> ModelConfig:
    """The config alone, for those who want nothing else."""
    with opened(source) as checkpoint:
        return checkpoint.config()


def _open(path: Path) -> Checkpoint:
    if not path.exists():
        raise ModelNotFoundError(f"{path} does not exist; expected a model folder or a checkpoint file")
    weights = weights_of_folder(path) if path.is_dir() else path
    if weights.suffix == ".json":
        tensors, files = open_shards(weights)
        return FolderCheckpoint(path, weights.parent, tensors, files, is_pack=False)
    file = _map(weights)
    try:
        magic = bytes(file.buffer()[:4])
        if magic == GGUF_MAGIC or weights.suffix == ".gguf":
            return GgufFile(path, file)
        if magic == FH1W_MAGIC or weights.suffix == ".fh1w":
            return FolderCheckpoint(path, weights.parent, read_fh1w(file), (file,), is_pack=True)
        try:
            metadata, tensors = read_header(file)
        except CheckpointError as error:
            explain_single_file(weights, error)
            raise
        if metadata.get("format") == PACKED_FORMAT:
            return PackedCheckpoint(path, weights.parent, metadata, tensors, file)
        refuse_unpacked(weights)
        explain_single_file(weights, tensors)
        return FolderCheckpoint(path, weights.parent, tensors, (file,), is_pack=False)
    except BaseException:
        file.close()
        raise


def _map(weights: Path) -> MappedFile:
    try:
        return MappedFile(weights)
    except CheckpointError as error:  # a Git LFS pointer, for one
        explain_single_file(weights, error)
        raise
