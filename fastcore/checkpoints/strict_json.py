"""JSON objects read strictly: UTF-8, one value per key, an object at the top, and no more than a checkpoint needs.

The limits bound memory and time: a value takes about 100 bytes, and the walk over values is linear.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from fastcore.checkpoints.mapped import read_bytes
from fastcore.errors import CheckpointError

MAX_BYTES = 100_000_000  # the cap that safetensors puts on its own headers
MAX_VALUES = 4_000_000  # 500,000 tensors; the largest vocabularies have 250,000 tokens
MAX_DEPTH = 64


def parse_object(text: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `text`; `where` names it in errors. A repeated key is a CheckpointError, at any depth."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            repeated = sorted(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            more = f" and {len(repeated) - 8} more" if len(repeated) > 8 else ""
            names = ", ".join(f"{key!r:.80}" for key in repeated[:8])
            raise CheckpointError(f"{where}: duplicate key {names}{more}; each may appear once")
        return table

    # commas and brackets inside strings count too: a bound, not the number
    values = sum(text.count(mark) for mark in (b",", b"[", b"{"))
    if values > MAX_VALUES:
        raise CheckpointError(f"{where} holds about {values} JSON values, expected at most {MAX_VALUES}")
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not valid JSON in UTF-8: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} holds a JSON {type(value).__name__}, expected an object")
    _refuse_depth(value, where)
    if b"\\ud" in text or b"\\uD" in text:
        _refuse_lone_surrogates(value, where)
    return value


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of at most MAX_BYTES."""
    return parse_object(read_bytes(path, MAX_BYTES), str(path))


def _refuse_lone_surrogates(value: dict[str, Any], where: str) -> None:
    """JSON can spell half of a character; no UTF-8 text, and so no token, tensor or file name, can hold it."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise CheckpointError(f"{where} is not Unicode: a string holds the lone surrogate U+{half:04X}") from None


def _refuse_depth(value: dict[str, Any], where: str) -> None:
    """Deeper values could not even be shown: repr and json.dumps are recursive."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise CheckpointError(f"{where}: values are nested more than {MAX_DEPTH} deep")
