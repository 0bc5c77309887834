"""What a sequence has computed so far: KV blocks and recurrent state from one capped pool.

And how rows of many sequences become a step.
"""

import heapq
from collections.abc import Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import BLOCK_TOKENS, KVBlocks
from fastcore.errors import CacheFullError
from fastcore.locks import Lock
from fastcore.models import Model

__all__ = ["Piece", "Sequence", "StatePool", "run_step"]


class StatePool:
    """Blocks of KV cache under a byte cap. Memory is reserved as address space and used only as blocks are.

    The recurrent state of a sequence, where the model has such, fills state_blocks consecutive blocks.

    max_bytes: the cap; what one sequence of one block needs is always held.
    kv_dtype: f32 | f16.
    """

    def __init__(self, model: Model, max_bytes: int, kv_dtype: str = "f32") -> None:
        config = model.config
        layers = model.program.max_layer + 1
        probe = KVBlocks(layers, config.num_key_value_heads, config.head_dim, kv_dtype, 1)
        self.block_bytes = probe.block_bytes
        self.state_blocks = -(-model.program.state_bytes // self.block_bytes)
        self.num_blocks = max(1 + self.state_blocks, max_bytes // self.block_bytes)
        self.kv = KVBlocks(layers, config.num_key_value_heads, config.head_dim, kv_dtype, self.num_blocks)
        self._free = list(range(self.num_blocks))  # a heap: low numbers are taken first, so few pages are touched
        self._lock = Lock()

    @property
    def max_positions(self) -> int:
        """Positions of one sequence that the whole pool holds."""
        return (self.num_blocks - self.state_blocks) * BLOCK_TOKENS

    @property
    def free_positions(self) -> int:
        return len(self._free) * BLOCK_TOKENS

    def take(self, num_blocks: int) -> list[int]:
        with self._lock:
            if num_blocks > len(self._free):
                raise self._full(f"{num_blocks} are needed ({BLOCK_TOKENS} tokens each)")
            return [heapq.heappop(self._free) for _ in range(num_blocks)]

    def take_state(self) -> int:
        """Take the blocks of one recurrent state; the number of the first.

        They come from the high end, at multiples of their number, so that states leave no gaps between each other.
        """
        size = self.state_blocks
        with self._lock:
            free = set(self._free)
            for first in range(self.num_blocks - size, -1, -size):
                if free.issuperset(range(first, first + size)):
                    self._free = [block for block in self._free if not first <= block < first + size]
                    heapq.heapify(self._free)
                    return first
            raise self._full(f"{size} consecutive ones are needed (the recurrent state of a sequence)")

    def give_back(self, blocks: Iterable[int]) -> None:
        with self._lock:
            for block in blocks:
                heapq.heappush(self._free, block)

    def _full(self, needed: str) -> CacheFullError:
        return CacheFullError(
            f"the cache has {len(self._free)} of {self.num_blocks} blocks free and {needed}; "
            f"raise kv_cache_bytes (now {self.num_blocks * self.block_bytes})"
        )


@dataclass(eq=False)
class Sequence:
    """The state of one sequence: its blocks, and how many positions they hold. Use as a context manager, or call free.

    prompt_length: tokens of the prompt, which "dynamic" rotary positions follow; 0 is the number of tokens first run.
    """

    pool: StatePool
    length: int = 0
    blocks: list[int] = field(default_factory=list)
    state: int | None = None  # first block of the recurrent state after `length` positions, where the model has such
    prompt_length: int = 0

    def reserve(self, num_positions: int) -> None:
        """Take blocks for positions up to num_positions; CacheFullError leaves it as it was."""
        missing = max(0, -(-num_positions // BLOCK_TOKENS) - len(self.blocks))
        taken = self.pool.take(missing)
        if self.state is None and self.pool.state_blocks:
            try:
                self.state = self.pool.take_state()
            except CacheFullError:
                self.pool.give_back(taken)
                raise
        self.blocks += taken

    def free(self) -> None:
        self.pool.give_back(self.blocks)
        if self.state is not None:
            self.pool.give_back(range(self.state, self.state + self.pool.state_blocks))
        self.blocks, self.state, self.length, self.prompt_length = [], None, 0, 0

    def snapshot(self) -> "Sequence":
        """A copy with blocks of its own, to restore from or to continue; free it when it is done with."""
        copy = Sequence(self.pool)
        copy.restore(self)
        return copy

    def restore(self, snapshot: "Sequence") -> None:
        """Become a copy, bit for bit, of a sequence of the same pool. CacheFullError leaves it as it was."""
        if snapshot.pool is not self.pool:
            raise ValueError("the snapshot is of another pool")
        self.reserve(snapshot.length)
        held = self.pool.kv.memory.reshape(self.pool.num_blocks, -1)
        for to, of in zip(self.blocks, snapshot.blocks[: -(-snapshot.length // BLOCK_TOKENS)], strict=False):
            held[to] = held[of]
        if snapshot.length and self.state is not None and snapshot.state is not None:
            size = self.pool.state_blocks
            held[self.state : self.state + size] = held[snapshot.state : snapshot.state + size]
        self.length, self.prompt_length = snapshot.length, snapshot.prompt_length

    def __enter__(self) -> "Sequence":
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


@dataclass(frozen=True, eq=False)
class Piece:
    """The next tokens of one sequence in a step; `outputs` are the indices among them whose logits are wanted."""

    sequence: Sequence
    token_ids: Rows[int]
    outputs: Rows[int] = ()


def run_step(
    model: Model,
    pieces: Rows[Piece],
    *,
    num_threads: int = 1,
    logits: NDArray[np.float32] | None = None,
    best: NDArray[np.int32] | None = None,
    hidden: NDArray[np.float32] | None = None,
    op_seconds: NDArray[np.float64] | None = None,
) -> None:
    """Run the program over the pieces and advance their sequences.

    logits: f32 [number of outputs, vocab_size], written in the order of the pieces.
    best: i32 [number of outputs], argmax of each row, -1 where a logit is not finite.
    hidden: f32 [number of outputs, hidden_size], instead of both: the hidden states after the last norm.
    op_seconds: f64 [ops of the program], is added to.
    If it raises, no sequence has advanced; recurrent state is updated in place and cannot go back, so sequences that
    have such are then empty (length 0), to be computed again or restored.
    """
    counts = [len(piece.token_ids) for piece in pieces]
    starts = [0, *accumulate(counts)]
    for piece, count in zip(pieces, counts, strict=True):
        piece.sequence.reserve(piece.sequence.length + count)
    widest = max(len(piece.sequence.blocks) for piece in pieces)
    tables = np.zeros((len(pieces), widest), np.int32)
    for row, piece in zip(tables, pieces, strict=True):
        row[: len(piece.sequence.blocks)] = piece.sequence.blocks
    positions = np.array([piece.sequence.length for piece in pieces], np.int32)
    out_rows = [starts[i] + output for i, piece in enumerate(pieces) for output in piece.outputs]
    states = [piece.sequence.state for piece in pieces]
    spans = [
        (piece.sequence.length, count, piece.sequence.prompt_length or count)
        for piece, count in zip(pieces, counts, strict=True)
    ]
    cos, sin = model.rope.rows(spans)
    try:
        (model.program if hidden is None else model.backbone).run(
            np.concatenate([np.asarray(piece.token_ids, np.int32) for piece in pieces]),
            np.array(starts, np.int32),
            positions,
            tables,
            np.array(out_rows, np.int32),
            pieces[0].sequence.pool.kv,
            cos,
            sin,
            output=logits if hidden is None else hidden,
            argmax=best,
            num_threads=num_threads,
            op_seconds=op_seconds,
            state_blocks=None if None in states else np.array(states, np.int32),
        )
    except BaseException:
        for piece in pieces:
            if piece.sequence.state is not None:
                piece.sequence.length = 0
        raise
    for piece, (first, count, prompt_length) in zip(pieces, spans, strict=True):
        piece.sequence.length, piece.sequence.prompt_length = first + count, prompt_length
