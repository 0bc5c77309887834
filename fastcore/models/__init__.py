"""The architectures, by model_type, and loading: config, weights and a recorded program become one immutable Model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module

from fastcore._kernels import Program
from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.checkpoints.open import ModelPath, opened
from fastcore.errors import UnsupportedModelError
from fastcore.locks import cached_property
from fastcore.model.config import ModelConfig
from fastcore.model.recorder import Recorder
from fastcore.model.rope import RopeTable
from fastcore.model.weights import Weights

__all__ = ["MODELS", "Model", "load_model", "record_model"]

# model_type -> module of this package that records it; "pii_masking" stands for every token classifier
MODELS = {
    "falcon_h1": "falcon_h1",
    "llama": "llama",
    "pii_masking": "pii_masking",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}


@dataclass
class Model:
    """A recorded program with its packed weights. Shared freely: only the rope table grows, under a lock.

    weight_bytes: of everything packed, each matrix counted once.
    """

    config: ModelConfig
    program: Program
    weight_bytes: int
    rope: RopeTable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.rope = RopeTable(self.config.rope, self.config.head_dim)

    @cached_property
    def backbone(self) -> Program:
        """The program without its head: the output is the hidden states after the last norm, [num_out, hidden_size]."""
        return self.program.without_head()


def load_model(source: ModelPath | Checkpoint, dtype: str = "auto", num_threads: int = 1) -> Model:
    """Load a checkpoint, by its path or opened already: every tensor is taken, checked and packed.

    dtype: auto (as stored) | f32 | bf16 | f16, of the linear maps. Raises CheckpointError and UnsupportedModelError.
    """
    with opened(source) as checkpoint:
        return record_model(checkpoint.config(), Weights(checkpoint, dtype, num_threads))


def record_model(config: ModelConfig, weights: Weights) -> Model:
    """Record the config's architecture over these weights."""
    if config.model_type not in MODELS:
        raise UnsupportedModelError(
            f"model_type {config.model_type!r} is not supported; supported: {', '.join(sorted(MODELS))}"
        )
    name = "pii_masking" if config.is_token_classifier else config.model_type
    record: Callable[[Recorder, ModelConfig, Weights], None] = import_module(f"fastcore.models.{MODELS[name]}").record
    recorder = Recorder()
    record(recorder, config, weights)
    weights.finish()
    return Model(config, recorder.program, weights.nbytes)
