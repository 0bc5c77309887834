"""From one row of logits to one token: one completion's sampler.

The order of processing:

1. Tokens that the request's grammar does not allow are masked, and `logit_bias` is added.
2. `min_tokens`: until that many tokens are out, end-of-sequence tokens and `stop_token_ids` are masked.
3. Penalties. Repetition, once per distinct token of prompt and output: a positive logit is divided by the penalty,
   any other multiplied. Presence and frequency, output tokens only: `logit -= presence + frequency * count`.
4. `temperature` divides. From here on tokens stand in one order: descending logit, ties by ascending token id. Every
   truncation keeps a prefix of that order, and always its first token.
5. `top_k` keeps the first k.
6. `top_p` keeps the shortest prefix that holds at least top_p of the mass left by top_k.
7. `min_p` keeps the tokens at least min_p times as probable as the first.
8. One uniform number draws from what is left, by inverting the cumulative distribution in order of token id.

Greedy decoding stops after step 3 and takes the highest logit, of equals the lowest token id. Logprobs are those of the
model: log-softmax of the logits before step 1. NaN, +inf or nothing but -inf in the logits is a `NonFiniteError`,
never a token.
"""

import math
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import WEIGHT_BLOCK, mask_logits, softmax_weights, sum_exp
from fastcore.engine.sampling_params import SamplingParams
from fastcore.errors import NonFiniteError

if TYPE_CHECKING:
    from fastcore.text.grammars import Constraint

__all__ = ["Choice", "Sampler", "logprobs_of"]

BLOCK = WEIGHT_BLOCK  # weights are summed in blocks of this many tokens
SORT_LIMIT = 2048  # candidates are narrowed down to this many before they are sorted


class Choice(NamedTuple):
    """A chosen token; with `logprobs`, its logprob and the most probable tokens as (token id, logprob), best first."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] | None = None


class Sampler:
    """The sampling state of one completion: what was seen, and its own random stream.

    It draws one uniform number per sampled token from a counter-based stream keyed by (seed, seed_offset), so that a
    request's tokens do not depend on what else runs. `seed_offset` tells the `n` completions of one prompt apart.
    constraint: what allows tokens, if not all are.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        prompt_token_ids: Sequence[int],
        eos_token_ids: Sequence[int],
        seed_offset: int = 0,
        constraint: "Constraint | None" = None,
    ) -> None:
        self.params = params
        self._constraint = constraint
        self.vocab_size = vocab_size
        self.num_output_tokens = 0
        bias = params.logit_bias or {}
        self._bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._ending_ids = np.array(sorted({*eos_token_ids, *params.stop_token_ids}), np.int64)
        self._check_ids("logit_bias", self._bias_ids)
        self._check_ids("stop_token_ids or the model's eos_token_id", self._ending_ids)
        self._output = _TokenCounts()
        self._seen = _TokenCounts()
        if params.repetition_penalty != 1.0:
            self._check_ids("the prompt", np.asarray(prompt_token_ids, np.int64))
            for token_id in prompt_token_ids:
                self._seen.add(int(token_id))
        seed = secrets.randbits(64) if params.seed is None else params.seed % 2**64
        self._stream = np.random.Philox(key=np.array([seed, seed_offset], np.uint64))
        self._logits: NDArray[np.float32] | None = None  # the processed copy, once one is needed
        self._weights: NDArray[np.float32] | None = None  # softmax weights of the vocabulary, once they are needed

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the argmax of the untouched logits (of equals the lowest id) is the answer for the next token."""
        return self.params.is_greedy and self.params.logprobs is None and not self._changes_logits

    def sample(self, logits: NDArray[np.float32]) -> Choice:
        """The next token from its logits, f32 [vocab_size], which are left as they are. Does not `accept` it."""
        if logits.shape != (self.vocab_size,) or logits.dtype != np.float32:
            raise ValueError(f"logits are {logits.dtype} {list(logits.shape)}; expected float32 [{self.vocab_size}]")
        best, peak = _argmax(logits)
        processed = logits
        if self._changes_logits:
            processed = self._process(logits)
            best, peak = _argmax(processed)
        token_id = best if self.params.is_greedy else self._draw(processed, peak)
        if self.params.logprobs is None:
            return Choice(token_id)
        return Choice(token_id, *logprobs_of(logits, token_id, self.params.logprobs))

    def accept(self, token_id: int) -> None:
        """Count a token as part of the output."""
        self.num_output_tokens += 1
        if self.params.has_penalties:
            self._output.add(token_id)
            self._seen.add(token_id)
        if self._constraint is not None:
            self._constraint.accept(token_id)

    @property
    def is_complete(self) -> bool:
        """Whether the grammar, if there is one, lets nothing follow."""
        return self._constraint is not None and self._constraint.is_complete

    def _check_ids(self, name: str, ids: NDArray[np.int64]) -> None:
        outside = ids[(ids < 0) | (ids >= self.vocab_size)]
        if outside.size:
            raise ValueError(f"{name}: token id {outside[0]} is outside the vocabulary of {self.vocab_size}")

    @property
    def _masks_endings(self) -> bool:
        return self.num_output_tokens < self.params.min_tokens and self._ending_ids.size > 0

    @property
    def _changes_logits(self) -> bool:
        return (
            self._constraint is not None or self._bias_ids.size > 0 or self._masks_endings or self.params.has_penalties
        )

    def _process(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """Steps 1 to 3 on a copy."""
        if self._logits is None:
            self._logits = np.empty(self.vocab_size, np.float32)
        logits, params = self._logits, self.params
        if self._constraint is None:
            logits[:] = raw
        else:
            mask_logits(raw, self._constraint.allowed(), logits)
        with np.errstate(over="ignore"):  # a product past the float range becomes an infinity, which _argmax judges
            logits[self._bias_ids] += self._bias
            if self._masks_endings:
                logits[self._ending_ids] = -np.inf
            if params.repetition_penalty != 1.0:
                seen = logits[self._seen.ids]
                penalty = np.float32(params.repetition_penalty)
                logits[self._seen.ids] = np.where(seen > 0, seen / penalty, seen * penalty)
            if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
                penalties = params.presence_penalty + params.frequency_penalty * self._output.counts
                logits[self._output.ids] -= penalties.astype(np.float32)
        return logits

    def _draw(self, logits: NDArray[np.float32], peak: float) -> int:
        """Steps 4 to 8. The vocabulary is never sorted, and with top_k only the candidates are weighed."""
        params = self.params
        uniform = (int(self._stream.random_raw()) >> 11) * 2.0**-53  # in [0, 1)
        ids = None  # the candidates, ascending; None is the whole vocabulary
        if 0 < params.top_k < self.vocab_size:
            ids = _leading(logits, peak, 1.0, None, params.top_k)
            logits = logits[ids]
            weights, sums = _softmax_weights(logits, peak, params.temperature, _blocks(ids.size))
        else:
            if self._weights is None:
                self._weights = _blocks(self.vocab_size)
            weights, sums = _softmax_weights(logits, peak, params.temperature, self._weights)
        kept = None  # indices into the candidates
        if params.top_p < 1.0:
            kept = _leading(logits, peak, params.temperature, weights, params.top_p * float(sums.sum()))
        if params.min_p > 0.0:
            kept = _at_least(weights, params.min_p) if kept is None else kept[weights[kept] >= params.min_p]
        if kept is not None:
            ids = kept if ids is None else ids[kept]
            weights, sums = _block_sums(weights[kept])
        index = _invert(weights, sums, uniform)
        return index if ids is None else int(ids[index])


def logprobs_of(
    logits: NDArray[np.float32], token_id: int, num_top: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """log-softmax of f32 [vocab_size]: of `token_id`, and the `num_top` highest as (token id, logprob), best first.

    Of equal logprobs the lower id comes first. Fewer than `num_top` come back only where other logits are -inf.
    """
    _, peak = _argmax(logits)
    log_total = peak + math.log(sum_exp(logits, peak, 1.0))
    top = np.empty(0, np.int64)
    if num_top > 0:
        top = _leading(logits, peak, 1.0, None, num_top)
        top = top[np.argsort(-logits[top], kind="stable")]
    return float(logits[token_id]) - log_total, tuple((int(i), float(logits[i]) - log_total) for i in top)


class _TokenCounts:
    """Distinct tokens in order of first sight, and how often each was seen."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.float32)

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> NDArray[np.float32]:
        return self._counts[: len(self._slots)]

    def add(self, token_id: int) -> None:
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == self._ids.size:
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token_id
        self._counts[slot] += 1


# ---- Passes over the vocabulary. The first three are all that touches every logit.


def _argmax(logits: NDArray[np.float32]) -> tuple[int, float]:
    """The id of the highest logit, of equals the lowest, and its value, which is finite; else `NonFiniteError`."""
    best = int(logits.argmax())  # NumPy takes a NaN for the highest, so that this one value tells of any
    peak = float(logits[best])
    if math.isfinite(peak):
        return best, peak
    if peak == -math.inf:
        raise NonFiniteError(f"all {logits.size} logits are -inf: the model or the request's options leave no token")
    raise NonFiniteError(f"the logit of token {best} is {peak}; expected finite numbers (or -inf for a banned token)")


def _softmax_weights(
    logits: NDArray[np.float32], peak: float, temperature: float, weights: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """The weights of the softmax, exp((logit - peak) / temperature), into `weights`; and their sums by `BLOCK`.

    `weights` comes from `_blocks(logits.size)`: f32, zero past the logits. The sums are f64 [number of blocks].
    """
    sums = np.empty(weights.size // BLOCK)
    # The factor stays a normal f32 number, so that neither 0 * inf nor inf * 0 can occur.
    softmax_weights(np.ascontiguousarray(logits), peak, min(max(1.0 / temperature, 1e-37), 1e37), weights, sums)
    return weights, sums


def _at_least(values: NDArray[np.float32], threshold: float) -> NDArray[np.int64]:
    """The indices of the values >= threshold, ascending."""
    return np.flatnonzero(values >= np.float32(threshold))


def _leading(
    logits: NDArray[np.float32], peak: float, scale: float, weights: NDArray[np.float32] | None, enough: float
) -> NDArray[np.int64]:
    """Indices, ascending, of the shortest prefix by descending logit (ties: ascending index) that is enough.

    A prefix is enough when its weights add up to `enough`; without weights, when it has that many members. If none is,
    all finite logits come back. `peak` is the highest logit, `scale` the unit of the drops below it that are tried.
    """

    def measure(ids: NDArray[np.int64]) -> float:
        return float(ids.size if weights is None else weights[ids].sum(dtype=np.float64))

    lowest = float(np.finfo(np.float32).min)
    for drop in (4.0, 8.0, 12.0, 20.0, math.inf):
        ids = _at_least(logits, max(peak - drop * scale, lowest))
        if measure(ids) >= enough:
            break
    settled: list[NDArray[np.int64]] = []  # inside for certain; `ids` holds those still open
    while ids.size > SORT_LIMIT:
        open_logits = logits[ids]
        low, high = float(open_logits.min()), float(open_logits.max())
        if low == high:
            break
        is_upper = open_logits > (low + high) / 2
        upper = ids[is_upper]
        reached = measure(upper)
        if reached >= enough:
            ids = upper
        else:
            settled.append(upper)
            enough -= reached
            ids = ids[~is_upper]
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    reached_by = np.arange(1.0, ids.size + 1) if weights is None else np.cumsum(weights[ids], dtype=np.float64)
    settled.append(ids[: int(np.searchsorted(reached_by, enough)) + 1])
    return np.sort(np.concatenate(settled))


# ---- Inverting a cumulative distribution in two storeys: blocks, then the tokens of one block.


def _blocks(size: int) -> NDArray[np.float32]:
    """Zeros for `size` weights, in whole blocks."""
    return np.zeros(-(-size // BLOCK) * BLOCK, np.float32)


def _block_sums(weights: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """The weights filled up to whole blocks, and their sums by block."""
    filled = _blocks(weights.size)
    filled[: weights.size] = weights
    return filled, filled.reshape(-1, BLOCK).sum(axis=1, dtype=np.float64)


def _invert(weights: NDArray[np.float32], sums: NDArray[np.float64], uniform: float) -> int:
    """The first index whose cumulative weight exceeds `uniform`, in [0, 1), times the total; its weight is not zero."""
    through = np.cumsum(sums)
    target = uniform * through[-1]
    block = int(np.searchsorted(through, target, side="right"))
    before = through[block - 1] if block > 0 else 0.0
    within = np.cumsum(weights[block * BLOCK : (block + 1) * BLOCK], dtype=np.float64)
    # Rounding may leave the target a hair past the block's last weight, which then is the answer.
    last = int(np.searchsorted(within, within[-1]))
    return block * BLOCK + min(int(np.searchsorted(within, target - before, side="right")), last)
