"""Plain ops -> the fused ones that C has kernels for. Each rule keeps every sum's order, so the bits do not change.

    q, k, v maps, head norms, rotations, cache write  ->  one map to q | k | v that finishes its heads
    gate and up maps, glu                             ->  one map with the swiglu epilogue
    a map, add                                        ->  a map that adds
    norm, the maps that read it                       ->  maps that normalise their source

A rule applies where nothing else touches what it takes away; else the plain ops stay.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from fastcore.model.ops import (
    Add,
    Attention,
    Buffer,
    CacheWrite,
    FinishHeads,
    Glu,
    HeadNorm,
    Heads,
    Linear,
    Norm,
    Op,
    Rope,
)  # fmt: skip
from fastcore.model.weights import LinearMap

__all__ = ["fuse"]

Places = dict[int, tuple[Op, ...]]  # what takes the place of the op at an index


def fuse(ops: Sequence[Op], buffers: Sequence[Buffer]) -> tuple[list[Op], list[Buffer]]:
    """The fused ops, and the buffers with those that they need beside."""
    listed, widths = list(ops), list(buffers)
    for rule in (_heads, _swiglu, _add, _norm):
        places: Places = {}
        for change in rule(_Uses(listed), widths):
            places |= change
        listed = [made for i, op in enumerate(listed) for made in places.get(i, (op,))]
    return listed, widths


class _Uses:
    """A list of ops, and where each buffer is touched."""

    def __init__(self, ops: list[Op]) -> None:
        self.ops = ops
        self.touching: dict[object, list[int]] = {}
        for i, op in enumerate(ops):
            for name in op.reads | op.writes:
                self.touching.setdefault(name, []).append(i)

    def written(self, name: object, first: int, last: int) -> bool:
        """Whether an op after `first` and before `last` writes this buffer."""
        return any(first < i < last and name in self.ops[i].writes for i in self.touching.get(name, ()))

    def touched(self, name: object, first: int, last: int) -> bool:
        return any(first < i < last for i in self.touching.get(name, ()))

    def chain(self, name: int, *kinds: type[Op]) -> list[int] | None:
        """The ops that touch a buffer, if they are of these kinds in this order; a HeadNorm may be missing."""
        found = self.touching[name]
        have = [type(self.ops[i]) for i in found]
        return found if have == [kind for kind in kinds if kind is not HeadNorm or HeadNorm in have] else None


Rule = Callable[[_Uses, list[Buffer]], Iterator[Places]]


def _plain(op: Op) -> TypeGuard[Linear]:
    """Whether op is a map that nothing is fused to yet, of weights that can still be merged with others."""
    return (
        isinstance(op, Linear)
        and isinstance(op.weights, LinearMap)
        and op.norm is None
        and op.heads is None
        and op.bias is op.weights.bias
        and op.column_scale is None
        and op.epilogue == "store"
    )


def _mergeable(uses: _Uses, indices: list[int]) -> list[Linear] | None:
    """The maps at these places, if they can become one: of one dtype and one source, unchanged from first to last."""
    maps = [op for i in indices if _plain(op := uses.ops[i])]
    if len(maps) < len(indices) or len({(op.src, op.src_scale) for op in maps}) > 1:
        return None
    merged = [op.weights for op in maps if isinstance(op.weights, LinearMap)]
    if len({(each.dtype, tensor.auto_dtype) for each in merged for tensor in each.tensors}) > 1:
        return None
    return None if uses.written(maps[0].src, min(indices), max(indices)) else maps


def _heads(uses: _Uses, buffers: list[Buffer]) -> Iterator[Places]:
    for i, (write, attention) in enumerate(zip(uses.ops, uses.ops[1:], strict=False)):
        if not isinstance(write, CacheWrite) or not isinstance(attention, Attention):
            continue
        q_ops = uses.chain(attention.src, Linear, HeadNorm, Rope, Attention)
        k_ops = uses.chain(write.src, Linear, HeadNorm, Rope, CacheWrite)
        v_ops = uses.chain(write.src2, Linear, CacheWrite)
        if q_ops is None or k_ops is None or v_ops is None or write.layer != attention.layer:
            continue
        indices = [q_ops[0], k_ops[0], v_ops[0]]
        maps = _mergeable(uses, indices)
        q_norm, k_norm = (uses.ops[found[1]] if len(found) == 4 else None for found in (q_ops, k_ops))
        if maps is None or uses.touched(("kv", write.layer), min(indices), i):
            continue
        shape = _head_shape(write, attention, maps, q_norm, k_norm)
        if shape is None:
            continue
        heads, eps = shape
        buffers.append(Buffer(heads.width))
        qkv, finished = len(buffers) - 1, heads.head_dim % 16 == 0
        weights = LinearMap.stacked([op.weights for op in maps if isinstance(op.weights, LinearMap)])
        merged = replace(
            maps[0],
            dst=qkv,
            weights=weights,
            bias=weights.bias,
            eps=eps if finished else 0.0,
            heads=heads if finished else None,
        )
        gone: Places = dict.fromkeys((*q_ops[:-1], *k_ops, *v_ops), ())
        made = (merged,) if finished else (merged, FinishHeads(qkv, heads, eps))
        yield gone | {min(indices): made, i + 1: (replace(attention, src=qkv),)}


def _head_shape(
    write: CacheWrite, attention: Attention, maps: list[Linear], q_norm: Op | None, k_norm: Op | None
) -> tuple[Heads, float] | None:
    """The heads, and the eps of their norms; None where they cannot be finished together."""
    q, k, v = maps
    norms = [norm for norm in (q_norm, k_norm) if isinstance(norm, HeadNorm)]
    normed = isinstance(k_norm, HeadNorm)
    if q.scale != 1 or v.scale != 1 or (normed and k.scale != 1) or len({norm.eps for norm in norms}) > 1:
        return None
    if isinstance(q_norm, HeadNorm) and q_norm.scale != 1:
        return None
    heads = Heads(
        attention.num_heads,
        attention.num_kv_heads,
        attention.head_dim,
        attention.layer,
        q_norm.norm if isinstance(q_norm, HeadNorm) else None,
        k_norm.norm if isinstance(k_norm, HeadNorm) else None,
        k_norm.scale if isinstance(k_norm, HeadNorm) else k.scale,
        write.key_center,
        write.key_unit,
    )
    return heads, norms[0].eps if norms else 0.0


def _swiglu(uses: _Uses, buffers: list[Buffer]) -> Iterator[Places]:
    for i, op in enumerate(uses.ops):
        if not isinstance(op, Glu):
            continue
        found = [uses.chain(number, Linear, Glu) for number in (op.src, op.src2)]
        indices = [chain[0] for chain in found if chain is not None]
        maps = _mergeable(uses, indices) if len(indices) == 2 else None
        if maps is None or any(each.scale != 1 for each in maps) or uses.touched(op.dst, min(indices), i):
            continue
        weights = LinearMap.interleaved([each.weights for each in maps if isinstance(each.weights, LinearMap)])
        merged = replace(
            maps[0],
            dst=op.dst,
            weights=weights,
            bias=weights.bias,
            epilogue="swiglu",
            gate_scale=op.gate_scale,
        )
        gone: Places = {max(indices): (), i: ()}
        yield gone | {min(indices): (merged,)}


def _add(uses: _Uses, buffers: list[Buffer]) -> Iterator[Places]:
    for i, op in enumerate(uses.ops):
        chain = uses.chain(op.src, Linear, Add) if isinstance(op, Add) else None
        if not isinstance(op, Add) or chain is None or op.scale != 1:
            continue
        linear = uses.ops[chain[0]]
        if (
            isinstance(linear, Linear)
            and linear.epilogue == "store"
            and linear.heads is None
            and linear.src != op.dst
            and not uses.touched(op.dst, chain[0], i)
            and buffers[op.src].rows == buffers[op.dst].rows
        ):
            yield {chain[0]: (replace(linear, dst=op.dst, epilogue="add"),), i: ()}


def _norm(uses: _Uses, buffers: list[Buffer]) -> Iterator[Places]:
    for i, op in enumerate(uses.ops):
        if not isinstance(op, Norm) or op.src_scale != 1 or op.dst not in uses.touching:
            continue
        first, *readers = uses.touching[op.dst]
        if (
            first == i
            and readers
            and all(_takes_norm(uses.ops[j], op) for j in readers)
            and not uses.written(op.src, i, readers[-1])
        ):
            yield {i: ()} | {
                j: (replace(linear, src=op.src, norm=op.norm, eps=op.eps),)
                for j in readers
                if isinstance(linear := uses.ops[j], Linear)
            }


def _takes_norm(op: Op, norm: Norm) -> bool:
    """Whether a map can normalise its source itself: the norms of its heads share its eps."""
    if not isinstance(op, Linear) or op.norm is not None or op.dst in (norm.src, norm.dst):
        return False
    head_norms = op.heads is not None and (op.heads.q_norm is not None or op.heads.k_norm is not None)
    return not head_norms or op.eps == norm.eps
