"""Linear maps, and what stands between them: embeddings, norms, sums, gates."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Literal

from fastcore.model.ops.attention import Heads
from fastcore.model.ops.record import MAX_WIDTH, OUTPUT, LinearWeights, Op, Shapes, Vector, check_size, check_vector

__all__ = ["Add", "Argmax", "Embed", "Glu", "Linear", "Norm"]


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
        check_vector("norm weight", self.norm)
        shapes.read("a norm", self.src, self.k)
        shapes.write("a norm", self.dst, self.k, self.src)


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
        check_vector("norm weight", self.norm, k, optional=True)
        check_vector("bias", self.bias, n, optional=True)
        check_vector("column scale", self.column_scale, n, optional=True)
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


def _map(weights: LinearWeights) -> None:
    check_size("the number of rows of a linear map", weights.out_features, MAX_WIDTH)
    check_size("the number of columns of a linear map", weights.in_features, MAX_WIDTH)
