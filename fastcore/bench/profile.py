"""Where a step spends its time, op by op."""

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from fastcore.bench.runner import Fastcore
from fastcore.models import Model

__all__ = ["OpProfile", "profile"]


@dataclass(frozen=True)
class OpProfile:
    """Ops of one kind and shape in one step: how many, their time (waits before them included), and what they read."""

    name: str
    count: int
    seconds: float
    weight_bytes: int


def profile(
    model: Model, num_threads: int, *, rows: int, depth: int, repeats: int, kv_dtype: str = "f32"
) -> list[OpProfile]:
    """Where steps of `rows` tokens spend their time, from position `depth` on, by kind of op and shape of weights.

    An average of `repeats` steps, one after the other; the last entry is the time outside the program. rows 1: decode.
    """
    engine = Fastcore(model, num_threads, kv_dtype)
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
    for i, (op, weights) in enumerate(zip(model.program.ops, model.program.weights, strict=True)):
        shape = "" if weights is None else f" {weights.out_features} x {weights.in_features} {weights.dtype}"
        name = op.kind + shape
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
