"""How fast engines run a model here, beside what this machine can do at best: all in one run.

fastcore and its peers are driven alike, on the same token ids, and take turns, as the speed of a machine drifts.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from math import prod
from statistics import fmean, median
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import BLOCK_TOKENS, PackedLinear, active_isa, flops_peak, time_read
from fastcore.engine.scheduler import MAX_ROWS
from fastcore.engine.state import Piece, SequenceState, StatePool, run_step
from fastcore.errors import ContextLengthError, MissingPackageError, NonFiniteError, UnsupportedModelError
from fastcore.models import Model

__all__ = [
    "BenchResult",
    "Engine",
    "Fastcore",
    "Limits",
    "OpProfile",
    "Timing",
    "Turns",
    "Workload",
    "measure",
    "profile",
    "standard_workloads",
    "time_in_turns",
]

STREAMS = 4  # contiguous streams a thread: the pattern that reads memory fastest
MAX_READ_BYTES = 1 << 28
MAX_DIFFERENCE = 0.3  # of logits, in their standard deviation: activations in bf16 stay below, other weights do not
WINDOW_SECONDS = 0.2
PATIENCE_SECONDS = 20.0  # a workload is not repeated once an engine has spent so long on it
PLOTTED_ROWS = (16, 64, 256, 1024)
PLOTTED_BATCHES = (2, 4, 8)


# ---- What is measured


@dataclass(frozen=True)
class Workload:
    """`steps` steps that each append `rows` tokens to each of `batch` sequences, which hold `depth` tokens before."""

    rows: int = 1
    depth: int = 0
    batch: int = 1
    steps: int = 1

    def __post_init__(self) -> None:
        for name, least in {"rows": 1, "depth": 0, "batch": 1, "steps": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {least}")

    @property
    def name(self) -> str:
        """`prefill 512`, `decode at 128`, `decode 8 sequences at 128`."""
        what = "decode" if self.rows == 1 else f"prefill {self.rows}"
        many = f" {self.batch} sequences" if self.batch > 1 else ""
        return what + many + (f" at {self.depth}" if self.depth else "")

    @property
    def tokens(self) -> int:
        """Tokens that the steps append, of all sequences."""
        return self.batch * self.rows * self.steps

    @property
    def positions(self) -> int:
        """Of each sequence at the end."""
        return self.depth + self.rows * self.steps


def standard_workloads(prompt_tokens: int, new_tokens: int, plot: bool = False) -> list[Workload]:
    """A prompt and the decoding that follows it; for the picture also prompts and batches of several sizes."""
    workloads = [Workload(rows=prompt_tokens), Workload(depth=prompt_tokens, steps=new_tokens)]
    if plot:
        workloads += [Workload(rows=rows) for rows in PLOTTED_ROWS]
        workloads += [Workload(depth=64, batch=batch, steps=min(16, new_tokens)) for batch in PLOTTED_BATCHES]
    return list(dict.fromkeys(workloads))


@dataclass(frozen=True)
class Limits:
    """read: bytes per second that the threads read at best. compute: FLOP/s of the f32 kernel on operands in L1.

    Both over a fifth of a second, about as long as steps take, for memory that others use too is faster at moments.
    """

    read: float
    compute: float

    @classmethod
    def measure(cls, num_threads: int, data: NDArray[np.uint8]) -> "Limits":
        """The better of two windows. data: what is read, more than the caches hold."""

        def read_seconds() -> float:
            return time_read(data, STREAMS, num_threads)

        def seconds_per_flop() -> float:
            return 1 / flops_peak(num_threads)

        return cls(
            read=data.nbytes / min(_mean_of_window(read_seconds) for _ in range(2)),
            compute=1 / min(_mean_of_window(seconds_per_flop) for _ in range(2)),
        )

    def best(self, other: "Limits") -> "Limits":
        return Limits(max(self.read, other.read), max(self.compute, other.compute))


def _mean_of_window(seconds: Callable[[], float]) -> float:
    """The mean of what calls return during WINDOW_SECONDS."""
    results, end = list[float](), perf_counter() + WINDOW_SECONDS
    while not results or perf_counter() < end:
        results.append(seconds())
    return fmean(results)


def read_buffer(nbytes: int = MAX_READ_BYTES) -> NDArray[np.uint8]:
    return np.ones(nbytes, np.uint8)


@dataclass(frozen=True)
class Timing:
    """Seconds that an engine took for all steps of a workload, in each repeat.

    weight_bytes, kv_bytes: what one pass must read at least: the weights once a step, each position of the KV cache
    and the recurrent state once a step. flops: of linear maps and attention, in all steps.
    beside: seconds of fastcore, which took turns with this engine; empty for fastcore itself.
    difference: of the last logits from fastcore's, root mean square, in fastcore's standard deviation.
    """

    engine: str
    workload: Workload
    seconds: tuple[float, ...]
    weight_bytes: int
    kv_bytes: int
    flops: int
    beside: tuple[float, ...] = ()
    difference: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second in the best repeat."""
        return self.workload.tokens / min(self.seconds)

    @property
    def median_rate(self) -> float:
        return self.workload.tokens / median(self.seconds)

    @property
    def bandwidth(self) -> float:
        """Bytes per second that had to be read at least."""
        return (self.weight_bytes + self.kv_bytes) / min(self.seconds)

    @property
    def compute(self) -> float:
        """FLOP/s."""
        return self.flops / min(self.seconds)

    @property
    def intensity(self) -> float:
        """FLOP for each byte."""
        return self.flops / (self.weight_bytes + self.kv_bytes)

    @property
    def speedup(self) -> float | None:
        """How many times fastcore is as fast, best against best; None for fastcore itself."""
        return min(self.seconds) / min(self.beside) if self.beside else None

    @property
    def median_speedup(self) -> float | None:
        return median(self.seconds) / median(self.beside) if self.beside else None

    def limit(self, limits: Limits) -> float:
        """FLOP/s that the machine allows at this intensity."""
        return min(limits.compute, self.intensity * limits.read)

    def to_dict(self, limits: Limits) -> dict[str, Any]:
        """Ready for JSON: all figures, and their shares of the limits."""
        return {
            "engine": self.engine,
            "workload": self.workload.name,
            "rows": self.workload.rows,
            "depth": self.workload.depth,
            "batch": self.workload.batch,
            "steps": self.workload.steps,
            "seconds": self.seconds,
            "tokens_per_second": self.rate,
            "median_tokens_per_second": self.median_rate,
            "bytes_per_second": self.bandwidth,
            "flops_per_second": self.compute,
            "intensity": self.intensity,
            "share_of_read_limit": self.bandwidth / limits.read,
            "share_of_compute_limit": self.compute / limits.compute,
            "fastcore_seconds": self.beside,
            "fastcore_speedup": self.speedup,
            "fastcore_median_speedup": self.median_speedup,
            "difference": self.difference,
        }


# ---- Engines


class Engine(Protocol):
    """What runs a model: tokens go into sequences, logits come out.

    name: with the dtype of its weights. weight_bytes: of the linear maps, read in each step.
    position_bytes: of the KV cache, for each position of a sequence.
    """

    name: str
    version: str
    weight_bytes: int
    position_bytes: int

    def start(self, batch: int, positions: int) -> None:
        """Forget everything, and begin `batch` empty sequences with room for so many positions each."""

    def run(self, token_ids: NDArray[np.int32]) -> None:
        """Append the rows of token_ids [batch, n] to the sequences and compute what follows; done when it returns."""

    def logits(self) -> NDArray[np.float32]:
        """[batch, vocab_size], of what follows the last run."""

    def mark(self) -> None:
        """Remember the state."""

    def rewind(self) -> None:
        """Go back to the state that was marked."""

    def close(self) -> None:
        """Free everything."""


class Fastcore:
    """The engine that this package is. kv_dtype: f32 | f16."""

    def __init__(self, model: Model, num_threads: int, kv_dtype: str = "f32") -> None:
        from fastcore import __version__

        if model.config.is_token_classifier:
            raise UnsupportedModelError("this model classifies tokens; what is measured here is generation")
        linear = _linear_weights(model)
        self.name = f"fastcore {'/'.join(dict.fromkeys(weights.dtype for weights in linear))}"
        self.version = __version__
        self.weight_bytes = sum(weights.nbytes for weights in linear)
        self._smallest = StatePool(model, 1, kv_dtype)
        self.position_bytes = self._smallest.block_bytes // BLOCK_TOKENS
        self._model = model
        self._num_threads = num_threads
        self._kv_dtype = kv_dtype
        self._sequences: list[SequenceState] = []
        self._marked: list[SequenceState] = []
        self._logits = np.empty((0, model.config.vocab_size), np.float32)
        self._best = np.empty(0, np.int32)

    def start(self, batch: int, positions: int) -> None:
        longest = self._model.config.max_position_embeddings
        if positions > longest:
            raise ContextLengthError(f"{positions} tokens are asked for and the model's context holds {longest}")
        pool = self._smallest
        blocks = -(-positions // BLOCK_TOKENS) + 2 * pool.state_blocks  # states start at multiples of their size
        pool = StatePool(self._model, 2 * batch * blocks * pool.block_bytes, self._kv_dtype)  # half for what is marked
        self._sequences = [SequenceState(pool) for _ in range(batch)]
        self._marked = [SequenceState(pool) for _ in range(batch)]
        self._logits = np.empty((batch, self._model.config.vocab_size), np.float32)
        self._best = np.empty(batch, np.int32)

    def run(self, token_ids: NDArray[np.int32]) -> None:
        batch, count = token_ids.shape
        rows = max(1, MAX_ROWS // batch)
        for first in range(0, count, rows):
            parts = token_ids[:, first : first + rows]
            if first + rows < count:
                self._step(parts, [], None, None)
            else:
                self._step(parts, [parts.shape[1] - 1], self._logits, self._best)

    def step(self, token_ids: Sequence[int], op_seconds: NDArray[np.float64]) -> None:
        """Run tokens of a single sequence as one step; op_seconds: see Program.run."""
        tokens = np.array([token_ids], np.int32)
        self._step(tokens, [len(token_ids) - 1], self._logits, self._best, op_seconds)

    def _step(
        self,
        token_ids: NDArray[np.int32],
        outputs: list[int],
        logits: NDArray[np.float32] | None,
        best: NDArray[np.int32] | None,
        op_seconds: NDArray[np.float64] | None = None,
    ) -> None:
        pieces = [Piece(sequence, row, outputs) for sequence, row in zip(self._sequences, token_ids, strict=True)]
        run_step(self._model, pieces, num_threads=self._num_threads, logits=logits, best=best, op_seconds=op_seconds)
        if best is not None and best.min() < 0:
            raise NonFiniteError("the model's logits are not finite")

    def logits(self) -> NDArray[np.float32]:
        return self._logits

    def mark(self) -> None:
        for marked, sequence in zip(self._marked, self._sequences, strict=True):
            marked.restore(sequence)

    def rewind(self) -> None:
        for marked, sequence in zip(self._marked, self._sequences, strict=True):
            sequence.restore(marked)

    def close(self) -> None:
        self._sequences, self._marked = [], []


# ---- Measuring


class Turns:
    """A workload on engines that take turns, fastcore the first of them. Tokens are random and the same for all.

    Results are checked: RuntimeError when fastcore's logits differ in a bit between two turns, NonFiniteError,
    UnsupportedModelError when a peer's are not of this model.
    """

    def __init__(self, model: Model, engines: Sequence[Engine], workload: Workload) -> None:
        shape = (workload.batch, workload.positions)
        self.model, self.engines, self.workload = model, engines, workload
        self.tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, shape).astype(np.int32)
        self.seconds: list[list[float]] = [[] for _ in engines]
        self._differences = [0.0 for _ in engines]
        for engine in engines:
            engine.start(*shape)
            if workload.depth:
                engine.run(self.tokens[:, : workload.depth])
            engine.mark()
        self.run(0)
        self._expected = engines[0].logits().copy()

    def run(self, i: int) -> None:
        """Take all steps on engine i, from the state that it is in."""
        rows = self.workload.rows
        for first in range(self.workload.depth, self.workload.positions, rows):
            self.engines[i].run(self.tokens[:, first : first + rows])

    def take(self, i: int) -> None:
        """Time engine i from the workload's depth on."""
        self.engines[i].rewind()
        start = perf_counter()
        self.run(i)
        self.seconds[i].append(perf_counter() - start)
        self.check(i)

    def check(self, i: int) -> None:
        """Compare the logits after the last step."""
        logits = self.engines[i].logits()
        if i == 0:
            if not np.array_equal(logits, self._expected):
                raise RuntimeError("two runs on the same tokens gave different logits: the results cannot be trusted")
            return
        difference = float(np.sqrt(np.mean((logits - self._expected) ** 2)) / self._expected.std())
        if not difference <= MAX_DIFFERENCE:
            raise UnsupportedModelError(
                f"the logits of {self.engines[i].name} are {difference:.2f} standard deviations away from fastcore's, "
                f"expected at most {MAX_DIFFERENCE}: it does not run this model as its checkpoint says"
            )
        self._differences[i] = difference

    def timings(self) -> list[Timing]:
        workload = self.workload
        ends = range(workload.depth + workload.rows, workload.positions + 1, workload.rows)
        state_bytes = self.model.program.state_bytes
        return [
            Timing(
                engine=engine.name,
                workload=workload,
                seconds=tuple(self.seconds[i]),
                weight_bytes=workload.steps * engine.weight_bytes,
                kv_bytes=workload.batch * (sum(ends) * engine.position_bytes + workload.steps * state_bytes),
                flops=_flops(self.model, workload),
                beside=tuple(self.seconds[0]) if i else (),
                difference=self._differences[i],
            )
            for i, engine in enumerate(self.engines)
        ]


def time_in_turns(
    model: Model, engines: Sequence[Engine], workload: Workload, repeats: int, patience: float = PATIENCE_SECONDS
) -> list[Timing]:
    """Time a workload on engines that take turns: at most `repeats`, no more once one has taken `patience` seconds."""
    turns = Turns(model, engines, workload)
    for _ in range(repeats):
        for i in range(len(engines)):
            turns.take(i)
        if max(map(sum, turns.seconds)) > patience:
            break
    return turns.timings()


@dataclass(frozen=True)
class BenchResult:
    """Timings of one model, and the limits of the machine: the best that was seen between them.

    timings: of fastcore with its best repeats from all turns, then of its peers.
    skipped: peers that did not run, with the reason. versions: of engines.
    """

    model_type: str
    num_parameters: int
    isa: str
    num_threads: int
    limits: Limits
    timings: tuple[Timing, ...]
    versions: dict[str, str]
    skipped: dict[str, str]

    def find(self, workload: Workload, engine: str | None = None) -> Timing | None:
        """The timing of a workload, of fastcore itself by default."""
        engine = engine or self.timings[0].engine
        found = [timing for timing in self.timings if (timing.workload, timing.engine) == (workload, engine)]
        return found[0] if found else None

    @cached_property
    def engines(self) -> list[str]:
        return list(dict.fromkeys(timing.engine for timing in self.timings))

    @cached_property
    def workloads(self) -> list[Workload]:
        return list(dict.fromkeys(timing.workload for timing in self.timings))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "model_type": self.model_type,
            "num_parameters": self.num_parameters,
            "isa": self.isa,
            "num_threads": self.num_threads,
            "read_limit": self.limits.read,
            "compute_limit": self.limits.compute,
            "versions": self.versions,
            "skipped": self.skipped,
            "timings": [timing.to_dict(self.limits) for timing in self.timings],
        }


def measure(
    model: Model,
    num_threads: int,
    workloads: Sequence[Workload],
    *,
    repeats: int = 3,
    peers: Iterable[tuple[str, Callable[[], Engine]]] = (),
) -> BenchResult:
    """Time workloads on fastcore, and on each peer in turns with it, beside the limits of the machine.

    peers: names, and what opens them; one is open at a time. One that is not installed or cannot run this model is
    skipped, with the reason.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; expected at least 1")
    own = Fastcore(model, num_threads)
    data = read_buffer(max(1 << 24, min(own.weight_bytes, MAX_READ_BYTES)))
    limits = Limits.measure(num_threads, data)
    own_timings: dict[Workload, Timing] = {}
    versions, skipped = {own.name: own.version}, dict[str, str]()

    def run(engines: Sequence[Engine], workloads: Iterable[Workload]) -> list[Timing]:
        nonlocal limits
        timings = []
        for workload in workloads:
            first, *others = time_in_turns(model, engines, workload, repeats)
            limits = limits.best(Limits.measure(num_threads, data))
            if workload not in own_timings or first.rate > own_timings[workload].rate:
                own_timings[workload] = first
            timings += others
        return timings

    peer_timings: list[Timing] = []
    for name, open_peer in peers:
        try:
            with closing(open_peer()) as peer:
                peer_timings += run([own, peer], workloads)
                versions[peer.name] = peer.version
        except (MissingPackageError, UnsupportedModelError) as error:
            skipped[name] = str(error)
    run([own], [workload for workload in workloads if workload not in own_timings])
    return BenchResult(
        model_type=model.config.model_type,
        num_parameters=_num_parameters(model),
        isa=active_isa(),
        num_threads=num_threads,
        limits=limits,
        timings=(*(own_timings[workload] for workload in workloads), *peer_timings),
        versions=versions,
        skipped=skipped,
    )


@dataclass(frozen=True)
class OpProfile:
    """Ops of one kind and shape in one step: how many, their time (waits before them included), and what they read."""

    name: str
    count: int
    seconds: float
    weight_bytes: int


def profile(model: Model, num_threads: int, *, rows: int, depth: int, repeats: int) -> list[OpProfile]:
    """Where steps of `rows` tokens spend their time, from position `depth` on, by kind of op and shape of weights.

    An average of `repeats` steps, one after the other; the last entry is the time outside the program. rows 1: decode.
    """
    engine = Fastcore(model, num_threads)
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, depth + rows * repeats).astype(np.int32)
    op_seconds = np.zeros(model.program.num_ops)
    engine.start(1, len(tokens))
    if depth:
        engine.run(tokens[None, :depth])
    start = perf_counter()
    for first in range(depth, len(tokens), rows):
        engine.step(tokens[first : first + rows].tolist(), op_seconds)
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


# ---- What a model costs


def _linear_weights(model: Model) -> list[PackedLinear]:
    """Weights of the linear maps in the order that a step meets them; the head is the last."""
    program = model.program
    return [
        weights for kind, weights in zip(program.kinds, program.weights, strict=True) if kind == "linear" and weights
    ]


def _flops(model: Model, workload: Workload) -> int:
    """Two for each weight and token, the head only for a sequence's last token of a step; and those of attention."""
    *layers, head = [weights.out_features * weights.in_features for weights in _linear_weights(model)]
    config = model.config
    attention_layers = model.program.max_layer + 1
    pairs = workload.batch * sum(range(workload.depth + 1, workload.positions + 1))  # of a token and one it sees
    attention = 2 * attention_layers * config.num_attention_heads * config.head_dim * pairs  # scores, weighted sum
    return 2 * (workload.tokens * sum(layers) + workload.batch * workload.steps * head + attention)


def _num_parameters(model: Model) -> int:
    """Weights of the distinct linear maps; the vectors are less than a thousandth."""
    distinct = {id(weights): weights for weights in model.program.weights if weights is not None}
    return sum(prod((weights.out_features, weights.in_features)) for weights in distinct.values())
