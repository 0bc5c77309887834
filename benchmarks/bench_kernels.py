"""Single ops on sizes of a 0.5B model, beside the limits that are measured around them."""

from typing import Any

import numpy as np
import pytest
import tolerances
from oracle import ops
from steps import normal, packed, rounded, run_rows

from fastcore import _kernels
from fastcore._kernels import BLOCK_TOKENS, KV_DTYPES, KVBlocks
from fastcore.bench.machine_limits import MachineLimits
from fastcore.model.recorder import Heads, Recorder

IN_FEATURES, OUT_FEATURES = 896, 9728  # gate and up of Qwen2.5-0.5B
WEIGHT_BYTES = 1 << 28  # in several maps: more than the caches hold
HEADS = {"num_heads": 14, "num_kv_heads": 2, "head_dim": 64}
LAYERS = 24
VOCAB_SIZE = 151936


def _report(benchmark: Any, kernel: str, limits: MachineLimits, nbytes: int, flops: int) -> None:
    if benchmark.stats is None:  # --benchmark-disable
        return
    read, compute = nbytes / benchmark.stats.stats.min, flops / benchmark.stats.stats.min
    benchmark.extra_info |= {
        "kernel": kernel,
        "bytes_per_second": read,
        "flops_per_second": compute,
        "share_of_read_limit": read / limits.read,
        "share_of_compute_limit": compute / limits.compute,
        "read_limit": limits.read,
        "compute_limit": limits.compute,
    }


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 512])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def bench_linear(benchmark: Any, machine: Any, num_threads: int, dtype: str, rows: int) -> None:
    weight, x = normal(OUT_FEATURES, IN_FEATURES), normal(rows, IN_FEATURES, seed=1)
    first = packed(weight, dtype, num_threads)
    maps = [first, *(packed(weight, dtype, num_threads) for _ in range(WEIGHT_BYTES // first.nbytes - 1))]
    recorder = Recorder()
    src, dst = recorder.buffer(IN_FEATURES), recorder.buffer(OUT_FEATURES)
    for weights in maps:
        recorder.linear(src, dst, weights)
    run_rows(recorder, {src: x}, num_threads=num_threads)
    actual = recorder.program.buffer(dst, rows)
    stored = rounded(weight, dtype)
    for row in {0, rows - 1}:
        expected = stored.astype(np.float64) @ x[row].astype(np.float64)
        bound = tolerances.LINEAR * (np.abs(stored) @ np.abs(x[row]))
        assert (np.abs(actual[row] - expected) <= bound).all()

    def step() -> None:
        run_rows(recorder, {}, token_ids=[0] * rows, num_threads=num_threads)

    benchmark.pedantic(step, rounds=3 if rows > 8 else 10, warmup_rounds=1)
    nbytes = sum(weights.nbytes for weights in maps)
    flops = 2 * rows * len(maps) * IN_FEATURES * OUT_FEATURES
    _report(benchmark, f"linear {dtype}, {rows} rows", machine.limits(), nbytes, flops)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize(("rows", "depth"), [(1, 1023), (1, 4095), (512, 0), (512, 2048)])
def bench_attention(benchmark: Any, machine: Any, num_threads: int, rows: int, depth: int, kv_dtype: str) -> None:
    """The attention of all layers over a cache that holds `depth` positions and those of the rows."""
    length, (num_heads, num_kv_heads, head_dim) = depth + rows, HEADS.values()
    shapes = [Heads(**HEADS, layer=layer) for layer in range(LAYERS)]
    kv = KVBlocks(LAYERS, num_kv_heads, head_dim, kv_dtype, -(-length // BLOCK_TOKENS))
    qkv = normal(length, num_heads + 2 * num_kv_heads, head_dim)
    fill, read = Recorder(), Recorder()
    src = fill.buffer(shapes[0].width)
    for shape in shapes:
        fill.program.add_op("heads", src=src, layer=shape.layer, **HEADS)
    rope = {"cos": np.ones((length, head_dim // 2), np.float32), "sin": np.zeros((length, head_dim // 2), np.float32)}
    run_rows(fill, {src: qkv.reshape(length, -1)}, kv=kv, num_threads=num_threads, **rope)

    src, dst = read.buffer(shapes[0].width), read.buffer(num_heads * head_dim)
    for shape in shapes:
        read.attention(src, dst, shape)
    rope = {name: table[:rows] for name, table in rope.items()}

    def step(inputs: dict[int, np.ndarray]) -> None:
        run_rows(read, inputs, token_ids=[0] * rows, positions=[depth], kv=kv, num_threads=num_threads, **rope)

    step({src: qkv[depth:].reshape(rows, -1)})
    q, k, v = np.split(qkv, [num_heads, num_heads + num_kv_heads], axis=1)
    k, v = (ops.in_cache(array, kv_dtype) for array in (k, v))
    expected = ops.attention(q[-1:], k, v, causal=True)[0]
    actual = read.program.buffer(dst, rows)[-1].reshape(num_heads, head_dim)
    assert np.abs(actual - expected).max() <= tolerances.ATTENTION * np.abs(v).max()

    benchmark.pedantic(step, ({},), rounds=5, warmup_rounds=1)
    nbytes = LAYERS * 2 * num_kv_heads * head_dim * length * {"f32": 4, "f16": 2, "int8": 1.125}[kv_dtype]
    flops = LAYERS * 4 * num_heads * head_dim * sum(range(depth + 1, length + 1))
    name = f"attention over {kv_dtype}, {rows} rows at {depth}"
    _report(benchmark, name, machine.limits(), nbytes, flops)


def bench_exp(benchmark: Any) -> None:
    x = np.linspace(-80, 80, 1 << 20, dtype=np.float32)
    expected = np.exp(x.astype(np.float64)).astype(np.float32)
    assert (np.abs(_kernels.exp(x) - expected) <= tolerances.EXP_ULPS * np.spacing(expected)).all()
    benchmark(_kernels.exp, x)
    if benchmark.stats is not None:
        benchmark.extra_info["values_per_second"] = x.size / benchmark.stats.stats.min


def bench_argmax(benchmark: Any) -> None:
    x = normal(VOCAB_SIZE)
    assert _kernels.argmax(x) == int(x.argmax())
    benchmark(_kernels.argmax, x)
    if benchmark.stats is not None:
        benchmark.extra_info["values_per_second"] = x.size / benchmark.stats.stats.min
