"""The label scheme of a token classifier: which labels may follow one another, and how a path is weighed."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import MAX_LABELS
from fastcore.errors import UnsupportedModelError

__all__ = ["OPERATING_POINTS", "Labels", "OperatingPoint", "operating_point"]


@dataclass(frozen=True)
class Labels:
    """Token labels in the order of the head's rows, in BIES (BIOES) or BIO: `O`, or tag and entity type, `B-person`.

    B begins an entity, I is inside, E ends it, S is one of a single token. A type without E labels may end at any B or
    I (that is BIO), and a type without B labels may begin with I.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        for index, name in enumerate(self.names):
            tag, _, kind = name.partition("-")
            if name != "O" and (tag not in {"B", "I", "E", "S"} or not kind):
                raise UnsupportedModelError(
                    f"label {index} is {name!r}; expected 'O', or B-, I-, E- or S- followed by an entity type"
                )
        if len(self.names) > MAX_LABELS:
            raise UnsupportedModelError(f"{len(self.names)} labels; supported: up to {MAX_LABELS}")
        if "O" not in self.names:
            raise UnsupportedModelError(f"none of the {len(self.names)} labels is 'O', for tokens outside entities")
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise UnsupportedModelError(f"labels occur twice: {', '.join(twice)}")

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """O, B, I, E or S, one for each label."""
        return tuple(name[0] for name in self.names)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The entity type of each label; empty for O."""
        return tuple(name[2:] for name in self.names)

    @cached_property
    def entity_types(self) -> tuple[str, ...]:
        """Each type once, in the order of the labels."""
        return tuple(dict.fromkeys(kind for kind in self.kinds if kind))

    @cached_property
    def may_start(self) -> NDArray[np.bool_]:
        """Labels that can follow the end of an entity, [num_labels]: O, B, S."""
        return np.array([tag in "OBS" or (tag == "I" and f"B-{k}" not in self.names) for tag, k in self._pairs])

    @cached_property
    def may_end(self) -> NDArray[np.bool_]:
        """Labels after which an entity is complete, [num_labels]: O, E, S; in BIO all."""
        return np.array([tag in "OES" or f"E-{k}" not in self.names for tag, k in self._pairs])

    @cached_property
    def legal_transitions(self) -> NDArray[np.bool_]:
        """[from, to]: B and I go on to I or E of their type; what ends an entity is followed by what can start one."""
        tags, kinds = np.array(self.tags), np.array(self.kinds)
        same_kind = kinds[:, None] == kinds[None, :]
        legal: NDArray[np.bool_] = np.isin(tags, ["B", "I"])[:, None] & np.isin(tags, ["I", "E"])[None, :] & same_kind
        return legal | (self.may_end[:, None] & self.may_start[None, :])

    def transition_scores(
        self, b_bias: float = 0.0, e_bias: float = 0.0, legal: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float32]:
        """f32 [from, to]: -inf where not legal, plus b_bias into every B label, plus e_bias out of every E label.

        `legal` replaces `legal_transitions`, for a checkpoint that brings its own.
        """
        legal = self.legal_transitions if legal is None else legal
        tags = np.array(self.tags)
        into_b = np.where(tags == "B", np.float32(b_bias), np.float32(0))
        out_of_e = np.where(tags == "E", np.float32(e_bias), np.float32(0))
        return np.where(legal, into_b[None, :] + out_of_e[:, None], np.float32(-np.inf)).astype(np.float32)

    @cached_property
    def start_scores(self) -> NDArray[np.float32]:
        """f32 [num_labels]: 0 where a text may start, else -inf."""
        return np.where(self.may_start, np.float32(0), np.float32(-np.inf))

    @cached_property
    def end_scores(self) -> NDArray[np.float32]:
        """f32 [num_labels]: 0 where a text may end, else -inf."""
        return np.where(self.may_end, np.float32(0), np.float32(-np.inf))

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        return list(zip(self.tags, self.kinds, strict=True))


class OperatingPoint(NamedTuple):
    """Biases of the path: b_bias on every transition into a B label, e_bias on every transition out of an E label.

    Higher biases find more entities of several tokens (recall), lower ones fewer (precision).
    """

    b_bias: float
    e_bias: float


OPERATING_POINTS = {  # added to the checkpoint's own biases, in logits
    "default": OperatingPoint(0.0, 0.0),
    "recall": OperatingPoint(1.0, 1.0),
    "precision": OperatingPoint(-1.0, -1.0),
}


def operating_point(choice: str | tuple[float, float] | None, shipped: OperatingPoint) -> OperatingPoint:
    """A preset by name, relative to the `shipped` biases, or the two biases themselves; None is shipped."""
    if choice is None:
        return shipped
    if isinstance(choice, str):
        if choice not in OPERATING_POINTS:
            presets = ", ".join(OPERATING_POINTS)
            raise ValueError(f"operating_point is {choice!r}; expected (b_bias, e_bias) or one of {presets}")
        added = OPERATING_POINTS[choice]
        return OperatingPoint(shipped.b_bias + added.b_bias, shipped.e_bias + added.e_bias)
    if len(choice) != 2 or not all(math.isfinite(bias) for bias in choice):
        raise ValueError(f"operating_point is {choice!r}; expected two finite biases (b_bias, e_bias)")
    return OperatingPoint(float(choice[0]), float(choice[1]))
