"""From a list of ops to the program that C replays: what a whole list must keep to, and what steps need of it."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastcore._kernels import Program
from fastcore.errors import UnsupportedModelError
from fastcore.model.ops import (
    OUTPUT,
    Attention,
    Buffer,
    CacheWrite,
    Embed,
    HeadNorm,
    Linear,
    Norm,
    Op,
    Rope,
    Shapes,
)

__all__ = ["Facts", "check", "finish", "without_head"]

MAX_OPS = 4096
MAX_STATE_FLOATS = 1 << 28  # of a sequence's recurrent state


@dataclass(frozen=True)
class Facts:
    """What a step needs to know of a whole list.

    barriers: of each op, whether it waits for all threads first. state_starts: of each op, where its part of a
    sequence's recurrent state starts, in floats. first_output: the first op that writes or reads the output, or -1.
    """

    barriers: tuple[bool, ...]
    state_starts: tuple[int, ...]
    state_bytes: int
    vocab_size: int
    max_layer: int
    num_kv_heads: int
    head_dim: int
    output_width: int
    first_output: int


def check(ops: Sequence[Op], buffers: Sequence[Buffer]) -> Facts:
    """Check a list of ops over these buffers; the only place that does.

    Raises ValueError where it contradicts itself, UnsupportedModelError where a size is beyond a limit.
    """
    if len(ops) > MAX_OPS:
        raise UnsupportedModelError(f"the model takes {len(ops)} ops a step; at most {MAX_OPS} are supported")
    shapes = Shapes(buffers)
    starts, state, first_output = [], 0, -1
    vocabularies: set[int] = set()
    caches: set[tuple[int, int]] = set()
    rotated: set[int] = set()
    layers = {-1}
    for i, op in enumerate(ops):
        op.check(shapes)
        starts.append(state)
        state += -(-op.state_floats // 16) * 16
        if first_output < 0 and OUTPUT in op.reads | op.writes:
            first_output = i
        if isinstance(op, Embed):
            vocabularies.add(op.weights.out_features)
        heads = op if isinstance(op, Attention | CacheWrite) else getattr(op, "heads", None)
        if heads is not None:
            caches.add((heads.num_kv_heads, heads.head_dim))
            layers.add(heads.layer)
        if isinstance(op, HeadNorm | Rope):
            rotated.add(op.head_dim)
    if state > MAX_STATE_FLOATS:
        raise UnsupportedModelError(
            f"the recurrent state of a sequence takes {state} floats; at most {MAX_STATE_FLOATS} are supported"
        )
    if len(vocabularies) > 1:
        raise ValueError(f"embeddings of different vocabularies: {sorted(vocabularies)}")
    if len(caches) > 1 or len(rotated | {head_dim for _, head_dim in caches}) > 1:
        raise ValueError(f"all layers must have the same heads; found {sorted(caches)} and head_dim {sorted(rotated)}")
    num_kv_heads, head_dim = caches.pop() if caches else (0, rotated.pop() if rotated else 0)
    return Facts(
        barriers=tuple(_barriers(ops)),
        state_starts=tuple(starts),
        state_bytes=4 * state,
        vocab_size=vocabularies.pop() if vocabularies else 0,
        max_layer=max(layers),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        output_width=shapes.output_width,
        first_output=first_output,
    )


def finish(
    ops: Iterable[Op], buffers: Iterable[Buffer], pack: Callable[[Any], Any] = lambda weights: weights
) -> Program:
    """Check a list of ops and make what C replays of it, with `pack` applied to each of its maps afterwards."""
    ops, buffers = tuple(ops), tuple(buffers)
    facts = check(ops, buffers)
    return Program(
        tuple(replace(op, weights=pack(op.weights)) if isinstance(op, Embed | Linear) else op for op in ops),
        buffers,
        facts,
    )


def without_head(program: Program) -> Program:
    """The program up to the map that writes the output, whose normalised source rows are the output instead."""
    head = program.ops[program.first_output]
    ops: list[Any] = list(program.ops[: program.first_output])
    if not isinstance(head, Linear):
        raise ValueError("this program does not end in a linear map")
    if head.norm is not None:
        ops.append(Norm(head.src, OUTPUT, head.norm, head.eps))
    elif ops and isinstance(ops[-1], Norm) and ops[-1].dst == head.src:
        ops[-1] = replace(ops[-1], dst=OUTPUT)
    else:
        raise ValueError("this program does not end in a linear map of normalised rows")
    return finish(ops, program.buffers)


def _barriers(ops: Iterable[Op]) -> Iterable[bool]:
    """Whether each op must wait for the other threads: where data crosses from one to another."""
    read: set[Hashable] = set()  # since the last barrier
    written: set[Hashable] = set()
    for op in ops:
        needed = bool(op.reads & written or op.writes & (written | read))
        if needed:
            read, written = set(), set()
        read |= op.reads
        written |= op.writes
        yield needed
