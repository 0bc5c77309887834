"""Frequencies and tables of every rope_type against formulas written another way, in float64."""

import math
from typing import Any

import numpy as np
import pytest
from tolerances import DOUBLE, F32_TABLE, FREQUENCY_IN_F32

from fastcore.errors import UnsupportedModelError
from fastcore.model.config import RopeConfig
from fastcore.model.rope import inv_freq, rope_tables

HEAD_DIMS = (2, 4, 6, 10, 16, 64, 80, 128)
THETAS = (1e4, 5e5, 1e6, 1e11)


def plain(theta: float, head_dim: int) -> list[float]:
    """theta ** (-2 i / head_dim), by logarithms."""
    return [math.exp(-2 * i / head_dim * math.log(theta)) for i in range(head_dim // 2)]


def check(
    rope: RopeConfig, head_dim: int, expected: list[float], scaling: float = 1.0, seq_len: int | None = None
) -> None:
    frequencies, found_scaling = inv_freq(rope, head_dim, seq_len)
    assert frequencies.dtype == np.float64
    assert frequencies.shape == (head_dim // 2,)
    np.testing.assert_allclose(frequencies, expected, rtol=DOUBLE)
    assert found_scaling == pytest.approx(scaling, rel=DOUBLE)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("theta", THETAS)
def test_default(head_dim: int, theta: float) -> None:
    check(RopeConfig(rope_theta=theta), head_dim, plain(theta, head_dim))
    check(RopeConfig(rope_theta=theta), head_dim, plain(theta, head_dim), seq_len=10**6)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("factor", [1.0, 2.5, 4.0])
def test_linear_turns_as_if_positions_were_divided(head_dim: int, factor: float) -> None:
    rope = RopeConfig(rope_type="linear", rope_theta=1e6, factor=factor)
    check(rope, head_dim, [f / factor for f in plain(1e6, head_dim)])
    stretched = rope_tables(rope, head_dim, 41)
    unscaled = rope_tables(RopeConfig(rope_theta=1e6), head_dim, 11)
    if factor == 4.0:
        for wide, narrow in zip(stretched, unscaled, strict=True):
            np.testing.assert_allclose(wide[::4], narrow, atol=F32_TABLE)


@pytest.mark.parametrize("head_dim", [4, 6, 16, 64, 128])
@pytest.mark.parametrize("seq_len", [None, 0, 1, 20, 32])
def test_dynamic_is_the_default_up_to_the_trained_length(head_dim: int, seq_len: int | None) -> None:
    rope = RopeConfig(rope_type="dynamic", rope_theta=1e4, factor=2.0, max_position_embeddings=32)
    same = inv_freq(RopeConfig(rope_theta=1e4), head_dim)[0]
    assert np.array_equal(inv_freq(rope, head_dim, seq_len)[0], same)


@pytest.mark.parametrize("head_dim", [4, 6, 16, 64, 128])
def test_dynamic_grows_the_base_with_the_length(head_dim: int) -> None:
    rope = RopeConfig(rope_type="dynamic", rope_theta=1e4, factor=2.0, max_position_embeddings=32)
    # 48 tokens: 2 * 48 / 32 - (2 - 1) = 2
    check(rope, head_dim, plain(1e4 * 2 ** (head_dim / (head_dim - 2)), head_dim), seq_len=48)
    check(rope, head_dim, plain(1e4 * 3 ** (head_dim / (head_dim - 2)), head_dim), seq_len=64)
    # the last pair turns 2 times slower at 48 tokens: interpolation just where it is needed
    assert inv_freq(rope, head_dim, 48)[0][-1] == pytest.approx(inv_freq(rope, head_dim)[0][-1] / 2, rel=DOUBLE)
    assert inv_freq(rope, head_dim, 48)[0][0] == 1


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("original", [64, 8192])
@pytest.mark.parametrize(("factor", "low", "high"), [(32.0, 1.0, 4.0), (8.0, 1.0, 4.0), (3.0, 0.5, 7.0)])
def test_llama3_by_wavelength(head_dim: int, original: int, factor: float, low: float, high: float) -> None:
    rope = RopeConfig("llama3", 5e5, 131072, factor, original, low_freq_factor=low, high_freq_factor=high)
    expected = []
    for frequency in plain(5e5, head_dim):
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            expected.append(frequency)
        elif wavelength > original / low:
            expected.append(frequency / factor)
        else:
            share = (original / wavelength - low) / (high - low)
            expected.append(frequency * (share + (1 - share) / factor))
    check(rope, head_dim, expected)


def test_llama3_uses_all_three_bands() -> None:
    rope = RopeConfig("llama3", 5e5, 4096, 32.0, 64)
    ratio = inv_freq(rope, 16)[0] / inv_freq(RopeConfig(rope_theta=5e5), 16)[0]
    assert ratio[0] == 1
    assert 1 / 32 < ratio[1] < 1
    np.testing.assert_allclose(ratio[2:], 1 / 32, rtol=DOUBLE)


YARN_OPTIONS: list[dict[str, Any]] = [
    {},
    {"beta_fast": 16.0, "beta_slow": 2.0},
    {"truncate": False},
    {"beta_fast": 4.0, "beta_slow": 4.0},
]


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("original", [64, 1024, 32768])
@pytest.mark.parametrize("options", YARN_OPTIONS)
def test_yarn_blends_over_a_ramp_of_pairs(head_dim: int, original: int, options: dict[str, Any]) -> None:
    rope = RopeConfig("yarn", 1e6, 4 * original, 4.0, original, **options)
    # the pair whose wavelength fits n times into the original context
    edges = [
        head_dim / 2 * math.log(original / n / (2 * math.pi), 1e6)
        for n in (options.get("beta_fast", 32.0), options.get("beta_slow", 1.0))
    ]
    if options.get("truncate", True):
        edges = [math.floor(edges[0]), math.ceil(edges[1])]
    start, stop = max(edges[0], 0), min(edges[1], head_dim - 1)
    stop += 0.001 if start == stop else 0.0
    expected = []
    for i, frequency in enumerate(plain(1e6, head_dim)):
        part = min(max((i - start) / (stop - start), 0.0), 1.0)
        expected.append(frequency * (1 - part) + frequency / 4 * part)
    check(rope, head_dim, expected, 1 + math.log(4) / 10)


@pytest.mark.parametrize(
    ("options", "scaling"),
    [
        ({"factor": 4.0}, 1 + math.log(4) / 10),
        ({"factor": 1.0}, 1.0),
        ({"factor": 0.5}, 1.0),
        ({"factor": 4.0, "attention_factor": 1.25}, 1.25),
        ({"factor": 4.0, "attention_factor": 1.25, "mscale": 2.0, "mscale_all_dim": 1.0}, 1.25),
        ({"factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.1}, (1 + 0.07 * math.log(8)) / (1 + 0.11 * math.log(8))),
        ({"factor": 8.0, "mscale": 0.7}, 1 + math.log(8) / 10),
    ],
)
def test_yarn_scales_attention(options: dict[str, float], scaling: float) -> None:
    rope = RopeConfig("yarn", original_max_position_embeddings=64, **options)  # type: ignore[arg-type]
    assert inv_freq(rope, 16)[1] == pytest.approx(scaling, rel=DOUBLE)


# What transformers 5.24 computes, in f32, for head_dim 16 and rope_theta 5e5
TRANSFORMERS: list[tuple[dict[str, Any], int | None, list[float], float]] = [
    (
        {"rope_type": "linear", "factor": 4.0},
        None,
        [0.25, 0.04848069, 0.009401508, 0.001823166, 0.0003535534, 6.856205e-05, 1.329574e-05, 2.578346e-06],
        1.0,
    ),
    (
        {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 32},
        48,
        [1.0, 0.1756404, 0.03084956, 0.005418429, 0.0009516952, 0.0001671561, 2.935937e-05, 5.156693e-06],
        1.0,
    ),
    (
        {"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 64},
        None,
        [1.0, 0.06713304, 0.001175188, 0.0002278958, 4.419417e-05, 8.570256e-06, 1.661967e-06, 3.222933e-07],
        1.0,
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        None,
        [1.0, 0.1212017, 0.009401508, 0.001823166, 0.0003535534, 6.856205e-05, 1.329574e-05, 2.578346e-06],
        1.138629436111989,
    ),
    (
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 1024, "beta_fast": 16.0}
        | {"beta_slow": 2.0, "truncate": False, "mscale": 0.7, "mscale_all_dim": 1.1},
        None,
        [1.0, 0.1939228, 0.02242147, 0.0009115831, 0.0001767767, 3.428102e-05, 6.64787e-06, 1.289173e-06],
        0.9323064614995353,
    ),
]


@pytest.mark.parametrize(("options", "seq_len", "expected", "scaling"), TRANSFORMERS)
def test_as_transformers(options: dict[str, Any], seq_len: int | None, expected: list[float], scaling: float) -> None:
    frequencies, found_scaling = inv_freq(RopeConfig(rope_theta=5e5, **options), 16, seq_len)
    np.testing.assert_allclose(frequencies, expected, rtol=FREQUENCY_IN_F32)
    assert found_scaling == pytest.approx(scaling, rel=DOUBLE)


def test_tables_are_computed_in_double() -> None:
    """At position 100,000 an angle in f32 would be off by more than a thousandth."""
    rope = RopeConfig(rope_theta=1e4)
    cos, sin = rope_tables(rope, 8, 100_001)
    assert cos.shape == sin.shape == (100_001, 4)
    assert cos.dtype == sin.dtype == np.float32
    for position in (0, 1, 31, 4095, 65537, 100_000):
        for pair in range(4):
            angle = position * 10.0**-pair
            assert abs(cos[position, pair] - math.cos(angle)) <= F32_TABLE
            assert abs(sin[position, pair] - math.sin(angle)) <= F32_TABLE


def test_tables_carry_the_attention_scaling() -> None:
    rope = RopeConfig("yarn", 1e4, factor=4.0, original_max_position_embeddings=64, attention_factor=1.5)
    cos, sin = rope_tables(rope, 16, 50)
    frequencies, _ = inv_freq(rope, 16)
    for position in (0, 3, 49):
        np.testing.assert_allclose(cos[position], 1.5 * np.cos(position * frequencies), atol=2 * F32_TABLE)
        np.testing.assert_allclose(sin[position], 1.5 * np.sin(position * frequencies), atol=2 * F32_TABLE)


def test_tables_of_a_long_dynamic_sequence() -> None:
    rope = RopeConfig("dynamic", 1e4, 32, 2.0)
    grown = RopeConfig(rope_theta=1e4 * 2 ** (16 / 14), max_position_embeddings=32)
    for found, expected in zip(rope_tables(rope, 16, 48, seq_len=48), rope_tables(grown, 16, 48), strict=True):
        np.testing.assert_allclose(found, expected, atol=F32_TABLE)
    assert not np.array_equal(rope_tables(rope, 16, 48, seq_len=48), rope_tables(rope, 16, 48))
    for found, expected in zip(rope_tables(rope, 16, 20, seq_len=20), rope_tables(RopeConfig(), 16, 20), strict=True):
        assert np.array_equal(found, expected)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match="rope_type 'foo'"):
        inv_freq(RopeConfig(rope_type="foo"), 16)
