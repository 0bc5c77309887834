"""Token classifiers on a Qwen3 backbone: the published PII layout, and Qwen3ForTokenClassification.

The PII model has a head of token labels, and a head whose output for the mean of the final hidden states is the
sensitivity logit. Whichever way a checkpoint stores them, both are recorded as one f32 map with the sensitivity head as
its last row: a mean commutes with a linear map, so the mean over tokens of the last column is the sensitivity logit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore.errors import CheckpointError
from fastcore.model.config import ModelConfig, PiiConfig
from fastcore.model.recorder import Recorder
from fastcore.model.weights import LinearMap, Weights
from fastcore.models.qwen3 import record_backbone
from fastcore.pii.labels import Labels, OperatingPoint

__all__ = ["Decoding", "decoding", "record"]

_B_BIAS, _E_BIAS, _MASK = "viterbi.b_bias", "viterbi.e_bias", "viterbi.transition_mask"


def record(m: Recorder, config: ModelConfig, weights: Weights) -> None:
    """Token ids -> scores [num_out, num_token_labels], and the sensitivity column where there is one."""
    published = config.model_type == "pii_masking"
    hidden, _ = record_backbone(m, config, weights.under("backbone" if published else "model"))
    heads = _heads(config)
    biased = any(f"{name}.bias" in weights for name, _ in heads)
    maps = [weights.linear(name, rows, config.hidden_size, bias=biased, dtype="f32") for name, rows in heads]
    m.output(m.linear(hidden, LinearMap.stacked(maps)))
    if published:  # read by `decoding`
        labels = _pii(config).num_token_labels
        weights.known(_B_BIAS, (), (1,))
        weights.known(_E_BIAS, (), (1,))
        weights.known(_MASK, (labels, labels), dtypes=("BOOL",))


def _heads(config: ModelConfig) -> list[tuple[str, int]]:
    """(name, rows) of the maps that are stacked to make the head."""
    labels = _pii(config).num_token_labels
    if config.model_type == "pii_masking":
        return [("token_cls_head", labels), ("sensitivity_head", 1)]
    return [("score", labels + (_pii(config).sensitivity_row is not None))]


def has_sensitivity(config: ModelConfig) -> bool:
    """Whether the last column of the scores is the sensitivity head's."""
    return config.model_type == "pii_masking" or _pii(config).sensitivity_row is not None


def _pii(config: ModelConfig) -> PiiConfig:
    assert config.pii is not None
    return config.pii


@dataclass(frozen=True)
class Decoding:
    """How a checkpoint wants its label scores read.

    legal: bool [from, to], the transitions between labels that it allows; biases: its own operating point.
    sensitivity_bias: f32 value of the sensitivity head at a hidden state of zeros; None without that head.
    """

    labels: Labels
    legal: NDArray[np.bool_]
    biases: OperatingPoint
    sensitivity_bias: float | None


def decoding(config: ModelConfig, tensors: Mapping[str, Any]) -> Decoding:
    """Read the labels, the legal transitions and the biases of a token classifier from its config and tensors."""
    labels = Labels(config.token_labels)
    pii = _pii(config)
    biases = OperatingPoint(
        _bias(tensors, _B_BIAS, "viterbi_b_bias", pii.viterbi_b_bias),
        _bias(tensors, _E_BIAS, "viterbi_e_bias", pii.viterbi_e_bias),
    )
    return Decoding(labels, _legal(tensors, labels), biases, _sensitivity_bias(config, tensors))


def _bias(tensors: Mapping[str, Any], name: str, field: str, stated: float | None) -> float:
    if name not in tensors:
        return 0.0 if stated is None else stated
    if tuple(tensors[name].shape) not in ((), (1,)):
        raise CheckpointError(f"tensor {name!r} has shape {list(tensors[name].shape)}, expected [1]")
    value = np.float32(tensors[name].f32().reshape(-1)[0])
    if not np.isfinite(value):
        raise CheckpointError(f"tensor {name!r} is {value}, expected a finite number")
    if stated is not None and np.float32(stated) != value:
        raise CheckpointError(
            f"tensor {name!r} is {value} and {field} in config.json is {stated}: they contradict each other"
        )
    return float(value)


def _legal(tensors: Mapping[str, Any], labels: Labels) -> NDArray[np.bool_]:
    if _MASK not in tensors:
        return labels.legal_transitions
    mask, size = tensors[_MASK], len(labels.names)
    if mask.dtype != "BOOL" or tuple(mask.shape) != (size, size):
        raise CheckpointError(f"tensor {_MASK!r} is {mask.dtype} {list(mask.shape)}, expected BOOL {[size, size]}")
    legal = np.array(mask.array)
    outside = labels.names.index("O")
    if not legal[outside, outside]:
        raise CheckpointError(f"tensor {_MASK!r} forbids O after O; expected true where a label may follow another")
    return legal


def _sensitivity_bias(config: ModelConfig, tensors: Mapping[str, Any]) -> float | None:
    if not has_sensitivity(config):
        return None
    name, _ = _heads(config)[-1]
    bias = tensors.get(f"{name}.bias")
    return 0.0 if bias is None else float(bias.f32()[-1])
