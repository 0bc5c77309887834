"""Rotary position tables in float64, whatever the model computes in."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope fields in one dict: `rope_parameters`, or `rope_theta` at top level beside an older `rope_scaling`."""
    found = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    found.setdefault("rope_theta", config.get("rope_theta"))
    found.setdefault("rope_type", found.get("type", "default"))
    return found


def inv_freq(config: Mapping[str, Any], head_dim: int, num_tokens: int) -> tuple[np.ndarray, float]:
    """Radians per position for each of the head_dim/2 pairs, and the factor on cos and sin."""
    rope = parameters(config)
    theta, kind = rope["rope_theta"], rope["rope_type"]
    exponent = np.arange(0, head_dim, 2) / head_dim
    plain = float(theta) ** -exponent
    if kind == "default":
        return plain, 1.0
    factor = rope["factor"]
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "dynamic":
        # The base grows once the text is longer than the model was trained for.
        trained = config["max_position_embeddings"]
        growth = factor * max(num_tokens, trained) / trained - (factor - 1)
        return float(theta * growth ** (head_dim / (head_dim - 2))) ** -exponent, 1.0
    if kind == "llama3":
        # Turns within the original context: many keep their frequency, few are slowed down by `factor`, a ramp between.
        turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        keep = np.clip((turns - low) / (high - low), 0, 1)
        return plain * (keep + (1 - keep) / factor), 1.0
    if kind == "yarn":
        return _yarn(rope, plain, head_dim)
    raise ValueError(f"no formula for rope_type {kind!r}")


def _yarn(rope: Mapping[str, Any], plain: np.ndarray, head_dim: int) -> tuple[np.ndarray, float]:
    factor = rope["factor"]

    def pair_with(turns: float) -> float:
        """The (fractional) pair that turns this often within the original context."""
        wavelength = rope["original_max_position_embeddings"] / turns
        return head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

    first, last = pair_with(rope.get("beta_fast") or 32), pair_with(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    slow = np.clip((np.arange(head_dim // 2) - first) / (last - first or 0.001), 0, 1)

    def magnitude(scale: float = 1.0) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    scaling = rope.get("attention_factor")
    if scaling is None:
        mscale, mscale_all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
        scaling = magnitude(mscale) / magnitude(mscale_all_dim) if mscale and mscale_all_dim else magnitude()
    return plain * (1 - slow + slow / factor), float(scaling)


def tables(config: Mapping[str, Any], head_dim: int, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin, each [num_tokens, head_dim/2], for positions 0, 1, ..."""
    frequency, scaling = inv_freq(config, head_dim, num_tokens)
    angle = np.outer(np.arange(num_tokens), frequency)
    return np.cos(angle) * scaling, np.sin(angle) * scaling
