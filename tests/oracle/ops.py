"""The operations the models are made of, one formula each.

Every op takes `dtype`: inputs are converted to it and all arithmetic happens in it.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np
from numpy.typing import DTypeLike


def bind(dtype: DTypeLike) -> SimpleNamespace:
    """The ops below with `dtype` filled in."""
    ops = (
        linear,
        silu,
        softplus,
        softmax,
        swiglu,
        rms_norm,
        gated_rms_norm,
        rope,
        attention,
        causal_conv1d,
        selective_scan,
    )
    return SimpleNamespace(**{op.__name__: partial(op, dtype=dtype) for op in ops})


def linear(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None, dtype: DTypeLike = np.float64
) -> np.ndarray:
    """[..., in_features] with weight [out_features, in_features] -> [..., out_features]."""
    y = np.asarray(x, dtype) @ np.asarray(weight, dtype).T
    return y if bias is None else y + np.asarray(bias, dtype)


def silu(x: np.ndarray, dtype: DTypeLike = np.float64) -> np.ndarray:
    """x * sigmoid(x), with an exp that cannot overflow."""
    x = np.asarray(x, dtype)
    e = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1, e) / (1 + e)


def softplus(x: np.ndarray, dtype: DTypeLike = np.float64) -> np.ndarray:
    """log(1 + exp(x))."""
    return np.logaddexp(0, np.asarray(x, dtype), dtype=dtype)


def softmax(x: np.ndarray, dtype: DTypeLike = np.float64) -> np.ndarray:
    """Over the last axis. A row that is -inf throughout gives zeros."""
    x = np.asarray(x, dtype)
    largest = x.max(-1, keepdims=True)
    e = np.exp(x - np.where(np.isfinite(largest), largest, 0))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def swiglu(gate: np.ndarray, up: np.ndarray, dtype: DTypeLike = np.float64) -> np.ndarray:
    return silu(gate, dtype) * np.asarray(up, dtype)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float, dtype: DTypeLike = np.float64) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    x = np.asarray(x, dtype)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * np.asarray(weight, dtype)


def gated_rms_norm(
    x: np.ndarray,
    gate: np.ndarray,
    weight: np.ndarray,
    eps: float,
    num_groups: int = 1,
    norm_before_gate: bool = False,
    dtype: DTypeLike = np.float64,
) -> np.ndarray:
    """RMSNorm in each of `num_groups` equal slices of x [num_tokens, features], times silu(gate) before or after it."""
    x, gate, weight = (np.asarray(a, dtype) for a in (x, gate, weight))
    if not norm_before_gate:
        x = x * silu(gate, dtype)
    grouped = rms_norm(x.reshape(len(x), num_groups, -1), weight.reshape(num_groups, -1), eps, dtype).reshape(x.shape)
    return grouped * silu(gate, dtype) if norm_before_gate else grouped


def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, dtype: DTypeLike = np.float64) -> np.ndarray:
    """Rotate x [num_tokens, num_heads, head_dim] by cos, sin [num_tokens, head_dim/2]: i pairs with i + head_dim/2."""
    first, second = np.split(np.asarray(x, dtype), 2, axis=-1)
    cos, sin = (np.asarray(table, dtype)[:, None, :] for table in (cos, sin))
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = True, dtype: DTypeLike = np.float64
) -> np.ndarray:
    """Grouped-query attention of the last num_queries of num_tokens positions over all of them.

    q: [num_queries, num_heads, head_dim]; k, v: [num_tokens, num_key_value_heads, head_dim] -> q's shape. Query head h
    reads key-value head h // (num_heads / num_key_value_heads). causal: a query sees its own position and earlier ones.
    """
    q, k, v = (np.asarray(a, dtype) for a in (q, k, v))
    num_queries, num_heads, head_dim = q.shape
    group = num_heads // k.shape[1]
    k, v = (np.repeat(a, group, axis=1) for a in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(head_dim, dtype=dtype)
    if causal:
        query_position = np.arange(len(k) - num_queries, len(k))[:, None]
        scores = np.where(np.arange(len(k)) <= query_position, scores, -np.inf)
    return np.einsum("hqk,khd->qhd", softmax(scores, dtype), v)


def in_cache(x: np.ndarray, kv_dtype: str) -> np.ndarray:
    """What keys or values [..., head_dim] are once they lie in a cache of f32, f16 or int8.

    int8: scale * q for every 32 features, scale = largest / 127, in f32 as it is stored.
    """
    if kv_dtype != "int8":
        return x.astype({"f32": np.float32, "f16": np.float16}[kv_dtype]).astype(np.float32)
    groups = np.pad(x.astype(np.float32), [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 32)])
    groups = groups.reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(groups).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(largest > 0, np.rint(groups * (np.float32(127) / largest)), 0).astype(np.float32)
    return (q * (largest / np.float32(127))).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]


def causal_conv1d(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    state: np.ndarray | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[np.ndarray, np.ndarray]:
    """Depthwise: y[t, c] = bias[c] + sum over k of weight[c, k] * x[t - (kernel - 1) + k, c].

    x: [num_tokens, channels]; weight: [channels, kernel]; state: the kernel - 1 inputs before x, zeros if None.
    Returns y and the state after x.
    """
    x, weight = np.asarray(x, dtype), np.asarray(weight, dtype)
    channels, kernel = weight.shape
    before = np.zeros((kernel - 1, channels), dtype) if state is None else np.asarray(state, dtype)
    window = np.concatenate([before, x])
    y = sum(window[k : k + len(x)] * weight[:, k] for k in range(kernel))
    return (y if bias is None else y + np.asarray(bias, dtype)), window[len(x) :]


def selective_scan(
    x: np.ndarray,
    dt: np.ndarray,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    D: np.ndarray,
    state: np.ndarray | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[np.ndarray, np.ndarray]:
    """The Mamba-2 recurrence, one token after the other.

        state = exp(dt A) state + dt x B^T        y = state C + D x

    x: [num_tokens, num_heads, head_dim]; dt: [num_tokens, num_heads], positive; A (negative), D: [num_heads];
    B, C: [num_tokens, num_groups, d_state]; state: [num_heads, head_dim, d_state], zeros if None.
    Returns y, of x's shape, and the state after x.
    """
    x, dt, A, B, C, D = (np.asarray(a, dtype) for a in (x, dt, A, B, C, D))
    num_tokens, num_heads, head_dim = x.shape
    B, C = (np.repeat(a, num_heads // a.shape[1], axis=1) for a in (B, C))
    state = np.zeros((num_heads, head_dim, B.shape[-1]), dtype) if state is None else np.array(state, dtype)
    y = np.empty_like(x)
    for t in range(num_tokens):
        decay = np.exp(dt[t] * A)
        state = decay[:, None, None] * state + (dt[t, :, None] * x[t])[:, :, None] * B[t][:, None, :]
        y[t] = (state * C[t][:, None, :]).sum(-1) + D[:, None] * x[t]
    return y, state
