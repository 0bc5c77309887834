"""Falcon-H1: every layer runs attention and a Mamba-2 mixer on the same normalised input, adds both, then SwiGLU."""

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
    eps = config["rms_norm_eps"]
    gate_multiplier, down_multiplier = config["mlp_multipliers"]
    cos, sin = rope.tables(config, config["head_dim"], len(token_ids))
    embedding = weights["model.embed_tokens.weight"]

    hidden = embedding[list(token_ids)] * config["embedding_multiplier"]
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        x = op.rms_norm(hidden, weights[f"{p}input_layernorm.weight"], eps)
        mamba = mixer(config, weights, f"{p}mamba.", x * config["ssm_in_multiplier"])
        attention = self_attention(config, weights, f"{p}self_attn.", x * config["attention_in_multiplier"], cos, sin)
        hidden = hidden + mamba * config["ssm_out_multiplier"] + attention * config["attention_out_multiplier"]

        x = op.rms_norm(hidden, weights[f"{p}pre_ff_layernorm.weight"], eps)
        gate = op.linear(x, *weights.linear(f"{p}feed_forward.gate_proj")) * gate_multiplier
        up = op.linear(x, *weights.linear(f"{p}feed_forward.up_proj"))
        down = op.linear(op.swiglu(gate, up), *weights.linear(f"{p}feed_forward.down_proj"))
        hidden = hidden + down * down_multiplier

    hidden = op.rms_norm(hidden, weights["model.final_layernorm.weight"], eps)
    head = embedding if config["tie_word_embeddings"] else weights["lm_head.weight"]
    return op.linear(hidden, head) * config["lm_head_multiplier"]


def self_attention(
    config: dict, weights: Weights, p: str, x: np.ndarray, cos: np.ndarray, sin: np.ndarray
) -> np.ndarray:
    op = ops.bind(weights.dtype)
    q, k, v = (
        op.linear(x, *weights.linear(f"{p}{name}")).reshape(len(x), -1, config["head_dim"])
        for name in ("q_proj", "k_proj", "v_proj")
    )
    k = k * config["key_multiplier"]
    mixed = op.attention(op.rope(q, cos, sin), op.rope(k, cos, sin), v)
    return op.linear(mixed.reshape(len(x), -1), *weights.linear(f"{p}o_proj"))


def mixer(config: dict, weights: Weights, p: str, x: np.ndarray) -> np.ndarray:
    """Mamba-2: project, convolve, scan, gate, project."""
    op = ops.bind(weights.dtype)
    num_tokens, num_heads, num_groups = len(x), config["mamba_n_heads"], config["mamba_n_groups"]
    d_ssm = config["mamba_d_ssm"] or config["mamba_expand"] * config["hidden_size"]
    d_bc = num_groups * config["mamba_d_state"]

    # Rows of in_proj: gate, x, B, C, dt, each with its multiplier.
    sections = np.cumsum([d_ssm, d_ssm, d_bc, d_bc])
    parts = np.split(op.linear(x, *weights.linear(f"{p}in_proj")), sections, axis=-1)
    gate, x, B, C, dt = (part * m for part, m in zip(parts, config["ssm_multipliers"], strict=True))

    weight, bias = weights.linear(f"{p}conv1d")
    convolved, _ = op.causal_conv1d(np.concatenate([x, B, C], axis=-1), weight[:, 0], bias)
    x, B, C = np.split(op.silu(convolved), sections[1:3] - d_ssm, axis=-1)

    low, high = config.get("time_step_limit") or (0, np.inf)
    y, _ = op.selective_scan(
        x.reshape(num_tokens, num_heads, -1),
        np.clip(op.softplus(dt + weights[f"{p}dt_bias"]), low, high),
        -np.exp(weights[f"{p}A_log"]),
        B.reshape(num_tokens, num_groups, -1),
        C.reshape(num_tokens, num_groups, -1),
        weights[f"{p}D"],
    )
    y = y.reshape(num_tokens, d_ssm)
    if config["mamba_rms_norm"]:
        norm_before_gate = config["mamba_norm_before_gate"]
        y = op.gated_rms_norm(y, gate, weights[f"{p}norm.weight"], config["rms_norm_eps"], num_groups, norm_before_gate)
    else:
        y = y * op.silu(gate)
    return op.linear(y, *weights.linear(f"{p}out_proj"))
