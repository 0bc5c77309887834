"""JSON objects read strictly: UTF-8, one value per key, an object at the top."""

import json
from pathlib import Path
from typing import Any

from fastcore.errors import CheckpointError

MAX_BYTES = 100_000_000  # the cap that safetensors puts on its own headers


def parse_object(text: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `text`; `where` names it in errors. A repeated key is a CheckpointError, at any depth."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            keys = [key for key, _ in pairs]
            repeated = sorted({key for key in keys if keys.count(key) > 1})
            raise CheckpointError(f"{where}: duplicate key {', '.join(map(repr, repeated))}; each may appear once")
        return table

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not valid JSON in UTF-8: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} holds a JSON {type(value).__name__}, expected an object")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of at most MAX_BYTES."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise CheckpointError(f"{path} is {size} bytes, expected a JSON file of at most {MAX_BYTES}")
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    return parse_object(text, str(path))
