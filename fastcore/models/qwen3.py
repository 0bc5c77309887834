"""Qwen3: Llama with RMSNorm on each head of q and k before RoPE."""

from fastcore.config import ModelConfig
from fastcore.models.llama import record_decoder
from fastcore.program import Recorder
from fastcore.weights import Weights

__all__ = ["record"]


def record(recorder: Recorder, config: ModelConfig, weights: Weights) -> None:
    """Record the forward pass of a causal language model: token ids to logits."""
    record_decoder(recorder, config, weights, qk_norm=True)
