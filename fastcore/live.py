"""An LLM from live transformers objects."""

from typing import Any

from fastcore.checkpoints.live import LiveCheckpoint
from fastcore.llm import LLM

__all__ = ["from_transformers"]


def from_transformers(
    model: Any,
    tokenizer: Any,
    *,
    dtype: str = "auto",
    num_threads: int | None = None,
    max_seq_len: int | None = None,
    kv_cache_bytes: int | None = None,
    kv_dtype: str = "f32",
) -> LLM:
    """An LLM that computes what a transformers causal language model in memory computes.

    model: in f32, f16 or bf16; its weights are packed one tensor at a time, and may be freed or changed afterwards.
    tokenizer: its fast tokenizer; None for token ids alone. The other arguments are those of LLM. Raises
    UnsupportedModelError and CheckpointError as for a folder.
    """
    return LLM(
        LiveCheckpoint(model, tokenizer),
        dtype=dtype,
        num_threads=num_threads,
        max_seq_len=max_seq_len,
        kv_cache_bytes=kv_cache_bytes,
        kv_dtype=kv_dtype,
    )
