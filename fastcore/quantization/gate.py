"""What a model lost when it was quantised, against its source, on a text."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import BLOCK_TOKENS
from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.classify import Classification, TokenClassifier
from fastcore.engine.state import Piece, SequenceState, StatePool, run_step
from fastcore.errors import NonFiniteError
from fastcore.models import Model, load_model
from fastcore.quantization.sample_text import SAMPLE_RECORDS, SAMPLE_TEXT
from fastcore.text.tokenizer import Tokenizer

__all__ = [
    "ROWS",
    "Bounds",
    "Figures",
    "Text",
    "kl_divergence",
    "log_softmax",
    "logits_of",
    "measure_classifier",
    "measure_language_model",
]

MAX_TOKENS = 8192  # of a text; what follows is not read
WINDOW = 2048  # tokens that are scored together
ROWS = 128  # of a step: logits of a large vocabulary take half a megabyte a row
PREFILL, DECODE, REPEATS = 512, 32, 3  # tokens that are timed, and how often

Array = NDArray[np.float32]
Number = TypeVar("Number", int, float)
Progress = Callable[[str], object]


@dataclass(frozen=True)
class Text:
    """What is measured on, and what to call it."""

    content: str
    name: str


@dataclass(frozen=True)
class Figures:
    """What was measured. Pairs are of the source and of what was written; None where a figure has no meaning.

    mean_kl, p99_kl: KL divergence in nats of the predicted distribution (of a classifier: of labels) from the
    source's, at each token. top1_agreement: share of tokens whose best next token is the same. label_agreement: of a
    classifier, share of tokens that get the same label. span_agreement: F1 of its spans against the source's; 1 where
    neither finds any. Rates in tokens per second.
    """

    text: str
    num_tokens: int
    mean_kl: float
    p99_kl: float
    weight_bytes: tuple[int, int]
    prefill_rate: tuple[float, float]
    decode_rate: tuple[float, float] | None = None
    perplexity: tuple[float, float] | None = None
    top1_agreement: float | None = None
    label_agreement: float | None = None
    span_agreement: float | None = None


@dataclass(frozen=True)
class Bounds:
    """What may be lost at most: the mean KL; and of a classifier, the share of labels and of spans that must agree."""

    max_kl: float | None = None
    min_agreement: float = 0.9

    def broken_by(self, figures: Figures) -> list[str]:
        """What is beyond the bounds, a sentence each."""
        broken = []
        if self.max_kl is not None and not figures.mean_kl <= self.max_kl:
            broken.append(f"the mean KL divergence is {figures.mean_kl:.5f}, expected at most {self.max_kl:g}")
        for what, share in (("labels", figures.label_agreement), ("spans", figures.span_agreement)):
            if share is not None and not share >= self.min_agreement:
                broken.append(f"{share:.1%} of the {what} agree, expected at least {self.min_agreement:.1%}")
        return broken


# ---------------------------------------------------------------- language models


def measure_language_model(
    source: Checkpoint, packed: Checkpoint, text: Text | None, num_threads: int, progress: Progress
) -> Figures:
    """Without a tokenizer, random token ids stand for the text."""
    models = [load_model(checkpoint, "auto", num_threads) for checkpoint in (source, packed)]
    config, tokenizer = models[0].config, Tokenizer.of(source)
    if tokenizer is None:
        name, ids = "random token ids", np.random.default_rng(0).integers(0, config.vocab_size, 512).tolist()
    else:
        text = text or Text(SAMPLE_TEXT, "the built-in text")
        name, ids = text.name, tokenizer.encode(text.content)[:MAX_TOKENS]
    if len(ids) < 2:
        raise ValueError(f"{name} has {len(ids)} tokens; at least two are needed to compare predictions")
    kl, same, losses = _compare(models, ids, num_threads, progress)
    progress("timing")
    rates = [_rates(model, num_threads) for model in models]
    return Figures(
        text=name,
        num_tokens=len(ids),
        mean_kl=float(kl.mean()),
        p99_kl=float(np.quantile(kl, 0.99)),
        weight_bytes=_pair([model.weight_bytes for model in models]),
        prefill_rate=_pair([prefill for prefill, _ in rates]),
        decode_rate=_pair([decode for _, decode in rates]),
        perplexity=_pair([math.exp(loss) for loss in losses]),
        top1_agreement=float(same.mean()),
    )


def _compare(
    models: Sequence[Model], ids: Sequence[int], num_threads: int, progress: Progress
) -> tuple[NDArray[np.float64], NDArray[np.bool_], list[float]]:
    """KL and whether the best token is the same, at each token; and the mean loss of each model."""
    window = min(WINDOW, models[0].config.context_length)
    divergences, same, losses = [], [], [[], []]  # type: ignore[var-annotated]
    for start in range(0, len(ids), window):
        part, position = ids[start : start + window], 0
        for rows in zip(*(logits_of(model, part, num_threads) for model in models), strict=True):
            scores = [log_softmax(each) for each in rows]
            divergences.append(kl_divergence(*scores))
            same.append(rows[0].argmax(-1) == rows[1].argmax(-1))
            following = part[position + 1 : position + 1 + len(rows[0])]
            for loss, score in zip(losses, scores, strict=True):
                loss.append(-score[np.arange(len(following)), following].astype(np.float64))
            position += len(rows[0])
            progress(f"compared {start + position} of {len(ids)} tokens")
    return np.concatenate(divergences), np.concatenate(same), [float(np.concatenate(loss).mean()) for loss in losses]


def _sequence(model: Model, num_tokens: int) -> SequenceState:
    smallest = StatePool(model, 0)
    blocks = num_tokens // BLOCK_TOKENS + 2 + 2 * smallest.state_blocks  # states start at multiples of their size
    return SequenceState(StatePool(model, blocks * smallest.block_bytes), prompt_length=num_tokens)


def logits_of(model: Model, ids: Sequence[int], num_threads: int) -> Iterator[Array]:
    """The logits after each token, ROWS at a time."""
    with _sequence(model, len(ids)) as sequence:
        for first in range(0, len(ids), ROWS):
            part = ids[first : first + ROWS]
            logits = np.empty((len(part), model.config.vocab_size), np.float32)
            run_step(model, [Piece(sequence, part, range(len(part)))], num_threads=num_threads, logits=logits)
            if not np.isfinite(logits).all():
                raise NonFiniteError("a model's logits are not finite, and nothing can be compared")
            yield logits


def log_softmax(logits: Array) -> Array:
    """Log-probabilities of each row."""
    shifted = logits - logits.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return shifted


def kl_divergence(expected: Array, found: Array) -> NDArray[np.float64]:
    """Of log-probabilities [rows, n], in nats a row; rounding may leave a zero slightly below it."""
    total: NDArray[np.float64] = (np.exp(expected) * (expected - found)).sum(-1, dtype=np.float64)
    return np.maximum(total, 0.0)


def _rates(model: Model, num_threads: int) -> tuple[float, float]:
    """Tokens per second of a prompt and of the tokens after it, the best of REPEATS."""
    room, vocab = model.config.context_length, model.config.vocab_size
    decode = max(1, min(DECODE, room // 2))
    prefill = max(1, min(PREFILL, room - decode))
    ids = np.random.default_rng(0).integers(0, vocab, prefill + decode).tolist()
    logits, times = np.empty((1, vocab), np.float32), []
    for _ in range(REPEATS):
        with _sequence(model, len(ids)) as sequence:
            seconds = []
            for parts in ([ids[:prefill]], [[token] for token in ids[prefill:]]):
                start = perf_counter()
                for part in parts:
                    run_step(model, [Piece(sequence, part, [len(part) - 1])], num_threads=num_threads, logits=logits)
                seconds.append(perf_counter() - start)
            times.append(seconds)
    fastest = np.min(times, axis=0)
    return prefill / float(fastest[0]), decode / float(fastest[1])


def _pair(values: Sequence[Number]) -> tuple[Number, Number]:
    first, second = values
    return first, second


# ---------------------------------------------------------------- token classifiers


def measure_classifier(
    source: Checkpoint, packed: Checkpoint, text: Text | None, num_threads: int, progress: Progress
) -> Figures:
    """On each line of the text for itself."""
    text = text or Text("\n".join(SAMPLE_RECORDS), "the built-in records")
    lines = [line for line in text.content.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{text.name} has no text; at least one line is needed to compare labels")
    models = [TokenClassifier(checkpoint, num_threads=num_threads) for checkpoint in (source, packed)]
    scores, labels, spans, seconds = [], [], [], []
    for model in models:
        progress("classifying")
        start = perf_counter()
        scored = model.score(lines)
        seconds.append(perf_counter() - start)
        scores.append(np.concatenate([each.logits for each in scored]))
        labels.append(scores[-1].argmax(-1))
        spans.append({span for i, each in enumerate(model(lines)) for span in _spans(i, each)})
    if not all(np.isfinite(each).all() for each in scores):
        raise NonFiniteError("a model's scores are not finite, and nothing can be compared")
    kl = kl_divergence(*(log_softmax(each) for each in scores))
    found = len(spans[0]) + len(spans[1])
    return Figures(
        text=text.name,
        num_tokens=len(kl),
        mean_kl=float(kl.mean()),
        p99_kl=float(np.quantile(kl, 0.99)),
        weight_bytes=_pair([model.model.weight_bytes for model in models]),
        prefill_rate=_pair([len(kl) / each for each in seconds]),
        label_agreement=float((labels[0] == labels[1]).mean()),
        span_agreement=2 * len(spans[0] & spans[1]) / found if found else 1.0,
    )


def _spans(line: int, result: Classification) -> Iterator[tuple[int, str, int, int]]:
    return ((line, entity.label, entity.start, entity.end) for entity in result.entities)
