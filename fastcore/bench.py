"""How fast a model runs here, beside what this machine can do at best, measured in the same run."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from math import prod
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import active_isa, flops_peak, time_read
from fastcore.errors import ContextLengthError, NonFiniteError, UnsupportedModelError
from fastcore.models import Model
from fastcore.scheduler import MAX_ROWS
from fastcore.state import Piece, Sequence, StatePool, run_step

__all__ = ["BenchResult", "OpProfile", "measure", "profile"]

STREAMS = 4  # contiguous streams a thread: the pattern that reads memory fastest
MAX_READ_BYTES = 1 << 30


@dataclass(frozen=True)
class BenchResult:
    """Rates of one model, and the limits: each the best of its repeats, which alternate, as the machine's speed drifts.

    weight_bytes_per_token: what decoding one token reads of the weights.
    flops_per_token: 2 for each weight that prefill multiplies a token with; attention is not counted.
    prefill_seconds, decode_seconds: of each repeat; of all prompt tokens, and of all new tokens after the first.
    read_limit: bytes per second that the threads read at best. compute_limit: FLOP/s of the f32 kernel in L1.
    """

    model_type: str
    num_parameters: int
    isa: str
    num_threads: int
    prompt_tokens: int
    new_tokens: int
    weight_bytes_per_token: int
    flops_per_token: int
    prefill_seconds: tuple[float, ...]
    decode_seconds: tuple[float, ...]
    read_limit: float
    compute_limit: float

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / min(self.prefill_seconds)

    @property
    def prefill_flops(self) -> float:
        """FLOP/s of prefill."""
        return self.prefill_rate * self.flops_per_token

    @property
    def prefill_share(self) -> float:
        """Of the compute limit."""
        return self.prefill_flops / self.compute_limit

    @property
    def decode_rate(self) -> float:
        """New tokens per second."""
        return (self.new_tokens - 1) / min(self.decode_seconds)

    @property
    def decode_bandwidth(self) -> float:
        """Weight bytes per second in decode."""
        return self.decode_rate * self.weight_bytes_per_token

    @property
    def decode_share(self) -> float:
        """Of the read limit."""
        return self.decode_bandwidth / self.read_limit


@dataclass(frozen=True)
class OpProfile:
    """Ops of one kind and shape in one step: how many, their time (waits before them included), and what they read."""

    name: str
    count: int
    seconds: float
    weight_bytes: int


def measure(
    model: Model, num_threads: int, *, prompt_tokens: int = 512, new_tokens: int = 64, repeats: int = 3
) -> BenchResult:
    """Prefill a prompt of random tokens and decode greedily, several times, each beside a read of as many bytes.

    Raises NonFiniteError for logits that are not numbers, and RuntimeError when two repeats differ in a token.
    """
    bounds = {"prompt_tokens": (prompt_tokens, 1), "new_tokens": (new_tokens, 2), "repeats": (repeats, 1)}
    for name, (value, least) in bounds.items():
        if value < least:
            raise ValueError(f"{name} is {value}; expected at least {least}")
    run = _Run(model, num_threads, prompt_tokens + new_tokens)
    prompt = _random_tokens(prompt_tokens, model.config.vocab_size)
    program = model.program
    linear = [
        weights for kind, weights in zip(program.kinds, program.weights, strict=True) if kind == "linear" and weights
    ]
    weight_bytes = sum(weights.nbytes for weights in linear)
    data = np.ones(max(1 << 24, min(weight_bytes, MAX_READ_BYTES)), np.uint8)  # at least what no cache level holds
    prefill, decode, reads, expected = [], [], [], None
    for _ in range(repeats):
        seconds, tokens = run.generate(prompt, new_tokens)
        if expected is not None and tokens != expected:
            raise RuntimeError(
                "two greedy runs on the same prompt gave different tokens: the results cannot be trusted"
            )
        expected = tokens
        prefill.append(seconds[0])
        decode.append(sum(seconds[1:]))
        reads.append(min(time_read(data, STREAMS, num_threads) for _ in range(3)))
    return BenchResult(
        model_type=model.config.model_type,
        num_parameters=_num_parameters(model),
        isa=active_isa(),
        num_threads=num_threads,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        weight_bytes_per_token=weight_bytes,
        flops_per_token=2
        * sum(weights.out_features * weights.in_features for weights in linear[:-1]),  # all but the head
        prefill_seconds=tuple(prefill),
        decode_seconds=tuple(decode),
        read_limit=data.nbytes / min(reads),
        compute_limit=max(flops_peak(num_threads) for _ in range(3)),
    )


def profile(model: Model, num_threads: int, *, rows: int, depth: int, repeats: int) -> list[OpProfile]:
    """Where steps of `rows` tokens spend their time, from position `depth` on, by kind of op and shape of weights.

    An average of `repeats` steps, one after the other; the last entry is the time outside the program. rows 1: decode.
    """
    run = _Run(model, num_threads, depth + rows * repeats)
    tokens = _random_tokens(depth + rows * repeats, model.config.vocab_size)
    op_seconds = np.zeros(model.program.num_ops)
    with Sequence(run.pool) as sequence:
        run.prefill(sequence, tokens[:depth])
        start = perf_counter()
        for first in range(depth, len(tokens), rows):
            run.step(sequence, tokens[first : first + rows], op_seconds)
        total = perf_counter() - start
    groups: dict[str, list[int]] = {}
    for i, (kind, weights) in enumerate(zip(model.program.kinds, model.program.weights, strict=True)):
        name = kind if weights is None else f"{kind} {weights.out_features} x {weights.in_features} {weights.dtype}"
        groups.setdefault(name, []).append(i)
    profiles = [
        OpProfile(
            name,
            len(ops),
            op_seconds[ops].sum() / repeats,
            sum(weights.nbytes for i in ops if (weights := model.program.weights[i]) and not name.startswith("embed")),
        )
        for name, ops in groups.items()
    ]
    return [*profiles, OpProfile("outside the program", 1, (total - op_seconds.sum()) / repeats, 0)]


class _Run:
    """One model with room for one sequence."""

    def __init__(self, model: Model, num_threads: int, positions: int) -> None:
        if model.config.is_token_classifier:
            raise UnsupportedModelError("this model classifies tokens; what is measured here is generation")
        longest = model.config.max_position_embeddings
        if positions > longest:
            raise ContextLengthError(f"{positions} tokens are asked for and the model's context holds {longest}")
        self.model = model
        self.num_threads = num_threads
        self.pool = _pool_for(model, positions)
        self._logits = np.empty((1, model.config.vocab_size), np.float32)
        self._best = np.empty(1, np.int32)

    def step(self, sequence: Sequence, tokens: Rows[int], op_seconds: NDArray[np.float64] | None = None) -> int:
        """Run tokens and return the best next one."""
        piece = Piece(sequence, tokens, [len(tokens) - 1])
        run_step(
            self.model,
            [piece],
            num_threads=self.num_threads,
            logits=self._logits,
            best=self._best,
            op_seconds=op_seconds,
        )
        if self._best[0] < 0:
            raise NonFiniteError("the model's logits are not finite")
        return int(self._best[0])

    def prefill(self, sequence: Sequence, tokens: Rows[int]) -> int:
        """Run a prompt in steps of at most MAX_ROWS rows; -1 for an empty one."""
        best = -1
        for start in range(0, len(tokens), MAX_ROWS):
            best = self.step(sequence, tokens[start : start + MAX_ROWS])
        return best

    def generate(self, prompt: Rows[int], new_tokens: int) -> tuple[list[float], list[int]]:
        """Seconds that each new token took, the first after the prompt, and the tokens."""
        times, tokens = [perf_counter()], list[int]()
        with Sequence(self.pool) as sequence:
            tokens.append(self.prefill(sequence, prompt))
            times.append(perf_counter())
            while len(tokens) < new_tokens:
                tokens.append(self.step(sequence, tokens[-1:]))
                times.append(perf_counter())
        return np.diff(times).tolist(), tokens


def _pool_for(model: Model, positions: int) -> StatePool:
    """A pool that holds one sequence of so many positions."""
    smallest = StatePool(model, 1)
    blocks = -(-positions // (smallest.max_positions // (smallest.num_blocks - smallest.state_blocks)))
    return StatePool(model, (blocks + smallest.state_blocks) * smallest.block_bytes)


def _random_tokens(count: int, vocab_size: int) -> list[int]:
    return np.random.default_rng(0).integers(0, vocab_size, count).tolist()


def _num_parameters(model: Model) -> int:
    """Weights of the distinct linear maps; the vectors are less than a thousandth."""
    distinct = {id(weights): weights for weights in model.program.weights if weights is not None}
    return sum(prod((weights.out_features, weights.in_features)) for weights in distinct.values())
