"""What is kept of sequences: blocks and recurrent states, found again by the tokens in and before them."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from fastcore._kernels import BLOCK_TOKENS, HeldBlocks, KVBlocks
from fastcore.errors import CacheFullError

__all__ = ["PrefixCache", "Shared", "copy_blocks"]


class Shared(NamedTuple):
    """blocks: of the first tokens. state: first block of the recurrent state after them, where the model has such.

    num_known: so many blocks are known; the rest of them is of no use without a state, but shows where others parted.
    """

    blocks: list[int]
    state: int | None
    num_known: int


class PrefixCache:
    """Full blocks by a chain of hashes: the key of a block stands for its tokens and all tokens before them.

    A block holds what any run over the same tokens writes, bit for bit, so that it does not matter who did. It is
    shared while sequences run over it, and kept until its room is needed; the one not used for longest goes first, and
    of one text the last. An entry holds its block, which goes back when the entry is dropped, whatever comes between.
    Where a model has a recurrent state, some entries hold a copy of the one after their block, which goes with them.

    max_blocks: so many are kept at most, those of states included, since memory that was touched once stays.
    """

    def __init__(self, kv: KVBlocks, max_blocks: int, state_blocks: int = 0) -> None:
        self._kv = kv
        self._max_blocks = max_blocks
        self._state_blocks = state_blocks
        self._held: OrderedDict[bytes, HeldBlocks] = OrderedDict()
        self._states: dict[bytes, HeldBlocks] = {}  # of keys that are held

    @property
    def num_idle(self) -> int:
        """Blocks that nothing but this cache holds."""
        return sum(self._is_idle(held) for held in list(self._held.values())) + self._state_blocks * len(self._states)

    def find(self, token_ids: Sequence[int], max_positions: int) -> Shared:
        """What is kept of the first tokens, of at most max_positions. A state, if there is one, is that of its end."""
        keys = []
        for key in _keys(token_ids, min(max_positions, len(token_ids)) // BLOCK_TOKENS):
            if key not in self._held:
                break
            keys.append(key)
        num_known, state = len(keys), None
        if self._state_blocks:
            while keys and keys[-1] not in self._states:
                keys.pop()
            if keys:
                state = self._states[keys[-1]].numbers[0]
        self._touch(keys)
        return Shared([self._held[key].numbers[0] for key in keys], state, num_known)

    def keep(self, token_ids: Sequence[int], blocks: Sequence[int]) -> None:
        """Hold the blocks of the first tokens, which are full and written for good."""
        keys = list(_keys(token_ids, len(blocks)))
        for key, block in zip(keys, blocks, strict=True):
            if key not in self._held:
                held = HeldBlocks(self._kv)
                held.share([block])
                self._held[key] = held
        self._touch(keys)
        self._drop_to(self._max_blocks)

    def keep_state(self, token_ids: Sequence[int], blocks: Sequence[int], state: int) -> bytes | None:
        """The same, and a copy of the recurrent state after them; its key, or None where no room is free."""
        self.keep(token_ids, blocks)
        *_, key = _keys(token_ids, len(blocks))
        if key not in self._states and self._state_blocks <= self._max_blocks:
            self._drop_to(self._max_blocks - self._state_blocks)
            copy = HeldBlocks(self._kv)
            try:
                copy.take_run(self._state_blocks)
            except CacheFullError:
                return None
            copy_blocks(self._kv, state, copy.numbers[0], self._state_blocks)
            if key in self._held:
                self._states[key] = copy
        return key

    def drop_state(self, key: bytes) -> None:
        self._states.pop(key, None)

    def make_room(self, num_blocks: int) -> None:
        """Drop what nobody uses until so many blocks are free, or nothing is left to drop."""
        while self._kv.num_free < num_blocks and self.drop_one():
            pass

    def drop_one(self) -> bool:
        """Drop the state or the block that nobody uses and that was not used for longest; False if there is none."""
        for key, held in list(self._held.items()):
            if self._states.pop(key, None) is not None:
                return True
            if self._is_idle(held):
                del self._held[key]
                return True
        return False

    def _drop_to(self, num_blocks: int) -> None:
        while len(self._held) + self._state_blocks * len(self._states) > num_blocks:
            key, _ = self._held.popitem(last=False)
            self._states.pop(key, None)

    def _is_idle(self, held: HeldBlocks) -> bool:
        return self._kv.num_owners(held.numbers[0]) == 1

    def _touch(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            if key in self._held:
                self._held.move_to_end(key)


def copy_blocks(kv: KVBlocks, source: int, target: int, count: int) -> None:
    """Copy consecutive blocks, bit for bit."""
    blocks = kv.memory.reshape(kv.num_blocks, -1)
    blocks[target : target + count] = blocks[source : source + count]


def _keys(token_ids: Sequence[int], num_blocks: int) -> Iterator[bytes]:
    key = b""
    for start in range(0, num_blocks * BLOCK_TOKENS, BLOCK_TOKENS):
        block = np.array(token_ids[start : start + BLOCK_TOKENS], np.int32)
        key = sha256(key + block.tobytes()).digest()
        yield key
