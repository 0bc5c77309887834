"""GGUF files under Hugging Face names: tensors, config, tokenizer and chat template.

Types that int8 and int4 maps can hold stay what they are (gguf_blocks.py); the `gguf` package dequantises the others.
Known architectures: llama, qwen2, qwen3. What would change the result and has no counterpart
here is an UnsupportedModelError naming it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore.checkpoints.checkpoint import Checkpoint, TokenizerParts
from fastcore.checkpoints.fields import MAX_SIZE, Fields
from fastcore.checkpoints.gguf_blocks import EXACT, Elements
from fastcore.checkpoints.gguf_header import StoredTensor, read_header
from fastcore.checkpoints.gguf_names import ARCHITECTURES, hf_name
from fastcore.checkpoints.gguf_tokenizer import build_tokenizer, special_id, strings
from fastcore.checkpoints.hf_config import parse_fields
from fastcore.checkpoints.mapped import MappedFile
from fastcore.errors import CheckpointError, UnsupportedModelError
from fastcore.model.config import MAX_POSITIONS, ModelConfig, RopeConfig
from fastcore.model.rope import inv_freq

__all__ = ["GgufFile", "GgufTensor", "open_gguf"]

_ROPE_FACTORS = "rope_freqs.weight"  # llama3 scaling, written out as one factor per frequency

# Metadata of an architecture that says nothing about the result
_HARMLESS = ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout")

# What config.json calls the metadata of an architecture
_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "rope_scaling": "rope.scaling",
    "rope_scaling.factor": "rope.scaling.factor",
    "rope_scaling.rope_type": "rope.scaling.type",
    "rope_scaling.original_max_position_embeddings": "rope.scaling.original_context_length",
}
# The linear maps whose rows llama files interleave, and how many heads each has
_HEADS = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
_TOKEN_KEYS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}


class GgufTensor:
    """One tensor under its Hugging Face name. shape: as in Hugging Face, [out_features, in_features].

    dtype: INT8 or INT4 where the file's blocks are groups of such maps, F32 else: `array` is dequantised then.
    """

    def __init__(self, name: str, stored: StoredTensor, heads: int | None) -> None:
        from gguf import GGMLQuantizationType

        self.name = name
        self.shape = stored.shape
        self.nbytes = math.prod(stored.byte_shape)
        self._stored = stored
        self._heads = heads
        self._kind = GGMLQuantizationType(stored.type)
        self._elements: Elements | None
        self.dtype, self._elements = EXACT.get(self._kind.name, ("F32", None))

    @property
    def auto_dtype(self) -> str:
        """What dtype "auto" packs it as: its own if there is a format that holds it, else bf16."""
        kept = {"F32": "f32", "F16": "f16"} | {kind: dtype.lower() for kind, (dtype, _) in EXACT.items()}
        return kept.get(self._kind.name, "bf16")

    @property
    def array(self) -> NDArray[Any]:
        """The groups, rows in half-split order, or the values as `f32` gives them."""
        if self._elements is None:
            return self.f32()
        try:
            return self._half_split(self._elements(self._stored.data))
        except UnsupportedModelError as error:
            raise self._unreadable(error) from error

    def release(self) -> None:
        """Let the stored bytes go from resident memory. They stay readable."""
        self._stored.file.release(self._stored.begin, self._stored.begin + self.nbytes)

    def f32(self) -> NDArray[np.float32]:
        """The values as a new f32 array, dequantised, rotary rows in half-split order."""
        from gguf.quants import dequantize

        try:
            values = np.array(dequantize(self._stored.data, self._kind), np.float32).reshape(self.shape)
        except (NotImplementedError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise self._unreadable(error) from error
        return self._half_split(values)

    def _half_split(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows (0, h, 1, h + 1, ...) of a head, as llama files interleave halves, to (0, 1, ..., h, h + 1, ...)."""
        if self._heads is None:
            return rows
        half = self.shape[0] // self._heads // 2
        by_head = rows.reshape(self._heads, half, 2, *rows.shape[1:])
        return np.ascontiguousarray(by_head.swapaxes(1, 2)).reshape(rows.shape)

    def _unreadable(self, error: Exception) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"tensor {self._stored.name!r} is stored as {self._kind.name}, which cannot be read: {error}"
        )


def open_gguf(path: Path) -> GgufFile:
    """A .gguf file as what it is, for those who want more of it than of any checkpoint."""
    file = MappedFile(path)
    try:
        return GgufFile(path, file)
    except BaseException:
        file.close()
        raise


class GgufFile(Checkpoint):
    """An open GGUF file: {Hugging Face name: tensor}, in file order.

    hf_config: what config.json of the same model says, metadata and tensors taken together. generation_config: what
    generation_config.json says, the special token ids.
    """

    def __init__(self, path: Path, file: MappedFile) -> None:
        self._metadata, stored = read_header(file)
        self._where = str(path)
        self.architecture = self._architecture()
        factors = stored.pop(_ROPE_FACTORS, None)
        self.generation_config = self._read_generation_config()
        self.hf_config = self._read_config(stored, factors)
        tensors = {}
        for name, tensor in stored.items():
            renamed = hf_name(self.architecture, name)
            if renamed is None:
                raise UnsupportedModelError(f"{path}: tensor {name!r:.200} has no place in a {self.architecture} model")
            tensors[renamed] = self._tensor(renamed, tensor)
        super().__init__(path, tensors, (file,))

    def _fields(self, prefix: str) -> Fields:
        """The metadata under a prefix, each field to be taken once."""
        size = len(prefix)
        values = {key[size:]: value for key, value in self._metadata.items() if key.startswith(prefix)}
        return Fields(values, self._where, prefix)

    def _architecture(self) -> str:
        fields = self._fields("")
        architecture = fields.string("general.architecture", "")
        if architecture not in ARCHITECTURES:
            raise UnsupportedModelError(
                f"{self._where}: architecture {architecture!r:.80} is not supported; known: {', '.join(ARCHITECTURES)}"
            )
        if (parts := fields.integer("split.count", 1, low=0)) > 1:
            raise UnsupportedModelError(f"{self._where} is one of {parts} parts; merge them into one file first")
        return architecture

    def _tensor(self, name: str, stored: StoredTensor) -> GgufTensor:
        kind = next((kind for kind in _HEADS if f".{kind}." in name), None) if self.architecture == "llama" else None
        if kind is None:
            return GgufTensor(name, stored, None)
        field = _HEADS[kind]
        heads = self.hf_config[field]
        if not stored.shape or stored.shape[0] % (2 * heads):
            raise CheckpointError(
                f"{self._where}: tensor {stored.name!r} has shape {list(stored.shape)}, but {self.architecture}."
                f"{_KEYS[field]} is {heads}; expected rows for as many heads"
            )
        return GgufTensor(name, stored, heads)

    # ------------------------------------------------------------------ config

    def _parse(self) -> ModelConfig:
        keys = {name: f"{self.architecture}.{key}" for name, key in _KEYS.items()}
        keys |= {name: f"tokenizer.ggml.{key}" for name, key in _TOKEN_KEYS.items()}
        keys["vocab_size"] = "the number of rows of token_embd.weight"
        generation = Fields(self.generation_config, self._where, names=keys)
        return parse_fields(Fields(self.hf_config, self._where, names=keys), generation, Fields({}, self._where))

    def _read_config(self, stored: Mapping[str, StoredTensor], factors: StoredTensor | None) -> dict[str, Any]:
        """config.json of the file. Every key of the architecture is taken, or harmless, or an error."""
        fields = self._fields(f"{self.architecture}.")
        hidden_size, heads = self._size(fields, "embedding_length"), self._size(fields, "attention.head_count")
        head_dim = self._size(fields, "attention.key_length", max(hidden_size // heads, 1))
        for name in ("attention.value_length", "rope.dimension_count"):
            if (found := self._size(fields, name, head_dim)) != head_dim:
                raise fields.unsupported(name, found, f"supported: the head size, {head_dim}")
        if not fields.boolean("attention.causal", True):
            raise fields.unsupported("attention.causal", False, "supported: true")
        if "token_embd.weight" not in stored or len(stored["token_embd.weight"].shape) != 2:
            raise CheckpointError(f"{self._where}: there is no matrix 'token_embd.weight'")
        config: dict[str, Any] = {
            "architectures": [ARCHITECTURES[self.architecture]],
            "model_type": self.architecture,
            "vocab_size": stored["token_embd.weight"].shape[0],
            "hidden_size": hidden_size,
            "intermediate_size": self._size(fields, "feed_forward_length"),
            "num_hidden_layers": self._size(fields, "block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._size(fields, "attention.head_count_kv", heads),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": _number(fields, "attention.layer_norm_rms_epsilon", None),
            "max_position_embeddings": self._size(fields, "context_length", high=MAX_POSITIONS),
            "tie_word_embeddings": "output.weight" not in stored,
            "rope_theta": _number(fields, "rope.freq_base", 10000.0),
            "rope_scaling": _rope_scaling(fields),
        }
        if config["rms_norm_eps"] is None:
            raise fields.missing("attention.layer_norm_rms_epsilon", "a number above 0")
        if factors is not None:
            config["rope_scaling"] = self._llama3_scaling(factors, config)
        if self.architecture != "qwen2":
            config["attention_bias"] = "blk.0.attn_q.bias" in stored
        if self.architecture == "llama":
            config["mlp_bias"] = "blk.0.ffn_up.bias" in stored
        for name in _HARMLESS:
            fields.take(name)
        for name, value in fields.values().items():
            if value:
                raise fields.unsupported(name, value, "supported: without it")
        return config | self.generation_config

    @staticmethod
    def _size(fields: Fields, name: str, default: int | None = None, high: int = MAX_SIZE) -> int:
        """A size, which some files give layer by layer."""
        value = fields.take(name)
        if isinstance(value, list):
            if not value or value != [value[0]] * len(value):
                raise fields.unsupported(name, value, "supported: one number for all layers")
            value = value[0]
        size = Fields({name: value}, fields.where, fields.prefix).integer(name, default, high=high)
        if size is None:
            raise fields.missing(name, f"an integer from 1 to {high}")
        return size

    def _llama3_scaling(self, factors: StoredTensor, config: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of llama3 scaling from its per-frequency factors: the published ones, tried against them."""
        values, head_dim, theta = (
            GgufTensor(_ROPE_FACTORS, factors, None).f32(),
            config["head_dim"],
            config["rope_theta"],
        )
        scaling: dict[str, Any] = {
            "factor": float(values.max(initial=1)),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        if values.shape != (head_dim // 2,) or not 1 <= scaling["factor"] < 1e6 or theta <= 1:
            known = False
        else:
            plain = RopeConfig(rope_theta=theta)
            scaled = RopeConfig(rope_type="llama3", rope_theta=theta, **scaling)
            known = np.allclose(values, inv_freq(plain, head_dim)[0] / inv_freq(scaled, head_dim)[0], rtol=1e-4)
        if not known:
            raise UnsupportedModelError(
                f"{self._where}: tensor {_ROPE_FACTORS!r} is not the scaling of a known Llama 3"
            )
        return {"rope_type": "llama3", **scaling}

    def _read_generation_config(self) -> dict[str, Any]:
        fields = self._fields("tokenizer.ggml.")
        bos, eos, eot, pad = (special_id(fields, name) for name in ("bos", "eos", "eot", "padding"))
        stops = [token for token in dict.fromkeys((eos, eot)) if token is not None]
        ids = {"bos_token_id": bos, "eos_token_id": stops[0] if len(stops) == 1 else stops or None, "pad_token_id": pad}
        return {name: value for name, value in ids.items() if value is not None}

    # ------------------------------------------------------------------ tokenizer

    def tokenizer(self) -> TokenizerParts | None:
        """Rebuilt from the metadata; None for a file that has no tokens."""
        fields = self._fields("tokenizer.ggml.")
        if "tokens" not in fields:
            return None
        backend, aliases = build_tokenizer(fields)
        return TokenizerParts(backend, self.tokenizer_config(), aliases=aliases)

    def companions(self) -> dict[str, bytes]:
        """Both configs, and the tokenizer's files where there is one."""
        parts = self.tokenizer()
        files: dict[str, Mapping[str, Any]] = {
            "config.json": self.hf_config | {"torch_dtype": "bfloat16"},
            "generation_config.json": self.generation_config,
        }
        if parts is not None:
            if parts.aliases:
                raise UnsupportedModelError(
                    f"{self.path} repeats a token, which tokenizer.json cannot hold; it can be loaded as it is, and "
                    "not written as a folder"
                )
            files["tokenizer_config.json"] = parts.config
        made = {name: f"{json.dumps(value, indent=2, ensure_ascii=False)}\n".encode() for name, value in files.items()}
        return made if parts is None else made | {"tokenizer.json": parts.backend.to_str(pretty=True).encode()}

    def tokenizer_config(self) -> dict[str, Any]:
        """tokenizer_config.json: special tokens by name, and the chat templates."""
        fields = self._fields("tokenizer.ggml.")
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        tokens = strings(fields, "tokens")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            token = special_id(fields, key)
            if token is not None and token < len(tokens):
                config[f"{name}_token"] = tokens[token]
        config["model_max_length"] = self.config().context_length
        fields = self._fields("tokenizer.")
        default = fields.string("chat_template", None)
        named = {name: fields.string(f"chat_template.{name}", "") for name in strings(fields, "chat_templates")}
        if named:
            both = {"default": default, **named} if default is not None else named
            config["chat_template"] = [{"name": name, "template": text} for name, text in both.items()]
        elif default is not None:
            config["chat_template"] = default
        return config


def _number(fields: Fields, name: str, default: float | None) -> float | None:
    """A number. GGUF keeps them in f32: 1e-5 must not become 9.99999974e-06."""
    value = fields.number(name, default)
    return value if value is None else float(str(np.float32(value)))


def _rope_scaling(fields: Fields) -> dict[str, Any] | None:
    kind = fields.string("rope.scaling.type", "none")
    factor = _number(fields, "rope.scaling.factor", None) or _number(fields, "rope.scale_linear", None)
    original = fields.integer("rope.scaling.original_context_length", None, high=MAX_POSITIONS)
    if kind == "none" and factor in (None, 1.0):
        return None
    if kind in ("linear", "none"):
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise fields.unsupported("rope.scaling.type", kind, "supported: linear, yarn")
