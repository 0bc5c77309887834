"""How fast engines run a model here, beside what this machine can do at best: all in one run.

fastcore and its peers are driven alike, on the same token ids, and take turns, as the speed of a machine drifts.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from time import perf_counter

import numpy as np

from fastcore._kernels import active_isa
from fastcore.bench.machine_limits import MAX_READ_BYTES, MachineLimits, read_buffer
from fastcore.bench.model_cost import flops_of, num_parameters
from fastcore.bench.runner import Fastcore, Runner
from fastcore.bench.timing import BenchResult, Timing
from fastcore.bench.workload import Workload
from fastcore.errors import MissingPackageError, UnsupportedModelError
from fastcore.models import Model

__all__ = ["Turns", "measure", "time_in_turns"]

MAX_DIFFERENCE = 0.3  # of logits, in their standard deviation: activations in bf16 stay below, other weights do not
PATIENCE_SECONDS = 20.0  # a workload is not repeated once an engine has spent so long on it


class Turns:
    """A workload on engines that take turns, fastcore the first of them. Tokens are random and the same for all.

    Results are checked: RuntimeError when fastcore's logits differ in a bit between two turns, NonFiniteError,
    UnsupportedModelError when a peer's are not of this model.
    """

    def __init__(self, model: Model, engines: Sequence[Runner], workload: Workload) -> None:
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
                flops=flops_of(self.model, workload),
                beside=tuple(self.seconds[0]) if i else (),
                difference=self._differences[i],
            )
            for i, engine in enumerate(self.engines)
        ]


def time_in_turns(
    model: Model, engines: Sequence[Runner], workload: Workload, repeats: int, patience: float = PATIENCE_SECONDS
) -> list[Timing]:
    """Time a workload on engines that take turns: at most `repeats`, no more once one has taken `patience` seconds."""
    turns = Turns(model, engines, workload)
    for _ in range(repeats):
        for i in range(len(engines)):
            turns.take(i)
        if max(map(sum, turns.seconds)) > patience:
            break
    return turns.timings()


def measure(
    model: Model,
    num_threads: int,
    workloads: Sequence[Workload],
    *,
    repeats: int = 3,
    peers: Iterable[tuple[str, Callable[[], Runner]]] = (),
    kv_dtype: str = "f32",
) -> BenchResult:
    """Time workloads on fastcore, and on each peer in turns with it, beside the limits of the machine.

    peers: names, and what opens them; one is open at a time. One that is not installed or cannot run this model is
    skipped, with the reason.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; expected at least 1")
    own = Fastcore(model, num_threads, kv_dtype)
    data = read_buffer(max(1 << 24, min(own.weight_bytes, MAX_READ_BYTES)))
    limits = MachineLimits.measure(num_threads, data)
    own_timings: dict[Workload, Timing] = {}
    versions, skipped = {own.name: own.version}, dict[str, str]()

    def run(engines: Sequence[Runner], workloads: Iterable[Workload]) -> list[Timing]:
        nonlocal limits
        timings = []
        for workload in workloads:
            first, *others = time_in_turns(model, engines, workload, repeats)
            limits = limits.best(MachineLimits.measure(num_threads, data))
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
        num_parameters=num_parameters(model),
        isa=active_isa(),
        num_threads=num_threads,
        limits=limits,
        timings=(*(own_timings[workload] for workload in workloads), *peer_timings),
        versions=versions,
        skipped=skipped,
    )
