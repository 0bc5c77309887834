"""Qwen3: Llama with RMSNorm on each head of q and k before RoPE."""

from fastcore.model.config import ModelConfig
from fastcore.model.recorder import Recorder
from fastcore.model.weights import Weights
from fastcore.models.llama import record_decoder

__all__ = ["record"]


def record(recorder: Recorder, config: ModelConfig, weights: Weights) -> None:
    """Record the forward pass of a causal language model: token ids to logits."""
    record_decoder(recorder, config, weights, qk_norm=True)
