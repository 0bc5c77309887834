"""Heads, their cache, and attention over it."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from fastcore._kernels import MAX_HEAD_DIM
from fastcore.errors import UnsupportedModelError
from fastcore.model.ops.record import OUTPUT, Op, Shapes, Vector, check_size, check_vector

__all__ = ["Attention", "CacheWrite", "FinishHeads", "HeadNorm", "Heads", "Rope"]

MAX_KV_HEADS = 4096
MAX_GROUP = 96  # query heads that share a kv head


@dataclass(frozen=True, eq=False)
class Heads:
    """q | k | v side by side, and what happens to them before attention: FinishHeads.

    q_norm, k_norm: [head_dim]; key_scale: of k, before its rotation; layer: of the cache; key_center, key_unit: of
    CacheWrite.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    layer: int
    q_norm: Vector | None = None
    k_norm: Vector | None = None
    key_scale: float = 1.0
    key_center: Vector | None = None
    key_unit: Vector | None = None

    @property
    def width(self) -> int:
        """Columns of q | k | v."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    def check(self) -> None:
        _heads(self.num_heads, self.num_kv_heads, self.head_dim, self.layer)
        for what, norm in (("q_norm", self.q_norm), ("k_norm", self.k_norm)):
            check_vector(what, norm, self.head_dim, optional=True)
        _key_code(self.key_center, self.key_unit, self.num_kv_heads * self.head_dim)


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
        check_vector("head norm", self.norm, self.head_dim)
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
    """The cache of `layer` at each row's position = src, src2: k and v, [num_kv_heads, head_dim].

    key_center, key_unit: [num_kv_heads * head_dim], both or neither. A cache of int8 holds (k - key_center) / key_unit,
    and attention multiplies queries by the units, which are powers of two. Without the center, scores of a row all
    change by the same, and their softmax does not.
    """

    src: int
    src2: int
    num_kv_heads: int
    head_dim: int
    layer: int
    key_center: Vector | None = None
    key_unit: Vector | None = None
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
        _key_code(self.key_center, self.key_unit, self.num_kv_heads * self.head_dim)


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
    own, or all of its sequence where not causal. key_unit: of the cache, as CacheWrite says.
    """

    src: int
    dst: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layer: int
    score_scale: float
    causal: bool = True
    key_unit: Vector | None = None
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
        check_vector("key_unit", self.key_unit, self.num_kv_heads * self.head_dim, optional=True)


def _head_dim(head_dim: int) -> None:
    check_size("head_dim", head_dim, MAX_HEAD_DIM)
    if head_dim % 2:
        raise UnsupportedModelError(f"head_dim is {head_dim}; rotary positions need an even number")


def _key_code(center: Vector | None, unit: Vector | None, size: int) -> None:
    check_vector("key_center", center, size, optional=True)
    check_vector("key_unit", unit, size, optional=True)
    if (center is None) != (unit is None):
        raise ValueError("key_center and key_unit come together")


def _heads(num_heads: int, num_kv_heads: int, head_dim: int, layer: int) -> None:
    _head_dim(head_dim)
    check_size("the number of kv heads", num_kv_heads, MAX_KV_HEADS)
    if num_heads < 1 or num_heads % num_kv_heads or layer < 0:
        raise ValueError(f"{num_heads} heads over {num_kv_heads} kv heads in layer {layer}")
    check_size("the number of query heads that share a kv head", num_heads // num_kv_heads, MAX_GROUP)
