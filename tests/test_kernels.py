"""Every op on every instruction set: against the oracle at awkward sizes, and bit for bit against each other."""

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import tolerances
from oracle import ops
from sizes import AWKWARD_SIZES
from steps import DTYPES, OpList, normal, packed, rounded, run_rows
from tiny import store

from fastcore import _kernels
from fastcore._kernels import BLOCK_TOKENS, KV_DTYPES, SEGMENT_TOKENS, KVBlocks, PackedLinear
from fastcore.model.ops import OUTPUT, Attention, FinishHeads, Heads

Compute = Callable[[int], np.ndarray]  # of a number of threads


def assert_within(actual: np.ndarray, expected: np.ndarray, bound: np.ndarray | float) -> None:
    assert actual.shape == expected.shape
    difference = np.abs(actual - expected)
    assert (difference <= bound).all(), f"off by {difference.max()}, {np.max(difference / bound)} times the bound"


# ---------------------------------------------------------------- linear maps


def linear_case(
    rows: int, in_features: int, out_features: int, dtype: str = "f32", **options: np.ndarray | float | bool
) -> tuple[Compute, np.ndarray, np.ndarray]:
    """How to compute a linear op, what the oracle says, and the bound of the difference."""
    x, weight = normal(rows, in_features), normal(out_features, in_features, seed=1)
    start = normal(rows, out_features, seed=2)
    weights = packed(weight, dtype)
    stored = rounded(weight, dtype).astype(np.float64)

    def compute(num_threads: int) -> np.ndarray:
        recorder = OpList()
        src, dst = recorder.buffer(in_features), recorder.buffer(out_features)
        recorder.linear(src, dst, weights, **options)
        after = run_rows(recorder, {src: x, dst: start}, num_threads=num_threads)
        return after[dst].copy()

    source, relative = x.astype(np.float64), tolerances.LINEAR
    if "norm" in options:
        source = ops.rms_norm(x, options["norm"], options["eps"]) * np.float32(options.get("src_scale", 1.0))
        relative += tolerances.NORM
    bias = options.get("bias", np.zeros(out_features))
    factor = np.float64(options.get("column_scale", np.ones(out_features))) * np.float32(options.get("scale", 1.0))
    expected = ops.linear(source, stored, bias) * factor
    size = (np.abs(source) @ np.abs(stored).T + np.abs(bias)) * np.abs(factor)
    if options.get("add"):
        expected, size = expected + start, size + np.abs(start)
    return compute, expected, relative * size


@pytest.mark.parametrize("rows", range(1, 14))
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear(isa: str, dtype: str, rows: int) -> None:
    for in_features, out_features in [(1, 1), (3, 17), (64, 16), (97, 65), (31, 127), (16, 300)]:
        compute, expected, bound = linear_case(rows, in_features, out_features, dtype)
        for num_threads in (1, 3):
            assert_within(compute(num_threads), expected, bound)


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_at_awkward_sizes(isa: str, dtype: str, rows: int, awkward_size: int) -> None:
    for in_features, out_features in [(awkward_size, 33), (33, awkward_size)]:
        compute, expected, bound = linear_case(rows, in_features, out_features, dtype)
        assert_within(compute(2), expected, bound)


EPILOGUES: dict[str, dict[str, np.ndarray | float | bool]] = {
    "bias": {"bias": normal(53, seed=3)},
    "scale": {"scale": 0.37},
    "column scale": {"column_scale": normal(53, seed=4)},
    "add": {"add": True},
    "all": {"bias": normal(53, seed=3), "column_scale": normal(53, seed=4), "scale": -1.7, "add": True},
    "norm": {"norm": normal(37, seed=5), "eps": 1e-3},
    "norm and all": {
        "norm": normal(37, seed=5),
        "eps": 1e-6,
        "src_scale": 0.6,
        "bias": normal(53, seed=3),
        "add": True,
    },
}


@pytest.mark.parametrize("rows", [1, 6, 7, 8, 9, 20])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_linear_epilogues_and_fused_norm(isa: str, epilogue: str, rows: int) -> None:
    compute, expected, bound = linear_case(rows, 37, 53, "bf16", **EPILOGUES[epilogue])
    for num_threads in (1, 2, 3):
        assert_within(compute(num_threads), expected, bound)


ROW_SETS = {"all": ("all", "all"), "all to asked": ("all", "out"), "asked": ("out", "out"), "output": ("all", "output")}


@pytest.mark.fault("A3")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epilogue", ["store", "add", "swiglu"])
@pytest.mark.parametrize("row_set", ROW_SETS)
def test_linear_over_every_row_set(isa: str, row_set: str, epilogue: str, dtype: str) -> None:
    """With and without norm, scale of the source, bias and scales, few rows and many: each row from its own source."""
    src_rows, dst_rows = ROW_SETS[row_set]
    if dst_rows == "output" and epilogue != "store":
        return  # refused: test_program.py
    in_features, out_features = 20, 64
    width = out_features // 2 if epilogue == "swiglu" else out_features
    weight, norm = normal(out_features, in_features, seed=1), normal(in_features, seed=2)
    stored, weights = rounded(weight, dtype).astype(np.float64), packed(weight, dtype)
    vectors = {"bias": normal(out_features, seed=3)}
    if epilogue != "swiglu":
        vectors["column_scale"] = normal(out_features, seed=4)
    asked = {5: [3], 20: [18, 0, 7, 19, 2, 3, 11, 12, 5, 13], 9: []}
    for (rows, out_rows), normed, extras, src_scale in itertools.product(asked.items(), *[(0, 1)] * 2, (1.0, 0.6)):
        held = rows if src_rows == "all" else len(out_rows)
        x, start = normal(held, in_features), normal(rows, width, seed=5)
        recorder = OpList()
        src = recorder.buffer(in_features, src_rows)
        dst = OUTPUT if dst_rows == "output" else recorder.buffer(width, dst_rows)
        options = {"norm": norm, "eps": 1e-5} if normed else {}
        options |= vectors | {"scale": 0.7} if extras else {}
        record = recorder.swiglu if epilogue == "swiglu" else recorder.linear
        record(src, dst, weights, src_scale=src_scale, **options, **({"add": True} if epilogue == "add" else {}))
        output = np.full((len(out_rows), width), np.nan, np.float32) if dst == OUTPUT else None
        inputs = {src: np.concatenate([x, np.full((rows - held, in_features), np.nan)])}
        if dst != OUTPUT:
            inputs[dst] = start
        after = run_rows(recorder, inputs, out_rows=out_rows, output=output, num_threads=2)
        picked = dst_rows != "all"
        found = output if output is not None else after[dst][: len(out_rows) if picked else rows]

        source = x[out_rows] if picked and src_rows == "all" else x
        source = (ops.rms_norm(source, norm, 1e-5) if normed else source) * np.float64(np.float32(src_scale))
        bias = vectors["bias"] if extras else np.zeros(out_features)
        scale = np.float32(0.7) if extras else 1
        y = ops.linear(source, stored, bias)
        relative = tolerances.LINEAR + (tolerances.NORM if normed or src_scale != 1 else 0)
        error = relative * (np.abs(source) @ np.abs(stored).T + np.abs(bias))
        if epilogue == "swiglu":
            pairs, errors = (each.reshape(len(y), width // 16, 2, 16) for each in (y, error))
            gate, up = (pairs[:, :, i].reshape(len(y), width) for i in range(2))
            gate_error, up_error = (errors[:, :, i].reshape(len(y), width) for i in range(2))
            expected = ops.swiglu(gate, up) * scale
            error = (1.1 * gate_error * np.abs(up) + np.abs(ops.silu(gate)) * up_error) * scale
            error += tolerances.SILU * np.abs(expected)
        else:
            factor = (vectors["column_scale"] if extras else 1) * scale
            expected, error = y * factor, error * np.abs(factor)
        if epilogue == "add":
            base = start[: len(expected)]
            expected, error = expected + base, error + relative * np.abs(base)
        assert_within(found, expected, error)


@pytest.mark.fault("A3")
@pytest.mark.parametrize("rows", [5, 20])
def test_rows_are_picked_once(isa: str, rows: int) -> None:
    """A norm of the rows asked for, then a map with a norm of its own, of all the rows that the first gave."""
    x, weight, norm = normal(rows, 20), normal(30, 20, seed=1), normal(20, seed=2)
    out_rows = list(range(rows - 1, 0, -2))
    recorder = OpList()
    src, asked = recorder.buffer(20), recorder.buffer(20, "out")
    recorder.norm(src, asked, norm, 1e-5)
    recorder.linear(asked, OUTPUT, packed(weight), norm=norm, eps=1e-5)
    output = np.full((len(out_rows), 30), np.nan, np.float32)
    run_rows(recorder, {src: x}, out_rows=out_rows, output=output, num_threads=2)
    normed = ops.rms_norm(ops.rms_norm(x, norm, 1e-5)[out_rows], norm, 1e-5)
    bound = (tolerances.LINEAR + 2 * tolerances.NORM) * (np.abs(normed) @ np.abs(weight).T)
    assert_within(output, ops.linear(normed, weight), bound)


def swiglu_case(
    rows: int, in_features: int, out_features: int, dtype: str = "f32", bias: bool = False, gate_scale: float = 1.0
) -> tuple[Compute, np.ndarray, np.ndarray]:
    x, both = normal(rows, in_features), normal(2, out_features, in_features, seed=1)
    stored = rounded(both, dtype).astype(np.float64)
    padded = -(-out_features // 16) * 16
    weights = PackedLinear(2 * padded, in_features, dtype)
    biases = np.zeros((2, padded), np.float32)
    for i in range(2):
        weights.pack(store(both[i], dtype), dtype, first_row=16 * i, group_stride=32, num_threads=2)
        if bias:
            biases[i, :out_features] = normal(out_features, seed=2 + i)

    def compute(num_threads: int) -> np.ndarray:
        recorder = OpList()
        src, dst = recorder.buffer(in_features), recorder.buffer(out_features)
        interleaved = biases.reshape(2, -1, 16).swapaxes(0, 1).reshape(-1)
        recorder.swiglu(src, dst, weights, bias=interleaved if bias else None, gate_scale=gate_scale)
        after = run_rows(recorder, {src: x}, num_threads=num_threads)
        return after[dst].copy()

    (gate, up), scale = (ops.linear(x, stored[i], biases[i, :out_features]) for i in range(2)), np.float32(gate_scale)
    gate_error, up_error = (
        tolerances.LINEAR * (np.abs(x) @ np.abs(stored[i]).T + np.abs(biases[i, :out_features])) for i in range(2)
    )
    expected = ops.swiglu(scale * gate, up)
    # silu changes by at most 1.1 times its argument
    bound = 1.1 * abs(scale) * gate_error * np.abs(up) + np.abs(ops.silu(scale * gate)) * up_error
    return compute, expected, bound + tolerances.SILU * np.abs(expected)


@pytest.mark.parametrize("rows", [1, 6, 7, 13])
@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu(isa: str, dtype: str, rows: int) -> None:
    for out_features in (1, 16, 17, 31, 33, 160):
        for bias, gate_scale in ((False, 1.0), (True, 0.88)):
            compute, expected, bound = swiglu_case(rows, 37, out_features, dtype, bias, gate_scale)
            for num_threads in (1, 3):
                assert_within(compute(num_threads), expected, bound)


@pytest.mark.parametrize("rows", [1, 8, 9, 30])
def test_norm(isa: str, rows: int, awkward_size: int) -> None:
    x, weight = 3 * normal(rows, awkward_size), normal(awkward_size, seed=1)
    recorder = OpList()
    src, dst = recorder.buffer(awkward_size), recorder.buffer(awkward_size)
    recorder.norm(src, dst, weight, 1e-5)
    after = run_rows(recorder, {src: x}, num_threads=2)
    expected = ops.rms_norm(x, weight, 1e-5)
    assert_within(after[dst], expected, tolerances.NORM * np.abs(expected))


@pytest.mark.parametrize("dtype", DTYPES)
def test_embed(isa: str, dtype: str, awkward_size: int) -> None:
    table = normal(50, awkward_size)
    recorder = OpList()
    dst = recorder.buffer(awkward_size)
    recorder.embed(packed(table, dtype), dst, scale=2.5)
    token_ids = [49, 0, 7, 7, 16, 15, 31]
    after = run_rows(recorder, {}, token_ids=token_ids, num_threads=2)
    expected = rounded(table, dtype)[token_ids] * np.float32(2.5)
    assert np.array_equal(after[dst], expected)


# ---------------------------------------------------------------- heads and the cache


def rope_tables(num_positions: int, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
    angles = np.outer(np.arange(num_positions), 100.0 ** -(np.arange(0, head_dim, 2) / head_dim))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def cached(kv: KVBlocks, layer: int, head: int, blocks: Iterable[int], length: int) -> tuple[np.ndarray, np.ndarray]:
    """K and V [length, head_dim] of one head, read out of the cache's memory by the documented layout."""
    dim, padded = kv.head_dim, -(-kv.head_dim // 16) * 16
    whole = np.asarray(kv.memory).reshape(kv.num_blocks, kv.num_layers, kv.num_kv_heads, -1)
    ks, vs = [], []
    for block in blocks:
        k, rest = part(whole[block, layer, head], kv.dtype, dim)
        v, _ = part(rest, kv.dtype, padded)
        k = k.reshape(BLOCK_TOKENS // 16, dim, 16).swapaxes(1, 2).reshape(BLOCK_TOKENS, dim)
        v = v.reshape(padded // 16, BLOCK_TOKENS, 16).swapaxes(0, 1).reshape(BLOCK_TOKENS, padded)
        if kv.dtype == "int8":
            parts = (whole[block, layer, head], dim), (rest, padded)
            scales = [np.repeat(scales_of(*each), 32, axis=0).T for each in parts]
            k, v = k * scales[0][:, :dim], v * scales[1][:, :padded]
        ks.append(k)
        vs.append(v[:, :dim])
    return np.concatenate(ks)[:length].astype(np.float32), np.concatenate(vs)[:length].astype(np.float32)


def part(memory: np.ndarray, dtype: str, features: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the K or V that memory begins with, and the memory after its scales."""
    stored = np.dtype({"f32": np.float32, "f16": np.float16, "int8": np.int8}[dtype])
    numbers = BLOCK_TOKENS * features * stored.itemsize
    scales = BLOCK_TOKENS * 4 * -(-features // 32) if dtype == "int8" else 0
    return memory[:numbers].view(stored), memory[numbers + scales :]


def scales_of(memory: np.ndarray, features: int) -> np.ndarray:
    """[groups of 32 features, BLOCK_TOKENS] of the K or V of int8 that memory begins with."""
    groups = -(-features // 32)
    return memory[BLOCK_TOKENS * features :][: BLOCK_TOKENS * 4 * groups].view(np.float32).reshape(groups, BLOCK_TOKENS)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("head_dim", [2, 6, 8, 16, 24, 64, 128])
def test_heads_are_normalised_rotated_and_cached(isa: str, head_dim: int, with_norm: bool, kv_dtype: str) -> None:
    """Two sequences at positions 30 and 0, in scattered blocks of the second layer; alone or inside the projection."""
    num_heads, num_kv_heads, lengths, positions = 6, 2, [5, 18], [30, 0]
    rows, width = sum(lengths), (num_heads + 2 * num_kv_heads) * head_dim
    q_norm, k_norm = (normal(head_dim, seed=seed) if with_norm else None for seed in (1, 2))
    center, unit = 3 * normal(num_kv_heads, head_dim, seed=5), np.exp2(np.rint(normal(num_kv_heads, head_dim, seed=6)))
    code = {"key_center": center.reshape(-1), "key_unit": unit.reshape(-1)}
    heads = Heads(num_heads, num_kv_heads, head_dim, 1, q_norm, k_norm, key_scale=0.39, **code)
    if kv_dtype != "int8":
        center, unit = 0 * center, 0 * unit + 1
    x, weight = normal(rows, 20), normal(width, 20, seed=3) / 4
    at = np.concatenate([np.arange(p, p + n) for p, n in zip(positions, lengths, strict=True)])
    cos, sin = (table[at] for table in rope_tables(40, head_dim))
    blocks = np.array([[4, 2], [0, 0]], np.int32)
    kv = KVBlocks(2, num_kv_heads, head_dim, kv_dtype, 5)
    recorder = OpList()
    src, dst = recorder.buffer(20), recorder.buffer(width)
    recorder.qkv(src, dst, packed(weight), heads, norm=np.ones(20, np.float32), eps=1e-5)
    options = {"lengths": lengths, "positions": positions, "blocks": blocks, "kv": kv, "cos": cos, "sin": sin}
    after = run_rows(recorder, {src: x}, num_threads=3, **options)
    found = after[dst].reshape(rows, -1, head_dim)

    normed = ops.rms_norm(x, np.ones(20), 1e-5)
    plain = ops.linear(normed, weight).reshape(rows, -1, head_dim)
    error = (tolerances.LINEAR + tolerances.NORM) * (np.abs(normed) @ np.abs(weight).T).reshape(plain.shape)
    q, k, v = np.split(plain, [num_heads, num_heads + num_kv_heads], axis=1)
    if with_norm:  # the norm of a head whose numbers nearly vanish magnifies their error
        error[:, :-num_kv_heads] /= np.sqrt((plain**2).mean(-1, keepdims=True) + 1e-5)[:, :-num_kv_heads] / 3
        q, k = ops.rms_norm(q, q_norm, 1e-5), ops.rms_norm(k, k_norm, 1e-5)
    q, k = ops.rope(q, cos, sin), ops.rope(np.float32(0.39) * k, cos, sin)
    expected = np.concatenate([q, k, v], axis=1)
    rotated = (tolerances.NORM + tolerances.ROPE) * np.linalg.norm(expected, axis=-1, keepdims=True)
    assert_within(found, expected, 1.5 * error.max(-1, keepdims=True) + rotated)

    first, second = slice(0, 5), slice(5, 23)
    for head in range(num_kv_heads):
        for sequence, table, start, end in ((first, [4, 2], 30, 35), (second, [0], 0, 18)):
            cached_k, cached_v = cached(kv, 1, head, table, end)
            keys, values = found[sequence, num_heads + head], found[sequence, num_heads + num_kv_heads + head]
            assert np.array_equal(cached_k[start:], ops.in_cache((keys - center[head]) / unit[head], kv_dtype))
            assert np.array_equal(cached_v[start:], ops.in_cache(values, kv_dtype))


# ---------------------------------------------------------------- attention


def attention_case(
    length: int,
    queries: int,
    group: int = 2,
    num_kv_heads: int = 2,
    head_dim: int = 8,
    causal: bool = True,
    kv_dtype: str = "f32",
    spread: float = 1.0,
) -> tuple[Compute, np.ndarray, float]:
    """The last `queries` of `length` positions, whose keys and values were cached by an earlier step."""
    num_heads = group * num_kv_heads
    shape = Heads(num_heads, num_kv_heads, head_dim, 0)
    qkv = normal(length, num_heads + 2 * num_kv_heads, head_dim)
    qkv[:, :num_heads] *= spread
    still = np.ones((length, head_dim // 2), np.float32), np.zeros((length, head_dim // 2), np.float32)

    def compute(num_threads: int) -> np.ndarray:
        num_blocks = -(-length // BLOCK_TOKENS)
        kv = KVBlocks(1, num_kv_heads, head_dim, kv_dtype, num_blocks)
        kv.memory[:] = 0xFF  # what was never written is NaN, and must not be seen
        blocks = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)[None]
        recorder = OpList()
        src, dst = recorder.buffer(shape.width), recorder.buffer(num_heads * head_dim)
        recorder.append(FinishHeads(src, shape))
        recorder.attention(src, dst, shape, causal)
        rows = qkv.reshape(length, -1)
        options = {"kv": kv, "blocks": blocks, "num_threads": num_threads}
        if queries < length:
            earlier = {"cos": still[0][queries:], "sin": still[1][queries:]}
            run_rows(recorder, {src: rows[:-queries]}, num_ops=1, **earlier, **options)
        now = {"cos": still[0][:queries], "sin": still[1][:queries]}
        after = run_rows(recorder, {src: rows[-queries:]}, positions=[length - queries], **now, **options)
        return after[dst].reshape(queries, num_heads, head_dim).copy()

    q, k, v = np.split(qkv, [num_heads, num_heads + num_kv_heads], axis=1)
    k, v = (ops.in_cache(array, kv_dtype) for array in (k, v))
    return compute, ops.attention(q[-queries:], k, v, causal), tolerances.ATTENTION * np.abs(v).max()


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("group", [1, 2, 3, 7])
def test_attention(isa: str, group: int, causal: bool, kv_dtype: str) -> None:
    for length, queries in [(1, 1), (2, 2), (17, 17), (33, 1), (65, 6), (97, 97)]:
        compute, expected, bound = attention_case(length, queries, group, causal=causal, kv_dtype=kv_dtype)
        for num_threads in (1, 2):
            assert_within(compute(num_threads), expected, bound)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("head_dim", [2, 6, 16, 24, 64, 128])
def test_attention_at_head_dims(isa: str, head_dim: int, kv_dtype: str) -> None:
    for queries in (1, 7, 40):
        compute, expected, bound = attention_case(40, queries, head_dim=head_dim, kv_dtype=kv_dtype)
        assert_within(compute(2), expected, bound)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_key_code_changes_no_attention(isa: str, kv_dtype: str) -> None:
    """But for the rounding of keys in int8, which large biases would make large without it."""
    rng, length = np.random.default_rng(0), 70
    bias = np.where(rng.random((2, 24)) < 0.2, 300, 1).astype(np.float32)
    wide = np.where(rng.random((2, 24)) < 0.2, 64, 1).astype(np.float32)  # keys large where queries are small
    qkv = normal(length, 10, 24)
    qkv[:, :6] /= np.repeat(wide, 3, axis=0)
    qkv[:, 6:8] = qkv[:, 6:8] * wide + bias
    cos, sin = np.ones((length, 12), np.float32), np.zeros((length, 12), np.float32)
    q, k, v = np.split(qkv, [6, 8], axis=1)
    errors = []
    for code in ({"key_center": bias.reshape(-1), "key_unit": wide.reshape(-1)}, {}):
        heads = Heads(6, 2, 24, 0, **code)
        recorder = OpList()
        src, dst = recorder.buffer(heads.width), recorder.buffer(6 * 24)
        recorder.append(FinishHeads(src, heads))
        recorder.append(Attention(src, dst, 6, 2, 24, 0, 24**-0.5, key_unit=heads.key_unit))
        kv, blocks = KVBlocks(1, 2, 24, kv_dtype, 3), np.array([[2, 0, 1]], np.int32)
        rows = qkv.reshape(length, -1)
        found = run_rows(recorder, {src: rows}, num_threads=2, kv=kv, blocks=blocks, cos=cos, sin=sin)[dst]
        found = found.reshape(length, 6, 24)
        center, unit = (bias, wide) if kv_dtype == "int8" and code else (0, np.float32(1))
        held = ops.in_cache((k - center) / unit, kv_dtype) * unit
        expected = ops.attention(q, held, ops.in_cache(v, kv_dtype), True)
        assert_within(found, expected, 20 * tolerances.ATTENTION * np.abs(v).max())  # scores of hundreds
        errors.append(np.abs(found - ops.attention(q, k, v, True)).max())
    assert errors[0] < errors[1] / 10 if kv_dtype == "int8" else errors[0] == errors[1]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [SEGMENT_TOKENS - 1, SEGMENT_TOKENS, SEGMENT_TOKENS + 1, 1100])
def test_attention_over_segments(isa: str, length: int, causal: bool) -> None:
    """One to four rows share a long context between threads, more rows do not; a tile holds 96 query rows."""
    for queries in (1, 4, 5, 100):
        compute, expected, bound = attention_case(length, queries, group=3, num_kv_heads=1, causal=causal)
        for num_threads in (1, 3):
            assert_within(compute(num_threads), expected, bound)


@pytest.mark.case("N03")
def test_attention_with_scores_of_ten_thousand_is_finite(isa: str) -> None:
    compute, expected, bound = attention_case(600, 30, spread=1e4)
    found = compute(2)
    assert np.isfinite(found).all()
    # nearly all weight is on one position, so a score's rounding decides only where two scores nearly tie
    agrees = (np.abs(found - expected) <= bound).all(axis=-1)
    assert agrees.mean() > 0.9
    compute, expected, bound = attention_case(1, 1, spread=1e4)
    assert_within(compute(1), expected, bound)


# ---------------------------------------------------------------- equal bits


BITS: dict[str, Compute] = {
    f"linear {dtype} {rows}": linear_case(rows, 97, 300, dtype, bias=normal(300), column_scale=normal(300), add=True)[0]
    for dtype in DTYPES
    for rows in (1, 2, 3, 4, 5, 6, 7, 13, 29)
}
BITS |= {f"fused norm {rows}": linear_case(rows, 97, 40, norm=normal(97), eps=1e-6)[0] for rows in (1, 8, 9)}
BITS |= {f"swiglu {rows}": swiglu_case(rows, 65, 97, "bf16", True, 0.88)[0] for rows in (1, 7)}
BITS |= {
    f"attention {length} {queries} {kv_dtype}": attention_case(length, queries, 3, 2, 24, kv_dtype=kv_dtype)[0]
    for length, queries in ((1, 1), (40, 40), (1100, 1), (1100, 4), (600, 50))
    for kv_dtype in KV_DTYPES
}


@pytest.mark.parametrize("name", BITS)
def test_bits_do_not_depend_on_instruction_set_or_threads(name: str) -> None:
    before, found = _kernels.active_isa(), {}
    try:
        for isa in _kernels.available_isas():
            _kernels.use_isa(isa)
            for num_threads in (1, 2, 3, 7):
                found[isa, num_threads] = BITS[name](num_threads)
    finally:
        _kernels.use_isa(before)
    expected = found["scalar", 1]
    assert np.isfinite(expected).all()
    assert [key for key, value in found.items() if not np.array_equal(value, expected)] == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_a_row_do_not_depend_on_the_rows_beside_it(isa: str, dtype: str) -> None:
    x, weight = normal(29, 97), packed(normal(70, 97, seed=1), dtype)

    def compute(rows: np.ndarray) -> np.ndarray:
        recorder = OpList()
        src, dst = recorder.buffer(97), recorder.buffer(70)
        recorder.linear(src, dst, weight, norm=normal(97, seed=2), eps=1e-6)
        after = run_rows(recorder, {src: rows}, num_threads=2)
        return after[dst].copy()

    whole = compute(x)
    for count in range(1, 29):
        assert np.array_equal(compute(x[:count]), whole[:count])
        assert np.array_equal(compute(x[-count:]), whole[-count:])


# ---------------------------------------------------------------- functions on vectors

EXP_LOWEST, EXP_HIGHEST = np.float32(-87.33), np.float32(88.37)  # beyond them the argument is clamped


def test_exp_is_within_two_units_in_the_last_place(isa: str) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 1_000_000, dtype=np.uint32).view(np.float32)  # every magnitude
    borders = np.array([EXP_LOWEST, EXP_HIGHEST, 0.0, -0.0], np.float32)
    x = np.concatenate([bits, rng.uniform(-88, 89, 1_000_000).astype(np.float32), borders])
    x = x[(x >= EXP_LOWEST) & (x <= EXP_HIGHEST)]
    expected = np.exp(x.astype(np.float64))
    ulp = np.spacing(expected.astype(np.float32)).astype(np.float64)
    assert (np.abs(_kernels.exp(x) - expected) <= tolerances.EXP_ULPS * ulp).all()


def test_exp_beyond_its_range(isa: str) -> None:
    low, high = _kernels.exp(np.array([EXP_LOWEST, EXP_HIGHEST], np.float32))
    assert low < 1.3e-38
    assert high > 2.3e38
    x = np.array([-88, -104, -1e30, -np.inf, 89, 1e30, np.inf, np.nan], np.float32)
    found = _kernels.exp(x)
    assert found[:7].tolist() == [low] * 4 + [high] * 3
    assert np.isnan(found[7])


def test_exp_at_awkward_lengths(isa: str, awkward_size: int) -> None:
    x = normal(awkward_size)
    one_by_one = np.concatenate([_kernels.exp(x[i : i + 1]) for i in range(awkward_size)])
    assert np.array_equal(_kernels.exp(x), one_by_one)


def test_silu(isa: str) -> None:
    x = np.concatenate([np.linspace(-80, 80, 100_001), [0.0, 1e-30, -1e-30, 1e30]]).astype(np.float32)
    expected = ops.silu(x)
    found = _kernels.silu(x)
    assert_within(found, expected, tolerances.SILU * np.abs(expected))
    far = np.array([-90, -1e30, -np.inf], np.float32)
    assert (np.abs(_kernels.silu(far[:1])) < 1e-35).all()
    assert not np.isfinite(_kernels.silu(np.array([np.nan], np.float32)))[0]


@pytest.mark.case("X5")
def test_argmax_takes_the_lowest_of_equal_values(isa: str, awkward_size: int) -> None:
    for seed in range(5):
        x = np.random.default_rng(seed).integers(-3, 3, awkward_size).astype(np.float32)
        assert _kernels.argmax(x) == np.argmax(x)
    assert _kernels.argmax(np.full(awkward_size, -7.5, np.float32)) == 0
    assert _kernels.argmax(np.array([-0.0] * awkward_size + [0.0], np.float32)) == 0
    for place in range(awkward_size):
        x = np.zeros(awkward_size, np.float32)
        x[place:] = 1
        assert _kernels.argmax(x) == place


@pytest.mark.case("X5")
@pytest.mark.parametrize("size", [1023, 1024, 1025, 2048, 5003])
def test_argmax_of_long_rows_takes_the_lowest_of_equal_values(isa: str, size: int) -> None:
    places = [place for place in (0, 1, 1000, 1023, 1024, 1025, 2047, 4095, 4096, 5002) if place < size]
    for i, first in enumerate(places):
        x = normal(size)
        x[places[i:]] = 9
        assert _kernels.argmax(x) == first
        x[first] = np.inf
        assert _kernels.argmax(x) == -1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_argmax_refuses_what_is_not_finite(isa: str, awkward_size: int, value: float) -> None:
    for place in range(awkward_size):
        x = normal(awkward_size)
        x[place] = value
        assert _kernels.argmax(x) == -1


@pytest.mark.parametrize("size", [1, 15, 17, 255, 256, 257, 1000])
def test_softmax_weights(isa: str, size: int) -> None:
    x = np.random.default_rng(size).normal(0, 30, size).astype(np.float32)
    x[::5] = -np.inf
    x[-1] = 3.0
    weights, sums = np.full(size + 3, 7, np.float32), np.empty(-(-size // _kernels.WEIGHT_BLOCK))
    _kernels.softmax_weights(x, x.max(), 0.7, weights, sums)
    drops = (x.astype(np.float64) - x.max()) * 0.7
    expected = np.where(drops < -87, 0.0, np.exp(drops))
    assert weights[:size] == pytest.approx(expected, rel=tolerances.WEIGHT, abs=2e-38)
    assert (weights[:size][np.isinf(x)] == 0).all()
    assert (weights[size:] == 7).all()
    blocks = [weights[:size][i : i + 256].astype(np.float64).sum() for i in range(0, size, 256)]
    assert sums == pytest.approx(blocks, rel=tolerances.SOFTMAX)


@pytest.mark.parametrize("size", [*AWKWARD_SIZES, 16383, 16384, 16385, 152_064])
def test_sum_exp(isa: str, size: int) -> None:
    x = 5 * normal(size)
    expected = np.exp((x.astype(np.float64) - x.max()) * np.float32(0.7)).sum()
    assert _kernels.sum_exp(x, x.max(), 0.7) == pytest.approx(expected, rel=tolerances.SOFTMAX)


def test_sums_have_the_same_bits_on_every_instruction_set() -> None:
    before, found = _kernels.active_isa(), {}
    try:
        for isa in _kernels.available_isas():
            _kernels.use_isa(isa)
            vectors = [normal(size) for size in (*AWKWARD_SIZES, 20_000)]
            found[isa] = [
                (_kernels.sum_exp(x, 0.5, 1.5), _kernels.exp(x).sum(), _kernels.silu(x).sum()) for x in vectors
            ]
    finally:
        _kernels.use_isa(before)
    assert all(value == found["scalar"] for value in found.values())


# ---------------------------------------------------------------- packing and halves


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("src_dtype", DTYPES)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_packing_rounds_and_unpacking_returns(src_dtype: str, dtype: str, num_threads: int, awkward_size: int) -> None:
    for rows, in_features in [(awkward_size, 70), (33, awkward_size)]:
        value = normal(rows, in_features)
        weights = PackedLinear(rows, in_features, dtype)
        weights.pack(store(value, src_dtype), src_dtype, num_threads=num_threads)
        expected = rounded(rounded(value, src_dtype), dtype)
        assert np.array_equal(np.stack([weights.row(r) for r in range(rows)]), expected)
        for r in range(rows, -(-rows // 16) * 16):
            assert not weights.row(r).any()
        assert weights.nbytes == -(-rows // 16) * 16 * in_features * (4 if dtype == "f32" else 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_maps_stacked_at_any_row_keep_to_their_rows(dtype: str) -> None:
    """The parts straddle panels, as q, k and v of heads that are no multiple of 16 do."""
    parts = [normal(rows, 21, seed=rows) for rows in (5, 11, 16, 1, 40, 30)]
    weights = PackedLinear(sum(map(len, parts)), 21, dtype)
    first = 0
    for part in parts:
        weights.pack(store(part, dtype), dtype, first_row=first, num_threads=3)
        first += len(part)
    expected = rounded(np.concatenate(parts), dtype)
    assert np.array_equal(np.stack([weights.row(r) for r in range(first)]), expected)


@pytest.mark.parametrize("rows", [1, 16, 17, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_interleaved_maps_alternate_by_panel(dtype: str, rows: int) -> None:
    both = normal(2, rows, 9)
    padded = -(-rows // 16) * 16
    weights = PackedLinear(2 * padded, 9, dtype)
    for i in range(2):
        weights.pack(store(both[i], dtype), dtype, first_row=16 * i, group_stride=32, num_threads=2)
    for i in range(2):
        for r in range(padded):
            expected = rounded(both[i, r], dtype) if r < rows else np.zeros(9, np.float32)
            assert np.array_equal(weights.row(r // 16 * 32 + 16 * i + r % 16), expected)


def hard_floats() -> np.ndarray:
    """f32 values at and around every place where a narrower format rounds, overflows or turns subnormal."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = ((halves[1:] + halves[:-1]) / 2).astype(np.float32)  # exact: ties between neighbours
    borders = np.array([65503.99, 65504, 65519.99, 65520, 65536, 2**-24, 2**-25, 2**-14, 3.4e38, 0.0], np.float32)
    values = np.concatenate([halves.astype(np.float32), middles, borders])
    around = [np.nextafter(values, np.float32(0)), values, np.nextafter(values, np.float32(np.inf))]
    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint32).view(np.float32)
    bits = bits[~np.isnan(bits)]
    every = np.concatenate([*around, bits, np.array([np.inf, np.nan], np.float32)])
    return np.concatenate([every, -every])


def same_halves(found: np.ndarray, expected: np.ndarray) -> bool:
    nan = np.isnan(expected)
    return bool(np.isnan(found[nan]).all()) and np.array_equal(
        found[~nan].view(np.uint16), expected[~nan].view(np.uint16)
    )


def test_packing_to_halves_rounds_as_numpy_does() -> None:
    values = hard_floats()
    weights = PackedLinear(1, len(values), "f16")
    weights.pack(values[None], "f32")
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    assert same_halves(weights.panels.view(np.float16).reshape(-1, 16)[:, 0].copy(), expected)


def test_packing_to_bf16_rounds_to_nearest_even() -> None:
    values = hard_floats()
    weights = PackedLinear(1, len(values), "bf16")
    weights.pack(values[None], "f32")
    found = weights.panels.view(np.uint16).reshape(-1, 16)[:, 0]
    nan = np.isnan(values)
    assert np.array_equal(found[~nan], store(values[~nan], "bf16"))
    assert (found[nan] & 0x7FFF > 0x7F80).all()
    ties = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF], np.uint32).view(np.float32)
    weights = PackedLinear(1, 5, "bf16")
    weights.pack(ties[None], "f32")
    assert weights.panels.view(np.uint16).reshape(-1, 16)[:, 0].tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80]


def test_every_half_is_read_as_numpy_reads_it(isa: str) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    weights = PackedLinear(len(halves), 1, "f16")
    weights.pack(halves[:, None], "f16")
    recorder = OpList()
    src, dst = recorder.buffer(1), recorder.buffer(len(halves))
    recorder.linear(src, dst, weights)
    after = run_rows(recorder, {src: np.ones((1, 1), np.float32)})
    expected = halves.astype(np.float32)
    assert np.array_equal(after[dst][0], expected, equal_nan=True)
    for r in range(0, 1 << 16, 97):
        assert np.array_equal(weights.row(r), expected[r : r + 1], equal_nan=True)


def test_halves_of_the_cache_round_as_numpy_does(isa: str) -> None:
    values = hard_floats()
    head_dim = 512
    rows = -(-len(values) // head_dim)
    v = np.zeros(rows * head_dim, np.float32)
    v[: len(values)] = values
    kv = KVBlocks(1, 1, head_dim, "f16", -(-rows // BLOCK_TOKENS))
    recorder = OpList()
    src = recorder.buffer(3 * head_dim)
    recorder.append(FinishHeads(src, Heads(1, 1, head_dim, 0)))
    qkv = np.zeros((rows, 3, head_dim), np.float32)
    qkv[:, 2] = v.reshape(rows, head_dim)
    still = np.ones((rows, head_dim // 2), np.float32), np.zeros((rows, head_dim // 2), np.float32)
    run_rows(recorder, {src: qkv.reshape(rows, -1)}, kv=kv, cos=still[0], sin=still[1])
    found = cached(kv, 0, 0, range(kv.num_blocks), rows)[1].reshape(-1).astype(np.float16)
    with np.errstate(over="ignore"):
        expected = v.astype(np.float16)
    assert same_halves(found, expected)
