"""Finding entities in texts: tokens, windows, packed steps, the best label path, spans.

Texts of all callers share steps: rows of many windows, packed without padding. A window's scores are the same bits in
any company.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import BLOCK_TOKENS, viterbi
from fastcore.engine.state import Piece, SequenceState, StatePool, run_step
from fastcore.errors import ContextLengthError, NonFiniteError, UnsupportedModelError
from fastcore.locks import Lock
from fastcore.model.weights import Weights
from fastcore.models import Model, record_model
from fastcore.models.pii_masking import decoding
from fastcore.pii.masking import MaskedText, MaskingRules, Operator
from fastcore.pii.spans import (
    Entity,
    Span,
    Window,
    decode_spans,
    merge_windows,
    operating_point,
    plan_windows,
    utf8_offsets,
    utf16_offsets,
)
from fastcore.threads import resolve_num_threads

if TYPE_CHECKING:
    from fastcore.text.tokenizer import Tokenizer

__all__ = ["Classification", "TokenClassifier", "TokenScores"]

STEP_ROWS = 512  # of a step of several windows; a longer window is a step of its own
STEP_WINDOWS = 128
LONG_TEXT = ("windows", "error", "truncate")
OFFSETS = ("code_points", "utf8", "utf16")
OVERLAP = 128

T = TypeVar("T")


# ---- Results


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
        return None if self.sensitivity_logit is None else _sigmoid(self.sensitivity_logit)

    def spans(self, offsets: str = "code_points") -> list[Span]:
        """Start and end of each entity in code_points, in bytes (utf8), or in 16-bit units as in JavaScript (utf16)."""
        spans = [(entity.start, entity.end) for entity in self.entities]
        if offsets not in OFFSETS:
            raise ValueError(f"offsets is {offsets!r}; expected one of {', '.join(OFFSETS)}")
        if offsets == "code_points":
            return spans
        return utf8_offsets(self.text, spans) if offsets == "utf8" else utf16_offsets(self.text, spans)

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


# ---- Steps


@dataclass(eq=False)
class _Reading:
    """One text on its way through the model. scores: f32 [window tokens, score columns] of each window that is done."""

    text: str
    token_ids: list[int]
    offsets: list[Span]
    num_tokens: int
    windows: list[Window]
    scores: dict[Window, NDArray[np.float32]] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.error is not None or len(self.scores) == len(self.windows)

    @property
    def rows_left(self) -> int:
        left = () if self.is_done else (window for window in self.windows if window not in self.scores)
        return sum(end - start for start, end in left)


class _StepQueue:
    """Windows of all callers, in order of arrival. Whoever waits for a result runs steps, which serve all callers."""

    def __init__(self, model: Model, num_threads: int, max_window: int) -> None:
        self._model = model
        self._num_threads = num_threads
        blocks = max(_blocks(max_window), STEP_WINDOWS + _blocks(STEP_ROWS))
        self._pool = StatePool(model, blocks * StatePool(model, 0).block_bytes)
        self._waiting: deque[tuple[_Reading, Window]] = deque()
        self._lock = Lock()  # around every use of the deque
        self._turn = Lock()  # held during a step

    def put(self, reading: _Reading) -> None:
        with self._lock.usable():
            self._waiting.extend((reading, window) for window in reading.windows)

    def drop(self, readings: Collection[_Reading]) -> None:
        """Forget windows that nobody waits for any more."""
        gone = set(map(id, readings))
        with self._lock.usable():
            self._waiting = deque(item for item in self._waiting if id(item[0]) not in gone)

    def finish(self, reading: _Reading) -> None:
        """Run steps until the reading is done."""
        while not reading.is_done:
            with self._turn.usable():
                if not reading.is_done:
                    self._step()

    def _step(self) -> None:
        self._drop_scored()  # what an interrupted step has left
        batch = self._next_batch()
        outputs = self._scores([reading.token_ids[window.start : window.end] for reading, window in batch])
        for (reading, window), scores in zip(batch, outputs, strict=True):
            if not np.isfinite(scores).all():
                reading.error = NonFiniteError(
                    f"the label scores of tokens {window.start} to {window.end - 1} are not finite; a weight is NaN or "
                    "infinite, or activations overflow"
                )
            reading.scores[window] = scores
        self._drop_scored()

    def _drop_scored(self) -> None:
        with self._lock.usable():
            while self._waiting and (self._waiting[0][0].is_done or self._waiting[0][1] in self._waiting[0][0].scores):
                self._waiting.popleft()

    def _next_batch(self) -> list[tuple[_Reading, Window]]:
        """The first windows in line. They stay there until they have scores, so that an interrupted step loses none."""
        batch: list[tuple[_Reading, Window]] = []
        rows = 0
        with self._lock.usable():
            for reading, window in islice(self._waiting, STEP_WINDOWS):
                rows += window.end - window.start
                if batch and rows > STEP_ROWS:
                    break
                batch.append((reading, window))
        return batch

    def _scores(self, windows: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """Scores f32 [window tokens, score columns] of token ids, as one step."""
        sequences = [SequenceState(self._pool) for _ in windows]
        pieces = [Piece(seq, ids, range(len(ids))) for seq, ids in zip(sequences, windows, strict=True)]
        output = np.empty((sum(map(len, windows)), self._model.program.output_width), np.float32)
        try:
            run_step(self._model, pieces, num_threads=self._num_threads, logits=output)
        finally:
            for sequence in sequences:
                sequence.free()
        return np.split(output, np.cumsum([len(ids) for ids in windows])[:-1])


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)


# ---- The classifier


class TokenClassifier:
    """A token classifier on this machine's CPU, such as the PII model.

    model: a folder, a hub id or a named model.
    dtype: auto (weights as stored) | f32 | bf16 | f16; the heads are always f32.
    num_threads: None is the physical cores that affinity and container quota leave.
    max_seq_len: tokens that are read at once, the window; None is the model's own.
    long_text: what happens to a text that is longer. "windows": it is read in overlapping windows, and an entity that
    lies across an edge is found whole. "error": ContextLengthError. "truncate": the rest is not read, and the result
    says so.
    overlap: tokens that neighbouring windows share; None is 128, or a quarter of a shorter window.
    operating_point: "recall", "precision", or the two biases (b_bias, e_bias); None is the checkpoint's own.

    Safe to use from several threads: their texts share steps, and each gets the result it would get alone.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str = "auto",
        num_threads: int | None = None,
        max_seq_len: int | None = None,
        long_text: str = "windows",
        overlap: int | None = None,
        operating_point: str | tuple[float, float] | None = None,
    ) -> None:
        from fastcore.checkpoints.folder import open_checkpoint
        from fastcore.model.config import load_config
        from fastcore.sources.registry import resolve

        if long_text not in LONG_TEXT:
            raise ValueError(f"long_text is {long_text!r}; expected one of {', '.join(LONG_TEXT)}")
        self.num_threads = resolve_num_threads(num_threads)
        self._path = resolve(model)
        self.config = load_config(self._path)
        if self.config.pii is None:
            names = ", ".join(self.config.architectures) or self.config.model_type
            raise UnsupportedModelError(f"{names} does not classify tokens; open it with fastcore.LLM")
        self.max_seq_len = _window(max_seq_len, self.config.pii.max_seq_len, self.config.context_length)
        self.long_text = long_text
        self.overlap = min(OVERLAP, self.max_seq_len // 4) if overlap is None else overlap
        if not 0 <= self.overlap < self.max_seq_len:
            raise ValueError(f"overlap is {overlap!r}; expected a number of tokens from 0 to {self.max_seq_len - 1}")
        with open_checkpoint(self._path) as checkpoint:
            self._decoding = decoding(self.config, checkpoint)
            self.operating_point = _operating_point(operating_point, self._decoding.biases)
            self.model = record_model(self.config, Weights(checkpoint, dtype, self.num_threads))
        self.labels = self._decoding.labels
        self._transition_scores = self.labels.transition_scores(*self.operating_point, legal=self._decoding.legal)
        self._queue = _StepQueue(self.model, self.num_threads, self.max_seq_len)

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """Read when the first text comes: token ids alone need none."""
        from fastcore.text.tokenizer import Tokenizer

        return Tokenizer.open(self._path)

    @overload
    def __call__(self, texts: str, *, boundaries: Sequence[int] = ()) -> Classification: ...
    @overload
    def __call__(self, texts: Iterable[str], *, boundaries: Sequence[int] = ()) -> Any: ...
    def __call__(self, texts: str | Iterable[str], *, boundaries: Sequence[int] = ()) -> Any:
        """The entities of a text, or of each of many.

        A list gives a list. An iterator gives an iterator, which reads ahead by no more than one step and so needs the
        same memory for any number of texts. boundaries: code points at which a message begins in a single text; windows
        end there rather than inside a message. Raises ContextLengthError (with long_text="error") and NonFiniteError.
        """
        return self._shaped(texts, self._classification, boundaries)

    @overload
    def score(self, texts: str, *, boundaries: Sequence[int] = ()) -> TokenScores: ...
    @overload
    def score(self, texts: Iterable[str], *, boundaries: Sequence[int] = ()) -> Any: ...
    def score(self, texts: str | Iterable[str], *, boundaries: Sequence[int] = ()) -> Any:
        """The tokens of a text and the scores of their labels, before any decision; arguments as in a call."""
        return self._shaped(texts, self._scores, boundaries)

    def mask(
        self,
        texts: str | Iterable[str],
        operator: Operator = "replace",
        *,
        per_label: Mapping[str, Operator | None] | None = None,
        allow_list: Collection[str] = (),
        threshold: float = 0.0,
        keep: int = 0,
        keep_from: str = "end",
        mask_char: str = "*",
        key: bytes | str | None = None,
        mapping: Mapping[str, str] | None = None,
    ) -> Any:
        """Replace the entities of a text, or of each of many: MaskingRules.mask says how. Shapes as in a call.

        A text that is not read to its end (long_text="truncate") raises ContextLengthError, since its rest would show.
        """
        rules = MaskingRules(operator, per_label or {}, allow_list, threshold, keep, keep_from, mask_char, key)

        def masked(reading: _Reading) -> MaskedText:
            found = self._classification(reading)
            if not found.covered:
                raise ContextLengthError(
                    f"the text has {found.num_tokens} tokens and only {self.max_seq_len} were read, so that the rest "
                    "would show; mask with long_text='windows'"
                )
            return rules.mask(found.text, found.entities, mapping)

        return self._shaped(texts, masked, ())

    def logits(self, token_ids: Sequence[int] | Sequence[Sequence[int]]) -> Any:
        """(token logits f32 [num_tokens, num_labels], sensitivity logit or None) of token ids, or of each list of many.

        Raises ValueError for an id outside the vocabulary, ContextLengthError beyond max_seq_len, NonFiniteError.
        """
        if len(token_ids) and not isinstance(token_ids[0], int | np.integer):
            return [self.logits(ids) for ids in token_ids]  # type: ignore[arg-type]
        ids = [self._token_id(token_id) for token_id in token_ids]  # type: ignore[arg-type]
        if len(ids) > self.max_seq_len:
            raise ContextLengthError(f"{len(ids)} tokens and the window holds {self.max_seq_len}")
        windows = [Window(0, len(ids))] if ids else []
        reading = _Reading("", ids, [(0, 0)] * len(ids), len(ids), windows)
        self._queue.put(reading)
        try:
            self._queue.finish(reading)
        finally:
            self._queue.drop([reading])
        scores = self._scores(reading)
        return scores.logits, scores.sensitivity_logit

    # ---------------------------------------------------------------- many texts

    def _shaped(
        self, texts: str | Iterable[str], finish: Callable[[_Reading], T], boundaries: Sequence[int]
    ) -> T | list[T] | Iterator[T]:
        """One result for a string, a list for what has a length, an iterator for an iterator."""
        if isinstance(texts, str):
            return next(self._results([texts], finish, boundaries))
        if isinstance(texts, bytes | bytearray | Mapping) or not isinstance(texts, Iterable):
            raise TypeError(f"texts is {type(texts).__name__}; expected a string, or strings in a list or an iterator")
        if boundaries:
            raise ValueError("boundaries belong to one text; classify texts that have them one at a time")
        results = self._results(texts, finish)
        return list(results) if isinstance(texts, Sized) else results

    def _results(
        self, texts: Iterable[str], finish: Callable[[_Reading], T], boundaries: Sequence[int] = ()
    ) -> Iterator[T]:
        with closing(self._readings(texts, boundaries)) as readings:
            yield from map(finish, readings)

    def _readings(self, texts: Iterable[str], boundaries: Sequence[int]) -> Generator[_Reading, None, None]:
        """The texts in order, each when it is done. Reads ahead as far as fills a step."""
        source = enumerate(texts)
        ahead: deque[_Reading] = deque()
        try:
            while True:
                if not ahead or not ahead[0].is_done:
                    room = STEP_ROWS - sum(reading.rows_left for reading in ahead)
                    while room > 0 and len(ahead) < STEP_WINDOWS and (item := next(source, None)):
                        reading = self._read(*item, boundaries)
                        self._queue.put(reading)
                        ahead.append(reading)
                        room -= reading.rows_left
                if not ahead:
                    return
                self._queue.finish(ahead[0])
                yield ahead.popleft()
        finally:
            self._queue.drop(ahead)

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
        parts = [reading.scores[window] for window in reading.windows]
        num_labels = len(self.labels.names)
        if parts:
            merged = merge_windows(reading.windows, [part[:, :num_labels] for part in parts])
        else:
            merged = np.empty((0, num_labels), np.float32)
        sensitivity = self._decoding.sensitivity_bias  # of no tokens: the head at a hidden state of zeros
        if sensitivity is not None and parts:
            sensitivity = max(_mean(part[:, num_labels]) for part in parts)
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


_NEVER = np.float32(-1e30)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_operating_point = operating_point


def _window(asked: int | None, own: int, longest: int) -> int:
    if asked is None:
        return min(own, longest)
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= longest:
        raise ValueError(f"max_seq_len is {asked!r}; expected a whole number from 1 to the model's {longest}")
    return asked


def _mean(values: NDArray[np.float32]) -> float:
    """Exact in double but for one rounding, so the order of the tokens does not matter."""
    return math.fsum(values.tolist()) / len(values)


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))
