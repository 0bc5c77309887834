"""An LLM from live transformers objects."""

from typing import Any

from typing_extensions import Unpack

from fastcore.checkpoints.live import LiveCheckpoint
from fastcore.llm import LLM, LLMOptions

__all__ = ["from_transformers"]


def from_transformers(model: Any, tokenizer: Any, **options: Unpack[LLMOptions]) -> LLM:
    """An LLM that computes what a transformers causal language model in memory computes.

    model: in f32, f16 or bf16; its weights are packed one tensor at a time, and may be freed or changed afterwards.
    tokenizer: its fast tokenizer; None for token ids alone. options: those of LLM. Raises UnsupportedModelError and
    CheckpointError as for a folder.
    """
    return LLM(LiveCheckpoint(model, tokenizer), **options)
