"""A Falcon-H1 model as one FH1W pack."""

from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.checkpoints.fh1w import write_fh1w
from fastcore.checkpoints.folder import CONFIG_NAME, FolderCheckpoint
from fastcore.checkpoints.open import ModelPath, as_path, opened
from fastcore.errors import CheckpointError, UnsupportedModelError
from fastcore.model.tensor import Tensor
from fastcore.model.weights import Weights
from fastcore.models import record_program

__all__ = ["export_fh1w"]


def export_fh1w(model: ModelPath | Checkpoint, path: ModelPath) -> None:
    """Write a Falcon-H1 model as a pack, with its config.json beside it.

    A tied head is written out, as readers of this format expect one. Raises UnsupportedModelError for another
    model_type, and CheckpointError where loading would, or where another config.json is beside the pack already;
    nothing is written then.
    """
    path = as_path(path)
    with opened(model) as checkpoint:
        config = checkpoint.config()
        if config.model_type != "falcon_h1":
            raise UnsupportedModelError(
                f"{checkpoint.path} is a {config.model_type} model; an FH1W pack holds falcon_h1 only"
            )
        ours, beside = _config_bytes(checkpoint), path.parent / CONFIG_NAME
        if ours is not None and beside.exists() and ours != beside.read_bytes():
            raise CheckpointError(f"{beside} is the config of another model; write the pack to another folder")
        record_program(config, Weights(checkpoint), lambda linear: linear)  # the names and shapes of its tensors
        tensors: dict[str, Tensor] = dict(checkpoint)
        if config.tie_word_embeddings and "model.embed_tokens.weight" in tensors:
            tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
        write_fh1w(path, tensors)
        if ours is not None and not beside.exists():
            beside.write_bytes(ours)


def _config_bytes(checkpoint: Checkpoint) -> bytes | None:
    if not isinstance(checkpoint, FolderCheckpoint):
        return None
    file = checkpoint.folder / CONFIG_NAME
    return file.read_bytes() if file.exists() else None
