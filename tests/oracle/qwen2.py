"""Qwen2 and Qwen2.5: grouped-query attention with biases on q, k and v, then SwiGLU."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from . import ops, rope
from .checkpoint import Weights, load_config
from .greedy import continue_greedily


def logits(folder: Path, token_ids: Sequence[int], dtype: DTypeLike = np.float64) -> np.ndarray:
    """[num_tokens, vocab_size]."""
    return forward(load_config(folder), Weights(folder, dtype), token_ids)


def greedy(folder: Path, token_ids: Sequence[int], n: int) -> list[int]:
    return continue_greedily(partial(logits, folder), token_ids, n)


def forward(config: dict, weights: Weights, token_ids: Sequence[int]) -> np.ndarray:
    op = ops.bind(weights.dtype)
    num_tokens, eps = len(token_ids), config["rms_norm_eps"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    cos, sin = rope.tables(config, head_dim, num_tokens)
    embedding = weights["model.embed_tokens.weight"]

    hidden = embedding[list(token_ids)]
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        x = op.rms_norm(hidden, weights[f"{p}input_layernorm.weight"], eps)
        q, k, v = (
            op.linear(x, *weights.linear(f"{p}self_attn.{name}")).reshape(num_tokens, -1, head_dim)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        mixed = op.attention(op.rope(q, cos, sin), op.rope(k, cos, sin), v).reshape(num_tokens, -1)
        hidden = hidden + op.linear(mixed, weights[f"{p}self_attn.o_proj.weight"])

        x = op.rms_norm(hidden, weights[f"{p}post_attention_layernorm.weight"], eps)
        gate, up = (op.linear(x, weights[f"{p}mlp.{name}.weight"]) for name in ("gate_proj", "up_proj"))
        hidden = hidden + op.linear(op.swiglu(gate, up), weights[f"{p}mlp.down_proj.weight"])

    hidden = op.rms_norm(hidden, weights["model.norm.weight"], eps)
    return op.linear(hidden, embedding if config["tie_word_embeddings"] else weights["lm_head.weight"])
