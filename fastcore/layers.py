"""Blocks that model files are made of, recorded op by op. Attributes are named by the checkpoint's tensors."""

from dataclasses import dataclass

from fastcore.config import ModelConfig
from fastcore.program import Heads, Recorder
from fastcore.weights import Weights

__all__ = ["Buffers", "attention", "swiglu_mlp"]


@dataclass(frozen=True)
class Buffers:
    """The row buffers of a transformer step."""

    hidden: int  # the residual stream
    qkv: int
    attention: int  # heads, side by side
    activation: int  # of the MLP

    @classmethod
    def record(cls, recorder: Recorder, config: ModelConfig) -> "Buffers":
        q = config.num_attention_heads * config.head_dim
        return cls(
            hidden=recorder.buffer(config.hidden_size),
            qkv=recorder.buffer(q + 2 * config.num_key_value_heads * config.head_dim),
            attention=recorder.buffer(q),
            activation=recorder.buffer(config.intermediate_size),
        )


def attention(
    recorder: Recorder, buffers: Buffers, config: ModelConfig, weights: Weights, prefix: str, layer: int, qk_norm: bool
) -> None:
    """hidden += o_proj(attention(rms_norm(hidden))), with the weights under `prefix`."""
    name = f"{prefix}self_attn."
    heads, kv_heads, head_dim, hidden = (
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.hidden_size,
    )
    rows = {"q_proj": heads * head_dim, "k_proj": kv_heads * head_dim, "v_proj": kv_heads * head_dim}
    shape = Heads(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        layer=layer if config.is_causal else 0,  # without a past, every layer can use the same cache
        causal=config.is_causal,
        q_norm=weights.vector(f"{name}q_norm.weight", head_dim) if qk_norm else None,
        k_norm=weights.vector(f"{name}k_norm.weight", head_dim) if qk_norm else None,
        eps=config.rms_norm_eps,
    )
    recorder.qkv(
        buffers.hidden,
        buffers.qkv,
        weights.linear([(f"{name}{part}.weight", n) for part, n in rows.items()], hidden),
        shape,
        bias=weights.stacked_bias([(f"{name}{part}.bias", n) for part, n in rows.items()]) if config.qkv_bias else None,
        norm=weights.vector(f"{prefix}input_layernorm.weight", hidden),
        eps=config.rms_norm_eps,
    )
    recorder.attention(buffers.qkv, buffers.attention, shape)
    recorder.linear(
        buffers.attention,
        buffers.hidden,
        weights.linear([(f"{name}o_proj.weight", hidden)], heads * head_dim),
        bias=weights.vector(f"{name}o_proj.bias", hidden) if config.o_bias else None,
        add=True,
    )


def swiglu_mlp(recorder: Recorder, buffers: Buffers, config: ModelConfig, weights: Weights, prefix: str) -> None:
    """hidden += down_proj(silu(gate_proj(x)) * up_proj(x)), x = rms_norm(hidden)."""
    name, hidden, inner = f"{prefix}mlp.", config.hidden_size, config.intermediate_size
    gate, up = f"{name}gate_proj.", f"{name}up_proj."
    recorder.swiglu(
        buffers.hidden,
        buffers.activation,
        weights.gate_up(f"{gate}weight", f"{up}weight", inner, hidden),
        bias=weights.gate_up_bias(f"{gate}bias", f"{up}bias", inner) if config.mlp_bias else None,
        norm=weights.vector(f"{prefix}post_attention_layernorm.weight", hidden),
        eps=config.rms_norm_eps,
    )
    recorder.linear(
        buffers.activation,
        buffers.hidden,
        weights.linear([(f"{name}down_proj.weight", hidden)], inner),
        bias=weights.vector(f"{name}down_proj.bias", hidden) if config.mlp_bias else None,
        add=True,
    )
