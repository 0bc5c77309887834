"""What a model makes of given text: logits, log-likelihoods, perplexity, embeddings. Many texts share each step."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastcore.engine.sampling import logprobs_of
from fastcore.engine.scheduler import MAX_ROWS
from fastcore.engine.state import Piece, SequenceState, run_step
from fastcore.errors import CacheFullError, ContextLengthError, NonFiniteError

if TYPE_CHECKING:
    from fastcore.llm import LLM
    from fastcore.text.tokenizer import Tokenizer

__all__ = ["POOLINGS", "embed", "encode_pair", "logits", "loglikelihoods", "perplexity"]

LOGIT_BYTES = 1 << 27  # of logits that a step may write
POOLINGS = ("mean", "last")

Array = NDArray[np.float32]


@dataclass(frozen=True)
class _Text:
    """Token ids to run, of which the outputs from index `first` on are wanted."""

    token_ids: Sequence[int]
    first: int = 0


def logits(llm: "LLM", token_lists: Sequence[Sequence[int]]) -> list[Array]:
    """Logits at every position of each list: f32 [num_tokens, vocab_size]."""
    results = [np.empty((len(ids), llm.config.vocab_size), np.float32) for ids in token_lists]
    for i, start, rows, _ in _outputs(llm, [_Text(ids) for ids in token_lists]):
        results[i][start : start + len(rows)] = rows
    return results


def loglikelihoods(llm: "LLM", pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, bool]]:
    """Of each (context ids, continuation ids): the sum of the continuation's logprobs, and whether it is greedy.

    Pairs that differ in their last token only, as the answers of a multiple-choice question do, share one forward pass.
    """
    sharing: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for i, (context, continuation) in enumerate(pairs):
        if not context:
            raise ValueError(f"pair {i}: the context has no tokens")
        if continuation:
            sharing.setdefault((len(context), (*context, *continuation[:-1])), []).append(i)
    keys = list(sharing)
    sums, greedy = [0.0] * len(pairs), [True] * len(pairs)
    for k, start, rows, best in _outputs(llm, [_Text(ids, length - 1) for length, ids in keys]):
        for offset, (row, best_id) in enumerate(zip(rows, best, strict=True), start + 1 - keys[k][0]):
            for i in sharing[keys[k]]:
                token_id = pairs[i][1][offset]
                sums[i] += logprobs_of(row, token_id, 0)[0]
                greedy[i] &= int(best_id) == token_id
    return list(zip(sums, greedy, strict=True))


def encode_pair(
    tokenizer: "Tokenizer", context: str, continuation: str, start_id: int | None, add_special_tokens: bool = True
) -> tuple[list[int], list[int]]:
    """Token ids of a context and of what follows it: their common encoding, cut where that of the context alone ends.

    Trailing whitespace of the context goes to the continuation, as it is part of the token that follows. An empty
    context is start_id (ValueError without one).
    """
    stripped = context.rstrip()
    if not stripped:
        if start_id is None:
            raise ValueError("the context is empty, and this model has no token to start from")
        ids = tokenizer.encode(context + continuation, add_special_tokens=False)
        return ([start_id], ids) if ids[:1] != [start_id] else (ids[:1], ids[1:])
    whole, ids = (tokenizer.encode(text, add_special_tokens) for text in (context + continuation, stripped))
    return whole[: len(ids)], whole[len(ids) :]


def perplexity(llm: "LLM", token_ids: Sequence[int], window: int, stride: int, progress: bool) -> float:
    """exp of the mean negative logprob of every token but the first; windows as `LLM.perplexity` says."""
    count = len(token_ids)
    if count < 2:
        raise ValueError(f"perplexity of {count} tokens; at least 2 are needed, as the first is not predicted")
    if not 1 <= stride <= window <= llm.max_seq_len:
        raise ValueError(f"window {window}, stride {stride}: 1 <= stride <= window <= {llm.max_seq_len} must hold")
    ends = [min(1 + window, count)]
    while ends[-1] < count:
        ends.append(min(ends[-1] + stride, count))
    starts = [max(0, end - 1 - window) for end in ends]
    texts = [
        _Text(token_ids[start : end - 1], scored - 1 - start)
        for start, end, scored in zip(starts, ends, [1, *ends[:-1]], strict=True)
    ]
    total = 0.0
    with _bar(count - 1, progress) as bar:
        for i, start, rows, _ in _outputs(llm, texts):
            for offset, row in enumerate(rows, starts[i] + start + 1):
                total += logprobs_of(row, token_ids[offset], 0)[0]
            bar.update(len(rows))
    return math.exp(-total / (count - 1))


def embed(llm: "LLM", token_lists: Sequence[Sequence[int]], pooling: str, normalize: bool) -> Array:
    """One vector a text from the hidden states after the last norm: f32 [num_texts, hidden_size]."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling is {pooling!r}; expected one of {', '.join(POOLINGS)}")
    sums = np.zeros((len(token_lists), llm.config.hidden_size))
    texts = [_Text(ids, len(ids) - 1 if pooling == "last" else 0) for ids in token_lists]
    for i, _, rows, _ in _outputs(llm, texts, hidden=True):
        for row in rows:  # one chain of additions, wherever the steps cut it
            sums[i] += row
    if pooling == "mean":
        sums /= np.array([len(ids) for ids in token_lists], np.float64)[:, None]
    if normalize:
        lengths = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
        sums /= np.where(lengths > 0, lengths, 1)
    return sums.astype(np.float32)


def _outputs(
    llm: "LLM", texts: Sequence[_Text], *, hidden: bool = False
) -> Iterator[tuple[int, int, Array, NDArray[np.int32]]]:
    """(index of the text, position of the first row, rows, best ids) for all wanted outputs, in order.

    The texts are packed into steps one after another. Rows are logits [n, vocab_size], with the id of the highest [n],
    or hidden states [n, hidden_size]; the next step overwrites them. Raises ContextLengthError before anything runs,
    and NonFiniteError for a row with NaN or infinity.
    """
    for i, text in enumerate(texts):
        if not text.token_ids:
            raise ValueError(f"text {i} has no tokens")
        if len(text.token_ids) > llm.max_seq_len:
            raise ContextLengthError(
                f"text {i} has {len(text.token_ids)} tokens and the context holds {llm.max_seq_len}; shorten it"
            )
    width = llm.config.hidden_size if hidden else llm.config.vocab_size
    num_wanted = sum(len(text.token_ids) - text.first for text in texts)
    capacity = max(1, min(MAX_ROWS, LOGIT_BYTES // (4 * width), num_wanted))
    outputs, best = np.empty((capacity, width), np.float32), np.zeros(capacity, np.int32)
    started: dict[int, SequenceState] = {}  # the texts that have state
    next_text = 0
    try:
        while next_text < len(texts):
            plan = _plan(llm, texts, next_text, started, capacity)
            pieces = [piece for _, piece in plan]
            starts = [piece.sequence.length for piece in pieces]
            count = sum(len(piece.outputs) for piece in pieces)
            if hidden:
                run_step(llm.model, pieces, num_threads=llm.num_threads, hidden=outputs[:count])
                best[:count] = np.where(np.isfinite(outputs[:count]).all(axis=1), 0, -1)
            else:
                run_step(llm.model, pieces, num_threads=llm.num_threads, logits=outputs[:count], best=best[:count])
            row = 0
            for (i, piece), start in zip(plan, starts, strict=True):
                rows = slice(row, row + len(piece.outputs))
                row = rows.stop
                if (best[rows] < 0).any():
                    position = start + piece.outputs[int((best[rows] < 0).argmax())]
                    raise NonFiniteError(
                        f"text {i}: the output at position {position} is not finite; a weight is NaN or infinite, or "
                        "activations overflow"
                    )
                if piece.outputs:
                    yield i, start + piece.outputs[0], outputs[rows], best[rows]
                if piece.sequence.length == len(texts[i].token_ids):
                    started.pop(i).free()
                    next_text = i + 1
    finally:
        for sequence in started.values():
            sequence.free()


def _plan(
    llm: "LLM", texts: Sequence[_Text], next_text: int, started: dict[int, SequenceState], max_outputs: int
) -> list[tuple[int, Piece]]:
    """The pieces of the next step, from text `next_text` on: at most MAX_ROWS rows and max_outputs outputs."""
    plan: list[tuple[int, Piece]] = []
    room = MAX_ROWS
    for i in range(next_text, len(texts)):
        ids, first = texts[i].token_ids, texts[i].first
        sequence = started.get(i) or SequenceState(llm.pool, prompt_length=len(ids))
        start = sequence.length
        end = min(len(ids), start + room, max(first, start) + max_outputs)
        if end == start:
            break
        try:
            sequence.reserve(end)
        except CacheFullError:
            if plan:  # the texts before it run first, and then give their blocks back
                break
            raise
        started[i] = sequence
        wanted = range(min(max(0, first - start), end - start), end - start)
        plan.append((i, Piece(sequence, ids[start:end], wanted)))
        room -= end - start
        max_outputs -= len(wanted)
        if end < len(ids):
            break
    return plan


def _bar(total: int, show: bool) -> Any:
    from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

    return tqdm(total=total, unit="token", disable=not show)
