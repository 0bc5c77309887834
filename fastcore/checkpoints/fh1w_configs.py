"""The two models that an FH1W pack may hold without a config.json beside it."""

from collections.abc import Mapping
from typing import Any

from fastcore.checkpoints.hf_config import parse_config
from fastcore.errors import UnsupportedModelError
from fastcore.model.config import ModelConfig
from fastcore.model.tensor import Tensor

__all__ = ["BUILTIN_CONFIGS", "builtin_config"]

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


def builtin_config(tensors: Mapping[str, Tensor]) -> ModelConfig:
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
