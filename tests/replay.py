"""Runs a program's records with the oracle's NumPy ops, one by one: the debugger of a model that is being ported."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from oracle import ops as oracle

from fastcore.model import ops
from fastcore.model.weights import LinearMap

Buffers = dict[Any, np.ndarray]  # what each buffer holds; ("k", layer), ("v", layer): the cache


def dense(weights: LinearMap) -> np.ndarray:
    """A map that is not packed, as f64 [out_features, in_features]."""
    parts = [tensor.f32().astype(np.float64) for tensor in weights.tensors]
    if not weights.in_turns:
        return np.concatenate(parts)
    rows = -(-len(parts[0]) // 16) * 16
    padded = [np.concatenate([part, np.zeros((rows - len(part), part.shape[1]))]) for part in parts]
    return np.stack([part.reshape(-1, 16, part.shape[1]) for part in padded], axis=1).reshape(-1, parts[0].shape[1])


class Replay:
    """One step of one sequence from position 0: `run` gives the output of every row.

    cos, sin: [num_rows, head_dim / 2]. watch: called with each op and its result, as it is computed.
    """

    def __init__(
        self,
        token_ids: Sequence[int],
        cos: np.ndarray,
        sin: np.ndarray,
        watch: Callable[[ops.Op, np.ndarray], None] = lambda op, result: None,
    ) -> None:
        self.token_ids, self.cos, self.sin, self.watch = list(token_ids), cos, sin, watch
        self.held: Buffers = {}

    def run(self, records: Sequence[ops.Op]) -> np.ndarray:
        for op in records:
            getattr(self, f"_{op.kind}")(op)
            self.watch(op, self.held[getattr(op, "dst", getattr(op, "src", None))])
        return self.held[ops.OUTPUT]

    def _heads_of(self, x: np.ndarray, head_dim: int) -> np.ndarray:
        return x.reshape(len(x), -1, head_dim)

    def _embed(self, op: ops.Embed) -> None:
        self.held[op.dst] = dense(op.weights)[self.token_ids] * op.scale

    def _norm(self, op: ops.Norm) -> None:
        self.held[op.dst] = oracle.rms_norm(self.held[op.src], op.norm, op.eps) * op.src_scale

    def _linear(self, op: ops.Linear) -> None:
        x = self.held[op.src]
        x = (x if op.norm is None else oracle.rms_norm(x, op.norm, op.eps)) * op.src_scale
        y = oracle.linear(x, dense(op.weights), op.bias)
        if op.epilogue == "swiglu":
            pairs = y.reshape(len(y), -1, 2, 16)
            width = -(-op.weights.out_features // 2)
            gate, up = (pairs[:, :, i].reshape(len(y), width) for i in range(2))
            self.held[op.dst] = oracle.swiglu(op.gate_scale * gate, up)[:, : self.widths[op.dst]]
            return
        y = y * (1 if op.column_scale is None else op.column_scale) * op.scale
        self.held[op.dst] = self.held[op.dst] + y if op.epilogue == "add" else y
        if op.heads is not None:
            self._finish(op.dst, op.heads, op.eps)

    def _add(self, op: ops.Add) -> None:
        self.held[op.dst] = self.held[op.dst] + op.scale * self.held[op.src]

    def _glu(self, op: ops.Glu) -> None:
        self.held[op.dst] = oracle.swiglu(op.gate_scale * self.held[op.src], self.held[op.src2])

    def _head_norm(self, op: ops.HeadNorm) -> None:
        x = self._heads_of(self.held[op.src], op.head_dim)
        self.held[op.src] = (oracle.rms_norm(x, op.norm, op.eps) * op.scale).reshape(len(x), -1)

    def _rope(self, op: ops.Rope) -> None:
        x = self._heads_of(self.held[op.src], op.head_dim)
        self.held[op.src] = oracle.rope(x, self.cos, self.sin).reshape(len(x), -1)

    def _cache_write(self, op: ops.CacheWrite) -> None:
        self.held["k", op.layer] = self._heads_of(self.held[op.src], op.head_dim)
        self.held["v", op.layer] = self._heads_of(self.held[op.src2], op.head_dim)

    def _heads(self, op: ops.FinishHeads) -> None:
        self._finish(op.src, op.heads, op.eps)

    def _finish(self, number: int, heads: ops.Heads, eps: float) -> None:
        x = self._heads_of(self.held[number], heads.head_dim)
        q, k, v = np.split(x, [heads.num_heads, heads.num_heads + heads.num_kv_heads], axis=1)
        q = q if heads.q_norm is None else oracle.rms_norm(q, heads.q_norm, eps)
        k = (k if heads.k_norm is None else oracle.rms_norm(k, heads.k_norm, eps)) * heads.key_scale
        q, k = (oracle.rope(each, self.cos, self.sin) for each in (q, k))
        self.held["k", heads.layer], self.held["v", heads.layer] = k, v
        self.held[number] = np.concatenate([q, k, v], axis=1).reshape(len(x), -1)

    def _attention(self, op: ops.Attention) -> None:
        q = self._heads_of(self.held[op.src][:, : op.num_heads * op.head_dim], op.head_dim)
        q = q * (op.score_scale * op.head_dim**0.5)  # the oracle divides by the root
        mixed = oracle.attention(q, self.held["k", op.layer], self.held["v", op.layer], op.causal)
        self.held[op.dst] = mixed.reshape(len(mixed), -1)

    def _argmax(self, op: ops.Argmax) -> None:
        self.held["best"] = self.held[op.src].argmax(axis=1)

    def _conv(self, op: ops.Conv) -> None:
        x = self.held[op.src][:, op.column : op.column + op.n]
        self.held[op.dst] = oracle.silu(oracle.causal_conv1d(x, op.conv.T, op.bias)[0])

    def _time_steps(self, op: ops.TimeSteps) -> None:
        x = self.held[op.src][:, op.column : op.column + op.n]
        step = np.clip(oracle.softplus(x + op.bias), op.low, op.high)
        self.held[op.dst] = np.concatenate([step, np.exp(step * op.rate)], axis=1)
        self.held["rate", op.dst] = op.rate

    def _scan(self, op: ops.Scan) -> None:
        features, d_bc = op.num_heads * op.head_dim, op.num_groups * op.d_state
        x, b, c = np.split(self.held[op.src], [features, features + d_bc], axis=1)
        b, c = (part.reshape(len(x), op.num_groups, op.d_state) for part in (b, c))
        step, rate = self.held[op.src2][:, : op.num_heads], self.held["rate", op.src2]
        y, _ = oracle.selective_scan(self._heads_of(x, op.head_dim), step, rate, b, c, op.skip)
        y = y.reshape(len(x), features)
        self.held[op.dst] = y if op.gate is None else y * oracle.silu(self.held[op.gate][:, :features])

    def _gated_norm(self, op: ops.GatedNorm) -> None:
        gate = self.held[op.gate][:, : op.n]
        arguments = self.held[op.src], gate, op.norm, op.eps, op.num_groups, op.norm_before_gate
        self.held[op.dst] = oracle.gated_rms_norm(*arguments)

    widths: dict[int, int]


def replay(program: Any, token_ids: Sequence[int], cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """The output [num_rows, width] of a program whose maps are not packed, all rows asked for."""
    run = Replay(token_ids, cos, sin)
    run.widths = {number: buffer.width for number, buffer in enumerate(program.buffers)}
    return run.run(program.ops)
