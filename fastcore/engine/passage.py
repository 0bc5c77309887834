"""A passage of text for a bidirectional model: every token sees all of it, so it runs in one piece."""

from dataclasses import dataclass, field
from typing import ClassVar

from fastcore.engine.work import Array, Best, Work
from fastcore.errors import NonFiniteError

__all__ = ["Passage"]


@dataclass(eq=False)
class Passage(Work):
    """Tokens start to start + len(prompt_token_ids) of a text. scores: f32 [num_tokens, output_width], once done."""

    output: ClassVar[str] = "labels"
    in_one_piece: ClassVar[bool] = True

    start: int = 0
    scores: Array | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return "the passage"

    @property
    def first_output(self) -> int:
        return 0

    def take(self, outputs: Array, best: Best) -> None:
        if (best < 0).any():
            raise NonFiniteError(
                f"the label scores of tokens {self.start} to {self.start + self.num_tokens - 1} are not finite; a "
                "weight is NaN or infinite, or activations overflow"
            )
        self.scores = outputs.copy()
        self.finish("done")
