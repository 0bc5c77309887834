"""int8 and int4 maps: their layout and rounding, and linear ops on rows quantised likewise, against NumPy."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tolerances
from oracle import ops
from sizes import AWKWARD_SIZES
from steps import OpList, normal, run_rows

from fastcore import LLM, _kernels
from fastcore._kernels import PackedLinear
from fastcore.model.recipes import recipe_dtype

GROUP = 32
DTYPES = ("int8", "int4")
BLOCK_BYTES = {"int8": 544, "int4": 320}


def packed(weight: np.ndarray, dtype: str, num_threads: int = 1) -> PackedLinear:
    linear = PackedLinear(*weight.shape, dtype)
    linear.pack(weight, "f32", num_threads=num_threads)
    return linear


def decoded(linear: PackedLinear) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q [rows, groups, 32], scales and minima [rows, groups], read out of the panels by the documented layout."""
    groups = -(-linear.in_features // GROUP)
    blocks = np.asarray(linear.panels)[: linear.nbytes].reshape(-1, groups, BLOCK_BYTES[linear.dtype])
    panels = len(blocks)
    if linear.dtype == "int8":
        q = blocks[:, :, :512].view(np.int8).reshape(panels, groups, 8, 16, 4)
        halves = np.ascontiguousarray(blocks[:, :, 512:]).view(np.float16).reshape(panels, groups, 1, 16)
    else:
        both = blocks[:, :, :256].reshape(panels, groups, 4, 16, 4)
        q = np.concatenate([both & 15, both >> 4], axis=2).astype(np.int8)
        halves = np.ascontiguousarray(blocks[:, :, 256:]).view(np.float16).reshape(panels, groups, 2, 16)
    by_row = q.transpose(0, 3, 1, 2, 4).reshape(panels * 16, groups, GROUP)
    scales = halves.transpose(0, 3, 1, 2).reshape(panels * 16, groups, -1).astype(np.float32)
    minima = scales[..., 1] if linear.dtype == "int4" else np.zeros_like(scales[..., 0])
    rows = linear.out_features
    return by_row[:rows], scales[:rows, :, 0], minima[:rows]


def in_groups(x: np.ndarray) -> np.ndarray:
    """[rows, k] as [rows, groups, 32], the last group filled up with zeros."""
    return np.pad(x, ((0, 0), (0, -x.shape[1] % GROUP))).reshape(len(x), -1, GROUP)


def quantised(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """q [rows, groups, 32] and scales [rows, groups] of rows of activations."""
    groups = in_groups(x)
    largest = np.abs(groups).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(largest >= np.float32(1e-36), np.rint(groups * (np.float32(127) / largest)), 0)
    scale = np.where(largest >= np.float32(1e-36), largest / np.float32(127), 0)[..., 0]
    return q.clip(-127, 127), scale.astype(np.float64)


def product(x: np.ndarray, linear: PackedLinear) -> tuple[np.ndarray, np.ndarray]:
    """x [rows, k] times the map in double, with both quantised; and the sum of the sizes of what was added."""
    qx, sx = quantised(x)
    qw, sw, minimum = decoded(linear)
    sums = np.einsum("rgi,ogi->rog", qx, qw.astype(np.float64))
    scaled = sums * sx[:, None] * sw[None]
    offset = minimum[None] * (sx * qx.sum(-1))[:, None]
    return (scaled + offset).sum(-1), (np.abs(scaled) + np.abs(offset)).sum(-1)


def run_linear(x: np.ndarray, linear: PackedLinear, num_threads: int = 1, **options: object) -> np.ndarray:
    recorder = OpList()
    src, dst = recorder.buffer(x.shape[1]), recorder.buffer(linear.out_features)
    recorder.linear(src, dst, linear, **options)
    return run_rows(recorder, {src: x}, num_threads=num_threads)[dst].copy()


# ---------------------------------------------------------------- packing


@pytest.mark.parametrize("rows", [1, 16, 19])
def test_int8_takes_the_best_of_eight_steps(rows: int, awkward_size: int) -> None:
    """The largest of a group becomes 127 to 120; the rest is rounded by that step."""
    weight = normal(rows, awkward_size)
    linear = packed(weight, "int8", num_threads=2)
    groups = in_groups(weight)
    steps = (np.abs(groups).max(-1)[..., None] / np.arange(127, 119, -1, dtype=np.float32)).astype(np.float16)
    steps = steps.astype(np.float32)
    tried = np.rint(groups[:, :, None] * (np.float32(1) / steps)[..., None]).clip(-127, 127)
    errors = ((tried * steps[..., None].astype(np.float64) - groups[:, :, None]) ** 2).sum(-1)
    q, scales, _ = decoded(linear)
    chosen = (steps == scales[..., None]).argmax(-1)
    assert np.array_equal(np.take_along_axis(steps, chosen[..., None], -1)[..., 0], scales)
    assert np.array_equal(np.take_along_axis(tried, chosen[..., None, None], 2)[:, :, 0], q)
    found = np.take_along_axis(errors, chosen[..., None], -1)[..., 0]
    assert (found <= errors.min(-1) * (1 + tolerances.LINEAR)).all()
    values = (q * scales[..., None]).reshape(rows, -1)[:, :awkward_size]
    assert np.array_equal(np.stack([linear.row(r) for r in range(rows)]), values)


def test_int4_is_never_worse_than_the_range_in_fifteen_steps(awkward_size: int) -> None:
    weight = normal(33, awkward_size) ** 3
    q, scales, minima = decoded(packed(weight, "int4", num_threads=2))
    groups, filled = in_groups(weight), in_groups(np.ones_like(weight))
    least, most = np.where(filled, groups, np.inf).min(-1), np.where(filled, groups, -np.inf).max(-1)
    step = ((most - least) / 15).astype(np.float16).astype(np.float64)[..., None]
    least = least.astype(np.float16).astype(np.float64)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        plain = np.nan_to_num(np.rint((groups - least) / step)).clip(0, 15) * step + least
    errors = [
        ((values - groups) ** 2 * filled).sum(-1)
        for values in (q * scales[..., None].astype(np.float64) + minima[..., None], plain)
    ]
    assert (errors[0] <= errors[1] * (1 + tolerances.LINEAR) + tolerances.LINEAR**2).all()
    assert q.min() >= 0
    assert q.max() <= 15


def test_int4_gives_what_has_sixteen_levels_back() -> None:
    rng = np.random.default_rng(0)
    q = rng.integers(0, 16, (20, 3, GROUP))
    q[..., 0], q[..., 1] = 0, 15
    scale, least = np.float16(0.125), np.float16(-0.75)
    weight = (q * np.float32(scale) + np.float32(least)).reshape(20, -1).astype(np.float32)
    linear = packed(weight, "int4")
    assert np.array_equal(np.stack([linear.row(r) for r in range(20)]), weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_groups_of_nothing_of_tiny_and_of_huge_numbers(dtype: str) -> None:
    weight = normal(5, GROUP)
    weight *= np.array([0, 1e-6, 1e-4, 1, 1e4], np.float32)[:, None]
    linear = packed(weight, dtype)
    found = np.stack([linear.row(r) for r in range(5)])
    step = np.ptp(weight, axis=1) / 15 if dtype == "int4" else np.abs(weight).max(1) / 127
    least_half = 2.0**-24
    assert (np.abs(found - weight) <= (0.51 * step + 16 * least_half + 0.001 * np.abs(weight).max(1))[:, None]).all()
    assert not found[0].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_do_not_become_numbers(dtype: str, bad: float) -> None:
    weight = normal(3, 70)
    weight[1, 40] = bad
    out = run_linear(np.ones((1, 70), np.float32), packed(weight, dtype))
    assert np.isfinite(out[0, [0, 2]]).all()
    assert not np.isfinite(out[0, 1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("src_dtype", ["f32", "bf16", "f16"])
def test_sources_of_every_kind_are_quantised_alike(dtype: str, src_dtype: str) -> None:
    weight = (np.random.default_rng(0).integers(-128, 129, (40, 100)) / 64).astype(np.float32)  # exact in all three
    stored = weight
    if src_dtype == "bf16":
        stored = (weight.view(np.uint32) >> 16).astype(np.uint16)
    elif src_dtype == "f16":
        stored = weight.astype(np.float16)
    linear = PackedLinear(40, 100, dtype)
    linear.pack(stored, src_dtype, num_threads=2)
    assert np.array_equal(linear.panels, packed(weight, dtype).panels)


# ---------------------------------------------------------------- linear ops


@pytest.mark.parametrize("rows", [*range(1, 15), 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear(isa: str, dtype: str, rows: int) -> None:
    for in_features, out_features in [(1, 1), (32, 16), (31, 17), (97, 65), (160, 127), (64, 300)]:
        x, linear = normal(rows, in_features), packed(normal(out_features, in_features, seed=1), dtype)
        expected, size = product(x, linear)
        for num_threads in (1, 3):
            assert (
                np.abs(run_linear(x, linear, num_threads) - expected) <= tolerances.LINEAR * size + tolerances.TINY
            ).all()


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_at_awkward_sizes(isa: str, dtype: str, rows: int, awkward_size: int) -> None:
    for in_features, out_features in [(awkward_size, 33), (33, awkward_size)]:
        x, linear = normal(rows, in_features), packed(normal(out_features, in_features, seed=1), dtype)
        expected, size = product(x, linear)
        assert (np.abs(run_linear(x, linear, 2) - expected) <= tolerances.LINEAR * size + tolerances.TINY).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_all_sizes_and_ties(isa: str, dtype: str) -> None:
    x = np.concatenate([np.rint(normal(5, 70) * 254) / 2, normal(3, 70), np.zeros((1, 70))]).astype(np.float32)
    x *= np.array([1, 1e-20, 1e30, 1e-38, 1e10, 1, 1e-30, 1e20, 1], np.float32)[:, None]
    linear = packed(normal(33, 70, seed=1), dtype)
    expected, size = product(x, linear)
    assert (np.abs(run_linear(x, linear) - expected) <= tolerances.LINEAR * size + tolerances.TINY).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_reaches_every_output(isa: str, dtype: str, bad: float) -> None:
    x = normal(3, 70)
    x[1, 40] = bad
    out = run_linear(x, packed(normal(20, 70, seed=1), dtype))
    assert np.isfinite(out[[0, 2]]).all()
    assert not np.isfinite(out[1]).any()


@pytest.mark.parametrize("rows", [1, 7, 12])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_and_epilogues(isa: str, dtype: str, rows: int) -> None:
    """A norm before and what comes after are the same bits as in ops of their own."""
    x, norm, bias = normal(rows, 97), normal(97, seed=2), normal(53, seed=3)
    linear = packed(normal(53, 97, seed=1), dtype)
    recorder = OpList()
    src, dst = recorder.buffer(97), recorder.buffer(97)
    recorder.norm(src, dst, norm, 1e-5)
    normed = run_rows(recorder, {src: x})[dst].copy()
    assert np.abs(normed - ops.rms_norm(x, norm, 1e-5)).max() < 1
    expected = (run_linear(normed, linear) + bias) * np.float32(0.5)
    for num_threads in (1, 2, 3):
        assert np.array_equal(run_linear(x, linear, num_threads, norm=norm, eps=1e-5, bias=bias, scale=0.5), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_is_its_rows_alone_on_every_instruction_set(dtype: str) -> None:
    x, linear = normal(40, 333), packed(normal(100, 333, seed=1), dtype)
    active = _kernels.active_isa()
    found = []
    try:
        for isa in _kernels.available_isas():
            _kernels.use_isa(isa)
            found.append(run_linear(x, linear, 2))
            found.append(np.concatenate([run_linear(row[None], linear) for row in x]))
    finally:
        _kernels.use_isa(active)
    assert all(np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_embed(isa: str, dtype: str) -> None:
    for width in AWKWARD_SIZES:
        linear = packed(normal(50, width), dtype)
        recorder = OpList()
        dst = recorder.buffer(width)
        recorder.embed(linear, dst, scale=2.5)
        token_ids = [49, 0, 7, 7, 16, 15, 31]
        found = run_rows(recorder, {}, token_ids=token_ids, num_threads=2)[dst]
        assert np.array_equal(found, np.stack([linear.row(i) for i in token_ids]) * np.float32(2.5))


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_loads_quantised(dtype: str, tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("llama")
    llm = LLM(folder, dtype=dtype, num_threads=2)
    token_ids = [1, 5, 9, 2, 7, 3, 11, 4, 8, 6]
    whole = llm.logits(token_ids)
    assert np.isfinite(whole).all()
    assert np.array_equal(LLM(folder, dtype=dtype, num_threads=1).logits(token_ids), whole)
    assert np.array_equal(llm.logits(token_ids[:4]), whole[:4])
    greedy = llm.generate(token_ids, max_tokens=4).token_ids
    assert greedy[0] == int(whole[-1].argmax())
    exact = LLM(folder, num_threads=1).logits(token_ids)
    error = np.sqrt(np.square(whole - exact).mean()) / exact.std()
    assert 0 < error < tolerances.QUANTISED_LOGITS[dtype]


def test_the_recipe() -> None:
    """Rows of the table: by name, by the width of a map, and whatever else its tensors are fused with."""
    q, head = "model.layers.3.self_attn.q_proj.weight", "lm_head.weight"
    assert recipe_dtype("int8", [q], 768) == "bf16"
    assert recipe_dtype("int8", [q], 769) == "int8"
    assert recipe_dtype("int8", [head], 64) == "int8"
    assert recipe_dtype("int4", [head], 64) == recipe_dtype("int4", ["x.o_proj.weight", q], 64) == "int8"
    assert recipe_dtype("int4", ["model.layers.3.mlp.down_proj.weight"], 64) == "int4"
    assert recipe_dtype("f16", [q], 64) == "f16"
