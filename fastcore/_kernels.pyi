"""Types of the compiled border; what each call does is documented in _kernels.pyx."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore.huge_pages import Arena

BLOCK_TOKENS: int
SEGMENT_TOKENS: int
MAX_HEAD_DIM: int
WEIGHT_BLOCK: int
MAX_THREADS: int
MAX_LABELS: int
DTYPES: dict[str, int]
STORED_AS: dict[str, np.dtype[Any]]

def available_isas() -> tuple[str, ...]: ...
def active_isa() -> str: ...
def use_isa(name: str) -> None: ...
def exp(x: NDArray[np.float32]) -> NDArray[np.float32]: ...
def silu(x: NDArray[np.float32]) -> NDArray[np.float32]: ...
def softplus(x: NDArray[np.float32]) -> NDArray[np.float32]: ...
def argmax(x: NDArray[np.float32]) -> int: ...
def softmax_weights(
    x: NDArray[np.float32], shift: float, scale: float, weights: NDArray[np.float32], sums: NDArray[np.float64]
) -> None: ...
def sum_exp(x: NDArray[np.float32], shift: float, scale: float) -> float: ...
def viterbi(
    logits: NDArray[np.float32],
    transition_scores: NDArray[np.float32],
    start_scores: NDArray[np.float32],
    end_scores: NDArray[np.float32],
) -> NDArray[np.int32]: ...
def time_read(data: NDArray[np.uint8], streams: int, num_threads: int) -> float: ...
def flops_peak(num_threads: int) -> float: ...

class PackedLinear:
    def __init__(self, out_features: int, in_features: int, dtype: str, arena: Arena | None = None) -> None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...
    @property
    def panels(self) -> NDArray[np.uint8]: ...
    @property
    def nbytes(self) -> int: ...
    def pack(
        self,
        src: NDArray[Any],
        src_dtype: str,
        first_row: int = 0,
        group_stride: int = 16,
        num_threads: int = 1,
    ) -> None: ...
    def row(self, index: int) -> NDArray[np.float32]: ...

class KVBlocks:
    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, dtype: str, num_blocks: int) -> None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def memory(self) -> NDArray[np.uint8]: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def num_free(self) -> int: ...

class HeldBlocks:
    def __init__(self, kv: KVBlocks) -> None: ...
    @property
    def numbers(self) -> list[int]: ...
    def take(self, count: int) -> None: ...
    def take_run(self, count: int) -> None: ...
    def give_back(self, count: int) -> None: ...

class Workspace:
    def __init__(self) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def reserve(self, program: Program, rows: int, positions: int, num_threads: int) -> None: ...
    def buffer(self, program: Program, b: int, rows: int) -> NDArray[np.float32]: ...

class Program:
    def __init__(self) -> None: ...
    @property
    def widths(self) -> list[int]: ...
    @property
    def kinds(self) -> list[str]: ...
    @property
    def weights(self) -> list[PackedLinear | None]: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_layer(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def output_rows(self) -> str | None: ...
    @property
    def output_width(self) -> int: ...
    @property
    def num_ops(self) -> int: ...
    @property
    def state_bytes(self) -> int: ...
    def add_buffer(self, width: int) -> int: ...
    def without_head(self) -> Program: ...
    def add_op(
        self,
        kind: str,
        *,
        barrier: bool = False,
        src: int = -1,
        dst: int = -1,
        rows: str = "all",
        epilogue: str = "store",
        weights: PackedLinear | None = None,
        bias: NDArray[np.float32] | None = None,
        column_scale: NDArray[np.float32] | None = None,
        norm: NDArray[np.float32] | None = None,
        scale: float = 1.0,
        src_scale: float = 1.0,
        gate_scale: float = 1.0,
        eps: float = 0.0,
        fused_heads: bool = False,
        num_heads: int = 0,
        num_kv_heads: int = 0,
        head_dim: int = 0,
        layer: int = 0,
        causal: bool = True,
        q_norm: NDArray[np.float32] | None = None,
        k_norm: NDArray[np.float32] | None = None,
        key_scale: float = 1.0,
        score_scale: float = 1.0,
    ) -> int: ...
    def add_conv(
        self,
        src: int,
        column: int,
        dst: int,
        weight: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        *,
        barrier: bool = False,
    ) -> int: ...
    def add_time_steps(
        self,
        src: int,
        column: int,
        dst: int,
        bias: NDArray[np.float32],
        rate: NDArray[np.float32],
        low: float,
        high: float,
        *,
        barrier: bool = False,
    ) -> int: ...
    def add_scan(
        self,
        src: int,
        steps: int,
        dst: int,
        skip: NDArray[np.float32],
        *,
        head_dim: int,
        num_groups: int,
        d_state: int,
        gate: int | None = None,
        barrier: bool = False,
    ) -> int: ...
    def add_gated_norm(
        self,
        src: int,
        gate: int,
        dst: int,
        weight: NDArray[np.float32],
        *,
        eps: float,
        num_groups: int,
        norm_before_gate: bool,
        barrier: bool = False,
    ) -> int: ...
    def workspace_bytes(self, rows: int, positions: int, num_threads: int) -> int: ...
    def run(
        self,
        workspace: Workspace,
        token_ids: NDArray[np.int32],
        seq_rows: NDArray[np.int32],
        seq_pos: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        out_rows: NDArray[np.int32],
        kv: KVBlocks | None,
        rope_cos: NDArray[np.float32],
        rope_sin: NDArray[np.float32],
        *,
        output: NDArray[np.float32] | None = None,
        argmax: NDArray[np.int32] | None = None,
        num_threads: int = 1,
        op_seconds: NDArray[np.float64] | None = None,
        num_ops: int = -1,
        state_blocks: NDArray[np.int32] | None = None,
    ) -> None: ...
