"""What a sequence has computed so far: KV blocks from one capped pool, and how rows of many sequences become a step."""

import threading
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import BLOCK_TOKENS, KVBlocks
from fastcore.errors import CacheFullError
from fastcore.models import Model

__all__ = ["Piece", "Sequence", "StatePool", "run_step"]


class StatePool:
    """Blocks of KV cache under a byte cap. Memory is reserved as address space and used only as blocks are.

    max_bytes: the cap; at least one block is always held.
    kv_dtype: f32 | f16.
    """

    def __init__(self, model: Model, max_bytes: int, kv_dtype: str = "f32") -> None:
        config = model.config
        layers = model.program.max_layer + 1
        probe = KVBlocks(layers, config.num_key_value_heads, config.head_dim, kv_dtype, 1)
        self.block_bytes = probe.block_bytes
        self.num_blocks = max(1, max_bytes // self.block_bytes)
        self.kv = KVBlocks(layers, config.num_key_value_heads, config.head_dim, kv_dtype, self.num_blocks)
        self._free = list(range(self.num_blocks - 1, -1, -1))  # taken from the end: low numbers, so few pages are touched
        self._lock = threading.Lock()

    @property
    def max_positions(self) -> int:
        """Positions that the whole pool holds."""
        return self.num_blocks * BLOCK_TOKENS

    @property
    def free_positions(self) -> int:
        return len(self._free) * BLOCK_TOKENS

    def take(self, num_blocks: int) -> list[int]:
        with self._lock:
            if num_blocks > len(self._free):
                raise CacheFullError(
                    f"the cache has {len(self._free)} of {self.num_blocks} blocks free and {num_blocks} are needed "
                    f"({BLOCK_TOKENS} tokens each); raise kv_cache_bytes (now {self.num_blocks * self.block_bytes})"
                )
            taken = self._free[len(self._free) - num_blocks :]
            del self._free[len(self._free) - num_blocks :]
            return taken[::-1]

    def give_back(self, blocks: list[int]) -> None:
        with self._lock:
            self._free.extend(reversed(blocks))


@dataclass(eq=False)
class Sequence:
    """The state of one sequence: its blocks, and how many positions they hold. Use as a context manager, or call free."""

    pool: StatePool
    length: int = 0
    blocks: list[int] = field(default_factory=list)

    def reserve(self, num_positions: int) -> None:
        """Take blocks for positions up to num_positions; CacheFullError leaves it as it was."""
        missing = -(-num_positions // BLOCK_TOKENS) - len(self.blocks)
        if missing > 0:
            self.blocks += self.pool.take(missing)

    def free(self) -> None:
        self.pool.give_back(self.blocks)
        self.blocks, self.length = [], 0

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
    op_seconds: NDArray[np.float64] | None = None,
) -> None:
    """Run the program over the pieces and advance their sequences.

    logits: f32 [number of outputs, vocab_size], written in the order of the pieces. best: i32 [number of outputs], argmax of each
    row, -1 where a logit is not finite. If it raises, no sequence has advanced.
    """
    counts = [len(piece.token_ids) for piece in pieces]
    starts = np.zeros(len(pieces) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    for piece, count in zip(pieces, counts, strict=True):
        piece.sequence.reserve(piece.sequence.length + count)
    widest = max(len(piece.sequence.blocks) for piece in pieces)
    tables = np.zeros((len(pieces), widest), np.int32)
    for row, piece in zip(tables, pieces, strict=True):
        row[: len(piece.sequence.blocks)] = piece.sequence.blocks
    positions = np.array([piece.sequence.length for piece in pieces], np.int32)
    out_rows = [int(starts[i]) + output for i, piece in enumerate(pieces) for output in piece.outputs]
    cos, sin = model.rope_tables(int((positions + counts).max()))
    model.program.run(
        np.concatenate([np.asarray(piece.token_ids, np.int32) for piece in pieces]),
        starts,
        positions,
        tables,
        np.array(out_rows, np.int32),
        pieces[0].sequence.pool.kv,
        cos,
        sin,
        output=logits,
        argmax=best,
        num_threads=num_threads,
        op_seconds=op_seconds,
    )
    for piece, count in zip(pieces, counts, strict=True):
        piece.sequence.length += count
