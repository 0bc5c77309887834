"""Blocks that several model files are made of. Weights are named by the checkpoint's tensors."""

import numpy as np

from fastcore.model.config import MambaConfig, ModelConfig
from fastcore.model.key_code import key_code
from fastcore.model.ops import Vector
from fastcore.model.recorder import Recorder, Rows
from fastcore.model.weights import Weights

__all__ = ["mixer_in", "mixer_out", "o_proj", "qkv", "swiglu_mlp"]


def qkv(
    m: Recorder,
    x: Rows,
    w: Weights,
    config: ModelConfig,
    *,
    bias: bool = False,
    src_scale: float = 1.0,
    key_scale: float = 1.0,
) -> tuple[Rows, Rows, Rows, tuple[Vector, Vector] | None]:
    """q, k and v of src_scale x: [num_rows, heads * head_dim] with the heads that each has.

    And the key code of such keys, where they have a bias and are rotated without a norm.
    """
    q_size = config.num_attention_heads * config.head_dim
    kv_size, hidden = config.num_key_value_heads * config.head_dim, config.hidden_size
    q_proj = w.linear("q_proj", q_size, hidden, bias=bias)
    k_proj = w.linear("k_proj", kv_size, hidden, bias=bias)
    q = m.linear(x, q_proj, src_scale=src_scale)
    k = m.linear(x, k_proj, src_scale=src_scale, scale=key_scale)
    v = m.linear(x, w.linear("v_proj", kv_size, hidden, bias=bias), src_scale=src_scale)
    code = None
    if q_proj.bias is not None and k_proj.bias is not None:
        code = key_code(config, q_proj.bias, k_proj.bias * np.float32(key_scale))
    return q, k, v, code


def o_proj(
    m: Recorder, mixed: Rows, w: Weights, config: ModelConfig, *, bias: bool = False, scale: float = 1.0
) -> Rows:
    """The heads' results back to [num_rows, hidden_size]."""
    return m.linear(mixed, w.linear("o_proj", config.hidden_size, mixed.width, bias=bias), scale=scale)


def swiglu_mlp(
    m: Recorder,
    x: Rows,
    w: Weights,
    config: ModelConfig,
    *,
    bias: bool = False,
    gate_scale: float = 1.0,
    down_scale: float = 1.0,
) -> Rows:
    """down_scale * down_proj(silu(gate_scale * gate_proj(x)) * up_proj(x))."""
    hidden, inner = config.hidden_size, config.intermediate_size
    gate = m.linear(x, w.linear("gate_proj", inner, hidden, bias=bias))
    up = m.linear(x, w.linear("up_proj", inner, hidden, bias=bias))
    return m.linear(m.glu(gate, up, gate_scale), w.linear("down_proj", hidden, inner, bias=bias), scale=down_scale)


def mixer_in(
    m: Recorder,
    x: Rows,
    w: Weights,
    mamba: MambaConfig,
    *,
    src_scale: float,
    section_scales: tuple[float, ...],
) -> Rows:
    """gate | x | B | C | dt = in_proj(src_scale * x), each section times its own scale."""
    d_ssm, d_bc = mamba.mamba_d_ssm, mamba.mamba_n_groups * mamba.mamba_d_state
    scales = np.repeat(np.array(section_scales, np.float32), (d_ssm, d_ssm, d_bc, d_bc, mamba.mamba_n_heads))
    in_proj = w.linear("in_proj", mamba.in_proj_size, x.width, bias=mamba.mamba_proj_bias)
    return m.linear(x, in_proj, src_scale=src_scale, column_scale=scales)


def mixer_out(
    m: Recorder, projected: Rows, w: Weights, mamba: MambaConfig, hidden_size: int, eps: float, *, scale: float
) -> Rows:
    """scale * out_proj(y): convolve, scan and gate what mixer_in projected."""
    d_ssm, heads, groups = mamba.mamba_d_ssm, mamba.mamba_n_heads, mamba.mamba_n_groups
    conv = w.array("conv1d.weight", (mamba.conv_dim, 1, mamba.mamba_d_conv))[:, 0].T
    conv_bias = w.vector("conv1d.bias", mamba.conv_dim) if mamba.mamba_conv_bias else None
    convolved = m.conv(projected, d_ssm, conv, conv_bias)

    rate = -np.exp(w.vector("A_log", heads).astype(np.float64)).astype(np.float32)
    dt_bias = w.vector("dt_bias", heads)
    steps = m.time_steps(projected, d_ssm + mamba.conv_dim, dt_bias, rate, mamba.time_step_limit)
    gate = None if mamba.mamba_rms_norm else projected
    y = m.scan(
        convolved, steps, w.vector("D", heads), head_dim=mamba.mamba_d_head, num_groups=groups,
        d_state=mamba.mamba_d_state, gate=gate,
    )  # fmt: skip
    if mamba.mamba_rms_norm:
        norm, before = w.vector("norm.weight", d_ssm), mamba.mamba_norm_before_gate
        y = m.gated_norm(y, projected, norm, eps, num_groups=groups, norm_before_gate=before)
    out_proj = w.linear("out_proj", hidden_size, d_ssm, bias=mamba.projectors_bias)
    return m.linear(y, out_proj, scale=scale)
