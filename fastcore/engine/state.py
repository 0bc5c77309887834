"""What a sequence has computed so far: KV blocks and recurrent state from one capped pool.

And how rows of many sequences become a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import BLOCK_TOKENS, HeldBlocks, KVBlocks, Workspace
from fastcore.engine.prefixes import PrefixCache, Shared, copy_blocks
from fastcore.errors import CacheFullError
from fastcore.model.model import Model

__all__ = ["Piece", "SequenceState", "StatePool", "run_step"]

MAX_BLOCKS = 1 << 20  # a list of the free ones is kept
PREFIX_SHARE = 4  # of the blocks, one in so many may be kept for its prefix


class StatePool:
    """Blocks of KV cache under a byte cap, and the workspace that steps over them run in, one at a time.

    Memory of blocks is reserved as address space and used only as blocks are.

    The recurrent state of a sequence, where the model has such, fills state_blocks consecutive blocks.

    max_bytes: the cap; what one sequence of one block needs is always held.
    kv_dtype: f32 | f16 | int8.
    """

    def __init__(self, model: Model, max_bytes: int, kv_dtype: str = "f32") -> None:
        config = model.config
        layers = model.program.max_layer + 1
        probe = KVBlocks(layers, config.num_key_value_heads, config.head_dim, kv_dtype, 1)
        self.block_bytes = probe.block_bytes
        self.state_blocks = -(-model.program.state_bytes // self.block_bytes)
        self.num_blocks = max(1 + self.state_blocks, min(MAX_BLOCKS, max_bytes // self.block_bytes))
        self.kv = KVBlocks(layers, config.num_key_value_heads, config.head_dim, kv_dtype, self.num_blocks)
        self.prefixes = PrefixCache(self.kv, self.num_blocks // PREFIX_SHARE, self.state_blocks)
        self.workspace = Workspace()

    @property
    def max_positions(self) -> int:
        """Positions of one sequence that the whole pool holds."""
        return (self.num_blocks - self.state_blocks) * BLOCK_TOKENS

    def has_free(self, num_blocks: int) -> bool:
        """Whether so many blocks are free, once those are given up that nothing but the prefix cache holds."""
        if num_blocks > self.kv.num_free:
            self.prefixes.make_room(num_blocks)
        return num_blocks <= self.kv.num_free

    @property
    def free_positions(self) -> int:
        """Positions that no sequence holds; blocks that are kept for their prefix are given up when they are needed."""
        return (self.kv.num_free + self.prefixes.num_idle) * BLOCK_TOKENS


@dataclass(eq=False)
class SequenceState:
    """The state of one sequence: its blocks, and how many positions they hold. Use as a context manager, or call free.

    length: positions computed.
    prompt_length: tokens of the prompt, which "dynamic" rotary positions follow; 0 is the number of tokens first run.
    """

    pool: StatePool
    length: int = 0
    prompt_length: int = 0

    def __post_init__(self) -> None:
        self._blocks = HeldBlocks(self.pool.kv)
        self._state = HeldBlocks(self.pool.kv)

    @property
    def blocks(self) -> list[int]:
        return self._blocks.numbers

    @property
    def capacity(self) -> int:
        """Positions that its blocks hold."""
        return len(self._blocks.numbers) * BLOCK_TOKENS

    @property
    def state(self) -> int | None:
        """First block of the recurrent state after `length` positions, where the model has such."""
        return self._state.numbers[0] if self._state.numbers else None

    def begin_with(self, shared: Shared) -> None:
        """Start after the positions of blocks that others have written, and share them; of their state take a copy.

        CacheFullError where there is no room for that; the sequence is then of no use.
        """
        self._blocks.share(shared.blocks)
        if shared.state is not None:
            held = HeldBlocks(self.pool.kv)  # while room is made for its copy
            held.share(list(range(shared.state, shared.state + self.pool.state_blocks)))
            self._reserve_state()
            copy_blocks(self.pool.kv, shared.state, self._state.numbers[0], self.pool.state_blocks)
        self.length = len(shared.blocks) * BLOCK_TOKENS

    def reserve(self, num_positions: int) -> None:
        """Take blocks for positions up to num_positions; CacheFullError leaves it as it was."""
        missing = -(-num_positions // BLOCK_TOKENS) - len(self._blocks.numbers)
        if missing > 0:
            self.pool.has_free(missing)
            self._blocks.take(missing)
        try:
            self._reserve_state()
        except CacheFullError:
            self._blocks.give_back(max(0, missing))
            raise

    def _reserve_state(self) -> None:
        while self.pool.state_blocks and not self._state.numbers:
            try:
                self._state.take_run(self.pool.state_blocks)
            except CacheFullError:  # blocks may be free and yet no run of them
                if not self.pool.prefixes.drop_one():
                    raise

    def rewind(self, length: int) -> None:
        """Go back to an earlier length. A recurrent state cannot: it is then that of no tokens, and blocks go back."""
        if not self.pool.state_blocks:
            self.length = length
            return
        self.length = 0
        self._blocks.give_back(len(self._blocks.numbers))  # they may be shared, and are to be written again

    def free(self) -> None:
        self.length = self.prompt_length = 0
        self._blocks.give_back(len(self.blocks))
        self._state.give_back(len(self._state.numbers))

    def snapshot(self) -> "SequenceState":
        """A copy with blocks of its own, to restore from or to continue; free it when it is done with."""
        copy = SequenceState(self.pool)
        copy.restore(self)
        return copy

    def restore(self, snapshot: "SequenceState") -> None:
        """Become a copy, bit for bit, of a sequence of the same pool. CacheFullError leaves it as it was."""
        if snapshot.pool is not self.pool:
            raise ValueError("the snapshot is of another pool")
        self.reserve(snapshot.length)
        self.length = 0
        for to, of in zip(self.blocks, snapshot.blocks[: -(-snapshot.length // BLOCK_TOKENS)], strict=False):
            copy_blocks(self.pool.kv, of, to, 1)
        if snapshot.length and self.state is not None and snapshot.state is not None:
            copy_blocks(self.pool.kv, snapshot.state, self.state, self.pool.state_blocks)
        self.length, self.prompt_length = snapshot.length, snapshot.prompt_length

    def __enter__(self) -> "SequenceState":
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


@dataclass(frozen=True, eq=False)
class Piece:
    """The next tokens of one sequence in a step; `outputs` are the indices among them whose logits are wanted.

    num_guesses: so many of the last tokens are guesses, after which the sequence does not count as computed.
    """

    sequence: SequenceState
    token_ids: Sequence[int]
    outputs: Sequence[int] = ()
    num_guesses: int = 0


def run_step(
    model: Model,
    pieces: Sequence[Piece],
    *,
    num_threads: int = 1,
    logits: NDArray[np.float32] | None = None,
    best: NDArray[np.int32] | None = None,
    hidden: NDArray[np.float32] | None = None,
    op_seconds: NDArray[np.float64] | None = None,
) -> None:
    """Run the program over the pieces, all of one pool, in its workspace, and advance their sequences up to guesses.

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
    pool = pieces[0].sequence.pool
    try:
        (model.program if hidden is None else model.backbone).run(
            pool.workspace,
            np.concatenate([np.asarray(piece.token_ids, np.int32) for piece in pieces]),
            np.array(starts, np.int32),
            positions,
            tables,
            np.array(out_rows, np.int32),
            pool.kv,
            cos,
            sin,
            output=logits if hidden is None else hidden,
            argmax=best,
            num_threads=num_threads,
            op_seconds=op_seconds,
            state_blocks=None if None in states else np.array(states, np.int32),
        )
        for piece, (first, count, prompt_length) in zip(pieces, spans, strict=True):
            piece.sequence.length = first + count - piece.num_guesses
            piece.sequence.prompt_length = prompt_length
    except BaseException:
        for piece, (first, _, _) in zip(pieces, spans, strict=True):
            piece.sequence.rewind(first)
        raise
