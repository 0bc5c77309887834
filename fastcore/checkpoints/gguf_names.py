"""The names of tensors in GGUF files and in Hugging Face checkpoints, as the gguf package maps them."""

import re
from functools import cache

__all__ = ["ARCHITECTURES", "gguf_name", "hf_name"]

# general.architecture -> the class in Hugging Face's config
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_LAYER = "model.layers.0."
_STEMS = (
    "model.embed_tokens",
    "model.norm",
    "lm_head",
    *(
        _LAYER + name
        for name in (
            "input_layernorm",
            "post_attention_layernorm",
            *(f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
            *(f"mlp.{part}" for part in ("gate_proj", "up_proj", "down_proj")),
        )
    ),
)
_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.")
_HF_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,4})\.")


@cache
def _stems(architecture: str) -> dict[str, str]:
    """GGUF name without its last part -> Hugging Face's, for layer 0."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    names = get_tensor_name_map(MODEL_ARCH[architecture.upper()], 1)
    return {found: stem for stem in _STEMS if (found := names.get_name(stem)) is not None}


def hf_name(architecture: str, name: str) -> str | None:
    """Hugging Face's name of a tensor of a GGUF file; None for one that has no place in the architecture."""
    stem, _, part = name.rpartition(".")
    layer = _BLOCK.match(stem)
    found = _stems(architecture).get(_BLOCK.sub("blk.0.", stem))
    if found is None:
        return None
    return f"{found.replace(_LAYER, f'model.layers.{layer[1]}.') if layer else found}.{part}"


def gguf_name(architecture: str, name: str) -> str | None:
    """The other way round: the name in a GGUF file; None for a tensor that has none."""
    stem, _, part = name.rpartition(".")
    layer = _HF_LAYER.match(stem)
    first = _HF_LAYER.sub(_LAYER, stem)
    found = next((ours for ours, theirs in _stems(architecture).items() if theirs == first), None)
    if found is None:
        return None
    return f"{found.replace('blk.0.', f'blk.{layer[1]}.') if layer else found}.{part}"
