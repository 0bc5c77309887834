"""A .gguf file of a folder's weights, which llama.cpp can run beside fastcore."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore.checkpoints.gguf_names import gguf_name
from fastcore.checkpoints.open import load_config, open_checkpoint
from fastcore.errors import UnsupportedModelError
from fastcore.model.config import ModelConfig
from fastcore.model.rope import inv_freq

__all__ = ["write_gguf"]


def write_gguf(folder: Path, file: Path) -> Path:
    """Write a llama, qwen2 or qwen3 folder as .gguf: the same matrices bit for bit, vectors as f32, no tokenizer.

    Raises UnsupportedModelError for another model.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    config = load_config(folder)
    if config.model_type not in ("llama", "qwen2", "qwen3") or config.is_token_classifier:
        raise UnsupportedModelError(f"no .gguf is written of {config.model_type} models")
    writer = GGUFWriter(file, config.model_type)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope.rope_theta)
    writer.add_tokenizer_model("none")
    if (factors := _rope_factors(config)) is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    with open_checkpoint(folder) as checkpoint:
        for name, tensor in checkpoint.items():
            if len(tensor.shape) == 1:
                writer.add_tensor(_gguf_name(config, name), _interleaved(name, tensor.f32(), config))
                continue
            values = _interleaved(name, tensor.array, config)
            kind = GGMLQuantizationType[tensor.dtype]
            writer.add_tensor(_gguf_name(config, name), np.ascontiguousarray(values).view(np.uint8), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return file


def _gguf_name(config: ModelConfig, name: str) -> str:
    found = gguf_name(config.model_type, name)
    if found is None:
        raise UnsupportedModelError(f"tensor {name!r} has no counterpart in .gguf files")
    return found


def _interleaved(name: str, values: NDArray[Any], config: ModelConfig) -> NDArray[Any]:
    """Rows of the llama architecture's queries and keys as .gguf orders them: (0, h, 1, h + 1, ...) of each head."""
    heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
    if config.model_type != "llama" or not (".q_proj." in name or ".k_proj." in name):
        return values
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _rope_factors(config: ModelConfig) -> NDArray[np.float32] | None:
    """What each rotary frequency is divided by: f32 [head_dim / 2], or None where nothing is scaled."""
    if config.rope.rope_type == "default":
        return None
    frequencies, scaling = inv_freq(config.rope, config.head_dim)
    if config.model_type != "llama" or config.rope.rope_type == "dynamic" or scaling != 1.0:
        raise UnsupportedModelError(
            f"no .gguf is written of {config.rope.rope_type} rope in {config.model_type} models"
        )
    plain = config.rope.rope_theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    return (plain / frequencies).astype(np.float32)
