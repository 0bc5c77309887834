# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=False
"""The border to the C core: check every argument, release the GIL, make one C call."""

import os
from heapq import heapify, heappop, heappush

import numpy as np

from fastcore.errors import CacheFullError, NonFiniteError
from fastcore.locks import Lock
from fastcore.huge_pages import ALIGNMENT as _ALIGNMENT, Arena, zeros

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    #define fc_is_finalizing Py_IsFinalizing
    #else
    #define fc_is_finalizing _Py_IsFinalizing
    #endif
    """
    int fc_is_finalizing()

BLOCK_TOKENS = FC_BLOCK_TOKENS
SEGMENT_TOKENS = FC_SEGMENT_TOKENS
MAX_HEAD_DIM = FC_MAX_HEAD_DIM
WEIGHT_BLOCK = FC_WEIGHT_BLOCK
MAX_THREADS = FC_MAX_THREADS
MAX_LABELS = FC_MAX_LABELS

# The formats of weights, and how NumPy stores the elements of tensors that can be packed into them.
DTYPES = {fc_format_of(i).name.decode(): i for i in range(FC_NUM_DTYPES)}
STORED_AS = {name: np.dtype(fc_format_of(i).stored_as.decode()) for name, i in DTYPES.items() if fc_format_of(i).stored_as != NULL}
KV_DTYPES = ("f32", "f16", "int8")
OP_KINDS = {fc_op_name(kind).decode(): kind for kind in range(FC_NUM_OP_KINDS)}
_EPILOGUES = {"store": FC_STORE, "add": FC_ADD, "swiglu": FC_SWIGLU}
_ROW_SETS = {"all": FC_ROWS_ALL, "out": FC_ROWS_OUT}
_MAX_KV_HEADS = 4096
_MAX_POSITIONS = 1 << 30
_MAX_LAYERS = 4096


# ---------------------------------------------------------------- instruction sets

_isas = {fc_isa_name(i).decode(): i for i in range(fc_num_isas())}


def available_isas() -> tuple[str, ...]:
    """Instruction sets that this machine runs with the scalar bits, the best last."""
    return tuple(name for name, i in _isas.items() if fc_isa_usable(i))


def active_isa() -> str:
    return fc_isa_name(fc_isa_active()).decode()


def use_isa(name: str) -> None:
    """Make every later call use this instruction set; not while another thread is inside a step."""
    if name not in _isas or not fc_isa_usable(_isas[name]):
        what = "not usable on this machine" if name in _isas else "unknown"
        raise ValueError(f"instruction set {name!r} is {what}; usable here: {', '.join(available_isas())}")
    fc_isa_use(_isas[name])


try:
    use_isa(os.environ.get("FASTCORE_ISA") or next(name for name in reversed(_isas) if fc_isa_usable(_isas[name])))
except ValueError as error:
    raise ImportError(f"FASTCORE_ISA: {error}") from None


cdef int _check_threads(int num_threads) except -1:
    if not 1 <= num_threads <= FC_MAX_THREADS:
        raise ValueError(f"num_threads is {num_threads}; expected from 1 to {FC_MAX_THREADS}")
    return 0


include "_functions.pxi"
include "_turns.pxi"
include "_weights.pxi"


@cython.no_gc  # in no cycle itself; and a sweep must not empty its lists before the last holder counts blocks down
cdef class KVBlocks:
    """Memory of the KV cache: num_blocks blocks of BLOCK_TOKENS positions, each for all layers (layout: csrc/fastcore.h)."""

    cdef readonly str dtype
    cdef readonly int num_layers, num_kv_heads, head_dim, num_blocks
    cdef readonly object memory
    cdef fc_kv_cache c
    cdef list _free  # a heap: low numbers are taken first, so few pages are touched
    cdef list _owners  # of each block, how many hold it

    def __cinit__(self, int num_layers, int num_kv_heads, int head_dim, str dtype, int num_blocks):
        if dtype not in KV_DTYPES:
            raise ValueError(f"KV dtype {dtype!r}; known: {', '.join(KV_DTYPES)}")
        if (not 0 < num_layers <= _MAX_LAYERS or not 0 < num_kv_heads <= _MAX_KV_HEADS or not 0 < head_dim <= FC_MAX_HEAD_DIM
                or num_blocks < 1):
            raise ValueError(f"KV cache of {num_layers} layers, {num_kv_heads} heads of {head_dim}, {num_blocks} blocks")
        self.dtype, self.num_layers, self.num_kv_heads = dtype, num_layers, num_kv_heads
        self.head_dim, self.num_blocks = head_dim, num_blocks
        self.c.dtype = DTYPES[dtype]
        self.c.v_offset = fc_kv_part_bytes(self.c.dtype, head_dim)
        self.c.head_bytes = self.c.v_offset + fc_kv_part_bytes(self.c.dtype, fc_pad(head_dim))
        self.c.layer_bytes = self.c.head_bytes * num_kv_heads
        self.c.block_bytes = self.c.layer_bytes * num_layers
        self.memory = zeros(<object>self.c.block_bytes * <object>num_blocks)
        self.c.base = <uint8_t *><uintptr_t>self.memory.ctypes.data
        self._free = list(range(num_blocks))
        self._owners = [0] * num_blocks

    @property
    def block_bytes(self) -> int:
        return self.c.block_bytes

    @property
    def num_free(self) -> int:
        return len(self._free)

    def num_owners(self, Py_ssize_t block) -> int:
        """How many hold a block."""
        return self._owners[block]

    cdef _full(self, str needed):
        return CacheFullError(
            f"the cache has {len(self._free)} of {self.num_blocks} blocks free and {needed}; "
            f"raise kv_cache_bytes (now {self.num_blocks * <int64_t>self.c.block_bytes})"
        )


@cython.no_gc  # as its cache
cdef class HeldBlocks:
    """Blocks that one sequence holds of a cache, in order. When it dies they go back, unless others hold them, too.

    Each call is one C function, so that no signal handler and no other thread comes between taking a block and having it.
    """

    cdef KVBlocks _kv
    cdef readonly list numbers

    def __cinit__(self, KVBlocks kv not None):
        self._kv, self.numbers = kv, []

    def __dealloc__(self):
        if self._kv is not None and not fc_is_finalizing():  # where Python ends, what this needs may be gone
            self.give_back(len(self.numbers))

    def take(self, Py_ssize_t count) -> None:
        """Take the lowest free blocks; CacheFullError, and none, where there are fewer."""
        if count > len(self._kv._free):
            raise self._kv._full(f"{count} are needed ({FC_BLOCK_TOKENS} tokens each)")
        for _ in range(count):
            block = heappop(self._kv._free)
            self._kv._owners[block] = 1
            self.numbers.append(block)

    def share(self, list numbers not None) -> None:
        """Hold blocks that somebody holds already, after those held so far. Nobody may write to them any more."""
        for block in numbers:
            if not 0 <= block < self._kv.num_blocks or self._kv._owners[block] == 0:
                raise ValueError(f"block {block} is held by nobody")
        for block in numbers:
            self._kv._owners[block] += 1
            self.numbers.append(block)

    def take_run(self, Py_ssize_t count) -> None:
        """Take consecutive blocks, for a recurrent state; CacheFullError, and none, where no run is free.

        They come from the high end, at multiples of their number, so that states leave no gaps between each other.
        """
        unused = set(self._kv._free)
        for first in range(self._kv.num_blocks - count, -1, -count):
            if unused.issuperset(range(first, first + count)):
                self._kv._free = [block for block in self._kv._free if not first <= block < first + count]
                heapify(self._kv._free)
                for block in range(first, first + count):
                    self._kv._owners[block] = 1
                    self.numbers.append(block)
                return
        raise self._kv._full(f"{count} consecutive ones are needed (the recurrent state of a sequence)")

    cpdef give_back(self, Py_ssize_t count):
        """Give back the last `count` of them."""
        for _ in range(count):
            block = self.numbers.pop()
            self._kv._owners[block] -= 1
            if self._kv._owners[block] == 0:
                heappush(self._kv._free, block)


# ---------------------------------------------------------------- programs

cdef int _poll_signals(void *data) noexcept with gil:
    """Let Python run its signal handlers; an exception from one (Ctrl-C) stops the step."""
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        (<list>data).append(error)
        return 1
    return 0


cdef int _segments(int64_t positions) noexcept:
    return (positions + FC_SEGMENT_TOKENS - 1) // FC_SEGMENT_TOKENS


cdef class Workspace:
    """The memory that steps run in: buffers and scratch, for one step at a time, of any program. It only grows."""

    cdef object _memory, _running
    cdef int _row_capacity, _segment_capacity, _threads

    def __cinit__(self):
        self._memory, self._running = zeros(0), Lock()

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    def reserve(self, Program program not None, int rows, int64_t positions, int num_threads) -> None:
        """Make it large enough for steps of `rows` rows over contexts of `positions`."""
        with self._running.usable():
            self._grow(program, rows, positions, num_threads)

    cdef int _grow(self, Program program, int rows, int64_t positions, int num_threads) except -1:
        self._row_capacity = max(rows, self._row_capacity, 1)
        self._segment_capacity = max(_segments(positions), self._segment_capacity, 1)
        self._threads = max(num_threads, self._threads, 1)
        cdef size_t nbytes = 4 * fc_workspace_floats(&program.c, self._row_capacity, self._segment_capacity, self._threads)
        if nbytes > <size_t>self._memory.nbytes:
            self._memory = zeros(0)  # before the larger one is asked for
            self._memory = zeros(nbytes)
        return 0

    def buffer(self, Program program not None, int b, int rows) -> np.ndarray:
        """A view [rows, width] of buffer b of the program, to read after a step or to fill before one."""
        if not 0 <= b < program.c.num_buffers:
            raise ValueError(f"no buffer {b}")
        width = program.buffers[b].width
        if not 0 <= rows <= self._row_capacity:
            raise ValueError(f"no workspace for {rows} rows; call reserve first")
        start = fc_buffer_offset(&program.c, b, self._row_capacity)
        ld = program.c.buffers[b].ld
        return self._memory.view(np.float32)[start:start + rows * ld].reshape(rows, ld)[:, :width]


cdef class Program:
    """A finished list of ops over row buffers, that `run` replays for one step. Made by fastcore.model.program.finish, which has
    checked it: nothing here does again.

    ops: records of fastcore.model.ops; with maps that are not packed, it cannot run. buffers: their Buffer records. facts: what
    fastcore.model.program.check says of them.
    """

    cdef fc_op *_ops
    cdef fc_buffer *_buffers
    cdef fc_program c
    cdef list _keep
    cdef readonly tuple ops, buffers
    cdef readonly int vocab_size, max_layer, num_kv_heads, head_dim, output_width, first_output
    cdef readonly int64_t state_bytes  # recurrent state of a sequence, all layers
    cdef bint _unpacked

    def __cinit__(self, tuple ops not None, tuple buffers not None, facts not None):
        self.ops, self.buffers, self._keep = ops, buffers, []
        self._ops = <fc_op *>calloc(len(ops) + 1, sizeof(fc_op))
        self._buffers = <fc_buffer *>calloc(len(buffers) + 1, sizeof(fc_buffer))
        if self._ops == NULL or self._buffers == NULL:
            raise MemoryError
        for i, buffer in enumerate(buffers):
            self._buffers[i].ld, self._buffers[i].row_set = fc_row_floats(buffer.width), _ROW_SETS[buffer.rows]
        for i, (op, barrier, start) in enumerate(zip(ops, facts.barriers, facts.state_starts, strict=True)):
            self._fill(&self._ops[i], op)
            self._ops[i].barrier, self._ops[i].state_floats = barrier, start
        self.c.ops, self.c.num_ops = self._ops, len(ops)
        self.c.buffers, self.c.num_buffers = self._buffers, len(buffers)
        self.vocab_size, self.max_layer, self.state_bytes = facts.vocab_size, facts.max_layer, facts.state_bytes
        self.num_kv_heads, self.head_dim = facts.num_kv_heads, facts.head_dim
        self.output_width, self.first_output = facts.output_width, facts.first_output

    def __dealloc__(self):
        free(self._ops)
        free(self._buffers)

    cdef int _fill(self, fc_op *op, object record) except -1:
        """The C form of one record: fields of the same name, and what it lacks as what does nothing."""
        linear = getattr(record, "weights", None)
        cdef PackedLinear weights = linear if isinstance(linear, PackedLinear) else None
        op.kind = OP_KINDS[record.kind]
        op.src, op.dst = getattr(record, "src", FC_NO_BUFFER), getattr(record, "dst", FC_NO_BUFFER)
        op.src2 = getattr(record, "src2", FC_NO_BUFFER)
        gate = getattr(record, "gate", None)
        op.gate = FC_NO_BUFFER if gate is None else gate
        op.epilogue = _EPILOGUES[getattr(record, "epilogue", "store")]
        if linear is None:
            op.n, op.k = getattr(record, "n", 0), getattr(record, "k", 0)
        else:
            op.n, op.k = linear.out_features, linear.in_features
        if weights is not None:
            op.weights, op.dtype = weights._data, DTYPES[weights.dtype]
        elif linear is not None:
            self._unpacked = True
        op.scale, op.src_scale = getattr(record, "scale", 1.0), getattr(record, "src_scale", 1.0)
        op.gate_scale, op.eps = getattr(record, "gate_scale", 1.0), getattr(record, "eps", 0.0)
        op.bias, op.column_scale = self._vector(record, "bias"), self._vector(record, "column_scale")
        op.norm, op.conv = self._vector(record, "norm"), self._vector(record, "conv")
        op.rate, op.skip = self._vector(record, "rate"), self._vector(record, "skip")
        op.column, op.d_conv = getattr(record, "column", 0), getattr(record, "d_conv", 0)
        op.d_state, op.num_groups = getattr(record, "d_state", 0), getattr(record, "num_groups", 0)
        op.norm_before_gate = getattr(record, "norm_before_gate", False)
        op.low, op.high = getattr(record, "low", 0.0), getattr(record, "high", 0.0)
        op.causal, op.score_scale = getattr(record, "causal", True), getattr(record, "score_scale", 1.0)
        heads = getattr(record, "heads", None)
        op.fused_heads = heads is not None
        heads = record if heads is None else heads
        op.num_heads, op.num_kv_heads = getattr(heads, "num_heads", 0), getattr(heads, "num_kv_heads", 0)
        op.head_dim, op.layer = getattr(heads, "head_dim", 0), getattr(heads, "layer", 0)
        op.q_norm, op.k_norm = self._vector(heads, "q_norm"), self._vector(heads, "k_norm")
        op.key_scale = getattr(heads, "key_scale", 1.0)
        op.key_center, op.key_unit = self._vector(heads, "key_center"), self._vector(heads, "key_unit")
        return 0

    cdef const float *_vector(self, object record, str name) except? NULL:
        """Keep a copy of an f32 [..., n] array with n padded, so that whole panels can be read."""
        array = getattr(record, name, None)
        if array is None:
            return NULL
        n = array.shape[array.ndim - 1]
        padded = np.zeros((*array.shape[:array.ndim - 1], fc_pad(n)), np.float32)
        padded[..., :n] = array
        self._keep.append(padded)
        return <const float *><uintptr_t>padded.ctypes.data

    @property
    def num_ops(self) -> int:
        return self.c.num_ops

    @property
    def weights(self) -> tuple:
        """The linear map of each op, or None."""
        return tuple(getattr(op, "weights", None) for op in self.ops)

    def workspace_bytes(self, int rows, int64_t positions, int num_threads) -> int:
        """Bytes of a workspace for steps of `rows` rows over contexts of `positions`."""
        return 4 * fc_workspace_floats(&self.c, rows, _segments(positions), num_threads)

    def run(self, Workspace workspace not None, const int32_t[::1] token_ids not None, const int32_t[::1] seq_rows not None,
            const int32_t[::1] seq_pos not None, const int32_t[:, ::1] block_tables not None,
            const int32_t[::1] out_rows not None, KVBlocks kv, const float[:, ::1] rope_cos not None,
            const float[:, ::1] rope_sin not None, *, float[:, ::1] output=None, int32_t[::1] argmax=None, int num_threads=1,
            double[::1] op_seconds=None, int num_ops=-1, const int32_t[::1] state_blocks=None) -> None:
        """Run one step in `workspace`, which grows to what it needs.

        token_ids [num_rows]; seq_rows [num_seqs + 1] row bounds of each sequence; seq_pos [num_seqs] position of each first row;
        block_tables [num_seqs, max_blocks]; out_rows [num_out]; rope_cos, rope_sin [num_rows, head_dim / 2];
        state_blocks [num_seqs] first of the consecutive blocks that hold state_bytes of recurrent state;
        output f32 [num_out, output width]; argmax [num_out] best ids (-1: not finite); op_seconds [num_ops] is added to.
        Raises what a signal handler raises while it runs; the sequences then hold partial state."""
        cdef fc_step step
        memset(&step, 0, sizeof(step))
        if self._unpacked:
            raise ValueError("the weights of this program are not packed")
        cdef int rows = token_ids.shape[0], seqs = seq_pos.shape[0], outs = out_rows.shape[0], i, j, longest = 0, end
        if rows < 1 or seqs < 1 or seq_rows.shape[0] != seqs + 1 or seq_rows[0] != 0 or seq_rows[seqs] != rows:
            raise ValueError(f"a step of {rows} rows in {seqs} sequences with bounds {np.asarray(seq_rows).tolist()}")
        for i in range(seqs):
            if seq_rows[i + 1] <= seq_rows[i] or not 0 <= seq_pos[i] <= _MAX_POSITIONS - rows:
                raise ValueError(f"sequence {i}: rows {seq_rows[i]} to {seq_rows[i + 1]} from position {seq_pos[i]}")
        for i in range(rows if self.vocab_size else 0):
            if not 0 <= token_ids[i] < self.vocab_size:
                raise ValueError(f"token id {token_ids[i]} is outside the vocabulary of {self.vocab_size}")
        if outs > rows:
            raise ValueError(f"{outs} output rows of a step of {rows}")
        for i in range(outs):
            if not 0 <= out_rows[i] < rows:
                raise ValueError(f"output row {out_rows[i]} of {rows}")
        if self.max_layer >= 0:
            if (kv is None or kv.num_layers <= self.max_layer or kv.num_kv_heads != self.num_kv_heads
                    or kv.head_dim != self.head_dim):
                raise ValueError("the KV cache does not fit this program")
            if block_tables.shape[0] != seqs:
                raise ValueError(f"block tables of {block_tables.shape[0]} sequences, expected {seqs}")
            for i in range(seqs):
                end = seq_pos[i] + seq_rows[i + 1] - seq_rows[i]
                longest = max(longest, end)
                if (end + FC_BLOCK_TOKENS - 1) // FC_BLOCK_TOKENS > block_tables.shape[1]:
                    raise ValueError(f"sequence {i}: {end} positions in {block_tables.shape[1]} blocks")
                for j in range((end + FC_BLOCK_TOKENS - 1) // FC_BLOCK_TOKENS):
                    if not 0 <= block_tables[i, j] < kv.num_blocks:
                        raise ValueError(f"sequence {i}: block {block_tables[i, j]} of {kv.num_blocks}")
            step.kv, step.max_blocks = kv.c, block_tables.shape[1]
            step.block_tables = &block_tables[0, 0]
        if self.head_dim:
            if rope_cos.shape[0] != rows or rope_sin.shape[0] != rows or rope_cos.shape[1] != self.head_dim // 2 or (
                    rope_sin.shape[1] != self.head_dim // 2):
                raise ValueError(f"rope_cos [{rope_cos.shape[0]}, {rope_cos.shape[1]}] and rope_sin [{rope_sin.shape[0]}, "
                                 f"{rope_sin.shape[1]}], expected [{rows}, {self.head_dim // 2}]")
            step.rope_cos, step.rope_sin = &rope_cos[0, 0], &rope_sin[0, 0]
        if self.state_bytes:
            if kv is None or state_blocks is None or state_blocks.shape[0] != seqs:
                raise ValueError(f"recurrent state of {seqs} sequences is needed, in blocks of a KV cache")
            for i in range(seqs):
                if state_blocks[i] < 0 or state_blocks[i] * <int64_t>kv.c.block_bytes + self.state_bytes > (
                        kv.num_blocks * <int64_t>kv.c.block_bytes):
                    raise ValueError(f"sequence {i}: state in block {state_blocks[i]} of {kv.num_blocks}")
            step.kv, step.state_blocks = kv.c, &state_blocks[0]
        if output is not None:
            if output.shape[0] != outs or output.shape[1] != self.output_width:
                raise ValueError(f"output [{output.shape[0]}, {output.shape[1]}], expected [{outs}, {self.output_width}]")
            step.ld_output = output.shape[1]
            if outs:
                step.output = &output[0, 0]
        elif outs and self.first_output >= 0 and (num_ops < 0 or num_ops > self.first_output):
            raise ValueError("this program writes an output; none was given")
        if argmax is not None:
            if argmax.shape[0] != outs:
                raise ValueError(f"argmax [{argmax.shape[0]}], expected [{outs}]")
            if outs:
                step.argmax = &argmax[0]
        if op_seconds is not None:
            if op_seconds.shape[0] < self.c.num_ops:
                raise ValueError("op_seconds is too short")
            step.op_seconds = &op_seconds[0]
        _check_threads(num_threads)
        if not -1 <= num_ops <= self.c.num_ops:
            raise ValueError(f"{num_ops} ops of {self.c.num_ops}")
        with workspace._running.usable():
            workspace._grow(self, rows, longest, num_threads)
            step.num_rows, step.num_seqs, step.num_out = rows, seqs, outs
            step.token_ids, step.seq_rows, step.seq_pos = &token_ids[0], &seq_rows[0], &seq_pos[0]
            if outs:
                step.out_rows = &out_rows[0]
            step.workspace = <float *><uintptr_t>workspace._memory.ctypes.data
            step.row_capacity, step.segment_capacity = workspace._row_capacity, workspace._segment_capacity
            step.num_ops = num_ops
            interrupts = []
            step.poll, step.poll_data = _poll_signals, <void *>interrupts
            with nogil:
                fc_run(&self.c, &step, num_threads)
        if interrupts:
            raise interrupts[0]
