"""The ops of the Mamba-2 mixer against the oracle at awkward sizes, in steps that carry state, and to the same bits."""

from collections.abc import Sequence

import numpy as np
import pytest
import tolerances
from oracle import ops
from sizes import AWKWARD_SIZES
from steps import OpList, normal, run_rows

from fastcore import _kernels
from fastcore._kernels import KVBlocks

# Steps of three sequences: rows of each, shorter and longer than a convolution kernel, sequences advancing unevenly.
STEPS = ((1, 5, 2), (4, 1, 3), (1, 1, 9))


class States:
    """Room for the recurrent state of sequences; nothing in it is a number until a step writes it."""

    def __init__(self, recorder: OpList, num_seqs: int) -> None:
        block = KVBlocks(1, 1, 2, "f32", 1).block_bytes
        self.size = -(-recorder.program.state_bytes // block)
        self.kv = KVBlocks(1, 1, 2, "f32", max(1, num_seqs * self.size))
        self.kv.memory.view(np.float32)[:] = np.nan
        self.blocks = [i * self.size for i in range(num_seqs)]


def run_in_steps(
    recorder: OpList, inputs: dict[int, np.ndarray], dst: int, steps: Sequence[Sequence[int]], num_threads: int = 1
) -> np.ndarray:
    """Rows of `dst` after `steps`, each the row counts of all sequences; arrays hold one sequence after another."""
    totals = np.sum(steps, axis=0)
    starts = np.cumsum([0, *totals[:-1]])
    states = States(recorder, len(totals))
    result = np.empty((totals.sum(), recorder.buffers[dst].width), np.float32)
    done = np.zeros(len(totals), int)
    for lengths in steps:
        rows = np.concatenate([np.arange(n) + start + d for n, start, d in zip(lengths, starts, done, strict=True)])
        after = run_rows(
            recorder,
            {buffer: value[rows] for buffer, value in inputs.items()},
            lengths=lengths,
            positions=done.tolist(),
            kv=states.kv,
            num_threads=num_threads,
            state_blocks=states.blocks,
        )
        result[rows] = after[dst]
        done += lengths
    return result


def sequences(array: np.ndarray) -> list[np.ndarray]:
    """The rows of each sequence of STEPS."""
    return np.split(array, np.cumsum(np.sum(STEPS, axis=0))[:-1])


NUM_ROWS = int(np.sum(STEPS))


# ---------------------------------------------------------------- convolution


def conv_case(
    channels: int, d_conv: int, with_bias: bool, column: int = 3
) -> tuple[OpList, dict[int, np.ndarray], int]:
    recorder = OpList()
    src, dst = recorder.buffer(column + channels + 2), recorder.buffer(channels)
    weight = normal(d_conv, channels, seed=1)
    bias = normal(channels, seed=2) if with_bias else None
    recorder.conv(src, column, dst, weight, bias)
    return recorder, {src: normal(NUM_ROWS, column + channels + 2)}, dst


@pytest.mark.parametrize("d_conv", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("with_bias", [False, True])
def test_convolution(isa: str, awkward_size: int, d_conv: int, with_bias: bool) -> None:
    channels = awkward_size
    recorder, inputs, dst = conv_case(channels, d_conv, with_bias)
    found = run_in_steps(recorder, inputs, dst, STEPS)
    weight, bias = normal(d_conv, channels, seed=1).T, normal(channels, seed=2) if with_bias else np.zeros(channels)
    for y, x in zip(sequences(found), sequences(inputs[0][:, 3 : 3 + channels]), strict=True):
        expected, _ = ops.causal_conv1d(x, weight, bias)
        magnitude, _ = ops.causal_conv1d(np.abs(x), np.abs(weight), np.abs(bias))
        # The slope of silu is at most 1.1.
        bound = 1.1 * tolerances.CONV * magnitude + tolerances.SILU * np.abs(ops.silu(expected))
        assert (np.abs(y - ops.silu(expected)) <= bound).all()


def test_a_kernel_that_is_too_long_or_columns_that_are_not_there_are_refused() -> None:
    for column, channels, d_conv in ((5, 16, 4), (-1, 16, 4), (0, 16, 65), (0, 15, 4)):
        recorder = OpList()
        src, dst = recorder.buffer(20), recorder.buffer(16)
        recorder.conv(src, column, dst, np.zeros((d_conv, channels), np.float32), None)
        with pytest.raises(ValueError, match="convolution"):
            _ = recorder.program


# ---------------------------------------------------------------- step sizes


def test_softplus_over_its_range(isa: str) -> None:
    x = np.concatenate([np.linspace(-80, 100, 100_003), [0.0, -0.0, 1e-30, -1e-30]]).astype(np.float32)
    found, expected = _kernels.softplus(x), ops.softplus(x)
    assert (np.abs(found - expected) <= tolerances.SOFTPLUS * expected).all()
    assert np.array_equal(found[x > 20], x[x > 20])


def test_softplus_beyond_its_range(isa: str) -> None:
    tiny = float(np.finfo(np.float32).tiny)
    found = _kernels.softplus(np.array([np.inf, 1e30, -1e30, -np.inf, np.nan], np.float32))
    assert found[0] == np.inf
    assert found[1] == np.float32(1e30)
    assert ((found[2:4] >= 0) & (found[2:4] < 2 * tiny)).all()
    assert np.isnan(found[4])


@pytest.mark.parametrize("limit", [(0.0, np.inf), (0.03, 0.4)])
def test_time_steps(isa: str, awkward_size: int, limit: tuple[float, float]) -> None:
    heads, column = awkward_size, 5
    recorder = OpList()
    src, dst = recorder.buffer(column + heads), recorder.buffer(2 * heads)
    x, bias = 3 * normal(7, column + heads), normal(heads, seed=1)
    rate = -np.exp(normal(heads, seed=2))
    recorder.time_steps(src, column, dst, bias, rate, limit)
    after = run_rows(recorder, {src: x})
    step, decay = np.split(after[dst], 2, axis=1)
    expected = np.clip(ops.softplus(x[:, column:].astype(float) + bias), *limit)
    # x + bias is rounded once in f32; the slope of softplus is at most 1.
    rounding = np.abs(x[:, column:] + bias) * np.finfo(np.float32).eps
    assert (np.abs(step - expected) <= tolerances.SOFTPLUS * expected + rounding).all()
    exponent = step.astype(float) * rate  # rounded once in f32
    bound = (tolerances.EXP_ULPS + np.abs(exponent)) * np.finfo(np.float32).eps * np.exp(exponent)
    assert (np.abs(decay - np.exp(exponent)) <= bound + 2 * np.finfo(np.float32).tiny).all()


@pytest.mark.case("N08")
def test_only_the_limit_clamps_a_step_and_after_softplus() -> None:
    recorder = OpList()
    src, free, clamped = recorder.buffer(3), recorder.buffer(6), recorder.buffer(6)
    bias, rate = np.array([-10, 5, -3], np.float32), np.full(3, -1, np.float32)
    recorder.time_steps(src, 0, free, bias, rate, (0.0, np.inf))
    recorder.time_steps(src, 0, clamped, bias, rate, (0.001, 0.1))
    after = run_rows(recorder, {src: np.zeros((1, 3), np.float32)})
    steps = after[free][0, :3]
    np.testing.assert_allclose(steps, [4.53989e-5, 5.0067153, 0.0485873], rtol=1e-5)
    assert np.array_equal(after[clamped][0, :3], np.array([0.001, 0.1, steps[2]], np.float32))


# ---------------------------------------------------------------- scan


def scan_case(
    head_dim: int, d_state: int, num_groups: int, with_gate: bool, heads: int = 4
) -> tuple[OpList, dict[int, np.ndarray], int]:
    recorder = OpList()
    features, d_bc = heads * head_dim, num_groups * d_state
    src, steps, gate = recorder.buffer(features + 2 * d_bc), recorder.buffer(2 * heads), recorder.buffer(features + 7)
    dst = recorder.buffer(features)
    recorder.scan(
        src,
        steps,
        dst,
        normal(heads, seed=4),
        head_dim=head_dim,
        num_groups=num_groups,
        d_state=d_state,
        gate=gate if with_gate else None,
    )
    dt = np.exp(normal(NUM_ROWS, heads, seed=1) - 2)
    decay = np.exp(-dt * np.arange(1, heads + 1, dtype=np.float32))
    inputs = {
        src: normal(NUM_ROWS, features + 2 * d_bc, seed=2),
        steps: np.concatenate([dt, decay], axis=1),
        gate: normal(NUM_ROWS, features + 7, seed=3),
    }
    return recorder, inputs, dst


@pytest.mark.parametrize("d_state", [1, 16, 33])
@pytest.mark.parametrize(("num_groups", "with_gate"), [(1, True), (2, False), (4, True)])
def test_scan(isa: str, awkward_size: int, d_state: int, num_groups: int, with_gate: bool) -> None:
    heads, head_dim = 4, awkward_size
    recorder, inputs, dst = scan_case(head_dim, d_state, num_groups, with_gate)
    found = run_in_steps(recorder, inputs, dst, STEPS)
    features, d_bc = heads * head_dim, num_groups * d_state
    for y, x, dt, gate in zip(sequences(found), *(sequences(value) for value in inputs.values()), strict=True):
        x, B, C = np.split(x, [features, features + d_bc], axis=1)
        expected, _ = ops.selective_scan(
            x.reshape(len(x), heads, head_dim),
            dt[:, :heads],
            -np.arange(1.0, heads + 1),
            B.reshape(len(x), num_groups, d_state),
            C.reshape(len(x), num_groups, d_state),
            normal(heads, seed=4),
        )
        expected = expected.reshape(len(x), features)
        largest = np.abs(expected).max()
        if with_gate:
            factor = ops.silu(gate[:, :features])
            expected, largest = expected * factor, largest * np.abs(factor).max()
        assert np.abs(y - expected).max() <= tolerances.SCAN * largest


def test_state_lies_in_tiles_of_16_head_dims_with_lanes_beyond_the_head_zero() -> None:
    heads, head_dim, d_state = 4, 21, 5
    recorder, inputs, _ = scan_case(head_dim, d_state, 1, True)
    states = States(recorder, 1)
    rows = {buffer: value[:6] for buffer, value in inputs.items()}
    run_rows(recorder, rows, kv=states.kv, state_blocks=states.blocks)
    found = states.kv.memory[: recorder.program.state_bytes].view(np.float32).reshape(heads, 2, d_state, 16)
    x, B, C = np.split(inputs[0][:6], [heads * head_dim, heads * head_dim + d_state], axis=1)
    _, expected = ops.selective_scan(
        x.reshape(6, heads, head_dim),
        inputs[1][:6, :heads],
        -np.arange(1.0, heads + 1),
        B[:, None],
        C[:, None],
        normal(heads, seed=4),
    )
    by_dim = found.swapaxes(2, 3).reshape(heads, 32, d_state)
    assert np.abs(by_dim[:, :head_dim] - expected).max() <= tolerances.SCAN * np.abs(expected).max()
    assert (by_dim[:, head_dim:] == 0).all()


# ---------------------------------------------------------------- gated norm


def gated_norm_case(
    n: int, num_groups: int, norm_before_gate: bool, rows: int
) -> tuple[OpList, dict[int, np.ndarray], int]:
    recorder = OpList()
    src, gate, dst = recorder.buffer(n), recorder.buffer(n + 5), recorder.buffer(n)
    weight = 1 + normal(n, seed=3) / 5
    recorder.gated_norm(src, gate, dst, weight, 1e-5, num_groups=num_groups, norm_before_gate=norm_before_gate)
    return recorder, {src: normal(rows, n, seed=1), gate: normal(rows, n + 5, seed=2)}, dst


@pytest.mark.parametrize("norm_before_gate", [False, True])
@pytest.mark.parametrize("num_groups", [1, 3])
def test_gated_norm(isa: str, awkward_size: int, num_groups: int, norm_before_gate: bool) -> None:
    n = awkward_size * num_groups
    recorder, inputs, dst = gated_norm_case(n, num_groups, norm_before_gate, rows=5)
    after = run_rows(recorder, inputs)
    x, gate = inputs.values()
    weight = 1 + normal(n, seed=3) / 5
    expected = ops.gated_rms_norm(x, gate[:, :n], weight, 1e-5, num_groups, norm_before_gate)
    bound = (tolerances.NORM + tolerances.SILU) * np.abs(expected)
    assert (np.abs(after[dst] - expected) <= bound).all()


def test_gated_norm_in_place() -> None:
    for norm_before_gate in (False, True):
        recorder, inputs, dst = gated_norm_case(39, 3, norm_before_gate, rows=5)
        after = run_rows(recorder, inputs)
        expected = after[dst].copy()
        weight = 1 + normal(39, seed=3) / 5
        in_place = OpList()
        src, gate = in_place.buffer(39), in_place.buffer(44)
        in_place.gated_norm(src, gate, src, weight, 1e-5, num_groups=3, norm_before_gate=norm_before_gate)
        after = run_rows(in_place, inputs)
        assert np.array_equal(after[src], expected)


# ---------------------------------------------------------------- one result whatever runs it

CASES = {
    "convolution": lambda: conv_case(97, 4, True),
    "convolution of one tap": lambda: conv_case(33, 1, False),
    "scan": lambda: scan_case(40, 24, 2, True),
    "scan without a gate": lambda: scan_case(7, 3, 1, False),
    "gated norm": lambda: gated_norm_case(51, 3, False, NUM_ROWS),
    "norm before the gate": lambda: gated_norm_case(64, 1, True, NUM_ROWS),
}
SPLITS = (STEPS, (np.sum(STEPS, axis=0).tolist(),), ((1, 1, 1), (1, 1, 1), (1, 4, 4), (3, 1, 8)))


@pytest.mark.parametrize("name", CASES)
def test_bits_do_not_depend_on_instruction_set_threads_or_steps(name: str) -> None:
    before, results = _kernels.active_isa(), []
    try:
        for isa in _kernels.available_isas():
            _kernels.use_isa(isa)
            for num_threads in (1, 2, 3, 7):
                for steps in SPLITS:
                    results.append(run_in_steps(*CASES[name](), steps, num_threads))
    finally:
        _kernels.use_isa(before)
    assert np.isfinite(results[0]).all()
    assert all(np.array_equal(result, results[0]) for result in results)


def test_softplus_has_the_same_bits_on_every_instruction_set() -> None:
    x = 8 * normal(10_007)
    before, results = _kernels.active_isa(), []
    try:
        for isa in _kernels.available_isas():
            _kernels.use_isa(isa)
            results.append([_kernels.softplus(x[:n]).tobytes() for n in (*AWKWARD_SIZES, len(x))])
    finally:
        _kernels.use_isa(before)
    assert all(result == results[0] for result in results)


# ---------------------------------------------------------------- the border


def test_state_outside_the_blocks_is_refused() -> None:
    recorder, inputs, _ = scan_case(8, 5, 1, True)
    states = States(recorder, 2)
    rows = {buffer: value[:6] for buffer, value in inputs.items()}
    for blocks in ([states.blocks[1] + 1], [-1], [0, states.size], None):
        with pytest.raises(ValueError, match="state"):
            run_rows(recorder, rows, kv=states.kv, state_blocks=blocks)
    with pytest.raises(ValueError, match="state"):
        run_rows(recorder, rows, kv=None, state_blocks=[0])
    run_rows(recorder, rows, kv=states.kv, state_blocks=[states.blocks[1]])
    assert np.isnan(states.kv.memory.view(np.float32)[: states.size * states.kv.block_bytes // 4]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_groups": 3}, "groups"),
        ({"d_state": 4}, "a scan"),
        ({"head_dim": 9}, "a scan"),
        ({"gate": 1}, "gate"),
    ],
)
def test_scans_that_do_not_fit_their_buffers_are_refused(change: dict, message: str) -> None:
    recorder = OpList()
    src, steps, dst = recorder.buffer(4 * 8 + 2 * 5), recorder.buffer(8), recorder.buffer(32)
    shape = {"head_dim": 8, "num_groups": 1, "d_state": 5, "gate": None} | change
    recorder.scan(src, steps, dst, np.ones(4, np.float32), **shape)
    with pytest.raises(ValueError, match=message):
        _ = recorder.program
