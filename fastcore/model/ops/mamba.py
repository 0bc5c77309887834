"""The mixer of Mamba-2: a convolution, time steps, a selective scan, a gated norm."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fastcore.model.ops.record import Op, Shapes, Vector, check_size, check_vector

__all__ = ["Conv", "GatedNorm", "Scan", "TimeSteps"]

MAX_D_CONV = 64


@dataclass(frozen=True, eq=False)
class Conv(Op):
    """dst [channels] = silu(bias + causal depthwise convolution of the columns of src from `column` on).

    conv: [d_conv, channels]. The d_conv - 1 inputs before the first row are recurrent state.
    """

    src: int
    dst: int
    column: int
    conv: NDArray[np.float32]
    bias: Vector | None = None
    kind: ClassVar[str] = "conv"

    @property
    def d_conv(self) -> int:
        return self.conv.shape[0]

    @property
    def n(self) -> int:
        return self.conv.shape[1]

    @property
    def state_floats(self) -> int:
        return (self.d_conv - 1) * -(-self.n // 16) * 16

    def check(self, shapes: Shapes) -> None:
        if self.conv.ndim != 2 or self.src == self.dst:
            raise ValueError(f"convolution with a weight {self.conv.shape} from buffer {self.src} to {self.dst}")
        check_size("the convolution's kernel size", self.d_conv, MAX_D_CONV)
        check_vector("convolution bias", self.bias, self.n, optional=True)
        shapes.read("a convolution", self.src, self.n, self.column, whole=False)
        shapes.write("a convolution", self.dst, self.n)
        shapes.all_rows("a convolution", self.src, self.dst)


@dataclass(frozen=True, eq=False)
class TimeSteps(Op):
    """dst = step | decay of n heads: step = softplus(src + bias) within [low, high], decay = exp(step * rate).

    src: the columns from `column` on; bias, rate: [n].
    """

    src: int
    dst: int
    column: int
    bias: Vector
    rate: Vector
    low: float
    high: float
    kind: ClassVar[str] = "time_steps"

    @property
    def n(self) -> int:
        return len(self.bias)

    def check(self, shapes: Shapes) -> None:
        check_vector("time step bias", self.bias)
        check_vector("decay rate", self.rate, self.n)
        if self.src == self.dst or not self.low <= self.high:
            raise ValueError(f"time steps within [{self.low}, {self.high}] from buffer {self.src} to {self.dst}")
        shapes.read("time steps", self.src, self.n, self.column, whole=False)
        shapes.write("time steps", self.dst, 2 * self.n)
        shapes.all_rows("time steps", self.src, self.dst)


@dataclass(frozen=True, eq=False)
class Scan(Op):
    """dst [heads, head_dim] = y * silu(gate), where state = decay state + step x B^T, y = state C + skip x.

    src: x [heads, head_dim] | B [num_groups, d_state] | C [num_groups, d_state]; src2: what TimeSteps wrote; skip:
    [heads]; gate: a buffer whose first columns are the gate, or None for no such factor. The state is recurrent.
    """

    src: int
    src2: int
    dst: int
    skip: Vector
    head_dim: int
    num_groups: int
    d_state: int
    gate: int | None = None
    kind: ClassVar[str] = "scan"

    @property
    def num_heads(self) -> int:
        return len(self.skip)

    @property
    def state_floats(self) -> int:
        return self.num_heads * -(-self.head_dim // 16) * 16 * self.d_state

    def check(self, shapes: Shapes) -> None:
        check_vector("skip", self.skip)
        heads, features = self.num_heads, self.num_heads * self.head_dim
        if min(heads, self.head_dim, self.num_groups, self.d_state) < 1 or heads % self.num_groups:
            raise ValueError(
                f"scan of {heads} heads of {self.head_dim} in {self.num_groups} groups with d_state {self.d_state}"
            )
        if self.dst in (self.src, self.src2):
            raise ValueError(f"a scan cannot write the buffer that it reads ({self.dst})")
        shapes.read("a scan", self.src, features + 2 * self.num_groups * self.d_state)
        shapes.read("a scan's steps", self.src2, 2 * heads)
        if self.gate is not None:
            shapes.read("a scan's gate", self.gate, features, whole=False)
            shapes.all_rows("a scan's gate", self.gate)
        shapes.write("a scan", self.dst, features)
        shapes.all_rows("a scan", self.src, self.src2, self.dst)


@dataclass(frozen=True, eq=False)
class GatedNorm(Op):
    """dst = rms_norm(src * silu(gate)) * norm, or rms_norm(src) * norm * silu(gate), in num_groups slices of the row.

    norm: [width]; gate: a buffer whose first columns are the gate. dst may be src.
    """

    src: int
    gate: int
    dst: int
    norm: Vector
    eps: float
    num_groups: int
    norm_before_gate: bool
    kind: ClassVar[str] = "gated_norm"

    @property
    def n(self) -> int:
        return len(self.norm)

    def check(self, shapes: Shapes) -> None:
        check_vector("norm weight", self.norm)
        if self.num_groups < 1 or self.n % self.num_groups or self.gate == self.dst:
            raise ValueError(f"gated norm of {self.n} in {self.num_groups} groups, gate {self.gate} to {self.dst}")
        shapes.read("a gated norm", self.src, self.n)
        shapes.read("a gated norm's gate", self.gate, self.n, whole=False)
        shapes.write("a gated norm", self.dst, self.n)
        shapes.all_rows("a gated norm", self.src, self.gate, self.dst)
