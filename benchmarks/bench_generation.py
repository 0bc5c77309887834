"""Prefill, decode and batches of whole models: fastcore alone, and in turns with each peer on the same tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastcore.bench.runner import Fastcore, Runner
from fastcore.bench.turns import PATIENCE_SECONDS, Turns
from fastcore.bench.workload import Workload
from fastcore.errors import UnsupportedModelError
from fastcore.models import Model

WORKLOADS = [
    *(Workload(rows=rows) for rows in (128, 512, 2048)),
    Workload(rows=256, depth=2048),
    *(Workload(depth=depth, steps=24) for depth in (0, 1024, 4096)),
    *(Workload(depth=64, batch=batch, steps=16) for batch in (1, 2, 4, 8)),
]
# Tokens that a peer is given in one benchmark: for what is beyond, torch takes minutes
MAX_TOKENS = {"alone": 1 << 20, "llama.cpp": 1 << 20, "torch f32": 2560, "torch bf16": 1200}
REPEATS = 5


@pytest.mark.parametrize("peer", MAX_TOKENS, indirect=True)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def bench_generation(
    benchmark: Any,
    request: pytest.FixtureRequest,
    generator: Path,
    model: Model,
    workload: Workload,
    peer: Runner | None,
    machine: Any,
    num_threads: int,
) -> None:
    name = request.node.callspec.params["peer"]
    if workload.batch * workload.positions > MAX_TOKENS[name]:
        pytest.skip(f"{name} would take minutes for {workload.batch * workload.positions} tokens")
    if workload.positions > model.config.max_position_embeddings:
        pytest.skip(f"the model's context holds {model.config.max_position_embeddings} tokens")
    own = Fastcore(model, num_threads)
    _check_steps(model, own, workload)
    turns = Turns(model, [own] if peer is None else [own, peer], workload)
    try:
        for i in range(len(turns.engines)):  # warm, and correct before times count
            turns.take(i)
    except UnsupportedModelError as error:
        pytest.skip(str(error))
    longest = max(seconds.pop() for seconds in turns.seconds)

    def others_take_their_turns() -> None:
        for i in range(1, len(turns.engines)):
            turns.take(i)
        own.rewind()

    rounds = int(min(REPEATS, max(1, PATIENCE_SECONDS / longest)))
    benchmark.pedantic(turns.run, (0,), setup=others_take_their_turns, rounds=rounds)
    turns.check(0)
    if benchmark.stats is None:  # --benchmark-disable
        return
    turns.seconds[0] = list(benchmark.stats.stats.data)
    limits = machine.limits()
    benchmark.extra_info |= {
        "model": generator.name,
        "versions": {engine.name: engine.version for engine in turns.engines},
        "read_limit": limits.read,
        "compute_limit": limits.compute,
        "timings": [timing.to_dict(limits) for timing in turns.timings()],
    }


def _check_steps(model: Model, engine: Fastcore, workload: Workload) -> None:
    """Steps of the workload give the bits of one long prompt, and each sequence those that it gives alone."""
    workload = Workload(min(workload.rows, 64), min(workload.depth, 64), workload.batch, min(workload.steps, 4))
    turns = Turns(model, [engine], workload)
    together = engine.logits().copy()
    assert np.isfinite(together).all()
    for row, expected in zip(turns.tokens, together, strict=True):
        engine.start(1, workload.positions)
        engine.run(row[None])
        assert np.array_equal(engine.logits()[0], expected)
