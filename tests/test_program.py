"""Programs and their border: what is refused, what an interrupt or a fork leaves behind, who may run at once."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steps import DTYPES, OpList, normal, packed, rounded, run_rows
from tiny import store

from fastcore import _kernels
from fastcore._kernels import BLOCK_TOKENS, MAX_HEAD_DIM, MAX_THREADS, KVBlocks, PackedLinear, Program, Workspace
from fastcore.errors import UnsupportedModelError
from fastcore.model import ops
from fastcore.model.ops import OUTPUT, Heads
from fastcore.model.program import finish

INT_MAX = 2**31 - 1


def run_script(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a child process that finds fastcore and the tests' modules."""
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(_kernels.__file__).parents[1])])
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


# ---------------------------------------------------------------- greedy ties


@pytest.mark.case("X5")
@pytest.mark.parametrize(
    ("vocab", "best_ids", "worst_ids"), [(300, [41, 250, 299], [3, 17]), (5003, [41, 2500, 5002], [9])]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_go_to_the_lowest_id_in_every_batch_and_thread_count(
    isa: str, dtype: str, vocab: int, best_ids: list[int], worst_ids: list[int]
) -> None:
    """Equal rows of the head beat all others, or, for the negated state, their negated rows do."""
    weight = normal(vocab, 24) / 8
    weight[best_ids], weight[worst_ids] = 1.0, -1.0
    recorder = OpList()
    src = recorder.buffer(24)
    recorder.linear(src, OUTPUT, packed(weight, dtype), norm=np.ones(24, np.float32), eps=1e-6)
    recorder.argmax()
    for rows in (1, 2, 5, 9, 20):
        x = np.ones((rows, 24), np.float32)
        x[1::2] = -1
        for num_threads in (1, 2, 3):
            logits, best = np.empty((rows, vocab), np.float32), np.empty(rows, np.int32)
            run_rows(recorder, {src: x}, out_rows=range(rows), output=logits, argmax=best, num_threads=num_threads)
            assert best.tolist() == [best_ids[0] if r % 2 == 0 else worst_ids[0] for r in range(rows)]
            assert np.array_equal(best, logits.argmax(axis=1))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_gives_no_id(isa: str, value: float) -> None:
    weight = normal(50, 8)
    weight[33, 5] = value
    recorder = OpList()
    src = recorder.buffer(8)
    recorder.linear(src, OUTPUT, packed(weight))
    recorder.argmax()
    best = np.zeros(2, np.int32)
    logits = np.empty((2, 50), np.float32)
    run_rows(recorder, {src: normal(2, 8)}, out_rows=range(2), output=logits, argmax=best, num_threads=2)
    assert best.tolist() == [-1, -1]


# ---------------------------------------------------------------- what is refused


class TinyModel:
    """A program with every kind of op, and the arguments of a step of three rows that it accepts."""

    def __init__(self) -> None:
        heads = Heads(4, 2, 16, 0)
        recorder = OpList()
        hidden, qkv, mixed, inner = (recorder.buffer(width) for width in (20, heads.width, 64, 40))
        table, ones = packed(normal(50, 20)), np.ones(20, np.float32)
        recorder.embed(table, hidden)
        recorder.qkv(hidden, qkv, packed(normal(heads.width, 20)), heads, norm=ones, eps=1e-6)
        recorder.attention(qkv, mixed, heads)
        recorder.linear(mixed, hidden, packed(normal(20, 64)), add=True)
        recorder.swiglu(hidden, inner, packed(normal(96, 20)), norm=ones, eps=1e-6)
        recorder.linear(inner, hidden, packed(normal(20, 40)), add=True)
        recorder.linear(hidden, OUTPUT, table, norm=ones, eps=1e-6)
        recorder.argmax()
        self.program = recorder.program
        self.positional: dict[str, Any] = {
            "workspace": Workspace(),
            "token_ids": np.array([1, 2, 49], np.int32),
            "seq_rows": np.array([0, 2, 3], np.int32),
            "seq_pos": np.array([0, 60], np.int32),
            "block_tables": np.array([[0, 0], [1, 2]], np.int32),
            "out_rows": np.array([2, 0], np.int32),
            "kv": KVBlocks(1, 2, 16, "f32", 3),
            "rope_cos": np.ones((3, 8), np.float32),
            "rope_sin": np.zeros((3, 8), np.float32),
        }
        self.positional["kv"].memory[:] = 0  # the second sequence starts at position 60
        self.named: dict[str, Any] = {"output": np.zeros((2, 50), np.float32), "num_threads": 2}

    def run(self, **changes: Any) -> np.ndarray:
        positional = self.positional | {key: value for key, value in changes.items() if key in self.positional}
        named = self.named | {key: value for key, value in changes.items() if key not in self.positional}
        self.program.run(*positional.values(), **named)
        return named["output"]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


BAD_STEPS: dict[str, dict[str, Any]] = {
    "no rows": {"token_ids": ints()},
    "no sequences": {"seq_rows": ints(0), "seq_pos": ints()},
    "token id past the vocabulary": {"token_ids": ints(1, 2, 50)},
    "negative token id": {"token_ids": ints(1, -1, 2)},
    "bounds that do not start at zero": {"seq_rows": ints(1, 2, 3)},
    "bounds that do not end at the rows": {"seq_rows": ints(0, 2, 4)},
    "bounds that fall": {"seq_rows": ints(0, 4, 3)},
    "an empty sequence": {"seq_rows": ints(0, 3, 3)},
    "too few bounds": {"seq_rows": ints(0, 3)},
    "negative position": {"seq_pos": ints(0, -1)},
    "a position whose end overflows": {"seq_pos": ints(0, INT_MAX)},
    "a position past the block table": {"seq_pos": ints(0, 64)},
    "tables of too few sequences": {"block_tables": np.zeros((1, 2), np.int32)},
    "tables without blocks": {"block_tables": np.zeros((2, 0), np.int32)},
    "block past the pool": {"block_tables": np.array([[0, 0], [1, 3]], np.int32)},
    "negative block": {"block_tables": np.array([[-1, 0], [1, 2]], np.int32)},
    "output row past the rows": {"out_rows": ints(0, 3)},
    "negative output row": {"out_rows": ints(0, -1)},
    "more output rows than rows": {"out_rows": np.zeros(4, np.int32), "output": np.zeros((4, 50), np.float32)},
    "no cache": {"kv": None},
    "a cache of other heads": {"kv": KVBlocks(1, 1, 16, "f32", 3)},
    "a cache of another head_dim": {"kv": KVBlocks(1, 2, 8, "f32", 3)},
    "rope tables of another head_dim": {"rope_cos": np.ones((3, 16), np.float32)},
    "one short rope table": {"rope_sin": np.ones((2, 8), np.float32)},
    "no output": {"output": None},
    "no output for the op that writes it": {"output": None, "num_ops": 7},
    "output of another width": {"output": np.zeros((2, 51), np.float32)},
    "output of other rows": {"output": np.zeros((3, 50), np.float32)},
    "argmax of other rows": {"argmax": np.zeros(3, np.int32)},
    "no threads": {"num_threads": 0},
    "negative threads": {"num_threads": -3},
    "more threads than there can be": {"num_threads": MAX_THREADS + 1},
    "more ops than there are": {"num_ops": 9},
    "fewer ops than all": {"num_ops": -2},
    "times of too few ops": {"op_seconds": np.zeros(7)},
    "ids in another dtype": {"token_ids": np.array([1, 2, 3], np.int64)},
    "output in another dtype": {"output": np.zeros((2, 50))},
    "output that is not contiguous": {"output": np.zeros((2, 100), np.float32)[:, ::2]},
    "a table of one dimension": {"block_tables": ints(0, 1)},
}


@pytest.mark.parametrize("what", BAD_STEPS)
def test_a_wrong_step_is_a_value_error_and_the_next_right_one_runs(what: str) -> None:
    model = TinyModel()
    expected = model.run().copy()
    with pytest.raises(ValueError):  # noqa: PT011  each message has its own words
        model.run(**BAD_STEPS[what])
    assert np.array_equal(model.run(output=np.zeros((2, 50), np.float32)), expected)


@pytest.mark.parametrize(
    "name", ["token_ids", "seq_rows", "seq_pos", "block_tables", "out_rows", "rope_cos", "rope_sin"]
)
def test_an_array_that_is_missing_is_a_type_error(name: str) -> None:
    with pytest.raises(TypeError):
        TinyModel().run(**{name: None})


def test_a_step_may_ask_for_no_output() -> None:
    model = TinyModel()
    model.run(out_rows=ints(), output=np.zeros((0, 50), np.float32), argmax=ints())
    model.run(out_rows=ints(), output=None)
    model.run(output=None, num_ops=6)


def three_buffers(*records: ops.Op) -> Program:
    return finish(records, [ops.Buffer(width) for width in (64, 20, 40)])


def shaped(rows: int, columns: int) -> PackedLinear:
    return PackedLinear(rows, columns, "f32")


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def linear(src: int = 1, dst: int = 2, weights: tuple[int, int] = (40, 20), **options: Any) -> ops.Linear:
    return ops.Linear(src, dst, shaped(*weights), **options)


def heads(src: int = 0, **changes: Any) -> ops.FinishHeads:
    return ops.FinishHeads(src, Heads(**HEADS | changes))


HEADS: dict[str, Any] = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "layer": 0}  # q | k | v of 64
BAD_OPS: dict[str, ops.Op] = {
    "an unknown epilogue": linear(epilogue="gelu"),
    "a source that does not exist": linear(src=3),
    "the output as a source": linear(src=OUTPUT),
    "a negative source": linear(src=-2),
    "a target that does not exist": linear(dst=9),
    "a source of another width": linear(src=0),
    "a target of another width": linear(dst=0),
    "a map in place": linear(dst=1, weights=(20, 20)),
    "an embedding of another width": ops.Embed(0, shaped(50, 20)),
    "an embedding of the output": ops.Embed(OUTPUT, shaped(50, 20)),
    "gate and up that are no pairs": linear(weights=(80, 20), epilogue="swiglu"),
    "an output that is added to": linear(dst=OUTPUT, epilogue="add"),
    "an output of gate and up": linear(dst=OUTPUT, weights=(96, 20), epilogue="swiglu"),
    "a bias of another size": linear(bias=zeros(39)),
    "a matrix as bias": linear(bias=zeros(40, 1)),
    "a bias of another type": linear(bias=np.zeros(40)),
    "a column scale of another size": linear(column_scale=zeros(20)),
    "a fused norm of another size": linear(norm=zeros(40)),
    "a norm without weight": ops.Norm(1, 1, None, 0.0),  # type: ignore[arg-type]
    "a norm into another width": ops.Norm(1, 2, zeros(20), 0.0),
    "argmax without an output": ops.Argmax(OUTPUT, 20),
    "argmax of all rows": ops.Argmax(1, 20),
    "argmax of a buffer that does not exist": ops.Argmax(3, 20),
    "a sum into another width": ops.Add(1, 2, 20),
    "a sum into the output": ops.Add(1, OUTPUT, 20),
    "a gate of another width": ops.Glu(1, 2, 2, 40),
    "a gate that does not exist": ops.Glu(3, 2, 2, 40),
    "a head norm of another width": ops.HeadNorm(1, 2, 16, zeros(16), 0.0),
    "a head norm without weight": ops.HeadNorm(0, 4, 16, None, 0.0),  # type: ignore[arg-type]
    "a rotation of another width": ops.Rope(1, 2, 16),
    "a rotation of odd heads": ops.Rope(1, 4, 5),
    "a cache of another width": ops.CacheWrite(0, 1, 4, 16, 0),
    "a cache of the output": ops.CacheWrite(0, OUTPUT, 4, 16, 0),
    "no heads": heads(num_heads=0),
    "negative heads": heads(num_heads=-2),
    "no kv heads": heads(num_kv_heads=0),
    "heads that do not divide": heads(num_heads=3, num_kv_heads=2),
    "a group that is too large": heads(num_heads=97),
    "kv heads whose width overflows": heads(num_heads=2**26, num_kv_heads=2**26),
    "an odd head_dim": heads(head_dim=15),
    "a head_dim of zero": heads(head_dim=0),
    "a head_dim that is too large": heads(head_dim=MAX_HEAD_DIM + 2),
    "heads in a buffer of another width": heads(src=1),
    "a negative layer": heads(layer=-1),
    "a q norm of another size": heads(q_norm=zeros(8)),
    "attention into another width": ops.Attention(0, 2, **HEADS, score_scale=1.0),
    "attention into nothing": ops.Attention(0, OUTPUT, **HEADS, score_scale=1.0),
    "attention in place": ops.Attention(0, 0, 4, 1, 16, 0, score_scale=1.0),
    "heads finished for some rows only": linear(dst=OUTPUT, weights=(64, 20), heads=Heads(**HEADS)),
    "heads finished in a map of another width": linear(heads=Heads(**HEADS)),
    "heads of half a panel finished in a map": linear(dst=0, weights=(64, 20), heads=Heads(6, 1, 8, 0)),
    "heads finished in a sum": linear(dst=0, weights=(64, 20), heads=Heads(**HEADS), epilogue="add"),
}


@pytest.mark.parametrize("what", BAD_OPS)
def test_a_wrong_op_is_a_value_error(what: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        three_buffers(BAD_OPS[what])


def test_layers_must_have_the_same_heads_and_embeddings_the_same_vocabulary() -> None:
    with pytest.raises(ValueError, match="same heads"):
        three_buffers(heads(), heads(num_heads=6, num_kv_heads=1, head_dim=8))
    with pytest.raises(ValueError, match="same heads"):
        three_buffers(heads(), ops.Rope(0, 8, 8))
    with pytest.raises(ValueError, match="embedding"):
        three_buffers(ops.Embed(1, shaped(50, 20)), ops.Embed(1, shaped(51, 20)))


def test_rows_asked_for_do_not_become_all_rows_again() -> None:
    buffers = [ops.Buffer(20), ops.Buffer(20, "out"), ops.Buffer(20)]
    ones = np.ones(20, np.float32)
    finish([ops.Norm(0, 1, ones, 0.0), ops.Norm(1, 1, ones, 0.0), linear(1, OUTPUT)], buffers)
    for op in (ops.Norm(1, 2, ones, 0.0), ops.Add(1, 2, 20), linear(1, 2, (20, 20)), ops.Glu(1, 1, 2, 20)):
        with pytest.raises(ValueError, match="rows"):
            finish([op], buffers)
    for op in (ops.Embed(1, shaped(50, 20)), ops.Rope(1, 2, 10), ops.HeadNorm(1, 2, 10, ones[:10], 0.0)):
        with pytest.raises(ValueError, match="all rows"):
            finish([op], buffers)


def test_an_output_is_written_once() -> None:
    with pytest.raises(ValueError, match="another op"):
        three_buffers(linear(dst=OUTPUT), linear(dst=OUTPUT))


def test_a_program_does_not_change() -> None:
    program = three_buffers(linear())
    assert isinstance(program.ops, tuple)
    assert isinstance(program.buffers, tuple)
    for name in ("ops", "buffers", "max_layer"):
        with pytest.raises(AttributeError):
            setattr(program, name, None)
    with pytest.raises(AttributeError):
        program.ops[0].scale = 2.0


@pytest.mark.parametrize("width", [0, -1, 2**24 + 1, 2**40])
def test_a_buffer_of_no_sensible_width_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match="width"):
        finish([], [ops.Buffer(width)])


@pytest.mark.fault("C1")
@pytest.mark.parametrize("count", [4097, 5000, 70000])
def test_more_ops_than_a_program_holds_are_refused(count: int) -> None:
    three_buffers(*[ops.Add(1, 1, 20)] * 4096)
    with pytest.raises(UnsupportedModelError, match=f"{count} ops"):
        three_buffers(*[ops.Add(1, 1, 20)] * count)


@pytest.mark.fault("C1")
def test_states_whose_product_is_too_large_are_refused() -> None:
    features, d_state = 1 << 11, 1 << 11
    buffers = [ops.Buffer(features + 2 * d_state), ops.Buffer(2 * features), ops.Buffer(features)]
    scan = ops.Scan(0, 1, 2, np.ones(features, np.float32), head_dim=1, num_groups=1, d_state=d_state)
    finish([scan] * 4, buffers)
    with pytest.raises(UnsupportedModelError, match="recurrent state"):
        finish([scan] * 5, buffers)


def test_a_buffer_is_read_only_within_the_workspace() -> None:
    program, workspace = three_buffers(), Workspace()
    with pytest.raises(ValueError, match="reserve"):
        workspace.buffer(program, 0, 1)
    workspace.reserve(program, 4, 10, 1)
    assert workspace.buffer(program, 1, 4).shape == (4, 20)
    for number, rows in ((0, 5), (0, -1), (3, 1), (-1, 1)):
        with pytest.raises(ValueError, match=r"reserve|buffer"):
            workspace.buffer(program, number, rows)


F32 = np.zeros((4, 8), np.float32)
BAD_PACKS: dict[str, tuple[np.ndarray, str, dict[str, int]]] = {
    "an unknown dtype": (F32, "f64", {}),
    "a dtype that the array does not have": (F32, "bf16", {}),
    "halves given as floats": (F32.astype(np.float16), "f32", {}),
    "another byte order": (F32.astype(">f4"), "f32", {}),
    "other columns": (np.zeros((4, 9), np.float32), "f32", {}),
    "a vector": (np.zeros(8, np.float32), "f32", {}),
    "columns that are not contiguous": (np.zeros((4, 16), np.float32)[:, ::2], "f32", {}),
    "no rows": (np.zeros((0, 8), np.float32), "f32", {}),
    "more rows than there are": (np.zeros((49, 8), np.float32), "f32", {}),
    "rows past the end": (F32, "f32", {"first_row": 45}),
    "a negative row": (F32, "f32", {"first_row": -1}),
    "a row that overflows": (F32, "f32", {"first_row": INT_MAX - 2}),
    "a stride that is no panel": (F32, "f32", {"group_stride": 24}),
    "a stride of nothing": (F32, "f32", {"group_stride": 0}),
    "a negative stride": (F32, "f32", {"group_stride": -16}),
    "a stride past the end": (np.zeros((32, 8), np.float32), "f32", {"group_stride": 64}),
    "a stride that overflows": (np.zeros((48, 8), np.float32), "f32", {"group_stride": 2**30}),
    "interleaved from inside a panel": (F32, "f32", {"group_stride": 32, "first_row": 8}),
    "no threads": (F32, "f32", {"num_threads": 0}),
    "more threads than there can be": (F32, "f32", {"num_threads": MAX_THREADS + 1}),
}


@pytest.mark.parametrize("what", BAD_PACKS)
def test_a_wrong_source_is_not_packed(what: str) -> None:
    src, src_dtype, options = BAD_PACKS[what]
    weights = PackedLinear(40, 8, "bf16")
    with pytest.raises(ValueError):  # noqa: PT011
        weights.pack(src, src_dtype, **options)
    assert not weights.panels.any()


@pytest.mark.parametrize(("shape", "dtype"), [((0, 4), "f32"), ((4, 0), "f32"), ((-1, 4), "f32"), ((4, 4), "f8")])
def test_a_map_of_no_sensible_shape_is_refused(shape: tuple[int, int], dtype: str) -> None:
    with pytest.raises(ValueError, match=r"sizes|dtype"):
        PackedLinear(*shape, dtype)


def test_rows_outside_a_map_cannot_be_read() -> None:
    for row in (-1, 16, INT_MAX):
        with pytest.raises(IndexError):
            PackedLinear(4, 4, "f32").row(row)


def test_caches_of_no_sensible_shape_are_refused() -> None:
    good = {"num_layers": 2, "num_kv_heads": 2, "head_dim": 8, "dtype": "f32", "num_blocks": 3}
    assert KVBlocks(*good.values()).memory.nbytes == 3 * 2 * 2 * BLOCK_TOKENS * (8 + 16) * 4
    for change in ({"num_layers": 0}, {"num_kv_heads": 0}, {"head_dim": 0}, {"head_dim": MAX_HEAD_DIM + 1},
                   {"num_blocks": 0}, {"num_blocks": -1}, {"dtype": "bf16"}, {"num_layers": INT_MAX}):  # fmt: skip
        with pytest.raises(ValueError, match="KV"):
            KVBlocks(*(good | change).values())
    with pytest.raises((MemoryError, ValueError)):
        KVBlocks(4096, 4096, 512, "f32", INT_MAX)


def test_vectors_of_the_wrong_kind_are_refused() -> None:
    for function in (_kernels.exp, _kernels.silu, _kernels.argmax):
        for wrong in (np.zeros(3), np.zeros((2, 2), np.float32), np.zeros(6, np.float32)[::2]):
            with pytest.raises(ValueError):  # noqa: PT011
                function(wrong)
        with pytest.raises(TypeError):
            function(None)
    with pytest.raises(ValueError, match="empty"):
        _kernels.argmax(np.zeros(0, np.float32))
    assert _kernels.exp(np.zeros(0, np.float32)).shape == (0,)
    assert _kernels.sum_exp(np.zeros(0, np.float32), 0, 1) == 0


# ---------------------------------------------------------------- one program, many callers


def test_threads_may_run_one_program_at_once() -> None:
    """Steps of different sizes grow one workspace while others wait for it; another workspace needs no wait."""
    weights, norm = packed(normal(70, 30)), np.ones(30, np.float32)
    recorder = OpList()
    hidden = recorder.buffer(30)
    table = normal(40, 30, seed=1)
    recorder.embed(packed(table), hidden)
    recorder.linear(hidden, OUTPUT, weights, norm=norm, eps=1e-6)

    shared = Workspace()

    def compute(rows: int, workspace: Workspace) -> np.ndarray:
        output = np.empty((rows, 70), np.float32)
        token_ids = np.arange(rows) % 40
        run_rows(
            recorder,
            {},
            token_ids=token_ids.tolist(),
            out_rows=range(rows),
            output=output,
            num_threads=2,
            workspace=workspace,
        )
        return output

    whole = compute(40, shared)
    wrong: list[int] = []

    def repeat(rows: int, workspace: Workspace) -> None:
        for i in range(60):
            if not np.array_equal(compute(rows + i % 3, workspace), whole[np.arange(rows + i % 3) % 40]):
                wrong.append(rows)

    turns = [(1, shared), (30, shared), (100, shared), (20, Workspace())]
    callers = [threading.Thread(target=repeat, args=turn) for turn in turns]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_the_instruction_set_may_change_while_steps_run() -> None:
    """A step keeps the set that it began with; all sets give the same bits, and none of a mixture is torn."""
    model = TinyModel()
    expected, before, stop = model.run().copy(), _kernels.active_isa(), threading.Event()

    def switch() -> None:
        while not stop.is_set():
            for name in _kernels.available_isas():
                _kernels.use_isa(name)

    switcher = threading.Thread(target=switch)
    switcher.start()
    try:
        for _ in range(300):
            assert np.array_equal(model.run(output=np.zeros((2, 50), np.float32)), expected)
    finally:
        stop.set()
        switcher.join()
        _kernels.use_isa(before)


LONG_STEP = """
import os, signal, sys, threading, time
import numpy as np
from steps import OpList, normal, packed, run_rows
recorder = OpList()
buffers = [recorder.buffer(1024) for _ in range(2)]
weights, norm = packed(normal(1024, 1024), num_threads=2), np.ones(1024, np.float32)
for i in range(4096):
    recorder.linear(buffers[i % 2], buffers[1 - i % 2], weights, norm=norm, eps=1e-6)
x = normal({rows}, 1024)

def run(num_ops, num_threads=2):
    after = run_rows(recorder, {{buffers[0]: x}}, num_ops=num_ops, num_threads=num_threads)
    return after[buffers[num_ops % 2] if num_ops > 0 else buffers[0]].copy()

expected = run(3)
"""

INTERRUPT = """
def tick_and_interrupt():
    for _ in range(100):  # needs the GIL every time
        time.sleep(0.0005)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=tick_and_interrupt).start()
try:
    run(-1, {num_threads})
except KeyboardInterrupt:
    assert np.array_equal(run(3), expected) and np.array_equal(run(3, 3), expected)
    print("interrupted, and works")
else:
    print("ran to its end")
"""


@pytest.mark.case("P05")
@pytest.mark.parametrize(("rows", "num_threads"), [(128, 2), (128, 1), (1, 2)])
def test_an_interrupt_stops_a_long_step_while_other_threads_run(rows: int, num_threads: int) -> None:
    """A prefill and a decode step of 4096 ops; another thread counts to a hundred and then sends SIGINT."""
    done = run_script(LONG_STEP.format(rows=rows) + INTERRUPT.format(num_threads=num_threads))
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted, and works\n", "")


RAISING_HANDLER = """
def handler(signum, frame):
    raise TimeoutError("enough")

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    run(-1)
except TimeoutError as error:
    print(error, np.array_equal(run(3), expected))
"""


def test_what_a_signal_handler_raises_stops_the_step() -> None:
    done = run_script(LONG_STEP.format(rows=128) + RAISING_HANDLER)
    assert (done.returncode, done.stdout, done.stderr) == (0, "enough True\n", "")


FORK = """
import os, signal, sys, threading
import numpy as np
from steps import OpList, normal, packed, run_rows
from fastcore.model.ops import OUTPUT

def compute(num_threads=3):
    recorder = OpList()
    src = recorder.buffer(64)
    recorder.linear(src, OUTPUT, packed(normal(500, 64), num_threads=num_threads))
    output = np.empty((4, 500), np.float32)
    run_rows(recorder, {src: normal(4, 64, seed=1)}, out_rows=range(4), output=output, num_threads=num_threads)
    return output

def child_agrees():
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a child that hangs is killed
        os._exit(0 if np.array_equal(compute(), expected) and np.array_equal(compute(2), expected) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

expected = compute(1)
"""


def test_a_fork_before_any_team_of_threads_works() -> None:
    done = run_script(FORK + "print(child_agrees(), np.array_equal(compute(), expected))")
    assert (done.returncode, done.stdout) == (0, "True True\n")


def test_a_fork_after_a_team_of_threads_works_in_child_and_parent() -> None:
    script = """
compute()
print(child_agrees(), np.array_equal(compute(), expected), child_agrees(), np.array_equal(compute(2), expected))
"""
    done = run_script(FORK + script)
    assert (done.returncode, done.stdout) == (0, "True True True True\n")


def test_a_fork_from_another_thread_works() -> None:
    script = """
compute()
found = []
def in_thread():
    compute()
    found.append(child_agrees())
    found.append(np.array_equal(compute(), expected))
thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
print(found, np.array_equal(compute(), expected))
"""
    done = run_script(FORK + script)
    assert (done.returncode, done.stdout) == (0, "[True, True] True\n")


# ---------------------------------------------------------------- choosing the instruction set


@pytest.mark.parametrize("name", ["sse9", "AVX2", "scalar "])
def test_an_unknown_instruction_set_fails_the_import_and_names_the_usable_ones(name: str) -> None:
    done = run_script("import fastcore._kernels", FASTCORE_ISA=name)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: FASTCORE_ISA:")
    assert repr(name) in last
    assert "unknown" in last
    assert last.endswith(f"usable here: {', '.join(_kernels.available_isas())}")


@pytest.mark.parametrize("name", ["", *_kernels.available_isas()])
def test_the_environment_chooses_the_instruction_set(name: str) -> None:
    done = run_script("from fastcore import _kernels; print(_kernels.active_isa())", FASTCORE_ISA=name)
    assert done.stdout.strip() == (name or _kernels.available_isas()[-1])


def test_scalar_is_always_usable_and_first() -> None:
    assert _kernels.available_isas()[0] == "scalar"
    with pytest.raises(ValueError, match=r"'sse9' is unknown; usable here: scalar"):
        _kernels.use_isa("sse9")


def test_a_step_takes_the_dtype_of_each_map(isa: str) -> None:
    """One program over f32, bf16 and f16 maps equals the program over their values in f32."""
    values = [normal(30, 30, seed=seed) / 6 for seed in range(3)]

    def compute(maps: list[PackedLinear]) -> np.ndarray:
        recorder = OpList()
        buffers = [recorder.buffer(30) for _ in range(4)]
        for i, weights in enumerate(maps):
            recorder.linear(buffers[i], buffers[i + 1], weights)
        after = run_rows(recorder, {buffers[0]: normal(7, 30, seed=9)}, num_threads=2)
        return after[buffers[3]].copy()

    mixed = compute([packed(value, dtype) for value, dtype in zip(values, DTYPES, strict=True)])
    assert np.array_equal(
        mixed, compute([packed(rounded(value, dtype)) for value, dtype in zip(values, DTYPES, strict=True)])
    )


def test_packing_reads_what_store_writes() -> None:
    value = normal(3, 5)
    for dtype in DTYPES:
        weights = PackedLinear(3, 5, dtype)
        weights.pack(store(value, dtype), dtype)
        assert np.array_equal(weights.row(2), rounded(value, dtype)[2])
