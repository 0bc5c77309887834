"""Prompts and conversations as callers give them: one or several, text or token ids."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["Message", "Prompt", "TokenIds", "are_conversations", "checked_ids", "is_list", "is_single", "unwrapped"]

TokenIds = Sequence[int] | NDArray[np.integer[Any]]
Prompt = str | TokenIds | Mapping[str, Any]  # the last: {"prompt": text} or {"prompt_token_ids": ids}
Message = Mapping[str, Any]


def is_list(value: Any) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, bytes | bytearray | memoryview)


def is_single(prompts: Any) -> bool:
    """Whether it is one prompt, and not a list of them."""
    one = isinstance(prompts, str) or not is_list(prompts)
    return one or (len(prompts) > 0 and isinstance(prompts[0], int | np.integer))


def are_conversations(messages: Any) -> bool:
    """Whether it is a list of lists of messages, and not one of messages."""
    return is_list(messages) and len(messages) > 0 and not isinstance(messages[0], str) and is_list(messages[0])


def unwrapped(prompt: Prompt) -> str | TokenIds:
    """The text of {"prompt": text}, the ids of {"prompt_token_ids": ids}; any other prompt as it is."""
    if not isinstance(prompt, Mapping):
        return prompt
    match dict(prompt):
        case {"prompt": str(text), **rest} if not rest:
            return text
        case {"prompt_token_ids": ids, **rest} if not rest and not isinstance(ids, str):
            return cast(TokenIds, ids)
    wanted = 'a string or a list of token ids, bare or as {"prompt": text} or {"prompt_token_ids": ids}'
    raise TypeError(f"a prompt is {wanted}; found a mapping of {sorted(map(str, prompt))}")


def checked_ids(ids: TokenIds, vocab_size: int) -> list[int]:
    """A copy. Raises TypeError for what are no token ids, ValueError for one outside the vocabulary."""
    if not is_list(ids):
        raise TypeError(f"a prompt is a string or a list of token ids, not {type(ids).__name__}")
    result = []
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int | np.integer):
            raise TypeError(f"a prompt is a string or a list of token ids; found {type(token_id).__name__} in it")
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"token id {token_id} is outside the vocabulary of {vocab_size}")
        result.append(int(token_id))
    return result
