"""The PII classifier: a Qwen3 whose attention sees the whole text, a head of token labels and a sensitivity score."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from . import ops
from .checkpoint import Weights, load_config
from .qwen3 import hidden_states

TYPES = (
    "private_person",
    "private_email",
    "private_phone",
    "private_address",
    "private_url",
    "private_date",
    "account_number",
    "secret",
    "other_pii",
)
LABELS = ("O", *(f"{tag}-{kind}" for kind in TYPES for tag in "BIES"))


def logits(folder: Path, token_ids: Sequence[int], dtype: DTypeLike = np.float64) -> tuple[np.ndarray, float]:
    """([num_tokens, num_labels], the sensitivity logit), from the published or the repacked layout."""
    return forward(load_config(folder), Weights(folder, dtype), token_ids)


def forward(config: dict, weights: Weights, token_ids: Sequence[int]) -> tuple[np.ndarray, float]:
    if config["model_type"] == "pii_masking":
        backbone = config["backbone"]
        causal = not backbone["use_bidirectional_attention"]
        hidden = hidden_states(backbone, weights, token_ids, "backbone.", causal)
        token_logits = ops.linear(hidden, *weights.linear("token_cls_head"), dtype=weights.dtype)
        pooled = hidden.mean(0)
        return token_logits, float(ops.linear(pooled, *weights.linear("sensitivity_head"), dtype=weights.dtype)[0])

    # Repacked: the last row of the one head is the sensitivity head, and a mean commutes with a linear map.
    hidden = hidden_states(config, weights, token_ids, "model.", config["is_causal"])
    scores = ops.linear(hidden, *weights.linear("score"), dtype=weights.dtype)
    return scores[:, :-1], float(scores[:, -1].mean())
