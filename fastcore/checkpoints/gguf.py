"""GGUF files under Hugging Face names: tensors, config.json, tokenizer and chat template.

Values are dequantised by the `gguf` package. Known architectures: llama, qwen2, qwen3. What would change the result and
has no counterpart here is an UnsupportedModelError naming it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcore.checkpoints.folder import MappedFile
from fastcore.checkpoints.gguf_header import StoredTensor, read_header
from fastcore.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    import tokenizers

__all__ = ["GgufFile", "GgufTensor", "write_folder"]

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"  # llama3 scaling, written out as one factor per frequency

# Metadata of an architecture that says nothing about the result
_HARMLESS = {"vocab_size", "rope.scaling.finetuned", "tensor_data_layout"}


class GgufTensor:
    """One tensor under its Hugging Face name. shape: as in Hugging Face, [out_features, in_features]."""

    def __init__(self, name: str, stored: StoredTensor, heads: int | None) -> None:
        self.name = name
        self.dtype = "F32"  # of `array`
        self.shape = stored.shape
        self._stored = stored
        self._heads = heads

    @property
    def auto_dtype(self) -> str:
        """What dtype "auto" packs it as: its own if it is a float, bf16 if it is quantised."""
        from gguf import GGMLQuantizationType

        floats = {GGMLQuantizationType.F32: "f32", GGMLQuantizationType.F16: "f16"}
        return floats.get(GGMLQuantizationType(self._stored.type), "bf16")

    @property
    def array(self) -> np.ndarray:
        """The values, as `f32` gives them."""
        return self.f32()

    def release(self) -> None:
        """The mapped pages go with the file: its values are always copies."""

    def f32(self) -> np.ndarray:
        """The values as a new f32 array, dequantised, rotary rows in half-split order."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        kind = GGMLQuantizationType(self._stored.type)
        try:
            values = np.array(dequantize(self._stored.data, kind), np.float32).reshape(self.shape)
        except (NotImplementedError, ValueError) as error:
            raise UnsupportedModelError(
                f"tensor {self._stored.name!r} is stored as {kind.name}, which cannot be read: {error}"
            ) from error
        if self._heads is None:
            return values
        # llama files interleave the two halves of each head: rows (0, h, 1, h + 1, ...) -> (0, 1, ..., h, h + 1, ...)
        half = self.shape[0] // self._heads // 2
        return np.ascontiguousarray(
            values.reshape(self._heads, half, 2, *self.shape[1:]).swapaxes(1, 2).reshape(self.shape)
        )


class GgufFile(Mapping[str, GgufTensor]):
    """An open GGUF file: {Hugging Face name: tensor}, in file order."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = MappedFile(self.path)
        self._fields, stored = read_header(self._file)
        self.architecture: str = self._field("general.architecture", "")
        if not isinstance(self.architecture, str) or self.architecture not in _ARCHITECTURES:
            raise UnsupportedModelError(
                f"{self.path}: architecture {self.architecture!r} is not supported; known: {', '.join(_ARCHITECTURES)}"
            )
        if (parts := self._field("split.count", 1)) > 1:
            raise UnsupportedModelError(f"{self.path} is one of {parts} parts; merge them into one file first")
        factors = stored.pop(_ROPE_FACTORS, None)
        self.config = self._read_config(stored, factors)
        self._tensors = {name: self._tensor(name, tensor) for name, tensor in self._renamed(stored)}

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the file; its tensors can no longer be read."""
        self._tensors.clear()
        self._file.close()

    def __getitem__(self, name: str) -> GgufTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    # ------------------------------------------------------------------ tensors

    def _renamed(self, stored: Mapping[str, StoredTensor]) -> Iterator[tuple[str, StoredTensor]]:
        for name, tensor in stored.items():
            stem, _, part = name.rpartition(".")
            if stem in _TENSORS:
                yield f"{_TENSORS[stem]}.{part}", tensor
                continue
            block, _, rest = stem.partition(".")
            layer, _, kind = rest.partition(".")
            if block != "blk" or not layer.isdecimal() or kind not in _LAYER_TENSORS:
                raise UnsupportedModelError(f"{self.path}: tensor {name!r} has no place in a {self.architecture} model")
            yield f"model.layers.{layer}.{_LAYER_TENSORS[kind]}.{part}", tensor

    def _tensor(self, name: str, stored: StoredTensor) -> GgufTensor:
        heads = None
        if self.architecture == "llama" and ".q_proj." in name:
            heads = self.config["num_attention_heads"]
        if self.architecture == "llama" and ".k_proj." in name:
            heads = self.config["num_key_value_heads"]
        tensor = GgufTensor(name, stored, heads)
        if heads is not None and tensor.shape[0] % (2 * heads):
            raise CheckpointError(f"{self.path}: tensor {stored.name!r} has {tensor.shape[0]} rows for {heads} heads")
        return tensor

    # ------------------------------------------------------------------ config

    def _field(self, key: str, default: Any) -> Any:
        return self._fields.get(key, default)

    def _read_config(self, stored: Mapping[str, StoredTensor], factors: StoredTensor | None) -> dict[str, Any]:
        """config.json of the file. Every key of the architecture is taken, or harmless, or an error."""
        prefix = f"{self.architecture}."
        taken = {prefix + name for name in _HARMLESS}
        required = object()

        def take(name: str, default: Any = required) -> Any:
            taken.add(prefix + name)
            value = self._field(prefix + name, default)
            if value is required:
                raise CheckpointError(f"{self.path}: metadata lacks {prefix + name}")
            # GGUF keeps numbers in f32: 1e-5 must not become 9.99999974e-06
            return float(str(np.float32(value))) if isinstance(value, float) else value

        def size(name: str, default: Any = required) -> int:
            value = take(name, default)
            if not isinstance(value, int) or value < 1:
                raise UnsupportedModelError(
                    f"{self.path}: {prefix + name} is {value!r:.80}; one positive number is expected"
                )
            return value

        hidden_size, heads = size("embedding_length"), size("attention.head_count")
        head_dim = size("attention.key_length", max(hidden_size // heads, 1))
        for name in ("attention.value_length", "rope.dimension_count"):
            if take(name, head_dim) != head_dim:
                raise UnsupportedModelError(f"{self.path}: {prefix}{name} differs from the head size {head_dim}")
        if not take("attention.causal", True):
            raise UnsupportedModelError(f"{self.path}: {prefix}attention.causal is false")
        if "token_embd.weight" not in stored or len(stored["token_embd.weight"].shape) != 2:
            raise CheckpointError(f"{self.path}: there is no matrix 'token_embd.weight'")
        config: dict[str, Any] = {
            "architectures": [_ARCHITECTURES[self.architecture]],
            "model_type": self.architecture,
            "vocab_size": stored["token_embd.weight"].shape[0],
            "hidden_size": hidden_size,
            "intermediate_size": size("feed_forward_length"),
            "num_hidden_layers": size("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": size("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": take("attention.layer_norm_rms_epsilon"),
            "max_position_embeddings": size("context_length"),
            "tie_word_embeddings": "output.weight" not in stored,
            "rope_theta": take("rope.freq_base", 10000.0),
            "rope_scaling": self._rope_scaling(take),
        }
        if factors is not None:
            config["rope_scaling"] = self._llama3_scaling(factors, config)
        if self.architecture != "qwen2":
            config["attention_bias"] = "blk.0.attn_q.bias" in stored
        if self.architecture == "llama":
            config["mlp_bias"] = "blk.0.ffn_up.bias" in stored
        for key in self._fields:
            if key.startswith(prefix) and key not in taken and self._field(key, None):
                raise UnsupportedModelError(
                    f"{self.path}: metadata {key} = {self._field(key, None)!r:.80} is not supported"
                )
        return config | self._token_ids

    def _rope_scaling(self, take: Callable[..., Any]) -> dict[str, Any] | None:
        kind = take("rope.scaling.type", "none")
        factor = take("rope.scaling.factor", None) or take("rope.scale_linear", None)
        original = take("rope.scaling.original_context_length", None)
        if kind == "none" and factor in (None, 1.0):
            return None
        if kind in ("linear", "none"):
            return {"rope_type": "linear", "factor": factor}
        if kind == "yarn":
            return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        raise UnsupportedModelError(f"{self.path}: rope scaling {kind!r} is not supported; known: linear, yarn")

    def _llama3_scaling(self, factors: StoredTensor, config: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of llama3 scaling from its per-frequency factors: the published ones, tried against them."""
        values = GgufTensor(_ROPE_FACTORS, factors, None).f32()
        scaling = {
            "rope_type": "llama3",
            "factor": float(values.max(initial=1)),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        expected = _llama3_factors(scaling, config["rope_theta"], config["head_dim"])
        if values.shape != expected.shape or not np.allclose(values, expected, rtol=1e-4):
            raise UnsupportedModelError(f"{self.path}: tensor {_ROPE_FACTORS!r} is not the scaling of a known Llama 3")
        return scaling

    @property
    def _token_ids(self) -> dict[str, Any]:
        bos, eos, eot, pad = (
            self._field(f"tokenizer.ggml.{name}_token_id", None) for name in ("bos", "eos", "eot", "padding")
        )
        stops = [token for token in dict.fromkeys((eos, eot)) if token is not None]
        ids = {"bos_token_id": bos, "eos_token_id": stops[0] if len(stops) == 1 else stops or None, "pad_token_id": pad}
        return {name: value for name, value in ids.items() if value is not None}

    @property
    def generation_config(self) -> dict[str, Any]:
        """generation_config.json: the special token ids."""
        return dict(self._token_ids)

    # ------------------------------------------------------------------ tokenizer

    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer that the metadata describes, as the `tokenizers` library's object."""
        from fastcore.checkpoints.gguf_tokenizer import build_tokenizer

        return build_tokenizer(lambda key, default=None: self._field(f"tokenizer.ggml.{key}", default), str(self.path))

    def tokenizer_config(self) -> dict[str, Any]:
        """tokenizer_config.json: special tokens by name, and the chat templates."""
        tokens = self._field("tokenizer.ggml.tokens", [])
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            token = self._field(f"tokenizer.ggml.{key}_token_id", None)
            if token is not None and 0 <= token < len(tokens):
                config[f"{name}_token"] = tokens[token]
        config["model_max_length"] = self.config["max_position_embeddings"]
        default = self._field("tokenizer.chat_template", None)
        names = self._field("tokenizer.chat_templates", [])
        if names:
            named = {name: self._field(f"tokenizer.chat_template.{name}", "") for name in names}
            both = {"default": default, **named} if default is not None else named
            config["chat_template"] = [{"name": name, "template": text} for name, text in both.items()]
        elif default is not None:
            config["chat_template"] = default
        return config


def _llama3_factors(scaling: Mapping[str, Any], theta: float, head_dim: int) -> np.ndarray:
    """How many times llama3 scaling slows each frequency, f64 [head_dim/2]."""
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    factors: np.ndarray = 1 / ((1 - smooth) / factor + smooth)
    return factors


# ---------------------------------------------------------------------- as a folder


def write_folder(source: GgufFile, folder: Path, done: Callable[[int], object] = lambda nbytes: None) -> None:
    """Write a model folder: bf16 model.safetensors, both configs and the tokenizer's files.

    Tensor by tensor, so one of them is in memory at a time. The same file gives the same bytes. `done` is called after
    each tensor with the bytes written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_bf16(source, folder / "model.safetensors", done)
    _write_json(folder / "config.json", source.config | {"torch_dtype": "bfloat16"})
    _write_json(folder / "generation_config.json", source.generation_config)
    _write_json(folder / "tokenizer_config.json", source.tokenizer_config())
    source.tokenizer().save(str(folder / "tokenizer.json"))


def _write_bf16(tensors: Mapping[str, GgufTensor], path: Path, done: Callable[[int], object]) -> None:
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
            done(file.write(_bf16_bits(tensors[name].f32()).tobytes()))
        file.flush()
        os.fsync(file.fileno())


def _bf16_bits(values: np.ndarray) -> np.ndarray:
    """f32 to bf16, rounded to nearest, ties to even; little-endian uint16 of the same shape."""
    bits = values.view(np.uint32)
    rounded: np.ndarray = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    nans = np.isnan(values)
    if nans.any():  # rounding up could carry a NaN into infinity
        rounded[nans] = bits[nans] >> 16 | 0x40
    return rounded.astype("<u2")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
