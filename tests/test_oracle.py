"""The oracle itself: against what transformers computed, and each formula against a second way of writing it."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import tolerances
from oracle import falcon_h1, llama, ops, pii_masking, qwen2, qwen3, rope, viterbi
from oracle.checkpoint import Weights, load_config
from tiny import make_prompt

GOLDENS = {
    "qwen2-tied": qwen2,
    "qwen2-untied-f32": qwen2,
    "llama3.2-rope": llama,
    "llama-linear-biases": llama,
    "llama-dynamic": llama,
    "llama-yarn": llama,
    "llama-yarn-mscale": llama,
    "qwen3-causal": qwen3,
    "qwen3-biases": qwen3,
    "falcon-h1": falcon_h1,
    "falcon-h1-groups-norm": falcon_h1,
    "falcon-h1-biases": falcon_h1,
}
FAMILIES = {"qwen2": qwen2, "llama": llama, "qwen3": qwen3, "falcon_h1": falcon_h1}


def read_case(folder: Path) -> tuple[dict, np.ndarray]:
    return json.loads((folder / "case.json").read_text()), np.load(folder / "logits.npy")


def assert_logits_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()


# ---------------------------------------------------------------- against transformers


@pytest.mark.parametrize("name", GOLDENS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_logits_equal_the_golden(data_folder: Path, name: str, dtype: type) -> None:
    case, expected = read_case(data_folder / name)
    logits = GOLDENS[name].logits(data_folder / name, case["input_ids"], dtype)
    assert logits.dtype == dtype
    assert_logits_close(logits, expected)


@pytest.mark.parametrize("name", [name for name in GOLDENS if name != "llama-dynamic"])
def test_greedy_tokens_equal_the_golden(data_folder: Path, name: str) -> None:
    case, _ = read_case(data_folder / name)
    assert case["smallest_top2_margin"] > tolerances.GREEDY_MIN_GAP
    assert len(case["greedy"]) == 24
    assert GOLDENS[name].greedy(data_folder / name, case["input_ids"], 24) == case["greedy"]


@pytest.mark.parametrize("name", GOLDENS)
def test_every_tensor_of_the_golden_is_read(data_folder: Path, name: str) -> None:
    weights = Weights(data_folder / name)
    assert "model.embed_tokens.weight" in weights.unread
    GOLDENS[name].forward(load_config(data_folder / name), weights, [1, 2])
    assert weights.unread == set()


def test_pii_logits_and_sensitivity_equal_the_golden(data_folder: Path) -> None:
    case, expected = read_case(data_folder / "pii")
    token_logits, sensitivity = pii_masking.logits(data_folder / "pii", case["input_ids"])
    assert_logits_close(token_logits, expected)
    assert sensitivity == pytest.approx(case["sensitivity_logit"], rel=0, abs=tolerances.SENSITIVITY)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_viterbi_path_equals_the_golden(data_folder: Path, dtype: type) -> None:
    case, logits = read_case(data_folder / "pii")
    config = load_config(data_folder / "pii")
    biases = config["viterbi_b_bias"], config["viterbi_e_bias"]
    path, score = viterbi.best_path(logits, pii_masking.LABELS, *biases, dtype)
    assert [pii_masking.LABELS[i] for i in path] == case["viterbi_path"]
    assert score == pytest.approx(
        viterbi.path_score(path, logits, pii_masking.LABELS, *biases), rel=tolerances.VITERBI_SCORE
    )


def test_pii_checkpoint_holds_the_same_viterbi_as_the_oracle(data_folder: Path) -> None:
    weights = Weights(data_folder / "pii")
    pii_masking.forward(load_config(data_folder / "pii"), weights, [1, 2])
    assert weights.unread == {"viterbi.b_bias", "viterbi.e_bias", "viterbi.transition_mask"}
    legal = [[viterbi.is_legal(a, b) for b in pii_masking.LABELS] for a in pii_masking.LABELS]
    assert np.array_equal(weights["viterbi.transition_mask"], legal)


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("seed", [0, 1])
def test_published_and_repacked_pii_layouts_agree(tiny_folder, seed: int) -> None:
    token_ids = make_prompt(33)
    logits, sensitivity = pii_masking.logits(tiny_folder("pii_masking", seed=seed), token_ids)
    again, sensitivity_again = pii_masking.logits(tiny_folder("qwen3_token_classification", seed=seed), token_ids)
    assert logits.shape == (33, 37)
    # The head has one more row, so a matrix product may add in another order.
    np.testing.assert_allclose(again, logits, rtol=0, atol=tolerances.DOUBLE * np.abs(logits).max())
    assert sensitivity_again == pytest.approx(sensitivity, rel=tolerances.DOUBLE * 10)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_language_model_does_not_see_the_future(tiny_folder, model_type: str) -> None:
    folder, token_ids = tiny_folder(model_type), make_prompt(20)
    logits = FAMILIES[model_type].logits(folder, token_ids)
    changed = FAMILIES[model_type].logits(folder, [*token_ids[:-1], token_ids[-1] ^ 1])
    assert np.array_equal(changed[:-1], logits[:-1])
    assert np.abs(changed[-1] - logits[-1]).max() > 0.1 * logits.std()


def test_the_pii_classifier_sees_the_whole_text(tiny_folder) -> None:
    folder, token_ids = tiny_folder("pii_masking"), make_prompt(20)
    logits, _ = pii_masking.logits(folder, token_ids)
    changed, _ = pii_masking.logits(folder, [*token_ids[:-1], token_ids[-1] ^ 1])
    assert (np.abs(changed - logits).max(-1) > 1e-3 * logits.std()).all()


# Each field gets a value other than the one in the tiny checkpoint, where every multiplier already differs from 1.
FALCON_FIELDS = {
    "embedding_multiplier": 1.0,
    "lm_head_multiplier": 1.0,
    "key_multiplier": 1.0,
    "attention_in_multiplier": 1.0,
    "attention_out_multiplier": 1.0,
    "ssm_in_multiplier": 1.0,
    "ssm_out_multiplier": 1.0,
    "ssm_multipliers": [1.0, 1.0, 1.0, 1.0, 1.0],
    "mlp_multipliers": [1.0, 1.0],
    "time_step_limit": [0.1, 0.2],
    "rope_theta": 1e4,
}


@pytest.mark.parametrize("field", FALCON_FIELDS)
def test_every_falcon_h1_field_changes_the_result(tiny_folder, field: str) -> None:
    token_ids = make_prompt(9)
    logits = falcon_h1.logits(tiny_folder("falcon_h1"), token_ids)
    changed = falcon_h1.logits(tiny_folder("falcon_h1", **{field: FALCON_FIELDS[field]}), token_ids)
    assert np.abs(changed - logits).max() > 1e-3 * logits.std()


# ---------------------------------------------------------------- rope


def inv_freq(num_tokens: int = 16, head_dim: int = 16, theta: float = 1e4, limit: int = 32, **scaling) -> np.ndarray:
    config = {"rope_theta": theta, "rope_scaling": scaling or None, "max_position_embeddings": limit}
    frequencies, factor = rope.inv_freq(config, head_dim, num_tokens)
    assert factor == 1.0
    return frequencies


def test_rope_default_and_linear_frequencies() -> None:
    expected = [1 / 1e4 ** (2 * i / 16) for i in range(8)]
    np.testing.assert_allclose(inv_freq(), expected, rtol=tolerances.DOUBLE)
    np.testing.assert_allclose(inv_freq(type="linear", factor=4.0) * 4, expected, rtol=tolerances.DOUBLE)


def test_rope_reads_both_spellings() -> None:
    new = {"rope_parameters": {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0}}
    old = {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert np.array_equal(rope.inv_freq(new, 8, 4)[0], rope.inv_freq(old, 8, 4)[0])


def test_rope_dynamic_base_grows_only_past_the_trained_length() -> None:
    for num_tokens in (1, 20, 32):
        assert np.array_equal(inv_freq(num_tokens, rope_type="dynamic", factor=2.0), inv_freq())
    grown = inv_freq(48, rope_type="dynamic", factor=2.0)
    np.testing.assert_allclose(grown, inv_freq(theta=1e4 * 2 ** (16 / 14)), rtol=tolerances.DOUBLE)


def test_rope_llama3_keeps_fast_pairs_and_slows_slow_ones() -> None:
    options = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    scaled, plain = inv_freq(rope_type="llama3", **options), inv_freq()
    turns = 64 * plain / (2 * np.pi)
    fast, slow = turns > 4, turns < 1
    assert fast.any()
    assert slow.any()
    assert not (fast | slow).all()
    np.testing.assert_allclose(scaled[fast], plain[fast], rtol=tolerances.DOUBLE)
    np.testing.assert_allclose(scaled[slow], plain[slow] / 8, rtol=tolerances.DOUBLE)
    between = ~fast & ~slow
    smooth = (turns[between] - 1) / 3
    np.testing.assert_allclose(
        scaled[between], (1 - smooth) * plain[between] / 8 + smooth * plain[between], rtol=tolerances.DOUBLE
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 0.1 * np.log(4) + 1),
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 2.0, "mscale_all_dim": 0.5}, (0.2 * np.log(4) + 1) / (0.05 * np.log(4) + 1)),
        ({"factor": 1.0}, 1.0),
    ],
)
def test_rope_yarn_factor_on_cos_and_sin(options: dict, expected: float) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64} | options
    config = {"rope_theta": 1e4, "rope_scaling": scaling}
    assert rope.inv_freq(config, 16, 8)[1] == pytest.approx(expected, rel=tolerances.DOUBLE)
    cos, sin = rope.tables(config, 16, 8)
    np.testing.assert_allclose(np.hypot(cos, sin), expected, rtol=tolerances.DOUBLE)


def test_rope_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="foo"):
        inv_freq(rope_type="foo", factor=2.0)


def test_rope_rotates_dimension_i_with_i_plus_half() -> None:
    x = np.arange(1.0, 7.0).reshape(1, 1, 6)
    angle = np.array([[0.3, 0.5, 0.7]])
    rotated = ops.rope(x, np.cos(angle), np.sin(angle))[0, 0]
    turned = (x[0, 0, :3] + 1j * x[0, 0, 3:]) * np.exp(1j * angle[0])
    np.testing.assert_allclose(rotated, [*turned.real, *turned.imag], rtol=tolerances.DOUBLE)


# ---------------------------------------------------------------- ops


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def test_attention_equals_a_loop_over_heads_and_queries() -> None:
    q, k, v = normal(4, 6, 8), normal(7, 2, 8, seed=1), normal(7, 2, 8, seed=2)
    for causal in (True, False):
        out = ops.attention(q, k, v, causal)
        for i, head in itertools.product(range(4), range(6)):
            seen = 7 - 4 + i + 1 if causal else 7
            weight = np.exp(k[:seen, head // 3] @ q[i, head] / np.sqrt(8))
            np.testing.assert_allclose(
                out[i, head], weight @ v[:seen, head // 3] / weight.sum(), rtol=0, atol=tolerances.DOUBLE
            )


def test_softmax_of_extreme_and_fully_masked_rows() -> None:
    rows = np.array([[1e4, -1e4, 1e4], [-np.inf, -np.inf, -np.inf], [-np.inf, 0, -np.inf]])
    assert ops.softmax(rows).tolist() == [[0.5, 0, 0.5], [0, 0, 0], [0, 1, 0]]


def test_silu_and_softplus_do_not_overflow() -> None:
    x = np.array([-1e4, -50.0, -1.0, 0.0, 1.0, 50.0, 1e4])
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(ops.silu(x), x / (1 + np.exp(-x)), rtol=tolerances.DOUBLE, atol=1e-300)
    np.testing.assert_allclose(ops.softplus(x)[1:5], np.log1p(np.exp(x[1:5])), rtol=tolerances.DOUBLE)
    assert ops.softplus(x)[0] == 0
    assert ops.softplus(x)[-1] == 1e4


def test_ops_compute_in_the_dtype_asked_for() -> None:
    x, weight = normal(3, 5).astype(np.float32), normal(4, 5).astype(np.float32)
    assert ops.linear(x, weight).dtype == np.float64
    assert ops.linear(x, weight, dtype=np.float32).dtype == np.float32
    assert ops.bind(np.float32).linear(x, weight).dtype == np.float32


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4, 9])
def test_conv_equals_numpy_convolve_also_when_shorter_than_the_kernel(num_tokens: int) -> None:
    x, weight, bias = normal(num_tokens, 5), normal(5, 4), normal(5)
    y, state = ops.causal_conv1d(x, weight, bias)
    for channel in range(5):
        expected = np.convolve(x[:, channel], weight[channel, ::-1])[:num_tokens] + bias[channel]
        np.testing.assert_allclose(y[:, channel], expected, rtol=0, atol=tolerances.DOUBLE)
    assert np.array_equal(state, np.concatenate([np.zeros((3, 5)), x])[-3:])


def test_conv_in_two_parts_equals_one() -> None:
    x, weight = normal(9, 5), normal(5, 4)
    whole, last_state = ops.causal_conv1d(x, weight)
    for cut in range(1, 9):
        first, state = ops.causal_conv1d(x[:cut], weight)
        second, state = ops.causal_conv1d(x[cut:], weight, state=state)
        assert np.array_equal(np.concatenate([first, second]), whole)
        assert np.array_equal(state, last_state)


def scan_inputs(num_tokens: int) -> tuple[np.ndarray, ...]:
    """Four heads of three dims, two groups, five states."""
    x, dt = normal(num_tokens, 4, 3), np.exp(normal(num_tokens, 4, seed=1) - 1)
    A, D = -np.exp(normal(4, seed=2)), normal(4, seed=3)
    return x, dt, A, normal(num_tokens, 2, 5, seed=4), normal(num_tokens, 2, 5, seed=5), D


def test_scan_equals_the_sum_over_all_earlier_tokens() -> None:
    x, dt, A, B, C, D = scan_inputs(11)
    y, _ = ops.selective_scan(x, dt, A, B, C, D)
    elapsed = np.cumsum(dt, axis=0)
    for t, head in itertools.product(range(11), range(4)):
        # What token s left behind has decayed over the time steps after s.
        expected = D[head] * x[t, head]
        for s in range(t + 1):
            decay = np.exp(A[head] * (elapsed[t, head] - elapsed[s, head]))
            expected = expected + decay * dt[s, head] * (C[t, head // 2] @ B[s, head // 2]) * x[s, head]
        np.testing.assert_allclose(y[t, head], expected, rtol=0, atol=10 * tolerances.DOUBLE)


def test_scan_in_two_parts_equals_one() -> None:
    x, dt, A, B, C, D = scan_inputs(9)
    whole, last_state = ops.selective_scan(x, dt, A, B, C, D)
    for cut in range(1, 9):
        first, state = ops.selective_scan(x[:cut], dt[:cut], A, B[:cut], C[:cut], D)
        second, state = ops.selective_scan(x[cut:], dt[cut:], A, B[cut:], C[cut:], D, state)
        assert np.array_equal(np.concatenate([first, second]), whole)
        assert np.array_equal(state, last_state)


def test_gated_norm_before_and_after_the_gate() -> None:
    x, gate, weight = normal(3, 8), normal(3, 8, seed=1), normal(8, seed=2)
    silu = gate / (1 + np.exp(-gate))

    def norm(part: np.ndarray, w: np.ndarray) -> np.ndarray:
        return part / np.sqrt((part**2).mean(-1, keepdims=True) + 1e-5) * w

    halves = [slice(0, 4), slice(4, 8)]
    after = np.concatenate([norm((x * silu)[:, half], weight[half]) for half in halves], axis=1)
    before = np.concatenate([norm(x[:, half], weight[half]) for half in halves], axis=1) * silu
    np.testing.assert_allclose(ops.gated_rms_norm(x, gate, weight, 1e-5, 2), after, rtol=tolerances.DOUBLE)
    np.testing.assert_allclose(ops.gated_rms_norm(x, gate, weight, 1e-5, 2, True), before, rtol=tolerances.DOUBLE)


# ---------------------------------------------------------------- viterbi

TWO_TYPES = ("O", "B-a", "I-a", "E-a", "S-a", "B-b", "I-b", "E-b", "S-b")


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4])
@pytest.mark.parametrize(("b_bias", "e_bias"), [(0.0, 0.0), (-0.5, 0.25), (3.0, -2.0)])
def test_viterbi_equals_trying_every_path(num_tokens: int, b_bias: float, e_bias: float) -> None:
    logits = normal(num_tokens, len(TWO_TYPES), seed=7)

    def score(path: tuple[int, ...]) -> float:
        labels = [TWO_TYPES[i] for i in path]
        legal = labels[0][0] in "OBS" and labels[-1][0] in "OES"
        total = sum(logits[t, i] for t, i in enumerate(path))
        for before, after in itertools.pairwise(labels):
            inside = after[0] in "IE" and after[1:] == before[1:]
            legal &= inside if before[0] in "BI" else after[0] in "OBS"
            total += b_bias * (after[0] == "B") + e_bias * (before[0] == "E")
        return total if legal else -np.inf

    best = max(itertools.product(range(len(TWO_TYPES)), repeat=num_tokens), key=score)
    path, found = viterbi.best_path(logits, TWO_TYPES, b_bias, e_bias)
    assert tuple(path) == best
    assert found == pytest.approx(score(best), rel=tolerances.DOUBLE)
    assert found == pytest.approx(viterbi.path_score(path, logits, TWO_TYPES, b_bias, e_bias), rel=tolerances.DOUBLE)


def test_viterbi_ties_go_to_the_lowest_label() -> None:
    path, score = viterbi.best_path(np.zeros((3, len(TWO_TYPES))), TWO_TYPES, 0.0, 0.0)
    assert (path, score) == ([0, 0, 0], 0.0)


def test_viterbi_of_no_tokens() -> None:
    assert viterbi.best_path(np.zeros((0, len(TWO_TYPES))), TWO_TYPES, 0.0, 0.0) == ([], 0.0)
