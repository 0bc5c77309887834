"""Times of workloads, and what they say beside the limits of the machine."""

from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from fastcore.bench.machine_limits import MachineLimits
from fastcore.bench.workload import Workload

__all__ = ["BenchResult", "Timing"]


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

    def limit(self, limits: MachineLimits) -> float:
        """FLOP/s that the machine allows at this intensity."""
        return min(limits.compute, self.intensity * limits.read)

    def to_dict(self, limits: MachineLimits) -> dict[str, Any]:
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
    limits: MachineLimits
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
