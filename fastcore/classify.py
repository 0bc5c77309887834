"""Finding entities in texts: tokens, windows, packed steps, the best label path, spans.

Texts of all callers share steps: rows of many windows, packed without padding. A window's scores are the same bits in
any company.
"""

import math
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from fastcore._kernels import BLOCK_TOKENS, viterbi
from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.checkpoints.open import ModelPath, opened
from fastcore.engine.holder import ModelHolder, is_whole
from fastcore.engine.passage import Passage
from fastcore.engine.scheduler import MAX_ROWS, MAX_RUNNING, Results, Scheduler
from fastcore.engine.state import StatePool
from fastcore.engine.work import Caller
from fastcore.errors import ContextLengthError, UnsupportedModelError
from fastcore.locks import cached_property
from fastcore.model.weights import Weights
from fastcore.models import record_model
from fastcore.models.token_classifier import decoding
from fastcore.pii.classification import OFFSETS, Classification, TokenScores
from fastcore.pii.labels import operating_point as _operating_point
from fastcore.pii.masking import MaskedText, MaskingOptions, MaskingRules, Operator
from fastcore.pii.spans import Span, decode_spans
from fastcore.pii.windows import Window, merge_windows, plan_windows
from fastcore.threads import resolve_num_threads

if TYPE_CHECKING:
    from fastcore.text.tokenizer import Tokenizer

__all__ = ["OFFSETS", "Classification", "TokenClassifier", "TokenScores"]

LONG_TEXT = ("windows", "error", "truncate")
OVERLAP = 128

TokenIds = Sequence[int] | NDArray[np.integer[Any]]
TokenLogits = tuple[NDArray[np.float32], float | None]
T = TypeVar("T")


# ---- One text on its way


@dataclass(eq=False)
class _Reading:
    """A text, its tokens, and its windows as works of the scheduler. error: why it is not read."""

    text: str
    token_ids: list[int]
    offsets: list[Span]
    num_tokens: int
    windows: list[Window]
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.passages = [Passage(self.token_ids[start:end], start) for start, end in self.windows]


# ---- The classifier


class TokenClassifier(ModelHolder):
    """A token classifier on this machine's CPU, such as the PII model.

    model: a folder, a hub id or a named model, or a checkpoint that is open already.
    dtype: auto (weights as stored) | f32 | bf16 | f16 | int8 | int4; the heads are always f32.
    num_threads: None is the physical cores that affinity and container quota leave.
    max_seq_len: tokens that are read at once, the window; None is the model's own.
    long_text: what happens to a text that is longer. "windows": it is read in overlapping windows, and an entity that
    lies across an edge is found whole. "error": ContextLengthError. "truncate": the rest is not read, and the result
    says so.
    overlap: tokens that neighbouring windows share; None is 128, or a quarter of a shorter window.
    operating_point: "recall", "precision", or the two biases (b_bias, e_bias); None is the checkpoint's own.

    Safe to use from several threads: their texts share steps, and each gets the result it would get alone.
    `close()`, or the end of `with TokenClassifier(...) as pii`, frees its memory.
    """

    _held: ClassVar[tuple[str, ...]] = ("model", "_scheduler", "tokenizer")

    def __init__(
        self,
        model: ModelPath | Checkpoint,
        *,
        dtype: str = "auto",
        num_threads: int | None = None,
        max_seq_len: int | None = None,
        long_text: str = "windows",
        overlap: int | None = None,
        operating_point: str | tuple[float, float] | None = None,
    ) -> None:
        from fastcore.sources.resolve import resolve

        if long_text not in LONG_TEXT:
            raise ValueError(f"long_text is {long_text!r}; expected one of {', '.join(LONG_TEXT)}")
        self.num_threads = resolve_num_threads(num_threads)
        with opened(model if isinstance(model, Checkpoint) else resolve(model)) as self._checkpoint:
            self.config = self._checkpoint.config()
            if self.config.pii is None:
                names = ", ".join(self.config.architectures) or self.config.model_type
                raise UnsupportedModelError(f"{names} does not classify tokens; open it with fastcore.LLM")
            self.max_seq_len = _window(max_seq_len, self.config.pii.max_seq_len, self.config.context_length)
            self.long_text = long_text
            self.overlap = min(OVERLAP, self.max_seq_len // 4) if overlap is None else overlap
            if (
                isinstance(self.overlap, bool)
                or not isinstance(self.overlap, int)
                or not 0 <= self.overlap < self.max_seq_len
            ):
                raise ValueError(
                    f"overlap is {overlap!r}; expected a number of tokens from 0 to {self.max_seq_len - 1}"
                )
            self._decoding = decoding(self.config, self._checkpoint)
            self.operating_point = _operating_point(operating_point, self._decoding.biases)
            weights = Weights(self._checkpoint, dtype, self.num_threads, self._checkpoint.packed)
            self.model = record_model(self.config, weights)
        self.labels = self._decoding.labels
        self._transition_scores = self.labels.transition_scores(*self.operating_point, legal=self._decoding.legal)
        blocks = MAX_RUNNING + _blocks(max(self.max_seq_len, MAX_ROWS))
        pool = StatePool(self.model, blocks * StatePool(self.model, 0).block_bytes)
        self._scheduler = Scheduler(self.model, pool, self.num_threads)

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """Read when the first text comes: token ids alone need none."""
        from fastcore.text.tokenizer import Tokenizer, missing_tokenizer

        tokenizer = Tokenizer.of(self._checkpoint)
        if tokenizer is None:
            raise missing_tokenizer(self._checkpoint.path)
        return tokenizer

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a string is a collection of strings
        self, texts: str, *, boundaries: Sequence[int] = ()
    ) -> Classification: ...
    @overload
    def __call__(self, texts: Collection[str], *, boundaries: Sequence[int] = ()) -> list[Classification]: ...
    @overload
    def __call__(self, texts: Iterator[str], *, boundaries: Sequence[int] = ()) -> Results[Classification]: ...
    def __call__(
        self, texts: str | Iterable[str], *, boundaries: Sequence[int] = ()
    ) -> Classification | list[Classification] | Results[Classification]:
        """The entities of a text, or of each of many.

        A list gives a list. An iterator gives an iterator, which reads ahead by no more than one step and so needs the
        same memory for any number of texts. boundaries: code points at which a message begins in a single text; windows
        end there rather than inside a message. Raises ContextLengthError (with long_text="error") and NonFiniteError.
        """
        return self._shaped(texts, self._classification, boundaries)

    @overload
    def score(  # type: ignore[overload-overlap]
        self, texts: str, *, boundaries: Sequence[int] = ()
    ) -> TokenScores: ...
    @overload
    def score(self, texts: Collection[str], *, boundaries: Sequence[int] = ()) -> list[TokenScores]: ...
    @overload
    def score(self, texts: Iterator[str], *, boundaries: Sequence[int] = ()) -> Results[TokenScores]: ...
    def score(
        self, texts: str | Iterable[str], *, boundaries: Sequence[int] = ()
    ) -> TokenScores | list[TokenScores] | Results[TokenScores]:
        """The tokens of a text and the scores of their labels, before any decision; arguments as in a call."""
        return self._shaped(texts, self._scores, boundaries)

    @overload
    def mask(  # type: ignore[overload-overlap]
        self,
        texts: str,
        operator: Operator = "replace",
        *,
        mapping: Mapping[str, str] | None = None,
        **options: Unpack[MaskingOptions],
    ) -> MaskedText: ...
    @overload
    def mask(
        self,
        texts: Collection[str],
        operator: Operator = "replace",
        *,
        mapping: Mapping[str, str] | None = None,
        **options: Unpack[MaskingOptions],
    ) -> list[MaskedText]: ...
    @overload
    def mask(
        self,
        texts: Iterator[str],
        operator: Operator = "replace",
        *,
        mapping: Mapping[str, str] | None = None,
        **options: Unpack[MaskingOptions],
    ) -> Results[MaskedText]: ...
    def mask(
        self,
        texts: str | Iterable[str],
        operator: Operator = "replace",
        *,
        mapping: Mapping[str, str] | None = None,
        **options: Unpack[MaskingOptions],
    ) -> MaskedText | list[MaskedText] | Results[MaskedText]:
        """Replace the entities of a text, or of each of many: MaskingRules.mask says how. Shapes as in a call.

        A text that is not read to its end (long_text="truncate") raises ContextLengthError, since its rest would show.
        """
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        rules = MaskingRules(operator, **given)

        def masked(reading: _Reading) -> MaskedText:
            return self._classification(reading).mask(rules, mapping)

        return self._shaped(texts, masked, ())

    @overload
    def logits(self, token_ids: TokenIds) -> TokenLogits: ...
    @overload
    def logits(self, token_ids: Sequence[TokenIds]) -> list[TokenLogits]: ...
    def logits(self, token_ids: TokenIds | Sequence[TokenIds]) -> TokenLogits | list[TokenLogits]:
        """(token logits f32 [num_tokens, num_labels], sensitivity logit or None) of token ids, or of each list of many.

        Raises ValueError for an id outside the vocabulary, ContextLengthError beyond max_seq_len, NonFiniteError.
        """
        given: Any = token_ids
        if len(given) and not isinstance(given[0], int | np.integer):
            return [
                (each.logits, each.sensitivity_logit) for each in self._results(map(self._ids, given), self._scores)
            ]
        only = next(self._results(iter([self._ids(given)]), self._scores))
        return only.logits, only.sensitivity_logit

    # ---------------------------------------------------------------- many texts

    def _shaped(
        self, texts: str | Iterable[str], finish: Callable[[_Reading], T], boundaries: Sequence[int]
    ) -> T | list[T] | Results[T]:
        """One result for a string, a list for what has a length, an iterator for an iterator."""
        if isinstance(texts, str):
            return next(self._results(iter([self._read(0, texts, boundaries)]), finish))
        if isinstance(texts, bytes | bytearray | Mapping) or not isinstance(texts, Iterable):
            raise TypeError(f"texts is {type(texts).__name__}; expected a string, or strings in a list or an iterator")
        if boundaries:
            raise ValueError("boundaries belong to one text; classify texts that have them one at a time")
        results = self._results((self._read(i, text, ()) for i, text in enumerate(texts)), finish)
        return list(results) if isinstance(texts, Sized) else results

    def _results(self, readings: Iterable[_Reading], finish: Callable[[_Reading], T]) -> Results[T]:
        caller = Caller()

        def results() -> Generator[T, None, None]:
            with closing(self._scheduler.in_order(readings, lambda reading: reading.passages, caller)) as done:
                yield from map(finish, done)

        return Results(caller, results())

    def _ids(self, token_ids: TokenIds) -> _Reading:
        """Token ids as a text of one window."""
        ids = [self._token_id(token_id) for token_id in token_ids]
        if len(ids) > self.max_seq_len:
            raise ContextLengthError(f"{len(ids)} tokens and the window holds {self.max_seq_len}")
        return _Reading("", ids, [(0, 0)] * len(ids), len(ids), [Window(0, len(ids))] if ids else [])

    def _read(self, index: int, text: str, boundaries: Sequence[int]) -> _Reading:
        """Tokens and windows of a text. What is wrong with it is raised when its turn comes."""
        if not isinstance(text, str):
            raise TypeError(f"text {index} is {type(text).__name__}; expected a string")
        readable = _LONE_SURROGATE.sub("\ufffd", text)  # as long, so that offsets stay
        ids, offsets = self.tokenizer.encode_with_offsets(readable)
        num_tokens, error = len(ids), None
        if num_tokens <= self.max_seq_len or self.long_text == "windows":
            windows = plan_windows(offsets, text, self.max_seq_len, self.overlap, boundaries)
        elif self.long_text == "truncate":
            ids, offsets, windows = ids[: self.max_seq_len], offsets[: self.max_seq_len], [Window(0, self.max_seq_len)]
        else:
            windows = []
            error = ContextLengthError(
                f"text {index} has {num_tokens} tokens and the window holds {self.max_seq_len}; "
                "long_text='windows' reads it in parts"
            )
        return _Reading(text, ids, offsets, num_tokens, windows, error=error)

    def _scores(self, reading: _Reading) -> TokenScores:
        if reading.error is not None:
            raise reading.error
        parts = [passage.scores for passage in reading.passages if passage.scores is not None]
        num_labels = len(self.labels.names)
        if parts:
            merged = merge_windows(reading.windows, [part[:, :num_labels] for part in parts])
        else:
            merged = np.empty((0, num_labels), np.float32)
        sensitivity = self._decoding.sensitivity_bias  # of no tokens: the head at a hidden state of zeros
        if sensitivity is not None and parts:
            sensitivity = max(_mean(part[:, num_labels]) for part in parts)
        parts.clear()
        for passage in reading.passages:  # of a long text they take as much memory as what is made of them
            passage.scores = None
        return TokenScores(
            text=reading.text,
            token_ids=reading.token_ids,
            offsets=reading.offsets,
            logits=np.ascontiguousarray(merged),
            sensitivity_logit=sensitivity,
            num_tokens=reading.num_tokens,
            windows=tuple(reading.windows),
        )

    def _classification(self, reading: _Reading) -> Classification:
        scores = self._scores(reading)
        logits = scores.logits
        special = self.tokenizer.special_ids
        if not special.isdisjoint(scores.token_ids):  # such a token is no part of an entity
            rows = [token_id in special for token_id in scores.token_ids]
            logits = logits.copy()
            logits[rows] = np.where(np.array(self.labels.names) == "O", np.float32(0), _NEVER)
        path = viterbi(logits, self._transition_scores, self.labels.start_scores, self.labels.end_scores)
        entities = decode_spans(path, logits, scores.offsets, scores.text, self.labels)
        return Classification(
            text=scores.text,
            entities=tuple(entities),
            sensitivity_logit=scores.sensitivity_logit,
            num_tokens=scores.num_tokens,
            windows=len(scores.windows),
            covered=scores.covered,
        )

    def _token_id(self, token_id: int) -> int:
        if isinstance(token_id, bool) or not isinstance(token_id, int | np.integer):
            raise TypeError(f"expected token ids; found {type(token_id).__name__} among them")
        if not 0 <= token_id < self.config.vocab_size:
            raise ValueError(f"token id {token_id} is outside the vocabulary of {self.config.vocab_size}")
        return int(token_id)


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)


_NEVER = np.float32(-1e30)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _window(asked: int | None, own: int, longest: int) -> int:
    if asked is None:
        return min(own, longest)
    if not is_whole(asked, 1, longest):
        raise ValueError(f"max_seq_len is {asked!r}; expected a whole number from 1 to the model's {longest}")
    return asked


def _mean(values: NDArray[np.float32]) -> float:
    """Exact in double but for one rounding, so the order of the tokens does not matter."""
    return math.fsum(values.tolist()) / len(values)
