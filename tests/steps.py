"""One step of a small recorded program on NumPy rows, for the tests of single ops."""

from collections.abc import Mapping, Sequence

import numpy as np
from tiny import from_bf16, store

from fastcore._kernels import BLOCK_TOKENS, KVBlocks, PackedLinear, Workspace
from fastcore.model.recorder import Recorder

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


class Buffers:
    """What a step left in the buffers of its program: `buffers[number]` is [rows, width]."""

    def __init__(self, recorder: Recorder, workspace: Workspace, rows: int) -> None:
        self._program, self._workspace, self._rows = recorder.program, workspace, rows

    def __getitem__(self, number: int) -> np.ndarray:
        return self._workspace.buffer(self._program, number, self._rows)


def run_rows(
    recorder: Recorder,
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
