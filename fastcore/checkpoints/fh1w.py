"""FH1W, the f32 pack of Falcon-H1: little-endian, no padding.

Magic "FH1W", u32 tensor count; per tensor: u16 name length, name, u8 rank, u32 dims[rank], f32 values.
"""

import math
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from fastcore.checkpoints.folder import MappedFile, Tensor, open_checkpoint
from fastcore.errors import CheckpointError, UnsupportedModelError
from fastcore.model.config import ModelConfig, load_config, parse_config

MAGIC = b"FH1W"
MAX_TENSORS = 50_000
MAX_NAME_BYTES = 1024
MAX_RANK = 4
MAX_ELEMENTS = 1_000_000_000


def read_fh1w(file: MappedFile) -> dict[str, Tensor]:
    """The tensors of a pack, in file order. Values are read when asked for; a limit that does not hold is a
    CheckpointError."""
    reader = _Reader(file)
    if reader.take(4, "the magic") != MAGIC:
        raise CheckpointError(f"{file.path} does not begin with {MAGIC!r}; it is not an FH1W file")
    (count,) = reader.unpack("<I", "the tensor count")
    if count > MAX_TENSORS:
        raise CheckpointError(f"{file.path}: tensor count {count}, expected at most {MAX_TENSORS}")
    tensors: dict[str, Tensor] = {}
    for i in range(count):
        where = f"tensor {i + 1} of {count}"
        (name_bytes,) = reader.unpack("<H", f"the name length of {where}")
        if not 1 <= name_bytes <= MAX_NAME_BYTES:
            raise CheckpointError(
                f"{file.path}: {where} has a name of {name_bytes} bytes, expected 1 to {MAX_NAME_BYTES}"
            )
        try:
            name = reader.take(name_bytes, f"the name of {where}").decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{file.path}: the name of {where} is not UTF-8: {error}") from None
        if name in tensors:
            raise CheckpointError(f"{file.path}: duplicate tensor {name!r}")
        where = f"tensor {name!r}"
        (rank,) = reader.unpack("<B", f"the rank of {where}")
        if not 1 <= rank <= MAX_RANK:
            raise CheckpointError(f"{file.path}: {where} has rank {rank}, expected 1 to {MAX_RANK}")
        shape = reader.unpack(f"<{rank}I", f"the shape of {where}")
        if math.prod(n or 1 for n in shape) > MAX_ELEMENTS:
            raise CheckpointError(
                f"{file.path}: {where} has shape {list(shape)}, expected at most {MAX_ELEMENTS} elements"
            )
        tensors[name] = Tensor(name, "F32", shape, file, reader.skip(4 * math.prod(shape), f"the values of {where}"))
    if reader.position != file.size:
        raise CheckpointError(f"{file.path}: {file.size - reader.position} bytes follow the last tensor, expected none")
    return tensors


class _Reader:
    """A position in a mapped file that never passes its end."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.position = 0

    def skip(self, size: int, what: str) -> int:
        """Pass over `size` bytes and return where they begin."""
        begin, end = self.position, self.position + size
        if end > self.file.size:
            raise CheckpointError(
                f"{self.file.path} is truncated: {what} needs bytes {begin} to {end}, the file has {self.file.size}"
            )
        self.position = end
        return begin

    def take(self, size: int, what: str) -> bytes:
        begin = self.skip(size, what)
        return bytes(self.file.buffer()[begin : begin + size])

    def unpack(self, layout: str, what: str) -> tuple[int, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))


class TensorLike(Protocol):
    """What a pack is written from: `Tensor`, or anything with a shape that gives f32 values."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def f32(self) -> np.ndarray: ...

    def release(self) -> None: ...


def write_fh1w(path: str | Path, tensors: Mapping[str, TensorLike]) -> None:
    """Write a pack, one tensor in memory at a time. The file appears whole under its name or not at all.

    Raises CheckpointError, before anything is written, for tensors that the format cannot hold.
    """
    path = Path(path)
    heads = {name: _head(name, tensor.shape) for name, tensor in tensors.items()}
    if len(heads) > MAX_TENSORS:
        raise CheckpointError(f"{len(heads)} tensors, but FH1W holds at most {MAX_TENSORS}")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(unfinished, "wb") as file:
            file.write(MAGIC + struct.pack("<I", len(heads)))
            for name, tensor in tensors.items():
                file.write(heads[name])
                _write_values(file, name, tensor)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()


def export_fh1w(model: str | Path, path: str | Path) -> None:
    """Write a Falcon-H1 model folder or file as a pack, with its config.json beside it.

    A tied head is written out, as readers of this format expect one. Raises UnsupportedModelError for another
    model_type and CheckpointError if a different config.json is beside the pack already.
    """
    model, path = Path(model), Path(path)
    config = load_config(model)
    if config.model_type != "falcon_h1":
        raise UnsupportedModelError(f"{model} is a {config.model_type} model; an FH1W pack holds falcon_h1 only")
    ours, beside = (model if model.is_dir() else model.parent) / "config.json", path.parent / "config.json"
    if ours.exists() and beside.exists() and ours.read_bytes() != beside.read_bytes():
        raise CheckpointError(f"{beside} is the config of another model; write the pack to another folder")
    with open_checkpoint(model) as checkpoint:
        tensors: dict[str, TensorLike] = dict(checkpoint)
        if config.tie_word_embeddings and "model.embed_tokens.weight" in tensors:
            tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
        write_fh1w(path, tensors)
    if ours.exists() and not beside.exists():
        beside.write_bytes(ours.read_bytes())


def _head(name: str, shape: tuple[int, ...]) -> bytes:
    encoded = name.encode("utf-8")
    if not 1 <= len(encoded) <= MAX_NAME_BYTES:
        raise CheckpointError(f"tensor {name!r:.80}: name of {len(encoded)} bytes, FH1W holds 1 to {MAX_NAME_BYTES}")
    if not 1 <= len(shape) <= MAX_RANK or math.prod(n or 1 for n in shape) > MAX_ELEMENTS:
        raise CheckpointError(
            f"tensor {name!r} has shape {list(shape)}, FH1W holds rank 1 to {MAX_RANK} and {MAX_ELEMENTS} elements"
        )
    return struct.pack(f"<H{len(encoded)}sB{len(shape)}I", len(encoded), encoded, len(shape), *shape)


def _write_values(file: BinaryIO, name: str, tensor: TensorLike) -> None:
    values = np.ascontiguousarray(tensor.f32(), dtype="<f4")
    if values.size != math.prod(tensor.shape):
        raise CheckpointError(f"tensor {name!r} gave {values.size} values for shape {list(tensor.shape)}")
    file.write(values.reshape(-1).view(np.uint8).data)
    tensor.release()


# ---------------------------------------------------------------- the two models a pack may hold without a config.json

_FALCON_H1: dict[str, Any] = {
    "model_type": "falcon_h1",
    "architectures": ["FalconH1ForCausalLM"],
    "rope_theta": 1e11,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": False,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_norm_before_gate": False,
    "mamba_rms_norm": False,
}
BUILTIN_CONFIGS: dict[str, dict[str, Any]] = {
    "falcon-h1-0.5b": _FALCON_H1
    | {
        "vocab_size": 32784,
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "mamba_d_ssm": 1536,
        "mamba_n_heads": 24,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "embedding_multiplier": 5.656854249492381,
        "lm_head_multiplier": 0.0390625,
        "key_multiplier": 0.390625,
        "attention_in_multiplier": 1.0,
        "attention_out_multiplier": 0.9375,
        "ssm_in_multiplier": 1.25,
        "ssm_out_multiplier": 0.23570226039551587,
        "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
        "mlp_multipliers": [0.8838834764831844, 0.5859375],
        "bos_token_id": 1,
        "eos_token_id": 11,
        "pad_token_id": 0,
    },
    # every multiplier is 1
    "demo": _FALCON_H1
    | {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
    },
}


def builtin_config(tensors: Mapping[str, Any]) -> ModelConfig:
    """The config of a pack that has no config.json beside it, known by the shape of its embedding."""
    embedding = tensors.get("model.embed_tokens.weight")
    found = list(embedding.shape) if embedding is not None else "none"
    known = {}
    for name, fields in BUILTIN_CONFIGS.items():
        shape = [fields["vocab_size"], fields["hidden_size"]]
        if found == shape:
            return parse_config(fields)
        known[name] = shape
    raise UnsupportedModelError(
        f"an FH1W file without a config.json beside it must hold one of the models "
        f"{', '.join(f'{name} (embedding {shape})' for name, shape in known.items())}; found embedding {found}; "
        "put the model's config.json in the same folder"
    )
