"""The ops that programs are made of, a frozen record each.

src, src2, gate and dst are numbers of buffers, [rows, width] f32, where a buffer holds all rows of a step or those that
are asked for; OUTPUT is the caller's array of the rows asked for. An op computes every row of its dst, so from a src of
all rows to a dst of those asked for it picks rows out. Vectors are f32. The fields go into C under the same names:
fc_op in csrc/fastcore.h.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import MAX_HEAD_DIM
from fastcore.errors import UnsupportedModelError

OUTPUT = -1  # [rows asked for, out_features]

MAX_WIDTH = 1 << 24  # of a buffer, a vector, a side of a linear map
MAX_KV_HEADS = 4096
MAX_GROUP = 96  # query heads that share a kv head
MAX_D_CONV = 64

Vector: TypeAlias = NDArray[np.float32]
RowSet: TypeAlias = Literal["all", "out"]


class LinearWeights(Protocol):
    """A linear map [out_features, in_features], packed or not yet."""

    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...


@dataclass(frozen=True)
class Buffer:
    """[rows, width] f32, where rows are all those of the step or those whose output is asked for."""

    width: int
    rows: RowSet = "all"


class Shapes:
    """The buffers of a program, and the width of its output as far as ops have written it."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        for number, buffer in enumerate(buffers):
            _within(f"the width of buffer {number}", buffer.width, MAX_WIDTH)
            if buffer.rows not in ("all", "out"):
                raise ValueError(f"buffer {number} holds rows {buffer.rows!r}; expected 'all' or 'out'")
        self.buffers = tuple(buffers)
        self.output_width = 0

    def buffer(self, number: int) -> Buffer:
        if number == OUTPUT:
            return Buffer(self.output_width, "out")
        if not 0 <= number < len(self.buffers):
            raise ValueError(f"no buffer {number}; there are {len(self.buffers)}")
        return self.buffers[number]

    def read(self, what: str, number: int, width: int, column: int = 0, *, whole: bool = True) -> None:
        """Buffer `number` must hold columns [column, column + width), and no others if `whole`."""
        found = self.buffer(number).width
        if number == OUTPUT or column < 0 or width < 1 or (found != width if whole else column + width > found):
            raise ValueError(f"{what} reads columns {column} to {column + width} of buffer {number}, which has {found}")

    def write(self, what: str, number: int, width: int, src: int | None = None) -> None:
        """Buffer `number` must be `width` wide, and hold rows that src holds too."""
        if number == OUTPUT:
            if self.output_width:
                raise ValueError(f"{what} writes the output, which another op has written")
            self.output_width = width
        elif self.buffer(number).width != width:
            raise ValueError(f"{what} of {width} into buffer {number}, which has {self.buffer(number).width}")
        if src is not None and (self.buffer(src).rows, self.buffer(number).rows) == ("out", "all"):
            raise ValueError(f"{what} reads rows asked for, from buffer {src}, and writes all rows, to buffer {number}")

    def all_rows(self, what: str, *numbers: int) -> None:
        for number in numbers:
            if self.buffer(number).rows != "all":
                raise ValueError(f"{what} needs all rows of the step; buffer {number} holds those asked for")


class Op:
    """What all records have: `kind`, by which C knows it, and what it reads and writes."""

    kind: ClassVar[str]

    @property
    def state_floats(self) -> int:
        """Floats of a sequence's recurrent state."""
        return 0

    @property
    def reads(self) -> set[Hashable]:
        found = (getattr(self, field, None) for field in ("src", "src2", "gate"))
        return {number for number in found if number is not None}

    @property
    def writes(self) -> set[Hashable]:
        return {getattr(self, "dst")}  # noqa: B009

    def check(self, shapes: Shapes) -> None:
        """ValueError for a list that contradicts itself, UnsupportedModelError for sizes beyond a limit."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Embed(Op):
    """dst [width] = scale * weights[token id of the row]."""

    dst: int
    weights: LinearWeights
    scale: float = 1.0
    kind: ClassVar[str] = "embed"

    def check(self, shapes: Shapes) -> None:
        _map(self.weights)
        shapes.all_rows("an embedding", self.dst)
        shapes.write("an embedding", self.dst, self.weights.in_features)


@dataclass(frozen=True, eq=False)
class Norm(Op):
    """dst = src / sqrt(mean(src^2) + eps) * norm * src_scale; norm: [width]."""

    src: int
    dst: int
    norm: Vector
    eps: float
    src_scale: float = 1.0
    kind: ClassVar[str] = "norm"

    @property
    def k(self) -> int:
        return len(self.norm)

    def check(self, shapes: Shapes) -> None:
        _vector("norm weight", self.norm)
        shapes.read("a norm", self.src, self.k)
        shapes.write("a norm", self.dst, self.k, self.src)


@dataclass(frozen=True, eq=False)
class Heads:
    """q | k | v side by side, and what happens to them before attention: FinishHeads.

    q_norm, k_norm: [head_dim]; key_scale: of k, before its rotation; layer: of the cache.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    layer: int
    q_norm: Vector | None = None
    k_norm: Vector | None = None
    key_scale: float = 1.0

    @property
    def width(self) -> int:
        """Columns of q | k | v."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    def check(self) -> None:
        _heads(self.num_heads, self.num_kv_heads, self.head_dim, self.layer)
        for what, norm in (("q_norm", self.q_norm), ("k_norm", self.k_norm)):
            _vector(what, norm, self.head_dim, optional=True)


@dataclass(frozen=True, eq=False)
class Linear(Op):
    """x = src * src_scale, y = (weights x + bias) * column_scale * scale, and by epilogue

    store   dst = y
    add     dst += y
    swiglu  dst = silu(gate_scale * gate) * up, where the rows of y are those of gate and up, 16 by 16 in turns

    norm: [in_features], x is rms_norm(src) * src_scale, as Norm. bias, column_scale: [out_features].
    heads: with dst = q | k | v, what FinishHeads does; head_dim is a multiple of 16, and eps is that of its norms too.
    """

    src: int
    dst: int
    weights: LinearWeights
    bias: Vector | None = None
    column_scale: Vector | None = None
    scale: float = 1.0
    src_scale: float = 1.0
    norm: Vector | None = None
    eps: float = 0.0
    epilogue: Literal["store", "add", "swiglu"] = "store"
    gate_scale: float = 1.0
    heads: Heads | None = None
    kind: ClassVar[str] = "linear"

    @property
    def writes(self) -> set[Hashable]:
        return {self.dst} if self.heads is None else {self.dst, ("kv", self.heads.layer)}

    def check(self, shapes: Shapes) -> None:
        _map(self.weights)
        n, k = self.weights.out_features, self.weights.in_features
        _vector("norm weight", self.norm, k, optional=True)
        _vector("bias", self.bias, n, optional=True)
        _vector("column scale", self.column_scale, n, optional=True)
        if self.src == self.dst:
            raise ValueError(f"a linear map cannot write the buffer that it reads ({self.src})")
        shapes.read("a linear map", self.src, k)
        if self.epilogue not in ("store", "add", "swiglu"):
            raise ValueError(f"epilogue {self.epilogue!r}; expected store, add or swiglu")
        if self.epilogue == "add" and self.dst == OUTPUT:
            raise ValueError("a linear map cannot add to the output")
        if self.epilogue == "swiglu":
            n = self._check_pairs(shapes)
        shapes.write("a linear map", self.dst, n, self.src)
        if self.heads is not None:
            self.heads.check()
            shapes.all_rows("a linear map to heads", self.dst)
            if self.heads.head_dim % 16 or self.epilogue != "store" or n != self.heads.width:
                raise ValueError(f"heads of {self.heads.head_dim} finished in a {self.epilogue} of {n} columns")

    def _check_pairs(self, shapes: Shapes) -> int:
        width = shapes.buffer(self.dst).width
        if self.dst == OUTPUT or self.column_scale is not None or self.weights.out_features != 2 * -(-width // 16) * 16:
            raise ValueError(f"swiglu of {self.weights.out_features} rows into buffer {self.dst}, which has {width}")
        return width


@dataclass(frozen=True, eq=False)
class Add(Op):
    """dst [n] += scale * src."""

    src: int
    dst: int
    n: int
    scale: float = 1.0
    kind: ClassVar[str] = "add"

    def check(self, shapes: Shapes) -> None:
        if self.dst == OUTPUT:
            raise ValueError("a sum cannot be added to the output")
        shapes.read("a sum", self.src, self.n)
        shapes.write("a sum", self.dst, self.n, self.src)


@dataclass(frozen=True, eq=False)
class Glu(Op):
    """dst [n] = silu(gate_scale * src) * src2."""

    src: int
    src2: int
    dst: int
    n: int
    gate_scale: float = 1.0
    scale: ClassVar[float] = 1.0
    kind: ClassVar[str] = "glu"

    def check(self, shapes: Shapes) -> None:
        if shapes.buffer(self.src).rows != shapes.buffer(self.src2).rows:
            raise ValueError(f"gate and up hold different rows: buffers {self.src} and {self.src2}")
        shapes.read("a gate", self.src, self.n)
        shapes.read("a gated", self.src2, self.n)
        shapes.write("a gated", self.dst, self.n, self.src)
        if shapes.buffer(self.src).rows != shapes.buffer(self.dst).rows:
            raise ValueError(f"gate and result hold different rows: buffers {self.src} and {self.dst}")


@dataclass(frozen=True, eq=False)
class HeadNorm(Op):
    """src [num_heads, head_dim], in place: each head becomes rms_norm(head) * norm * scale; norm: [head_dim]."""

    src: int
    num_heads: int
    head_dim: int
    norm: Vector
    eps: float
    scale: float = 1.0
    kind: ClassVar[str] = "head_norm"

    @property
    def writes(self) -> set[Hashable]:
        return {self.src}

    def check(self, shapes: Shapes) -> None:
        _head_dim(self.head_dim)
        _vector("head norm", self.norm, self.head_dim)
        shapes.read("a head norm", self.src, self.num_heads * self.head_dim)
        shapes.all_rows("a head norm", self.src)


@dataclass(frozen=True, eq=False)
class Rope(Op):
    """src [num_heads, head_dim], in place: element i and i + head_dim / 2 of each head are rotated by the position."""

    src: int
    num_heads: int
    head_dim: int
    kind: ClassVar[str] = "rope"

    @property
    def writes(self) -> set[Hashable]:
        return {self.src}

    def check(self, shapes: Shapes) -> None:
        _head_dim(self.head_dim)
        shapes.read("a rotation", self.src, self.num_heads * self.head_dim)
        shapes.all_rows("a rotation", self.src)


@dataclass(frozen=True, eq=False)
class CacheWrite(Op):
    """The cache of `layer` at each row's position = src, src2: k and v, [num_kv_heads, head_dim]."""

    src: int
    src2: int
    num_kv_heads: int
    head_dim: int
    layer: int
    kind: ClassVar[str] = "cache_write"

    @property
    def num_heads(self) -> int:
        return 0  # of attention; any

    @property
    def writes(self) -> set[Hashable]:
        return {("kv", self.layer)}

    def check(self, shapes: Shapes) -> None:
        _heads(self.num_kv_heads, self.num_kv_heads, self.head_dim, self.layer)
        for number in (self.src, self.src2):
            shapes.read("the cache", number, self.num_kv_heads * self.head_dim)
        shapes.all_rows("the cache", self.src, self.src2)


@dataclass(frozen=True, eq=False)
class FinishHeads(Op):
    """src = q | k | v, in place: q and k are normalised per head and rotated, k and v go into the cache.

    k = rope(rms_norm(k) * k_norm * key_scale), q the same without the scale; without a norm, that factor is left out.
    """

    src: int
    heads: Heads
    eps: float = 0.0
    kind: ClassVar[str] = "heads"

    @property
    def writes(self) -> set[Hashable]:
        return {self.src, ("kv", self.heads.layer)}

    def check(self, shapes: Shapes) -> None:
        self.heads.check()
        shapes.read("finishing heads", self.src, self.heads.width)
        shapes.all_rows("finishing heads", self.src)


@dataclass(frozen=True, eq=False)
class Attention(Op):
    """dst [num_heads, head_dim] = softmax(score_scale * q k^T) v over the positions that a row sees.

    q: the first num_heads * head_dim columns of src; k and v: the cache of `layer`. A row sees the positions up to its
    own, or all of its sequence where not causal.
    """

    src: int
    dst: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layer: int
    score_scale: float
    causal: bool = True
    kind: ClassVar[str] = "attention"

    @property
    def reads(self) -> set[Hashable]:
        return {self.src, ("kv", self.layer)}

    @property
    def writes(self) -> set[Hashable]:
        return {self.dst, "attention partials"}

    def check(self, shapes: Shapes) -> None:
        _heads(self.num_heads, self.num_kv_heads, self.head_dim, self.layer)
        shapes.read("attention", self.src, self.num_heads * self.head_dim, whole=False)
        if self.dst in (OUTPUT, self.src):
            raise ValueError(f"attention from buffer {self.src} to {self.dst}")
        shapes.write("attention", self.dst, self.num_heads * self.head_dim)
        shapes.all_rows("attention", self.src, self.dst)


@dataclass(frozen=True, eq=False)
class Argmax(Op):
    """The index of the largest of the n columns of src, of each row asked for; -1 where one is not finite."""

    src: int
    n: int
    kind: ClassVar[str] = "argmax"

    @property
    def writes(self) -> set[Hashable]:
        return {"argmax"}

    def check(self, shapes: Shapes) -> None:
        found = shapes.buffer(self.src)
        if not 0 < self.n == found.width or found.rows != "out":
            raise ValueError(f"argmax of {self.n} columns of buffer {self.src}, which has {found.width}, {found.rows}")


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
        _within("the convolution's kernel size", self.d_conv, MAX_D_CONV)
        _vector("convolution bias", self.bias, self.n, optional=True)
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
        _vector("time step bias", self.bias)
        _vector("decay rate", self.rate, self.n)
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
        _vector("skip", self.skip)
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
        _vector("norm weight", self.norm)
        if self.num_groups < 1 or self.n % self.num_groups or self.gate == self.dst:
            raise ValueError(f"gated norm of {self.n} in {self.num_groups} groups, gate {self.gate} to {self.dst}")
        shapes.read("a gated norm", self.src, self.n)
        shapes.read("a gated norm's gate", self.gate, self.n, whole=False)
        shapes.write("a gated norm", self.dst, self.n)
        shapes.all_rows("a gated norm", self.src, self.gate, self.dst)


def _within(what: str, value: int, limit: int) -> None:
    if value < 1:
        raise ValueError(f"{what} is {value}; expected a positive number")
    if value > limit:
        raise UnsupportedModelError(f"{what} is {value}; at most {limit} is supported")


def _vector(what: str, value: Vector | None, size: int | None = None, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if value is None or value.dtype != np.float32 or value.shape != (len(value) if size is None else size,):
        found = "missing" if value is None else f"{value.dtype} {list(value.shape)}"
        raise ValueError(f"{what} is {found}; expected float32 {'[n]' if size is None else [size]}")
    _within(f"the size of {what}", len(value), MAX_WIDTH)


def _map(weights: LinearWeights) -> None:
    _within("the number of rows of a linear map", weights.out_features, MAX_WIDTH)
    _within("the number of columns of a linear map", weights.in_features, MAX_WIDTH)


def _head_dim(head_dim: int) -> None:
    _within("head_dim", head_dim, MAX_HEAD_DIM)
    if head_dim % 2:
        raise UnsupportedModelError(f"head_dim is {head_dim}; rotary positions need an even number")


def _heads(num_heads: int, num_kv_heads: int, head_dim: int, layer: int) -> None:
    _head_dim(head_dim)
    _within("the number of kv heads", num_kv_heads, MAX_KV_HEADS)
    if num_heads < 1 or num_heads % num_kv_heads or layer < 0:
        raise ValueError(f"{num_heads} heads over {num_kv_heads} kv heads in layer {layer}")
    _within("the number of query heads that share a kv head", num_heads // num_kv_heads, MAX_GROUP)
