"""A completion on its way: the prompt runs, then each new token, until something ends the text."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from fastcore.engine.drafts import Drafts
from fastcore.engine.sampling import Choice, Sampler, logprobs_of
from fastcore.engine.sampling_params import SamplingParams
from fastcore.engine.work import Array, Best, Work
from fastcore.errors import NonFiniteError

__all__ = ["Request"]

TokenLogprobs = tuple[float, tuple[tuple[int, float], ...]]  # of the token, and of the most probable ones


@dataclass(eq=False)
class Request(Work):
    """One completion: what goes in, and what has come out so far. Raises ValueError for a prompt without tokens.

    finish_reason: stop | length | abort | error.
    on_token is called with each new token id and whether a stop string counts yet; it says if the text ends there.
    """

    can_take_again: ClassVar[bool] = False

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    sampler: Sampler
    max_new_tokens: int
    ending_ids: frozenset[int]  # end the text; not before params.min_tokens
    on_token: Callable[[int, bool], bool] = lambda token_id, may_stop: False
    drafts: Drafts | None = None  # of the prompt and what follows, where tokens may be guessed
    token_ids: list[int] = field(default_factory=list, init=False)
    logprobs: list[TokenLogprobs] = field(default_factory=list, init=False)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list, init=False)
    submitted: float = field(default_factory=time.perf_counter, init=False)
    first_token: float | None = field(default=None, init=False)
    _guesses: Sequence[int] = field(default=(), init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_new_tokens == 0 and self.params.prompt_logprobs is None:
            self.finish("length")

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.token_ids)

    @property
    def num_positions(self) -> int:
        """All it can come to need: its last token is never an input."""
        return len(self.prompt_token_ids) + max(0, self.max_new_tokens - 1)

    @property
    def first_output(self) -> int:
        return len(self.prompt_logprobs) if self._wants_prompt_logits else self.num_tokens - 1

    @property
    def _wants_prompt_logits(self) -> bool:
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.prompt_token_ids) - 1

    def tokens(self, start: int, end: int) -> Sequence[int]:
        """Token ids of prompt and output at positions start to end."""
        split = len(self.prompt_token_ids)
        if start >= split:
            return self.token_ids[start - split : end - split]
        return (*self.prompt_token_ids[start:end], *self.token_ids[: max(0, end - split)])

    def guesses(self, most: int, num_rows: int) -> Sequence[int]:
        if self.drafts is not None:
            self._guesses = self.drafts.guess(min(most, self.max_new_tokens - len(self.token_ids) - 1), num_rows)
        return self._guesses

    def take(self, outputs: Array, best: Best) -> None:
        """Logprobs of prompt tokens from the rows before them; a new token from the last row of those known.

        A token that was guessed makes the row after it count as well.
        """
        assert self.sequence is not None
        known = self.sequence.length - self.first_output
        _check(best[:known])
        if self._wants_prompt_logits:
            following = self.prompt_token_ids[len(self.prompt_logprobs) + 1 :]
            for row, token_id in zip(outputs[:known], following, strict=False):
                self.prompt_logprobs.append(logprobs_of(row, token_id, self.params.prompt_logprobs or 0))
        if self.sequence.length < self.num_tokens:
            return
        if self.max_new_tokens == 0:
            self.finish("length")
            return
        self._accept(outputs[known - 1], best[known - 1])
        guesses = self._guesses[: len(outputs) - known]
        right = 0
        while right < len(guesses) and self.token_ids[-1] == guesses[right] and self.finish_reason is None:
            self.sequence.length += 1
            row = known + right
            right += 1
            _check(best[row : row + 1])
            self._accept(outputs[row], best[row])
        if guesses and self.drafts is not None:
            self.drafts.learn(len(guesses), right)

    def _accept(self, logits: Array, best: int) -> None:
        """Take a token, and decide whether it is the last."""
        choice = Choice(int(best)) if self.sampler.is_plain_greedy else self.sampler.sample(logits)
        self.first_token = self.first_token or time.perf_counter()
        if choice.logprob is not None:
            self.logprobs.append((choice.logprob, choice.top_logprobs or ()))
        self.token_ids.append(choice.token_id)  # after its logprob: another thread may look at both
        self.sampler.accept(choice.token_id)
        if self.drafts is not None:
            self.drafts.add(choice.token_id)
        enough = len(self.token_ids) > self.params.min_tokens  # an ending token is not itself one of the min_tokens
        text_ends = self.on_token(choice.token_id, enough)
        if text_ends or (enough and choice.token_id in self.ending_ids) or self.sampler.is_complete:
            self.finish("stop")
        elif len(self.token_ids) >= self.max_new_tokens:
            self.finish("length")


def _check(best: Best) -> None:
    if (best < 0).any():
        raise NonFiniteError("the model's logits are not finite: a weight is not, or activations overflow")
