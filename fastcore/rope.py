"""Rotary position tables: frequencies in float64 by rope_type, as transformers defines them.

Positions are never scaled: a rope_type changes the frequencies (and, for yarn, the length of the rotated vectors).
"""

import math

import numpy as np

from fastcore.config import RopeConfig
from fastcore.errors import UnsupportedModelError


def inv_freq(rope: RopeConfig, head_dim: int, seq_len: int | None = None) -> tuple[np.ndarray, float]:
    """Angle per position of each pair: f64 [head_dim / 2], and the factor that scales cos and sin.

    seq_len: length of the sequence, which counts for "dynamic" only; None is at most max_position_embeddings.
    """
    exponent = np.arange(0, head_dim, 2) / head_dim
    scaling = 1.0
    theta = rope.rope_theta
    if rope.rope_type == "dynamic":
        theta = _dynamic_theta(rope, head_dim, seq_len)
    frequencies = theta**-exponent
    if rope.rope_type == "linear":
        frequencies = frequencies / rope.factor
    elif rope.rope_type == "llama3":
        frequencies = _llama3(rope, frequencies)
    elif rope.rope_type == "yarn":
        frequencies, scaling = _yarn(rope, frequencies, head_dim), _yarn_scaling(rope)
    elif rope.rope_type not in ("default", "dynamic"):
        raise UnsupportedModelError(f"rope_type {rope.rope_type!r} is not implemented")
    return frequencies, scaling


def rope_tables(
    rope: RopeConfig, head_dim: int, num_positions: int, seq_len: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of positions 0 to num_positions - 1: two f32 [num_positions, head_dim / 2], rounded from double.

    Pair i turns elements i and i + head_dim / 2 of a head. seq_len as for `inv_freq`.
    """
    frequencies, scaling = inv_freq(rope, head_dim, seq_len)
    angles = np.outer(np.arange(num_positions), frequencies)
    return (np.cos(angles) * scaling).astype(np.float32), (np.sin(angles) * scaling).astype(np.float32)


def _dynamic_theta(rope: RopeConfig, head_dim: int, seq_len: int | None) -> float:
    """NTK scaling: the base grows with the length beyond max_position_embeddings and not before."""
    longest = rope.max_position_embeddings
    stretch = max(seq_len or 0, longest) / longest
    return rope.rope_theta * math.pow(rope.factor * stretch - (rope.factor - 1), head_dim / (head_dim - 2))


def _llama3(rope: RopeConfig, frequencies: np.ndarray) -> np.ndarray:
    """Short wavelengths stay, long ones are divided by factor, and a band between blends the two linearly."""
    assert rope.original_max_position_embeddings is not None
    turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)  # over the original context
    keep: np.ndarray = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0, 1)
    return np.asarray((1 - keep) * frequencies / rope.factor + keep * frequencies)


def _yarn(rope: RopeConfig, frequencies: np.ndarray, head_dim: int) -> np.ndarray:
    """Pairs that turn more than beta_fast times over the original context stay, those below beta_slow are divided by
    factor, with a linear ramp over the pairs between."""
    assert rope.original_max_position_embeddings is not None
    original = rope.original_max_position_embeddings

    def pair_with_turns(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.rope_theta))

    first, last = pair_with_turns(rope.beta_fast), pair_with_turns(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001
    ramp: np.ndarray = np.clip((np.arange(head_dim // 2) - first) / (last - first), 0, 1)
    return np.asarray(ramp * frequencies / rope.factor + (1 - ramp) * frequencies)


def _yarn_scaling(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def growth(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1 if rope.factor > 1 else 1.0

    if rope.mscale and rope.mscale_all_dim:
        return growth(rope.mscale) / growth(rope.mscale_all_dim)
    return growth(1.0)
