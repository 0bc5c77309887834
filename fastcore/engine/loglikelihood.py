"""What a model makes of texts: logits, log-likelihoods, perplexity, embeddings. Texts are works of the scheduler."""

import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastcore.engine.sampling import logprobs_of
from fastcore.engine.scheduler import Results, Scheduler
from fastcore.engine.work import Array, Best, Caller, Work
from fastcore.errors import ContextLengthError, NonFiniteError

if TYPE_CHECKING:
    from fastcore.text.tokenizer import Tokenizer

__all__ = ["POOLINGS", "embeddings", "encode_pair", "logits", "loglikelihoods", "perplexity"]

POOLINGS = ("mean", "last")


# ---- Works


@dataclass(eq=False)
class _Text(Work):
    """Given tokens, of which the outputs from position `first` on are wanted. index: which of the caller's texts."""

    index: int
    first: int = 0
    next: int = field(default=0, init=False)  # position after the last output that was taken

    @property
    def name(self) -> str:
        return f"text {self.index}"

    @property
    def first_output(self) -> int:
        return max(self.first, self.next)

    def take(self, outputs: Array, best: Best) -> None:
        start = self.first_output
        if (best < 0).any():
            raise NonFiniteError(
                f"{self.name}: the output at position {start + int((best < 0).argmax())} is not finite; a weight is "
                "NaN or infinite, or activations overflow"
            )
        self._keep(start, outputs, best)
        self.next = start + len(outputs)
        if self.next == self.num_tokens:
            self.finish("done")

    def _keep(self, start: int, outputs: Array, best: Best) -> None:
        """Keep what is wanted of the outputs from position `start` on. May be called again with the same."""
        raise NotImplementedError


@dataclass(eq=False)
class _Logits(_Text):
    """values: f32 [num_tokens, vocab_size]."""

    values: Array | None = field(default=None, init=False)

    def _keep(self, start: int, outputs: Array, best: Best) -> None:
        if self.values is None:
            self.values = np.empty((self.num_tokens, outputs.shape[1]), np.float32)
        self.values[start : start + len(outputs)] = outputs


@dataclass(eq=False)
class _Scored(_Text):
    """Logprobs of the tokens after `first`, and of each of `answers`, any of which may follow the last token.

    logprobs, is_greedy: of the tokens after `first`. answer_logprobs: of the answers; best: the most probable one.
    """

    answers: Sequence[int] = ()
    logprobs: list[float] = field(default_factory=list, init=False)
    is_greedy: list[bool] = field(default_factory=list, init=False)
    answer_logprobs: dict[int, float] = field(default_factory=dict, init=False)
    best: int = field(default=-1, init=False)

    def _keep(self, start: int, outputs: Array, best: Best) -> None:
        following = self.prompt_token_ids[start + 1 : start + 1 + len(outputs)]
        done = start - self.first
        self.logprobs[done:] = [logprobs_of(row, i, 0)[0] for row, i in zip(outputs, following, strict=False)]
        self.is_greedy[done:] = [int(best_id) == i for best_id, i in zip(best, following, strict=False)]
        if start + len(outputs) == self.num_tokens:
            self.answer_logprobs = {token_id: logprobs_of(outputs[-1], token_id, 0)[0] for token_id in self.answers}
            self.best = int(best[-1])


@dataclass(eq=False)
class _Pooled(_Text):
    """total: f64 [hidden_size], the sum of the wanted hidden states: one chain of additions, wherever steps cut it."""

    output: ClassVar[str] = "hidden"
    total: NDArray[np.float64] | None = field(default=None, init=False)
    _summed: tuple[int, NDArray[np.float64] | None] = field(default=(-1, None), init=False)

    def _keep(self, start: int, outputs: Array, best: Best) -> None:
        if self._summed[0] != start:  # else the same again: begin from the same sum
            self._summed = (start, self.total)
        total = np.zeros(outputs.shape[1]) if self._summed[1] is None else self._summed[1].copy()
        for row in outputs:
            total += row
        self.total = total


# ---- What is made of them


def logits(scheduler: Scheduler, token_lists: Sequence[Sequence[int]], max_seq_len: int) -> list[Array]:
    """Logits at every position of each list: f32 [num_tokens, vocab_size].

    Here and below ValueError for a text without tokens and ContextLengthError for one beyond max_seq_len come before
    anything runs, and NonFiniteError says where an output is NaN or infinite.
    """
    _check(token_lists, max_seq_len)
    texts = (_Logits(ids, i) for i, ids in enumerate(token_lists))
    return [text.values for text in scheduler.in_order(texts, _itself) if text.values is not None]


def loglikelihoods(
    scheduler: Scheduler, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], max_seq_len: int
) -> list[tuple[float, bool]]:
    """Of each (context ids, continuation ids): the sum of the continuation's logprobs, and whether it is greedy.

    Pairs that differ in their last token only, as the answers of a multiple-choice question do, share one forward pass.
    """
    sharing: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for i, (context, continuation) in enumerate(pairs):
        if not context:
            raise ValueError(f"pair {i}: the context has no tokens")
        if continuation:
            sharing.setdefault((len(context), (*context, *continuation[:-1])), []).append(i)
    _check([ids for _, ids in sharing], max_seq_len)
    texts = (
        _Scored(ids, index, length - 1, answers=list(dict.fromkeys(pairs[i][1][-1] for i in members)))
        for index, ((length, ids), members) in enumerate(sharing.items())
    )
    results = [(0.0, True)] * len(pairs)
    for text, members in zip(scheduler.in_order(texts, _itself), sharing.values(), strict=True):
        shared, is_greedy = _total(text.logprobs), all(text.is_greedy)
        for i in members:
            last = pairs[i][1][-1]
            results[i] = (shared + text.answer_logprobs[last], is_greedy and text.best == last)
    return results


def encode_pair(
    tokenizer: "Tokenizer", context: str, continuation: str, start_id: int | None, add_special_tokens: bool = True
) -> tuple[list[int], list[int]]:
    """Token ids of a context and of what follows it: their common encoding, cut where that of the context alone ends.

    Trailing whitespace of the context goes to the continuation, as it is part of the token that follows. Where the
    continuation leaves no token of its own, because it merges into the context's last ones, the cut is where the two
    encodings begin to differ. An empty context is start_id (ValueError without one).
    """
    stripped = context.rstrip()
    if not stripped:
        if start_id is None:
            raise ValueError("the context is empty, and this model has no token to start from")
        ids = tokenizer.encode(context + continuation, add_special_tokens=False)
        return ([start_id], ids) if ids[:1] != [start_id] else (ids[:1], ids[1:])
    whole, ids = (tokenizer.encode(text, add_special_tokens) for text in (context + continuation, stripped))
    cut = len(ids)
    if cut >= len(whole) and continuation:
        cut = next((i for i, (a, b) in enumerate(zip(whole, ids, strict=False)) if a != b), len(whole) - 1)
    if cut == 0:
        if start_id is None:
            raise ValueError(
                "nothing of the context stands before the continuation, and this model has no token to start from"
            )
        return [start_id], whole
    return whole[:cut], whole[cut:]


def perplexity(
    scheduler: Scheduler, token_ids: Sequence[int], window: int, stride: int, max_seq_len: int, progress: bool
) -> float:
    """exp of the mean negative logprob of every token but the first; windows as `LLM.perplexity` says."""
    count = len(token_ids)
    if count < 2:
        raise ValueError(f"perplexity of {count} tokens; at least 2 are needed, as the first is not predicted")
    if not 1 <= stride <= window <= max_seq_len:
        raise ValueError(f"window {window}, stride {stride}: 1 <= stride <= window <= {max_seq_len} must hold")
    ends = [min(1 + window, count)]
    while ends[-1] < count:
        ends.append(min(ends[-1] + stride, count))
    starts = [max(0, end - 1 - window) for end in ends]
    texts = (
        _Scored(token_ids[start : end - 1], i, scored - 1 - start, answers=[token_ids[end - 1]])
        for i, (start, end, scored) in enumerate(zip(starts, ends, [1, *ends[:-1]], strict=True))
    )
    total = 0.0
    with _bar(count - 1, progress) as bar:
        for text in scheduler.in_order(texts, _itself):
            for logprob in (*text.logprobs, *text.answer_logprobs.values()):
                total += logprob
            bar.update(len(text.logprobs) + 1)
    return math.exp(-total / (count - 1))


def embeddings(
    scheduler: Scheduler, token_lists: Sequence[Sequence[int]], max_seq_len: int, pooling: str, normalize: bool
) -> Results[Array]:
    """One vector a text from the hidden states after the last norm, each f32 [hidden_size]."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling is {pooling!r}; expected one of {', '.join(POOLINGS)}")
    _check(token_lists, max_seq_len)
    texts = (_Pooled(ids, i, len(ids) - 1 if pooling == "last" else 0) for i, ids in enumerate(token_lists))
    caller = Caller()

    def vectors() -> Generator[Array, None, None]:
        with closing(scheduler.in_order(texts, _itself, caller)) as done:
            for text in done:
                assert text.total is not None
                vector = text.total / (text.num_tokens if pooling == "mean" else 1)
                length = math.sqrt((vector * vector).sum()) if normalize else 1.0
                yield (vector / (length or 1.0)).astype(np.float32)

    return Results(caller, vectors())


def _itself(text: _Text) -> tuple[_Text]:
    return (text,)


def _check(token_lists: Iterable[Sequence[int]], max_seq_len: int) -> None:
    for i, ids in enumerate(token_lists):
        if not len(ids):
            raise ValueError(f"text {i} has no tokens")
        if len(ids) > max_seq_len:
            raise ContextLengthError(f"text {i} has {len(ids)} tokens and the context holds {max_seq_len}; shorten it")


def _total(values: Iterable[float]) -> float:
    total = 0.0  # not sum(), which rounds otherwise from Python 3.12 on
    for value in values:
        total += value
    return total


def _bar(total: int, show: bool) -> Any:
    from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

    return tqdm(total=total, unit="token", disable=None if show else True)  # None: not where stderr is no terminal
