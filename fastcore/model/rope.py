"""Rotary position tables: frequencies in float64 by rope_type, as transformers defines them.

Positions are never scaled: a rope_type changes the frequencies (and, for yarn, the length of the rotated vectors).

With "dynamic" they follow the length of the sequence once it exceeds max_position_embeddings. What is in the cache
stays as it was rotated, so each row has a length of its own: the prompt's length for every row of the prompt, and from
there on the number of tokens up to and including the row. That is what transformers computes with its cache, and it
does not depend on the pieces that a prompt is run in.
"""

import math
from collections.abc import Sequence

import numpy as np

from fastcore.errors import UnsupportedModelError
from fastcore.locks import Lock
from fastcore.model.config import RopeConfig


def inv_freq(rope: RopeConfig, head_dim: int, seq_len: int | np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """Angle per position of each pair: f64 [head_dim / 2], and the factor that scales cos and sin.

    seq_len: length of the sequence, which counts for "dynamic" only; None is at most max_position_embeddings. An array
    [num_rows, 1] of lengths gives [num_rows, head_dim / 2].
    """
    exponent = np.arange(0, head_dim, 2) / head_dim
    scaling = 1.0
    theta: float | np.ndarray = rope.rope_theta
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
    rope: RopeConfig, head_dim: int, num_positions: int, seq_len: int | None = None, first_position: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of positions from first_position on: two f32 [num_positions, head_dim / 2], rounded from double.

    Pair i turns elements i and i + head_dim / 2 of a head. seq_len as for `inv_freq`.
    """
    positions = np.arange(first_position, first_position + num_positions)
    return rope_rows(rope, head_dim, positions, np.full(num_positions, seq_len or 0))


def rope_rows(
    rope: RopeConfig, head_dim: int, positions: np.ndarray, seq_lens: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of rows at `positions` of sequences of `seq_lens` tokens: two f32 [num_rows, head_dim / 2]."""
    frequencies, scaling = inv_freq(rope, head_dim, seq_lens[:, None])
    angles = positions[:, None] * frequencies
    return (np.cos(angles) * scaling).astype(np.float32), (np.sin(angles) * scaling).astype(np.float32)


def rotated_mean(rope: RopeConfig, heads: np.ndarray, num_positions: int) -> np.ndarray:
    """The mean of vectors [num_heads, head_dim] rotated by the angles from position 0 to num_positions, in f64."""
    frequencies, scaling = inv_freq(rope, heads.shape[1])
    half = heads.shape[1] // 2
    angles = num_positions * frequencies[:half]
    cos, sin = scaling * np.sin(angles) / angles, scaling * (1 - np.cos(angles)) / angles
    low, high = heads[:, :half].astype(np.float64), heads[:, half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=1)


class RopeTable:
    """cos and sin by position, computed once and grown as longer sequences come; safe to share between threads."""

    def __init__(self, rope: RopeConfig, head_dim: int) -> None:
        self._rope = rope
        self._head_dim = head_dim
        self._tables = rope_tables(rope, head_dim, 0)
        self._lock = Lock()

    def rows(self, spans: Sequence[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin of the rows of a step: two f32 [num_rows, head_dim / 2].

        spans: of each sequence in order, the position of its first row, its number of rows, its prompt's length.
        """
        if len(spans) == 1:
            return self._span(*spans[0])
        cos, sin = zip(*[self._span(*span) for span in spans], strict=True)
        return np.concatenate(cos), np.concatenate(sin)

    def _span(self, first: int, count: int, prompt_length: int) -> tuple[np.ndarray, np.ndarray]:
        end = first + count
        if self._rope.rope_type == "dynamic" and max(end, prompt_length) > self._rope.max_position_embeddings:
            positions = np.arange(first, end)
            return rope_rows(self._rope, self._head_dim, positions, np.maximum(positions + 1, prompt_length))
        cos, sin = self._tables if end <= len(self._tables[0]) else self._grow(end)
        return cos[first:end], sin[first:end]

    def _grow(self, num_positions: int) -> tuple[np.ndarray, np.ndarray]:
        with self._lock.usable():
            have = len(self._tables[0])
            if have < num_positions:
                more = max(1024, have, num_positions - have)
                added = rope_tables(self._rope, self._head_dim, more, first_position=have)
                cos, sin = (np.concatenate(pair) for pair in zip(self._tables, added, strict=True))
                self._tables = cos, sin
            return self._tables


def _dynamic_theta(rope: RopeConfig, head_dim: int, seq_len: int | np.ndarray | None) -> float | np.ndarray:
    """NTK scaling: the base grows with the length beyond max_position_embeddings and not before."""
    longest = rope.max_position_embeddings
    stretch = np.maximum(0 if seq_len is None else seq_len, longest) / longest
    return rope.rope_theta * np.power(rope.factor * stretch - (rope.factor - 1), head_dim / (head_dim - 2))


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
