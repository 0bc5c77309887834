"""rope_parameters, rope_scaling and rope_theta -> RopeConfig."""

import math
from typing import Any

from fastcore.checkpoints.fields import F32_MAX, Fields, agreed
from fastcore.errors import UnsupportedModelError
from fastcore.model.config import MAX_POSITIONS, RopeConfig

__all__ = ["parse_rope"]

# What each rope_type reads beside rope_theta: the numbers it cannot do without, and those that it can.
_NUMBERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ()),
    "yarn": ((), ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")),
}


def parse_rope(fields: Fields, default_theta: float, max_positions: int, head_dim: int) -> RopeConfig:
    """rope_parameters (transformers 5) and rope_scaling with rope_theta beside it (4) say the same things."""
    tables = [table for name in ("rope_parameters", "rope_scaling") if (table := fields.nested(name)) is not None]
    everywhere = [fields, *tables]
    rope_type = _rope_type(fields, tables)
    theta = agreed(fields.where, {each.label("rope_theta"): _theta(each) for each in everywhere})
    rotary_part = agreed(
        fields.where,
        {each.label("partial_rotary_factor"): each.number("partial_rotary_factor", None) for each in everywhere},
    )
    if rotary_part not in (None, 1.0):
        raise fields.unsupported("partial_rotary_factor", rotary_part, "supported: 1")

    given: dict[str, Any] = _numbers(fields, tables, rope_type)
    if rope_type in ("llama3", "yarn"):
        name = "original_max_position_embeddings"
        original = agreed(
            fields.where, {each.label(name): each.integer(name, None, high=MAX_POSITIONS) for each in everywhere}
        )
        given[name] = max_positions if original is None else original
    if rope_type == "yarn":
        given.setdefault("factor", max_positions / given["original_max_position_embeddings"])
        truncate = agreed(fields.where, {table.label("truncate"): table.boolean("truncate", None) for table in tables})
        given["truncate"] = True if truncate is None else truncate
    if rope_type == "llama3" and given["high_freq_factor"] <= given["low_freq_factor"]:
        low = given["low_freq_factor"]
        raise tables[0].wrong("high_freq_factor", given["high_freq_factor"], f"more than low_freq_factor ({low})")
    if rope_type == "dynamic" and head_dim <= 2:
        raise fields.wrong("head_dim", head_dim, "more than 2, since rope_type is dynamic")
    return RopeConfig(
        rope_type=rope_type,
        rope_theta=default_theta if theta is None else theta,
        max_position_embeddings=max_positions,
        **given,
    )


def _rope_type(fields: Fields, tables: list[Fields]) -> str:
    for table in tables:
        for name in ("full_attention", "sliding_attention"):
            if name in table:
                raise table.unsupported(name, table.take(name), "supported: one set of parameters for all layers")
    rope_type = agreed(
        fields.where,
        {table.label(name): table.string(name, None) for table in tables for name in ("rope_type", "type")},
    )
    rope_type = "default" if rope_type is None else rope_type
    if rope_type not in _NUMBERS:
        raise UnsupportedModelError(
            f"{fields.where}: rope_type {rope_type!r:.80} is not implemented; supported: {', '.join(_NUMBERS)}"
        )
    return rope_type


def _numbers(fields: Fields, tables: list[Fields], rope_type: str) -> dict[str, float]:
    given = {}
    needed, optional = _NUMBERS[rope_type]
    for name in (*needed, *optional):
        value = agreed(fields.where, {table.label(name): table.number(name, None) for table in tables})
        # yarn counts a 0 as not given, except for the attention factor
        if value is None or (value == 0 and name in optional and name != "attention_factor"):
            if name in needed:
                raise tables[0].missing(name, f"a number, since rope_type is {rope_type}")
            continue
        if value <= 0:
            raise tables[0].wrong(name, value, "a number above 0")
        if name == "factor" and value > MAX_POSITIONS:
            raise tables[0].wrong(name, value, f"a number above 0, at most {MAX_POSITIONS}")
        given[name] = value
    return given


def _theta(fields: Fields) -> float | None:
    """rope_theta, which some files spell as a string ("1e6")."""
    value = fields.take("rope_theta")
    if value is None:
        return None
    try:
        theta = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        theta = math.nan
    if not 1 < theta <= F32_MAX:
        raise fields.wrong("rope_theta", value, "a finite number above 1")
    return theta
