"""The recorder: a model states its forward pass once, op by op; the C core replays it.

Each method appends one op. The recorder knows which buffers an op reads and writes and puts a barrier before it only
where data crosses threads.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import PackedLinear, Program

__all__ = ["OUTPUT", "Heads", "Recorder"]

OUTPUT = -1  # the caller's array [num_out, out_features]
Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Heads:
    """What happens to q, k and v between their projection and attention, and how attention reads them.

    q and k are normalised per head (q_norm, k_norm: [head_dim]) and rotated; k is scaled by key_scale; k and v go into
    the cache of `layer`. Scores are scaled by 1 / sqrt(head_dim). A row sees the positions up to its own, or all when
    not causal.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    layer: int
    causal: bool = True
    q_norm: Vector | None = None
    k_norm: Vector | None = None
    eps: float = 0.0
    key_scale: float = 1.0

    @property
    def width(self) -> int:
        """Columns of q | k | v."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


class Recorder:
    """Records a Program. Buffers are [rows of the step, width] f32, named by number."""

    def __init__(self) -> None:
        self.program = Program()
        self._read: set[Hashable] = set()  # since the last barrier
        self._written: set[Hashable] = set()

    def buffer(self, width: int) -> int:
        return self.program.add_buffer(width)

    def embed(self, weights: PackedLinear, dst: int, scale: float = 1.0) -> None:
        """dst = scale * weights[token_id] of each row."""
        barrier = self._barrier(set(), {dst})
        self.program.add_op("embed", barrier=barrier, dst=dst, weights=weights, scale=scale)

    def norm(self, src: int, dst: int, weight: Vector, eps: float, *, rows: str = "all") -> None:
        """dst = src / sqrt(mean(src^2) + eps) * weight."""
        barrier = self._barrier({src}, {dst})
        self.program.add_op("norm", barrier=barrier, src=src, dst=dst, norm=weight, eps=eps, rows=rows)

    def linear(
        self,
        src: int,
        dst: int,
        weights: PackedLinear,
        *,
        bias: Vector | None = None,
        column_scale: Vector | None = None,
        scale: float = 1.0,
        add: bool = False,
        norm: Vector | None = None,
        eps: float = 0.0,
        src_scale: float = 1.0,
        rows: str = "all",
    ) -> None:
        """dst = or += (weights src + bias) * column_scale * scale.

        With norm [in_features], src is normalised first and multiplied by src_scale.
        """
        barrier = self._barrier({src}, {dst})
        self.program.add_op(
            "linear", barrier=barrier, src=src, dst=dst, weights=weights, bias=bias, column_scale=column_scale,
            scale=scale, epilogue="add" if add else "store", norm=norm, eps=eps, src_scale=src_scale, rows=rows,
        )  # fmt: skip

    def swiglu(
        self,
        src: int,
        dst: int,
        gate_up: PackedLinear,
        *,
        bias: Vector | None = None,
        gate_scale: float = 1.0,
        norm: Vector | None = None,
        eps: float = 0.0,
    ) -> None:
        """dst = silu(gate_scale * gate) * up; the rows of gate and up come interleaved in groups of 16."""
        barrier = self._barrier({src}, {dst})
        self.program.add_op(
            "linear", barrier=barrier, src=src, dst=dst, weights=gate_up, bias=bias, gate_scale=gate_scale,
            epilogue="swiglu", norm=norm, eps=eps,
        )  # fmt: skip

    def qkv(
        self,
        src: int,
        dst: int,
        weights: PackedLinear,
        heads: Heads,
        *,
        bias: Vector | None = None,
        norm: Vector | None = None,
        eps: float = 0.0,
        src_scale: float = 1.0,
    ) -> None:
        """dst = q | k | v of src, heads finished, k and v in the cache; in one op where heads are whole panels."""
        fused = heads.head_dim % 16 == 0
        cache = ("kv", heads.layer)
        barrier = self._barrier({src}, {dst, cache} if fused else {dst})
        fields: dict[str, Any] = {
            "num_heads": heads.num_heads, "num_kv_heads": heads.num_kv_heads, "head_dim": heads.head_dim,
            "layer": heads.layer, "causal": heads.causal, "q_norm": heads.q_norm, "k_norm": heads.k_norm,
            "key_scale": heads.key_scale,
        }  # fmt: skip
        if fused and heads.eps not in (0.0, eps):
            raise ValueError(f"heads with eps {heads.eps} inside a projection with eps {eps}")
        self.program.add_op(
            "linear", barrier=barrier, src=src, dst=dst, weights=weights, bias=bias, norm=norm, eps=eps,
            src_scale=src_scale, fused_heads=fused, **(fields if fused else {}),
        )  # fmt: skip
        if not fused:
            barrier = self._barrier({dst}, {dst, cache})
            self.program.add_op("heads", barrier=barrier, src=dst, eps=heads.eps, **fields)

    def attention(self, qkv: int, dst: int, heads: Heads) -> None:
        """dst = softmax(q k^T / sqrt(head_dim)) v."""
        barrier = self._barrier({qkv, ("kv", heads.layer)}, {dst, "attention partials"})
        self.program.add_op(
            "attention", barrier=barrier, src=qkv, dst=dst, num_heads=heads.num_heads, num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim, layer=heads.layer, causal=heads.causal, score_scale=heads.head_dim**-0.5,
        )  # fmt: skip

    def conv(self, src: int, column: int, dst: int, weight: Vector, bias: Vector | None) -> None:
        """dst = silu(bias + causal depthwise convolution of src from `column` on); weight: [d_conv, channels]."""
        barrier = self._barrier({src}, {dst})
        self.program.add_conv(src, column, dst, weight, bias, barrier=barrier)

    def time_steps(
        self, src: int, column: int, dst: int, bias: Vector, rate: Vector, limit: tuple[float, float]
    ) -> None:
        """dst = step | decay of each head: step = softplus(src + bias) within limit, decay = exp(step * rate)."""
        barrier = self._barrier({src}, {dst})
        self.program.add_time_steps(src, column, dst, bias, rate, *limit, barrier=barrier)

    def scan(
        self,
        src: int,
        steps: int,
        dst: int,
        skip: Vector,
        *,
        head_dim: int,
        num_groups: int,
        d_state: int,
        gate: int | None = None,
    ) -> None:
        """dst = y silu(gate): state = decay state + step x B^T, y = state C + skip x, where src = x | B | C."""
        barrier = self._barrier({src, steps} if gate is None else {src, steps, gate}, {dst})
        self.program.add_scan(
            src, steps, dst, skip, head_dim=head_dim, num_groups=num_groups, d_state=d_state, gate=gate, barrier=barrier
        )

    def gated_norm(
        self, src: int, gate: int, dst: int, weight: Vector, eps: float, *, num_groups: int, norm_before_gate: bool
    ) -> None:
        """dst = rms_norm(src silu(gate)) weight, or rms_norm(src) weight silu(gate), in num_groups slices."""
        barrier = self._barrier({src, gate}, {dst})
        self.program.add_gated_norm(
            src, gate, dst, weight, eps=eps, num_groups=num_groups, norm_before_gate=norm_before_gate, barrier=barrier
        )

    def argmax(self, src: int = OUTPUT) -> None:
        """The best id of each row of src, into the caller's argmax array."""
        barrier = self._barrier({src}, {"argmax"})
        self.program.add_op("argmax", barrier=barrier, src=src)

    def _barrier(self, reads: set[Hashable], writes: set[Hashable]) -> bool:
        """Whether this op must wait for the other threads."""
        needed = bool(reads & self._written or writes & (self._written | self._read))
        if needed:
            self._read, self._written = set(), set()
        self._read |= reads
        self._written |= writes
        return needed
