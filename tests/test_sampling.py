"""Sampling against a naive sampler that sorts the vocabulary in double precision and uses the same uniform numbers."""

import dataclasses
import math

import numpy as np
import pytest
import tolerances

from fastcore.engine.sampling import BLOCK, Choice, Sampler, _blocks, _invert, logprobs_of
from fastcore.engine.sampling_params import SamplingParams
from fastcore.errors import NonFiniteError

INF, NAN = math.inf, math.nan


def row(*logits: float) -> np.ndarray:
    return np.array(logits, np.float32)


def sampler(vocab_size: int, prompt=(), eos=(), seed_offset=0, **options) -> Sampler:
    return Sampler(SamplingParams(**options), vocab_size, prompt, eos, seed_offset)


def uniforms(seed: int, count: int, seed_offset: int = 0) -> list[float]:
    """The numbers that a sampler with this seed draws."""
    stream = np.random.Philox(key=np.array([seed, seed_offset], np.uint64))
    return [(int(stream.random_raw()) >> 11) / 2**53 for _ in range(count)]


def naive_draw(logits: np.ndarray, uniform: float, temperature, top_k=0, top_p=1.0, min_p=0.0) -> tuple[int, float]:
    """The token, and how close the closest decision was, as a share of the mass (0 for an exact tie)."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    order = np.lexsort((np.arange(logits.size), -logits.astype(np.float64)))
    margins = []
    if top_k > 0:
        order = order[:top_k]
    through = np.cumsum(weights[order])
    if top_p < 1.0:
        margins.append(np.abs(through / through[-1] - top_p).min())
        order = order[: np.searchsorted(through, top_p * through[-1]) + 1]
    if min_p > 0.0:
        margins.append(np.abs(weights[order] - min_p).min())
        order = order[weights[order] >= min_p]
    kept = np.sort(order)
    through = np.cumsum(weights[kept])
    margins.append(np.abs(through / through[-1] - uniform).min())
    token_id = int(kept[np.searchsorted(through, uniform * through[-1], side="right")])
    return token_id, min((margin for margin in margins if margin > 0), default=1.0)


def make_logits(kind: str, vocab_size: int, rng: np.random.Generator) -> np.ndarray:
    logits = rng.normal(size=vocab_size) * 2.5
    if kind == "tied":
        logits = np.round(logits)
    elif kind == "spiky":
        logits[rng.integers(vocab_size)] = 25.0
    elif kind == "flat":
        logits = np.full(vocab_size, 3.25)
    elif kind == "nearly flat":
        logits *= 1e-3
    elif kind == "banned":
        logits[rng.random(vocab_size) < 0.5] = -INF
        logits[rng.integers(vocab_size)] = 1.0
    elif kind == "far below":
        logits -= 1e4
    return logits.astype(np.float32)


TRUNCATIONS = [
    {},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 3000},
    {"top_p": 0.01},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 50, "top_p": 0.8},
    {"top_p": 0.95, "min_p": 0.1},
    {"top_k": 64, "top_p": 0.99, "min_p": 0.02},
]


@pytest.mark.parametrize("kind", ["random", "tied", "spiky", "flat", "nearly flat", "banned", "far below"])
@pytest.mark.parametrize("options", TRUNCATIONS, ids=str)
def test_draws_equal_a_full_sort_with_the_same_uniform_number(kind, options):
    rng = np.random.default_rng(11)
    compared = close = 0
    for vocab_size in (1, 2, 7, 255, 256, 257, 5000, 30011):
        for temperature in (0.3, 1.0, 1.7):
            seed = int(rng.integers(2**63))
            ours = sampler(vocab_size, seed=seed, temperature=temperature, **options)
            for uniform in uniforms(seed, 4):
                logits = make_logits(kind, vocab_size, rng)
                expected, margin = naive_draw(logits, uniform, temperature, **options)
                token_id = ours.sample(logits).token_id
                if margin < tolerances.DRAW_MARGIN:
                    close += 1
                    continue
                compared += 1
                assert token_id == expected
    assert compared >= 0.8 * (compared + close)


def test_frequencies_follow_the_distribution():
    logits = row(1.0, 0.0, -INF, 2.0, 0.5)
    probabilities = np.exp(logits.astype(float) / 0.8)
    probabilities /= probabilities.sum()
    draw = sampler(5, seed=3, temperature=0.8)
    count = 20_000
    counts = np.bincount([draw.sample(logits).token_id for _ in range(count)], minlength=5)
    assert counts[2] == 0
    deviation = np.sqrt(count * probabilities * (1 - probabilities))
    assert np.all(np.abs(counts - count * probabilities) <= 4 * deviation)


@pytest.mark.parametrize("first", [0, 3, 255, 256, 700])
def test_a_draw_on_a_boundary_takes_the_token_that_begins_there(first):
    """Four equal weights, 100 tokens apart, in front, between and behind them nothing."""
    weights = _blocks(1500)
    ids = [first, first + 100, first + 200, first + 300]
    weights[ids] = 1.0
    sums = weights.reshape(-1, BLOCK).sum(axis=1, dtype=np.float64)
    below_one = 1 - 2.0**-53
    drawn = [_invert(weights, sums, uniform) for uniform in (0.0, 0.25, 0.5, 0.75, below_one)]
    assert drawn == [*ids, ids[-1]]


# ---- Greedy and tiny temperatures


@pytest.mark.case("G01")
@pytest.mark.parametrize("temperature", [0, 1e-300, 1e-8, 1e-4, 2e-4, 1e-3])
def test_a_tiny_temperature_gives_the_greedy_token(temperature):
    rng = np.random.default_rng(1)
    tiny = sampler(1000, temperature=temperature, seed=5)
    for kind in ("random", "spiky", "far below", "banned"):
        for _ in range(20):
            logits = make_logits(kind, 1000, rng)
            second, first = np.sort(logits)[-2:]
            if first - second > 50 * temperature:
                assert tiny.sample(logits).token_id == int(np.argmax(logits))


@pytest.mark.case("G01")
@pytest.mark.case("X5")
@pytest.mark.parametrize("temperature", [0, 1e-8, 1e-4])
def test_greedy_ties_go_to_the_lowest_id(temperature):
    greedy = sampler(4000, temperature=temperature)
    assert greedy.is_plain_greedy
    for _ in range(5):
        assert greedy.sample(np.zeros(4000, np.float32)).token_id == 0
    assert sampler(4, temperature=temperature).sample(row(-INF, 2.0, 2.0, 1.0)).token_id == 1


@pytest.mark.case("G01")
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1e30])
def test_minus_infinity_is_never_chosen(temperature):
    draw = sampler(4, temperature=temperature, seed=9)
    assert {draw.sample(row(-INF, -3e38, -INF, -INF)).token_id for _ in range(50)} == {1}
    assert {draw.sample(row(-INF, 3e38, -3e38, -INF)).token_id for _ in range(50)} <= {1, 2}


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("bad", [(1.0, NAN, 2.0), (NAN, 1.0, 2.0), (0.0, INF, 1.0), (-INF, -INF, -INF)])
def test_non_finite_logits_raise(options, bad):
    with pytest.raises(NonFiniteError, match="logit"):
        sampler(3, **options).sample(row(*bad))


def test_a_mask_does_not_hide_a_nan():
    with pytest.raises(NonFiniteError, match="nan"):
        sampler(3, eos=[1], min_tokens=2).sample(row(0.0, NAN, 1.0))
    with pytest.raises(NonFiniteError, match="no token"):
        sampler(2, logit_bias={0: -INF, 1: -INF}).sample(row(0.0, 1.0))


def test_the_logits_are_not_modified():
    logits = make_logits("random", 500, np.random.default_rng(2))
    before = logits.copy()
    sampler(500, [3], [4], temperature=0.8, top_p=0.9, repetition_penalty=1.3, min_tokens=1, logprobs=2).sample(logits)
    assert np.array_equal(logits, before)


def test_wrong_shape_or_dtype_is_refused():
    with pytest.raises(ValueError, match=r"float32 \[4\]"):
        sampler(4).sample(np.zeros(5, np.float32))
    with pytest.raises(ValueError, match="float64"):
        sampler(4).sample(np.zeros(4))


# ---- What changes the logits before the draw


def processed(logits: np.ndarray, sampler: Sampler) -> np.ndarray:
    return sampler._process(logits).copy()


@pytest.mark.case("G03")
def test_repetition_penalty_divides_positive_and_multiplies_negative_once_per_token():
    seen = sampler(3, prompt=[0, 1, 1], repetition_penalty=2.0)
    assert processed(row(2, -1, 0.5), seen).tolist() == [1.0, -2.0, 0.5]
    by_output = sampler(3, repetition_penalty=2.0)
    for token_id in (0, 1, 1):
        by_output.accept(token_id)
    assert processed(row(2, -1, 0.5), by_output).tolist() == [1.0, -2.0, 0.5]


@pytest.mark.case("G03")
def test_a_repetition_penalty_of_one_changes_no_bit():
    logits = make_logits("random", 300, np.random.default_rng(3))
    neutral = sampler(300, prompt=range(300), repetition_penalty=1.0, frequency_penalty=0.5)
    assert np.array_equal(processed(logits, neutral).view(np.uint32), logits.view(np.uint32))
    assert sampler(300, prompt=range(300), repetition_penalty=1.0).is_plain_greedy


def test_presence_and_frequency_count_output_tokens_only():
    counting = sampler(4, prompt=[0, 0], presence_penalty=0.5, frequency_penalty=0.25)
    for token_id in (1, 2, 2, 2):
        counting.accept(token_id)
    assert processed(row(1, 1, 1, 1), counting).tolist() == [1.0, 0.25, -0.25, 1.0]


def test_counts_of_many_distinct_tokens():
    counting = sampler(1000, frequency_penalty=1.0)
    for token_id in [*range(0, 1000, 2), *range(0, 1000, 4)]:
        counting.accept(token_id)
    expected = [-2.0 if i % 4 == 0 else -1.0 if i % 2 == 0 else 0.0 for i in range(1000)]
    assert processed(np.zeros(1000, np.float32), counting).tolist() == expected


def test_penalties_move_the_greedy_token():
    greedy = sampler(3, frequency_penalty=1.0)
    chosen = []
    for _ in range(5):
        chosen.append(greedy.sample(row(3.0, 2.5, 0.0)).token_id)
        greedy.accept(chosen[-1])
    assert chosen == [0, 1, 0, 1, 0]


def test_logit_bias_is_added_first():
    biased = sampler(3, prompt=[0], logit_bias={0: -3.0, 2: 1.5}, repetition_penalty=2.0)
    assert processed(row(2, 0, 0), biased).tolist() == [-2.0, 0.0, 1.5]
    assert biased.sample(row(2, 0, 0)).token_id == 2
    assert sampler(3, logit_bias={0: -INF}).sample(row(9, 1, 2)).token_id == 2


def test_min_tokens_masks_every_ending_until_reached():
    ending = sampler(4, eos=[0], stop_token_ids=[2], min_tokens=2)
    logits = row(9, 1, 8, 0)
    assert not ending.is_plain_greedy
    assert processed(logits, ending).tolist() == [-INF, 1.0, -INF, 0.0]
    chosen = []
    for _ in range(3):
        chosen.append(ending.sample(logits).token_id)
        ending.accept(chosen[-1])
    assert chosen == [1, 1, 0]
    assert ending.is_plain_greedy


def test_ids_outside_the_vocabulary_are_refused():
    for options in ({"logit_bias": {4: 1.0}}, {"stop_token_ids": [7]}):
        with pytest.raises(ValueError, match="outside the vocabulary of 4"):
            sampler(4, **options)
    with pytest.raises(ValueError, match="token id 9"):
        sampler(4, prompt=[0, 9], repetition_penalty=1.1)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.5},
        {"logprobs": 0},
        {"logit_bias": {1: 1.0}},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
    ],
    ids=str,
)
def test_only_an_untouched_argmax_is_plain_greedy(options):
    assert not sampler(4, **options).is_plain_greedy
    assert sampler(4, top_k=3, top_p=0.5, min_p=0.1, seed=1, min_tokens=2).is_plain_greedy


# ---- Truncation of ties


def test_truncation_cuts_ties_by_id():
    logits = row(1, 5, 5, 5, 5, 0)

    def reachable(**options):
        draw = sampler(6, temperature=1.0, seed=4, **options)
        return {draw.sample(logits).token_id for _ in range(200)}

    assert reachable(top_k=2) == {1, 2}
    assert reachable(top_k=3, top_p=0.5) == {1, 2}
    assert reachable(min_p=1.0) == {1, 2, 3, 4}
    assert reachable(top_p=1e-9) == {1}


def test_top_k_tells_apart_logits_that_the_softmax_rounds_together():
    logits = np.full(5000, np.float32(1.0), np.float32)
    logits[4321] = np.nextafter(np.float32(1.0), np.float32(2.0))
    assert sampler(5000, temperature=1e6, top_k=1, seed=0).sample(logits).token_id == 4321


# ---- The random stream


def draws(count=30, vocab_size=50, **options):
    logits = make_logits("random", vocab_size, np.random.default_rng(8))
    draw = sampler(vocab_size, temperature=1.5, **options)
    return [draw.sample(logits).token_id for _ in range(count)]


def test_a_seed_fixes_the_tokens_and_an_offset_tells_completions_apart():
    assert draws(seed=7) == draws(seed=7)
    assert draws(seed=7) != draws(seed=8)
    assert draws(seed=7) != draws(seed=7, seed_offset=1)
    assert draws(seed=-1) == draws(seed=2**64 - 1)
    assert draws() != draws()


def test_every_sampled_token_takes_one_uniform_number():
    """What a step draws depends on the steps before it only through their number."""
    logits = make_logits("random", 50, np.random.default_rng(8))
    one, other = sampler(50, temperature=1.5, seed=7), sampler(50, temperature=1.5, seed=7)
    one.sample(logits)
    other.sample(make_logits("spiky", 50, np.random.default_rng(9)))
    assert [one.sample(logits) for _ in range(20)] == [other.sample(logits) for _ in range(20)]


# ---- Logprobs


def naive_logprobs(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - float(logits.max())
    return shifted - np.log(np.exp(shifted).sum())


@pytest.mark.parametrize("kind", ["random", "tied", "spiky", "flat", "banned", "far below"])
@pytest.mark.parametrize("vocab_size", [1, 7, 257, 30011])
def test_logprobs_equal_log_softmax_in_double(kind, vocab_size):
    logits = make_logits(kind, vocab_size, np.random.default_rng(5))
    expected = naive_logprobs(logits)
    token_id = int(np.argmin(np.where(np.isfinite(logits), logits, INF)))
    logprob, top = logprobs_of(logits, token_id, 5)
    assert logprob == pytest.approx(expected[token_id], abs=tolerances.LOG_SOFTMAX)
    order = np.lexsort((np.arange(vocab_size), -logits))[: min(5, int(np.isfinite(logits).sum()))]
    assert [top_id for top_id, _ in top] == order.tolist()
    assert [top_logprob for _, top_logprob in top] == pytest.approx(expected[order], abs=tolerances.LOG_SOFTMAX)


def test_top_logprobs_reach_far_below_the_best():
    logits = row(0, -500, -1000, -INF)
    assert logprobs_of(logits, 0, 4) == (0.0, ((0, 0.0), (1, -500.0), (2, -1000.0)))
    assert logprobs_of(logits, 3, 0) == (-INF, ())


def test_reported_logprobs_are_the_models_before_any_option():
    logits = row(0.0, 1.0, 2.0)
    choice = sampler(3, temperature=1e-9, logit_bias={0: 50.0}, logprobs=1).sample(logits)
    expected = naive_logprobs(logits)
    assert choice.token_id == 0
    assert choice.logprob == pytest.approx(expected[0], abs=tolerances.LOG_SOFTMAX)
    assert choice.top_logprobs is not None
    assert choice.top_logprobs[0] == (2, pytest.approx(expected[2], abs=tolerances.LOG_SOFTMAX))
    assert sampler(3, logprobs=0).sample(logits).top_logprobs == ()
    assert sampler(3).sample(logits) == Choice(2, None, None)


# ---- The options

WRONG = {
    "temperature": [-1, -1e-9, NAN, INF, True, "1", None, [1]],
    "top_k": [-2, 1.5, True, "3", None],
    "top_p": [0, -0.1, 1.01, NAN, True, "0.9", None],
    "min_p": [-0.1, 1.1, NAN, False, "0"],
    "repetition_penalty": [0, -1, NAN, INF, True],
    "presence_penalty": [-2.1, 2.1, NAN, "0"],
    "frequency_penalty": [-2.1, 2.1, INF, True],
    "seed": [1.0, "1", True, 2**64, -(2**63) - 1],
    "max_tokens": [-1, 1.0, True, "5"],
    "min_tokens": [-1, None, 1.0, True],
    "stop": ["", ["a", ""], [1], 3, None],
    "stop_token_ids": [[-1], ["1"], [True], [1.0], "12", 5],
    "ignore_eos": [0, 1, "yes", None],
    "logprobs": [-1, True, 1.0, "1"],
    "prompt_logprobs": [-1, False],
    "logit_bias": [{1: NAN}, {1: INF}, {"1": 1.0}, {-1: 1.0}, {1: "2"}, {True: 1.0}, [1], "x"],
    "n": [0, -1, 1.0, True, None],
    "json_schema": ["{", 3, [1], "[1]"],
    "regex": ["", 3],
    "grammar": ["", 3],
    "choice": [[], "ab", [1], [""], 3],
    "speculate": ["x", 3, True],
}


@pytest.mark.case("G01")
@pytest.mark.case("G03")
@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_option_is_a_value_error_that_names_it(name, value):
    with pytest.raises(ValueError, match=f"^{name}"):
        SamplingParams(**{name: value})


def test_every_option_is_checked():
    assert sorted(WRONG) == sorted(field.name for field in dataclasses.fields(SamplingParams))


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1.0)
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams().replace(temprature=1.0)


def test_options_become_plain_values():
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int64(-1), stop="\n", stop_token_ids=np.array([3, 4]), logit_bias={1: 2}
    )
    assert (params.temperature, params.top_k, params.stop, params.stop_token_ids) == (0.5, -1, ("\n",), (3, 4))
    assert type(params.top_k) is int
    assert params.logit_bias == {1: 2.0}
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(max_tokens=0).max_tokens == 0
    assert SamplingParams(seed=-5).replace(top_p=0.5) == SamplingParams(seed=-5, top_p=0.5)
    with pytest.raises(ValueError, match="top_p"):
        SamplingParams().replace(top_p=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 3


@pytest.mark.fault("C9")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 10**400),
        ("top_p", 10**400),
        ("repetition_penalty", 1e300),
        ("presence_penalty", -(10**400)),
        ("logit_bias", {1: 1e39}),
        ("logit_bias", {1: -1e39}),
        ("logit_bias", {10**30: 1.0}),
        ("stop_token_ids", [10**30]),
        ("seed", 10**30),
        ("max_tokens", 10**30),
        ("logprobs", 10**30),
    ],
)
def test_a_number_that_fits_nowhere_is_a_value_error(name, value):
    with pytest.raises(ValueError, match=f"^{name}"):
        SamplingParams(**{name: value})


def test_a_number_that_is_too_large_is_told_so():
    for name in ("max_tokens", "top_k", "logprobs"):
        with pytest.raises(ValueError, match=f"^{name} is 10+; expected at most {2**63 - 1}$"):
            SamplingParams(**{name: 10**30})


def test_an_option_that_does_not_exist_is_answered_with_the_one_that_may_be_meant():
    with pytest.raises(TypeError, match=r"^unknown sampling option 'max_token'; did you mean 'max_tokens'\?$"):
        SamplingParams().replace(max_token=4)
    with pytest.raises(TypeError, match=r"^unknown sampling option 'xyz'; known: temperature, top_k, "):
        SamplingParams().replace(xyz=4)


@pytest.mark.fault("C3")
def test_options_whose_cost_multiplies_are_bounded():
    assert SamplingParams(n=128, stop=["x"] * 64).n == 128
    with pytest.raises(ValueError, match="n is 129; expected a whole number from 1 to 128"):
        SamplingParams(n=129)
    with pytest.raises(ValueError, match="stop has 200000 strings; expected at most 64"):
        SamplingParams(stop=["x"] * 200_000)


def test_min_tokens_above_max_tokens_is_refused():
    with pytest.raises(ValueError, match="min_tokens is 5, more than max_tokens, 4"):
        SamplingParams(min_tokens=5, max_tokens=4)
    assert SamplingParams(min_tokens=4, max_tokens=4).min_tokens == 4


def test_off_values_of_top_k_agree():
    assert draws(seed=2, top_k=0) == draws(seed=2, top_k=-1) == draws(seed=2, top_k=50) == draws(seed=2, top_k=10**9)
