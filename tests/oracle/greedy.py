"""Greedy decoding by recomputing the whole sequence for every token."""

from collections.abc import Callable, Sequence

import numpy as np


def continue_greedily(logits: Callable[[list[int]], np.ndarray], token_ids: Sequence[int], n: int) -> list[int]:
    """The next n tokens after token_ids; on a tie the lowest id."""
    sequence = list(token_ids)
    for _ in range(n):
        sequence.append(int(np.argmax(logits(sequence)[-1])))
    return sequence[len(token_ids) :]
