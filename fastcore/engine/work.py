"""What the scheduler runs: sequences on their way through the model, and those who wait for them."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fastcore.engine.state import SequenceState

__all__ = ["CALLER", "Array", "Best", "Caller", "Work"]

Array = NDArray[np.float32]
Best = NDArray[np.int32]


@dataclass(eq=False)
class Work(ABC):
    """One sequence on its way through the model. A subclass says which outputs it wants, and takes them as they come.

    finish_reason: None until it is done; error is set before it. sequence: its state while it runs.
    """

    output: ClassVar[str] = "logits"  # what the step writes for it: logits | hidden | labels
    in_one_piece: ClassVar[bool] = False  # every token sees all others, so that all run in one step
    can_take_again: ClassVar[bool] = True  # whether an interrupted `take` may be repeated

    prompt_token_ids: Sequence[int]
    finish_reason: str | None = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    sequence: SequenceState | None = field(default=None, init=False)
    cached_tokens: int = field(default=0, init=False)  # that were not computed again
    kept_at: Sequence[int] = field(default=(), init=False)  # lengths after which its recurrent state is kept for others
    kept_last: bytes | None = field(default=None, init=False)  # by what the one of a length beyond the prompt is found
    started: float | None = field(default=None, init=False)  # perf_counter when it first got state
    finished: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """The check that everything passes which is ever to run."""
        if not len(self.prompt_token_ids):
            raise ValueError(f"{self.name} has no tokens")

    @property
    def name(self) -> str:
        """What messages call it."""
        return "the prompt"

    @property
    def num_tokens(self) -> int:
        """Tokens there are to run."""
        return len(self.prompt_token_ids)

    @property
    def num_positions(self) -> int:
        """Positions that it can come to need, all of which the pool must hold."""
        return self.num_tokens

    @property
    @abstractmethod
    def first_output(self) -> int:
        """The first position whose output is still wanted; all after it are, too, up to the last token's."""

    def tokens(self, start: int, end: int) -> Sequence[int]:
        return self.prompt_token_ids[start:end]

    def guesses(self, most: int, num_rows: int) -> Sequence[int]:
        """Up to `most` tokens that may follow the last; they run beside num_rows rows, and `take` sees the right."""
        return ()

    @abstractmethod
    def take(self, outputs: Array, best: Best) -> None:
        """Take the outputs of the positions before `sequence.length`, and finish after the last.

        Those of guesses come after them; for each that is right, one position more has been computed.
        outputs: f32 [n, width], which the next step overwrites. best: the index of the highest, -1 in a row that is not
        finite.
        """

    @property
    def rows_left(self) -> int:
        if self.finish_reason is not None:
            return 0
        return self.num_tokens - (0 if self.sequence is None else self.sequence.length)

    def finish(self, reason: str, error: Exception | None = None) -> None:
        """Mark it done. What it holds goes back between two steps."""
        if self.finish_reason is None:
            self.error, self.finished = error, time.perf_counter()
            self.finish_reason = reason  # last, as others look at it without the lock


@dataclass(eq=False)
class Caller:
    """Somebody whose works are in the queue, in order. has_left: nobody waits for them any more."""

    waiting: deque[Work] = field(default_factory=deque)
    running: list[Work] = field(default_factory=list)  # those that hold state
    has_left: bool = False


# Who works are submitted for by the calls made in this context, where another thread may make them leave.
CALLER: ContextVar["Caller | None"] = ContextVar("CALLER", default=None)
