"""One step of a small recorded program on NumPy rows, for the tests of single ops."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tiny import from_bf16, store

from fastcore._kernels import BLOCK_TOKENS, KVBlocks, PackedLinear, Program, Workspace
from fastcore.model import ops
from fastcore.model.ops import OUTPUT, Buffer, Heads, Op
from fastcore.model.program import finish

DTYPES = ("f32", "bf16", "f16")
NO_TABLE = np.zeros((0, 0), np.float32)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def rounded(value: np.ndarray, dtype: str) -> np.ndarray:
    """The f32 values that an array has once it is stored in dtype."""
    return from_bf16(store(value, dtype)) if dtype == "bf16" else store(value, dtype).astype(np.float32)


def packed(weight: np.ndarray, dtype: str = "f32", num_threads: int = 1) -> PackedLinear:
    """The panels of an f32 map [out_features, in_features], stored as dtype."""
    linear = PackedLinear(*weight.shape, dtype)
    linear.pack(store(weight, dtype), dtype, num_threads=num_threads)
    return linear


def f32(value: Any) -> np.ndarray | None:
    return None if value is None else np.asarray(value, np.float32)


class OpList:
    """A list of ops over numbered buffers, each appended by a method, and the program made of it."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.buffers: list[Buffer] = []
        self._program: Program | None = None

    @property
    def program(self) -> Program:
        if self._program is None:
            self._program = finish(self.ops, self.buffers)
        return self._program

    def buffer(self, width: int, rows: ops.RowSet = "all") -> int:
        self.buffers.append(Buffer(width, rows))
        self._program = None
        return len(self.buffers) - 1

    def append(self, op: Op) -> None:
        self.ops.append(op)
        self._program = None

    def embed(self, weights: PackedLinear, dst: int, scale: float = 1.0) -> None:
        self.append(ops.Embed(dst, weights, scale))

    def norm(self, src: int, dst: int, weight: np.ndarray, eps: float) -> None:
        self.append(ops.Norm(src, dst, f32(weight), eps))

    def linear(self, src: int, dst: int, weights: PackedLinear, *, add: bool = False, **options: Any) -> None:
        vectors = {name: f32(options.pop(name, None)) for name in ("norm", "bias", "column_scale")}
        self.append(ops.Linear(src, dst, weights, epilogue="add" if add else "store", **vectors, **options))

    def swiglu(self, src: int, dst: int, weights: PackedLinear, **options: Any) -> None:
        vectors = {name: f32(options.pop(name, None)) for name in ("norm", "bias")}
        self.append(ops.Linear(src, dst, weights, epilogue="swiglu", **vectors, **options))

    def qkv(self, src: int, dst: int, weights: PackedLinear, heads: Heads, *, norm: np.ndarray, eps: float) -> None:
        """In one op where heads are whole panels."""
        fused = heads.head_dim % 16 == 0
        self.append(ops.Linear(src, dst, weights, norm=f32(norm), eps=eps, heads=heads if fused else None))
        if not fused:
            self.append(ops.FinishHeads(dst, heads, eps))

    def attention(self, qkv: int, dst: int, heads: Heads, causal: bool = True) -> None:
        shape = heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.layer
        self.append(ops.Attention(qkv, dst, *shape, heads.head_dim**-0.5, causal))

    def conv(self, src: int, column: int, dst: int, weight: np.ndarray, bias: np.ndarray | None) -> None:
        self.append(ops.Conv(src, dst, column, f32(weight), f32(bias)))

    def time_steps(
        self, src: int, column: int, dst: int, bias: np.ndarray, rate: np.ndarray, limit: tuple[float, float]
    ) -> None:
        self.append(ops.TimeSteps(src, dst, column, f32(bias), f32(rate), *limit))

    def scan(self, src: int, steps: int, dst: int, skip: np.ndarray, **shape: Any) -> None:
        self.append(ops.Scan(src, steps, dst, f32(skip), **shape))

    def gated_norm(self, src: int, gate: int, dst: int, weight: np.ndarray, eps: float, **options: Any) -> None:
        self.append(ops.GatedNorm(src, gate, dst, f32(weight), eps, **options))

    def argmax(self) -> None:
        width = next(op.weights.out_features for op in self.ops if isinstance(op, ops.Linear) and op.dst == OUTPUT)
        self.append(ops.Argmax(OUTPUT, width))


class Buffers:
    """What a step left in the buffers of its program: `buffers[number]` is [rows, width]."""

    def __init__(self, recorder: OpList, workspace: Workspace, rows: int) -> None:
        self._program, self._workspace, self._rows = recorder.program, workspace, rows

    def __getitem__(self, number: int) -> np.ndarray:
        return self._workspace.buffer(self._program, number, self._rows)


def run_rows(
    recorder: OpList,
    inputs: Mapping[int, np.ndarray],
    *,
    token_ids: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    blocks: np.ndarray | None = None,
    out_rows: Sequence[int] = (),
    kv: KVBlocks | None = None,
    cos: np.ndarray = NO_TABLE,
    sin: np.ndarray = NO_TABLE,
    output: np.ndarray | None = None,
    argmax: np.ndarray | None = None,
    num_threads: int = 1,
    num_ops: int = -1,
    state_blocks: Sequence[int] | None = None,
    workspace: Workspace | None = None,
) -> Buffers:
    """Fill the buffers `inputs` (number -> [rows, width]) and run one step.

    lengths: rows of each sequence, all rows in one by default. positions: of each sequence's first row, else zero.
    blocks: the table [num_seqs, max_blocks], sequence after sequence in order by default.
    state_blocks: the first block of each sequence's recurrent state.
    """
    rows = len(next(iter(inputs.values()))) if token_ids is None else len(token_ids)
    lengths = [rows] if lengths is None else lengths
    positions = [0] * len(lengths) if positions is None else positions
    ends = [position + length for position, length in zip(positions, lengths, strict=True)]
    if blocks is None:
        width = -(-max(ends) // BLOCK_TOKENS)
        blocks = np.arange(len(lengths) * width, dtype=np.int32).reshape(len(lengths), width)
    program, workspace = recorder.program, workspace or Workspace()
    workspace.reserve(program, rows, max(ends), num_threads)
    buffers = Buffers(recorder, workspace, rows)
    for buffer, value in inputs.items():
        buffers[buffer][:] = value
    program.run(
        workspace,
        np.zeros(rows, np.int32) if token_ids is None else np.array(token_ids, np.int32),
        np.cumsum([0, *lengths], dtype=np.int32),
        np.array(positions, np.int32),
        blocks,
        np.array(out_rows, np.int32),
        kv,
        cos,
        sin,
        output=output,
        argmax=argmax,
        num_threads=num_threads,
        num_ops=num_ops,
        state_blocks=None if state_blocks is None else np.array(state_blocks, np.int32),
    )
    return buffers
