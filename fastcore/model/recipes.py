"""Which maps of a model are kept in more bits than it is loaded as: a table, chosen by measurement.

docs/quantization.md says what was measured.
"""

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["RECIPE", "Kept", "recipe_dtype"]


@dataclass(frozen=True)
class Kept:
    """In a model loaded as `dtype`, maps whose names end so are packed as `kept_as`: those of up to `max_inputs`."""

    dtype: str
    maps: tuple[str, ...]
    kept_as: str
    max_inputs: int = 1 << 24


_QKV = ("q_proj", "k_proj", "v_proj")
RECIPE = (
    Kept("int8", _QKV, "bf16", max_inputs=768),  # scores of attention magnify what rounding does to a small model
    Kept("int4", ("embed_tokens", "lm_head"), "int8"),
    Kept("int4", _QKV, "int8"),
)


def recipe_dtype(dtype: str, names: Collection[str], in_features: int) -> str:
    """What a map made of these tensors is packed as in a model loaded as `dtype`."""
    kinds = {name.removesuffix(".weight").rpartition(".")[2] for name in names}
    for row in RECIPE:
        if row.dtype == dtype and in_features <= row.max_inputs and kinds & {*row.maps}:
            return row.kept_as
    return dtype
