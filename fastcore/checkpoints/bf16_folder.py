"""A GGUF file written out as a model folder in bf16."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastcore.checkpoints.dense import bf16_bits
from fastcore.checkpoints.gguf import GgufFile
from fastcore.errors import UnsupportedModelError
from fastcore.model.tensor import Tensor

__all__ = ["write_folder"]


def write_folder(source: GgufFile, folder: Path, done: Callable[[int], object] = lambda nbytes: None) -> None:
    """Write a model folder: bf16 model.safetensors, both configs and the tokenizer's files.

    Tensor by tensor, so one of them is in memory at a time. The same file gives the same bytes. `done` is called after
    each tensor with the bytes written. Raises UnsupportedModelError for a vocabulary that tokenizer.json cannot hold.
    """
    files = source.companions()
    if "tokenizer.json" not in files:
        raise UnsupportedModelError(
            f"{source.path} has no tokenizer; it can be loaded as it is, and not written as a folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _write_bf16(source, folder / "model.safetensors", done)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _write_bf16(tensors: Mapping[str, Tensor], path: Path, done: Callable[[int], object]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(tensors):
        begin, end = end, end + 2 * math.prod(tensors[name].shape)
        header[name] = {"dtype": "BF16", "shape": list(tensors[name].shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            done(file.write(bf16_bits(tensors[name].f32()).tobytes()))
        file.flush()
        os.fsync(file.fileno())
