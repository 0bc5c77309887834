"""What is kept of sequences that are done: blocks of keys and values, found again by what stands in and before them."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import sha256

import numpy as np

from fastcore._kernels import BLOCK_TOKENS, HeldBlocks, KVBlocks

__all__ = ["PrefixCache"]


class PrefixCache:
    """Full blocks by a chain of hashes: the key of a block stands for its tokens and all tokens before them.

    A block holds what any run over the same tokens writes, bit for bit, so that it does not matter who did. It is
    shared while sequences run over it, and kept until its room is needed; the one not used for longest goes first, and
    of one text the last. An entry holds its block, which goes back when the entry is dropped, whatever comes between.

    max_blocks: so many are kept at most, since memory that was touched once stays.
    """

    def __init__(self, kv: KVBlocks, max_blocks: int) -> None:
        self._kv = kv
        self._max_blocks = max_blocks
        self._held: OrderedDict[bytes, HeldBlocks] = OrderedDict()

    @property
    def num_idle(self) -> int:
        """Blocks that nothing but this cache holds."""
        return sum(self._is_idle(held) for held in list(self._held.values()))

    def find(self, token_ids: Sequence[int], max_positions: int) -> list[int]:
        """The blocks that hold the first tokens, of at most max_positions."""
        found = []
        for key in _keys(token_ids, min(max_positions, len(token_ids)) // BLOCK_TOKENS):
            held = self._held.get(key)
            if held is None:
                break
            found.append((key, held.numbers[0]))
        self._touch([key for key, _ in found])
        return [block for _, block in found]

    def keep(self, token_ids: Sequence[int], blocks: Sequence[int]) -> None:
        """Hold the blocks of the first tokens, which are full and written for good."""
        keys = list(_keys(token_ids, len(blocks)))
        for key, block in zip(keys, blocks, strict=True):
            if key not in self._held:
                held = HeldBlocks(self._kv)
                held.share([block])
                self._held[key] = held
        self._touch(keys)
        while len(self._held) > self._max_blocks:
            self._held.popitem(last=False)

    def make_room(self, num_blocks: int) -> None:
        """Drop what nobody uses until so many blocks are free, or nothing is left to drop."""
        for key in list(self._held):
            if self._kv.num_free >= num_blocks:
                return
            if self._is_idle(self._held[key]):
                del self._held[key]

    def _is_idle(self, held: HeldBlocks) -> bool:
        return self._kv.num_owners(held.numbers[0]) == 1

    def _touch(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            if key in self._held:
                self._held.move_to_end(key)


def _keys(token_ids: Sequence[int], num_blocks: int) -> Iterator[bytes]:
    key = b""
    for start in range(0, num_blocks * BLOCK_TOKENS, BLOCK_TOKENS):
        block = np.array(token_ids[start : start + BLOCK_TOKENS], np.int32)
        key = sha256(key + block.tobytes()).digest()
        yield key
