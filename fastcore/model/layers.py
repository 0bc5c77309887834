"""Blocks that model files are made of, recorded op by op. Attributes are named by the checkpoint's tensors."""

from dataclasses import dataclass

import numpy as np

from fastcore.model.config import MambaConfig, ModelConfig
from fastcore.model.recorder import Heads, Recorder, Vector
from fastcore.model.weights import Weights

__all__ = ["Buffers", "MixerBuffers", "attention", "mixer_in", "mixer_out", "swiglu_mlp"]


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
    recorder: Recorder,
    buffers: Buffers,
    config: ModelConfig,
    weights: Weights,
    prefix: str,
    layer: int,
    *,
    norm: Vector,
    qk_norm: bool = False,
    in_scale: float = 1.0,
    key_scale: float = 1.0,
    out_scale: float = 1.0,
) -> None:
    """hidden += out_scale * o_proj(attention(in_scale * rms_norm(hidden))), with the weights under `prefix`.

    norm: the weight of the rms_norm. key_scale: of the keys, before rotation.
    """
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
        key_scale=key_scale,
    )
    recorder.qkv(
        buffers.hidden,
        buffers.qkv,
        weights.linear([(f"{name}{part}.weight", n) for part, n in rows.items()], hidden),
        shape,
        bias=weights.stacked_bias([(f"{name}{part}.bias", n) for part, n in rows.items()]) if config.qkv_bias else None,
        norm=norm,
        eps=config.rms_norm_eps,
        src_scale=in_scale,
    )
    recorder.attention(buffers.qkv, buffers.attention, shape)
    recorder.linear(
        buffers.attention,
        buffers.hidden,
        weights.linear([(f"{name}o_proj.weight", hidden)], heads * head_dim),
        bias=weights.vector(f"{name}o_proj.bias", hidden) if config.o_bias else None,
        scale=out_scale,
        add=True,
    )


def swiglu_mlp(
    recorder: Recorder,
    buffers: Buffers,
    config: ModelConfig,
    weights: Weights,
    name: str,
    *,
    norm: Vector,
    gate_scale: float = 1.0,
    down_scale: float = 1.0,
) -> None:
    """hidden += down_scale * down_proj(silu(gate_scale * gate_proj(x)) * up_proj(x)), x = rms_norm(hidden)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    gate, up = f"{name}gate_proj.", f"{name}up_proj."
    recorder.swiglu(
        buffers.hidden,
        buffers.activation,
        weights.gate_up(f"{gate}weight", f"{up}weight", inner, hidden),
        bias=weights.gate_up_bias(f"{gate}bias", f"{up}bias", inner) if config.mlp_bias else None,
        gate_scale=gate_scale,
        norm=norm,
        eps=config.rms_norm_eps,
    )
    recorder.linear(
        buffers.activation,
        buffers.hidden,
        weights.linear([(f"{name}down_proj.weight", hidden)], inner),
        bias=weights.vector(f"{name}down_proj.bias", hidden) if config.mlp_bias else None,
        scale=down_scale,
        add=True,
    )


@dataclass(frozen=True)
class MixerBuffers:
    """The shape of a Mamba-2 mixer and its row buffers."""

    mamba: MambaConfig
    projected: int  # gate | x | B | C | dt
    convolved: int  # x | B | C
    steps: int  # step | decay of each head
    scanned: int  # heads, side by side

    @classmethod
    def record(cls, recorder: Recorder, mamba: MambaConfig) -> "MixerBuffers":
        return cls(
            mamba,
            projected=recorder.buffer(mamba.in_proj_size),
            convolved=recorder.buffer(mamba.conv_dim),
            steps=recorder.buffer(2 * mamba.mamba_n_heads),
            scanned=recorder.buffer(mamba.mamba_d_ssm),
        )


def mixer_in(
    recorder: Recorder,
    buffers: Buffers,
    mixer: MixerBuffers,
    config: ModelConfig,
    weights: Weights,
    name: str,
    *,
    norm: Vector,
    in_scale: float,
    section_scales: tuple[float, ...],
) -> None:
    """projected = in_proj(in_scale * rms_norm(hidden)), each of its five sections times its own scale."""
    mamba = mixer.mamba
    rows = mamba.in_proj_size
    d_bc = mamba.mamba_n_groups * mamba.mamba_d_state
    sections = (mamba.mamba_d_ssm, mamba.mamba_d_ssm, d_bc, d_bc, mamba.mamba_n_heads)
    recorder.linear(
        buffers.hidden,
        mixer.projected,
        weights.linear([(f"{name}in_proj.weight", rows)], config.hidden_size),
        bias=weights.vector(f"{name}in_proj.bias", rows) if mamba.mamba_proj_bias else None,
        column_scale=np.repeat(np.array(section_scales, np.float32), sections),
        norm=norm,
        eps=config.rms_norm_eps,
        src_scale=in_scale,
    )


def mixer_out(
    recorder: Recorder,
    buffers: Buffers,
    mixer: MixerBuffers,
    config: ModelConfig,
    weights: Weights,
    name: str,
    *,
    out_scale: float,
) -> None:
    """hidden += out_scale * out_proj(y): convolve, scan and gate what mixer_in projected."""
    mamba = mixer.mamba
    d_ssm, heads, hidden = mamba.mamba_d_ssm, mamba.mamba_n_heads, config.hidden_size
    conv = weights.array(f"{name}conv1d.weight", (mamba.conv_dim, 1, mamba.mamba_d_conv))[:, 0]
    conv_bias = weights.vector(f"{name}conv1d.bias", mamba.conv_dim) if mamba.mamba_conv_bias else None
    recorder.conv(mixer.projected, d_ssm, mixer.convolved, conv.T, conv_bias)
    dt_bias = weights.vector(f"{name}dt_bias", heads)
    rate = -np.exp(weights.vector(f"{name}A_log", heads).astype(np.float64)).astype(np.float32)
    recorder.time_steps(mixer.projected, d_ssm + mamba.conv_dim, mixer.steps, dt_bias, rate, mamba.time_step_limit)
    recorder.scan(
        mixer.convolved,
        mixer.steps,
        mixer.scanned,
        weights.vector(f"{name}D", heads),
        head_dim=mamba.mamba_d_head,
        num_groups=mamba.mamba_n_groups,
        d_state=mamba.mamba_d_state,
        gate=None if mamba.mamba_rms_norm else mixer.projected,
    )
    if mamba.mamba_rms_norm:
        recorder.gated_norm(
            mixer.scanned,
            mixer.projected,
            mixer.scanned,
            weights.vector(f"{name}norm.weight", d_ssm),
            config.rms_norm_eps,
            num_groups=mamba.mamba_n_groups,
            norm_before_gate=mamba.mamba_norm_before_gate,
        )
    recorder.linear(
        mixer.scanned,
        buffers.hidden,
        weights.linear([(f"{name}out_proj.weight", hidden)], d_ssm),
        bias=weights.vector(f"{name}out_proj.bias", hidden) if mamba.projectors_bias else None,
        scale=out_scale,
        add=True,
    )
