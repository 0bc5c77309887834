"""Windows over a text of more tokens than are read at once, and their scores put together."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcore.pii.spans import Span, trimmed

__all__ = ["Window", "merge_windows", "plan_windows", "window_owners"]


class Window(NamedTuple):
    """A range of tokens, end exclusive."""

    start: int
    end: int


def plan_windows(
    offsets: Sequence[Span], text: str, max_tokens: int, overlap: int = 128, boundaries: Sequence[int] = ()
) -> list[Window]:
    """Windows of at most `max_tokens` that cover all tokens; neighbours share at least `overlap` of them.

    A window starts and ends at one of `boundaries` (code points where a message begins) if one is near, else where a
    word begins, else where it must. Tokens that fit go into one window; no tokens, no window.
    """
    if max_tokens < 1 or not 0 <= overlap < max_tokens:
        raise ValueError(f"max_tokens is {max_tokens} and overlap {overlap}; expected 0 <= overlap < max_tokens")
    num_tokens = len(offsets)
    if num_tokens <= max_tokens:
        return [Window(0, num_tokens)] if num_tokens else []
    strengths = _cut_strengths(offsets, text, boundaries)
    # Moving both ends of a window back by up to this much still leaves every window one token of progress.
    reach = (max_tokens - overlap - 1) // 2

    def cut(latest: int) -> int:
        """The strongest place to cut within reach, of equals the latest."""
        return max(range(latest, latest - reach - 1, -1), key=strengths.__getitem__)

    windows: list[Window] = []
    start = 0
    while start + max_tokens < num_tokens:
        end = cut(start + max_tokens)
        windows.append(Window(start, end))
        start = cut(end - overlap) if overlap else end
    windows.append(Window(start, num_tokens))
    return windows


def _cut_strengths(offsets: Sequence[Span], text: str, boundaries: Sequence[int]) -> list[int]:
    """How well a text is cut before each token: 2 where a message begins, 1 where a word does, 0 elsewhere."""
    ordered = sorted(boundaries)
    strengths = []
    previous = -1  # where the token before starts
    messages_before = 0
    for start, end in offsets:
        if start == end or start <= previous:  # no text of its own, or the rest of a split character
            strengths.append(0)
            continue
        begins_word = text[start].isspace() or start == 0 or text[start - 1].isspace()
        messages = bisect_right(ordered, trimmed(text, start, end)[0])
        strengths.append(2 if messages > messages_before else int(begins_word))
        previous, messages_before = start, messages
    return strengths


def window_owners(windows: Sequence[Window]) -> NDArray[np.int32]:
    """For each token, the index of the window that sees most around it: the one whose nearer edge is farthest away.

    The ends of the text are no edges. Of equals, the earlier window. int32 [num_tokens].
    """
    num_tokens = windows[-1].end if windows else 0
    owners = np.zeros(num_tokens, np.int32)
    context = np.full(num_tokens, -1, np.int64)
    for index, (start, end) in enumerate(windows):
        tokens = np.arange(start, end)
        before = tokens - start if start > 0 else np.full(end - start, num_tokens)
        after = end - 1 - tokens if end < num_tokens else np.full(end - start, num_tokens)
        seen = np.minimum(before, after)
        better = tokens[seen > context[start:end]]
        owners[better] = index
        context[better] = seen[better - start]
    return owners


def merge_windows(windows: Sequence[Window], logits: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """One array [num_tokens, num_labels] from those of the windows, each token from its owner (`window_owners`)."""
    if len(windows) != len(logits) or not windows:
        raise ValueError(f"{len(logits)} arrays of logits for {len(windows)} windows; expected one for each window")
    if len(windows) == 1:
        return logits[0]
    owners = window_owners(windows)
    merged = np.empty((len(owners), logits[0].shape[1]), np.float32)
    for index, (start, end) in enumerate(windows):
        owned = np.flatnonzero(owners[start:end] == index)
        merged[start + owned] = logits[index][owned]
    return merged
