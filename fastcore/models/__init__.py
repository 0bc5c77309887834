"""The architectures, by model_type, and loading: config, weights and a recorded program become one immutable Model."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from fastcore._kernels import Program
from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.checkpoints.open import ModelPath, opened
from fastcore.errors import UnsupportedModelError
from fastcore.model.config import ModelConfig
from fastcore.model.model import Model
from fastcore.model.recorder import Recorder
from fastcore.model.weights import LinearMap, Weights

__all__ = ["MODELS", "Model", "load_model", "record_model", "record_program"]

# model_type -> module of this package that records it, of language models
MODELS = {
    "falcon_h1": "falcon_h1",
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}


def load_model(source: ModelPath | Checkpoint, dtype: str = "auto", num_threads: int = 1) -> Model:
    """Load a checkpoint, by its path or opened already: every tensor is taken, checked and packed.

    dtype: auto (as stored) | f32 | bf16 | f16 | int8 | int4, of the linear maps.
    Raises CheckpointError and UnsupportedModelError.
    """
    with opened(source) as checkpoint:
        return record_model(checkpoint.config(), Weights(checkpoint, dtype, num_threads, checkpoint.packed))


def record_model(config: ModelConfig, weights: Weights, *, fused: bool = True) -> Model:
    """Record the config's architecture over these weights, and pack them. fused: False leaves the ops plain."""
    program = record_program(config, weights, weights.pack, fused=fused)
    maps = {id(packed): packed for packed in program.weights if packed is not None}
    return Model(config, program, sum(packed.nbytes for packed in maps.values()) + weights.vector_bytes)


def record_program(
    config: ModelConfig, weights: Weights, pack: Callable[[LinearMap], Any], *, fused: bool = True
) -> Program:
    """The program of the config's architecture, checked, with `pack` applied to its maps."""
    if config.is_token_classifier:
        module = "token_classifier"
    elif config.model_type in MODELS:
        module = MODELS[config.model_type]
    else:
        raise UnsupportedModelError(
            f"model_type {config.model_type!r} is not supported; supported: {', '.join(sorted(MODELS))}"
        )
    record: Callable[[Recorder, ModelConfig, Weights], None] = import_module(f"fastcore.models.{module}").record
    recorder = Recorder()
    record(recorder, config, weights)
    weights.finish()
    return recorder.finish(pack, fused=fused)
