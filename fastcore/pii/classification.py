"""What a classifier says of one text: scores token by token, or entities."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore.errors import ContextLengthError
from fastcore.pii.masking import MaskedText, MaskingRules
from fastcore.pii.spans import Entity, Span, sigmoid, utf8_offsets, utf16_offsets
from fastcore.pii.windows import Window

__all__ = ["OFFSETS", "Classification", "TokenScores"]

OFFSETS = ("code_points", "utf8", "utf16")


@dataclass(frozen=True)
class TokenScores:
    """What the model says of one text, token by token.

    token_ids: as read; `num_tokens` is what the text has, more where a truncated text lost some.
    offsets: the code points of the text that each token stands for; empty for one that the tokenizer added.
    logits: f32 [len(token_ids), num_labels].
    sensitivity_logit: the highest of the text's windows, so that one sensitive passage is not averaged away by a long
    text; None if the model has no such head.
    windows: ranges of tokens.
    """

    text: str = field(repr=False)
    token_ids: list[int] = field(repr=False)
    offsets: list[Span] = field(repr=False)
    logits: NDArray[np.float32] = field(repr=False)
    sensitivity_logit: float | None
    num_tokens: int
    windows: tuple[Window, ...]

    @property
    def covered(self) -> bool:
        """Whether the whole text was read."""
        return len(self.token_ids) == self.num_tokens


@dataclass(frozen=True)
class Classification:
    """The entities of one text, in order and disjoint, with offsets in code points.

    sensitivity_logit: see TokenScores.
    num_tokens: of the text. windows: how many it was read in, 0 for a text without tokens.
    covered: whether all of it was read, which is false only for a truncated one.
    """

    text: str = field(repr=False)
    entities: tuple[Entity, ...]
    sensitivity_logit: float | None
    num_tokens: int
    windows: int
    covered: bool

    @property
    def sensitivity(self) -> float | None:
        """From 0 to 1; None if the model has no sensitivity head."""
        return None if self.sensitivity_logit is None else sigmoid(self.sensitivity_logit)

    def spans(self, offsets: str = "code_points") -> list[Span]:
        """Start and end of each entity in code_points, in bytes (utf8), or in 16-bit units as in JavaScript (utf16)."""
        spans = [(entity.start, entity.end) for entity in self.entities]
        if offsets not in OFFSETS:
            raise ValueError(f"offsets is {offsets!r}; expected one of {', '.join(OFFSETS)}")
        if offsets == "code_points":
            return spans
        return utf8_offsets(self.text, spans) if offsets == "utf8" else utf16_offsets(self.text, spans)

    def check_covered(self) -> None:
        """Raise ContextLengthError for a text that was not read to its end: nothing is known of its rest."""
        if not self.covered:
            raise ContextLengthError(
                f"the text has {self.num_tokens} tokens and not all of them were read, so that the rest would show; "
                "use long_text='windows'"
            )

    def mask(self, rules: MaskingRules, mapping: Mapping[str, str] | None = None) -> MaskedText:
        """The text with its entities replaced: MaskingRules.mask says how. Raises as check_covered does."""
        self.check_covered()
        return rules.mask(self.text, self.entities, mapping)

    def to_dict(self, offsets: str = "code_points") -> dict[str, Any]:
        """Everything but the text itself, ready for JSON."""
        return {
            "entities": [
                {"label": entity.label, "start": start, "end": end, "text": entity.text, "score": entity.score}
                for entity, (start, end) in zip(self.entities, self.spans(offsets), strict=True)
            ],
            "sensitivity": self.sensitivity,
            "sensitivity_logit": self.sensitivity_logit,
            "num_tokens": self.num_tokens,
            "windows": self.windows,
            "covered": self.covered,
        }
