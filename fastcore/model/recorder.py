"""The recorder: a model states its forward pass once, in plain ops, as its oracle does.

Each method appends one op and gives the rows that it makes. `finish` fuses them (fastcore.model.fuse), lets rows that
are not needed at the same time share a buffer, packs the weights, and makes the program that C replays.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import Program
from fastcore.model import ops
from fastcore.model.fuse import fuse
from fastcore.model.ops import Buffer, LinearWeights, Op, RowSet, Vector
from fastcore.model.program import finish
from fastcore.model.weights import LinearMap

__all__ = ["Recorder", "Rows"]


@dataclass(eq=False)
class Rows:
    """What an op makes: f32 [rows, width]. `rows += more` adds to it in place."""

    recorder: "Recorder"
    number: int
    width: int
    rows: RowSet

    def __iadd__(self, more: "Rows") -> "Rows":
        self.recorder.ops.append(ops.Add(more.number, self.number, self.width))
        return self


class Recorder:
    """Records the ops of a forward pass. Rows have a buffer each until `finish` lets them share."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.buffers: list[Buffer] = []

    def embed(self, weights: LinearWeights, scale: float = 1.0) -> Rows:
        """scale * weights[token id] of each row: [num_rows, in_features]."""
        made = self._rows(weights.in_features)
        self.ops.append(ops.Embed(made.number, weights, scale))
        return made

    def rms_norm(self, x: Rows, weight: Vector, eps: float, *, rows: RowSet | None = None) -> Rows:
        """x / sqrt(mean(x^2) + eps) * weight; with rows="out", of those rows whose output is asked for."""
        made = self._rows(x.width, rows or x.rows)
        self.ops.append(ops.Norm(x.number, made.number, weight, eps))
        return made

    def linear(
        self,
        x: Rows,
        weights: LinearMap,
        *,
        scale: float = 1.0,
        src_scale: float = 1.0,
        column_scale: Vector | None = None,
        rows: RowSet | None = None,
    ) -> Rows:
        """(weights (src_scale x) + bias) * column_scale * scale, with the bias that the map has."""
        made = self._rows(weights.out_features, rows or x.rows)
        op = ops.Linear(x.number, made.number, weights, weights.bias, column_scale, scale, src_scale)
        self.ops.append(op)
        return made

    def glu(self, gate: Rows, up: Rows, gate_scale: float = 1.0) -> Rows:
        """silu(gate_scale * gate) * up."""
        made = self._rows(gate.width, gate.rows)
        self.ops.append(ops.Glu(gate.number, up.number, made.number, gate.width, gate_scale))
        return made

    def head_norm(self, x: Rows, weight: Vector, eps: float) -> Rows:
        """x with each of its heads of len(weight) normalised, as rms_norm; in place."""
        head_dim = len(weight)
        self.ops.append(ops.HeadNorm(x.number, x.width // head_dim, head_dim, weight, eps))
        return x

    def rope(self, x: Rows, head_dim: int) -> Rows:
        """x with each of its heads rotated by its row's position; in place."""
        self.ops.append(ops.Rope(x.number, x.width // head_dim, head_dim))
        return x

    def attention(
        self,
        layer: int,
        q: Rows,
        k: Rows,
        v: Rows,
        head_dim: int,
        *,
        causal: bool = True,
        score_scale: float | None = None,
        key_code: tuple[Vector, Vector] | None = None,
    ) -> Rows:
        """softmax(score_scale * q k^T) v, [num_rows, q's width]; k and v go into the cache of `layer`.

        score_scale: 1 / sqrt(head_dim) if not given. key_code: key_center and key_unit [k's width], for a cache of few
        bits. Not causal, a row sees all rows of its sequence's step; no step reads what another wrote, so all layers
        use one cache.
        """
        layer, kv_heads = (layer if causal else 0), k.width // head_dim
        center, unit = key_code or (None, None)
        made = self._rows(q.width)
        self.ops.append(ops.CacheWrite(k.number, v.number, kv_heads, head_dim, layer, center, unit))
        scale = head_dim**-0.5 if score_scale is None else score_scale
        heads = q.width // head_dim
        self.ops.append(ops.Attention(q.number, made.number, heads, kv_heads, head_dim, layer, scale, causal, unit))
        return made

    def conv(self, x: Rows, column: int, weight: NDArray[np.float32], bias: Vector | None) -> Rows:
        """silu(bias + causal depthwise convolution) of x from `column` on; weight: [d_conv, channels]."""
        made = self._rows(weight.shape[1])
        self.ops.append(ops.Conv(x.number, made.number, column, weight, bias))
        return made

    def time_steps(self, x: Rows, column: int, bias: Vector, rate: Vector, limit: tuple[float, float]) -> Rows:
        """step | decay of each head: softplus(x + bias) within limit, and exp(step * rate)."""
        made = self._rows(2 * len(bias))
        self.ops.append(ops.TimeSteps(x.number, made.number, column, bias, rate, *limit))
        return made

    def scan(
        self,
        x: Rows,
        steps: Rows,
        skip: Vector,
        *,
        head_dim: int,
        num_groups: int,
        d_state: int,
        gate: Rows | None = None,
    ) -> Rows:
        """The selective scan of x = x | B | C, times silu of the first columns of gate, where there is one."""
        made = self._rows(len(skip) * head_dim)
        first = None if gate is None else gate.number
        op = ops.Scan(x.number, steps.number, made.number, skip, head_dim, num_groups, d_state, first)
        self.ops.append(op)
        return made

    def gated_norm(
        self, x: Rows, gate: Rows, weight: Vector, eps: float, *, num_groups: int, norm_before_gate: bool
    ) -> Rows:
        """rms_norm(x silu(gate)) weight, or rms_norm(x) weight silu(gate), in num_groups slices; in place."""
        op = ops.GatedNorm(x.number, gate.number, x.number, weight, eps, num_groups, norm_before_gate)
        self.ops.append(op)
        return x

    def output(self, x: Rows) -> None:
        """x, of the rows asked for, is what a step gives its caller: as it is, and the index of each row's best."""
        self.ops = [_renamed(op, {x.number: ops.OUTPUT}) for op in self.ops]
        self.ops.append(ops.Argmax(ops.OUTPUT, x.width))

    def finish(self, pack: Callable[[Any], Any], *, fused: bool = True) -> Program:
        """The program: fused, in few buffers, checked, with `pack` applied to each of its maps."""
        steps, buffers = fuse(self.ops, self.buffers) if fused else (self.ops, self.buffers)
        return finish(*_shared(steps, buffers), pack)

    def _rows(self, width: int, rows: RowSet = "all") -> Rows:
        self.buffers.append(Buffer(width, rows))
        return Rows(self, len(self.buffers) - 1, width, rows)


_NUMBERS = ("src", "src2", "gate", "dst")


def _buffers_of(op: Op) -> list[int]:
    """The buffers that an op touches, those that it reads first."""
    found = (getattr(op, field, None) for field in _NUMBERS)
    return [number for number in found if number is not None and number != ops.OUTPUT]


def _renamed(op: Op, names: dict[int, int]) -> Op:
    changes = {
        field: names[number]
        for field in _NUMBERS
        if (number := getattr(op, field, None)) is not None and number in names
    }
    return replace(op, **changes) if changes else op  # type: ignore[type-var]


def _shared(steps: Iterable[Op], buffers: Sequence[Buffer]) -> tuple[list[Op], list[Buffer]]:
    """The same with as few buffers as there are rows of a width that are needed at one time."""
    steps = list(steps)
    last = {number: i for i, op in enumerate(steps) for number in _buffers_of(op)}
    names: dict[int, int] = {}
    kept: list[Buffer] = []
    free: dict[Buffer, list[int]] = {}
    made = []
    for i, op in enumerate(steps):
        touched = dict.fromkeys(_buffers_of(op))
        for number in touched:
            if number not in names:
                unused = free.get(buffers[number])
                if not unused:
                    kept.append(buffers[number])
                names[number] = unused.pop(0) if unused else len(kept) - 1
        made.append(_renamed(op, names))
        for number in touched:
            if last[number] == i:
                free.setdefault(buffers[number], []).append(names[number])
    return made, kept
