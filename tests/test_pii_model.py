"""The token classifier's numbers: goldens, the oracle, and the two layouts that must give the same bits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tolerances
from oracle import pii_masking as oracle
from oracle.checkpoint import Weights, load_config
from oracle.ops import linear
from oracle.qwen3 import hidden_states
from safetensors.numpy import load_file
from tiny import PII_LABELS, TOKENIZER_SIZE, make_prompt, tiny_checkpoint, write_json, write_weights

import fastcore
from fastcore import CheckpointError, ContextLengthError, NonFiniteError, TokenClassifier, UnsupportedModelError
from fastcore._kernels import viterbi

LAYOUTS = ("pii_masking", "qwen3_token_classification")
BIO = ("O", "B-person", "I-person", "B-city", "I-city")


def rewrite(folder: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> Path:
    """Change the tensors of an f32 checkpoint in place."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    write_weights(folder, tensors)
    return folder


def edit_config(folder: Path, **fields: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    config = {key: value for key, value in (config | fields).items() if value is not ...}
    write_json(folder / "config.json", config)
    return folder


def plain_checkpoint(folder: Path, names: tuple[str, ...] = BIO, bias: bool = True, is_causal: bool = False) -> Path:
    """A Qwen3ForTokenClassification of its own labels, without a sensitivity row or a viterbi.json."""
    tiny_checkpoint(folder, "qwen3_token_classification", dtype="f32")
    labels = {str(i): name for i, name in enumerate(names)}
    edit_config(folder, id2label=labels, label2id=..., is_causal=is_causal)
    (folder / "viterbi.json").unlink()

    def change(tensors: dict[str, np.ndarray]) -> None:
        rows = tensors.pop("score.weight"), tensors.pop("score.bias")
        tensors["score.weight"] = np.ascontiguousarray(rows[0][: len(names)])
        if bias:
            tensors["score.bias"] = np.ascontiguousarray(rows[1][: len(names)])

    return rewrite(folder, change)


# ---------------------------------------------------------------- values


def test_golden(data_folder: Path, isa: str) -> None:
    folder = data_folder / "pii"
    case = json.loads((folder / "case.json").read_text())
    expected = np.load(folder / "logits.npy")
    pii = TokenClassifier(folder, num_threads=2)
    logits, sensitivity = pii.logits(case["input_ids"])
    assert np.abs(logits - expected).max() <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()
    assert abs(sensitivity - case["sensitivity_logit"]) <= tolerances.SENSITIVITY
    labels = pii.labels
    path = viterbi(logits, labels.transition_scores(*pii.operating_point), labels.start_scores, labels.end_scores)
    assert [labels.names[label] for label in path] == case["viterbi_path"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "mixed"])
def test_every_stored_dtype_equals_the_oracle(tiny_folder: Callable[..., Path], layout: str, dtype: str) -> None:
    folder = tiny_folder(layout, dtype=dtype)
    pii = TokenClassifier(folder, num_threads=1)
    for num_tokens in (1, 2, 17, 97):
        ids = make_prompt(num_tokens)
        logits, sensitivity = pii.logits(ids)
        expected, expected_sensitivity = oracle.logits(folder, ids)
        assert logits.shape == (num_tokens, 37)
        assert np.abs(logits - expected).max() <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()
        assert abs(sensitivity - expected_sensitivity) <= tolerances.SENSITIVITY


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_both_layouts_give_the_same_bits(tiny_folder: Callable[..., Path], num_threads: int, isa: str) -> None:
    published, repacked = (TokenClassifier(tiny_folder(layout), num_threads=num_threads) for layout in LAYOUTS)
    reference = TokenClassifier(tiny_folder("pii_masking"), num_threads=1)
    assert published.labels.names == repacked.labels.names == PII_LABELS
    assert published.operating_point == repacked.operating_point == (-0.5, 0.25)
    assert published.max_seq_len == repacked.max_seq_len == 4096
    for num_tokens in (1, 5, 64, 300):
        ids = make_prompt(num_tokens)
        expected = reference.logits(ids)
        for pii in (published, repacked):
            logits, sensitivity = pii.logits(ids)
            assert np.array_equal(logits, expected[0])
            assert sensitivity == expected[1]


def test_heads_stay_f32_when_the_backbone_is_rounded(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("pii_masking", dtype="bf16")
    ids = make_prompt(20)
    stored, rounded = (TokenClassifier(folder, dtype=dtype, num_threads=1).logits(ids) for dtype in ("auto", "bf16"))
    assert np.array_equal(stored[0], rounded[0])
    assert stored[1] == rounded[1]


@pytest.mark.parametrize("bias", [True, False])
def test_a_plain_classifier_equals_the_oracle(tmp_path: Path, bias: bool) -> None:
    folder = plain_checkpoint(tmp_path, bias=bias)
    pii = TokenClassifier(folder, num_threads=1)
    ids = make_prompt(30)
    logits, sensitivity = pii.logits(ids)
    weights = Weights(folder)
    hidden = hidden_states(load_config(folder), weights, ids, "model.", causal=False)
    expected = linear(hidden, weights["score.weight"], weights["score.bias"] if bias else None)
    assert np.abs(logits - expected).max() <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()
    assert sensitivity is None
    assert pii.labels.names == BIO
    assert pii.operating_point == (0, 0)
    assert pii("hello world").sensitivity is None


# ---------------------------------------------------------------- which way it attends


def test_a_bidirectional_model_sees_the_tokens_after(tiny_folder: Callable[..., Path]) -> None:
    pii = TokenClassifier(tiny_folder("pii_masking"), num_threads=1)
    ids = make_prompt(9)
    before, _ = pii.logits(ids)
    after, _ = pii.logits([*ids[:-1], (ids[-1] - 3 + 1) % (TOKENIZER_SIZE - 3) + 3])
    assert (before[0] != after[0]).all()


def test_a_causal_classifier_does_not(tmp_path: Path) -> None:
    pii = TokenClassifier(plain_checkpoint(tmp_path, is_causal=True), num_threads=1)
    ids = make_prompt(9)
    before, _ = pii.logits(ids)
    after, _ = pii.logits([*ids[:-1], (ids[-1] - 3 + 1) % (TOKENIZER_SIZE - 3) + 3])
    assert np.array_equal(before[:-1], after[:-1])
    assert (before[-1] != after[-1]).all()
    expected = hidden_states(load_config(tmp_path), Weights(tmp_path), ids, "model.", causal=True)
    expected = linear(expected, Weights(tmp_path)["score.weight"], Weights(tmp_path)["score.bias"])
    assert np.abs(before - expected).max() <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()


def test_a_config_that_does_not_say_is_refused(tmp_path: Path) -> None:
    folder = edit_config(plain_checkpoint(tmp_path), is_causal=...)
    with pytest.raises(CheckpointError, match="is_causal"):
        TokenClassifier(folder)


# ---------------------------------------------------------------- checkpoints


def published(folder: Path) -> Path:
    return tiny_checkpoint(folder, "pii_masking", dtype="f32")


def test_biases_come_from_tensors_where_the_config_has_none(tmp_path: Path) -> None:
    folder = edit_config(published(tmp_path), viterbi_b_bias=..., viterbi_e_bias=None)
    assert TokenClassifier(folder).operating_point == (-0.5, 0.25)


def test_biases_come_from_the_config_where_there_are_no_tensors(tmp_path: Path) -> None:
    folder = rewrite(published(tmp_path), lambda tensors: [tensors.pop(f"viterbi.{e}_bias") for e in "be"])
    assert TokenClassifier(folder).operating_point == (-0.5, 0.25)


def test_biases_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    folder = edit_config(published(tmp_path), viterbi_b_bias=0.5)
    with pytest.raises(CheckpointError, match=r"viterbi.b_bias' is -0.5 and viterbi_b_bias in config.json is 0.5"):
        TokenClassifier(folder)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(2, np.float32), r"shape \[2\], expected \[1\]"),
        (np.array([np.nan], np.float32), "expected a finite number"),
    ],
)
def test_a_wrong_bias_tensor_is_refused(tmp_path: Path, value: np.ndarray, message: str) -> None:
    folder = rewrite(published(tmp_path), lambda tensors: tensors.update({"viterbi.e_bias": value}))
    with pytest.raises(CheckpointError, match=message):
        TokenClassifier(folder)


def test_the_checkpoints_own_transitions_are_followed(tmp_path: Path) -> None:
    def only_o(tensors: dict[str, np.ndarray]) -> None:
        mask = np.zeros((37, 37), np.bool_)
        mask[0, 0] = True
        tensors["viterbi.transition_mask"] = mask

    published(tmp_path / "own")
    assert TokenClassifier(tmp_path / "own", num_threads=1)("hello world").entities
    rewrite(tmp_path / "own", only_o)
    assert TokenClassifier(tmp_path / "own", num_threads=1)("hello world").entities == ()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.ones((37, 36), np.bool_), r"BOOL \[37, 36\], expected BOOL \[37, 37\]"),
        (np.ones((37, 37), np.float32), r"F32 \[37, 37\], expected BOOL"),
        (np.zeros((37, 37), np.bool_), "forbids O after O"),
    ],
)
def test_a_wrong_transition_mask_is_refused(tmp_path: Path, mask: np.ndarray, message: str) -> None:
    folder = rewrite(published(tmp_path), lambda tensors: tensors.update({"viterbi.transition_mask": mask}))
    with pytest.raises(CheckpointError, match=message):
        TokenClassifier(folder)


@pytest.mark.parametrize("name", ["sensitivity_head.weight", "sensitivity_head.bias", "token_cls_head.weight"])
def test_a_missing_head_is_named(tmp_path: Path, name: str) -> None:
    folder = rewrite(published(tmp_path), lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=name):
        TokenClassifier(folder)


def test_a_tensor_of_no_use_is_refused(tmp_path: Path) -> None:
    folder = rewrite(published(tmp_path), lambda tensors: tensors.update(extra=np.zeros(3, np.float32)))
    with pytest.raises(CheckpointError, match="extra"):
        TokenClassifier(folder)


def test_labels_that_are_no_scheme_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="LABEL_0"):
        TokenClassifier(plain_checkpoint(tmp_path, names=("LABEL_0", "LABEL_1")))


def test_each_kind_of_model_has_its_class(tiny_folder: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"fastcore\.TokenClassifier"):
        fastcore.LLM(tiny_folder("pii_masking"))
    with pytest.raises(UnsupportedModelError, match=r"fastcore\.LLM"):
        TokenClassifier(tiny_folder("qwen3"))


def test_a_weight_that_is_not_a_number_raises(tmp_path: Path) -> None:
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        tensors["backbone.layers.1.mlp.down_proj.weight"][3, 5] = np.nan

    pii = TokenClassifier(rewrite(published(tmp_path), spoil), num_threads=1)
    with pytest.raises(NonFiniteError, match="tokens 0 to 3"):
        pii.logits([3, 4, 5, 6])
    with pytest.raises(NonFiniteError):
        pii(["hello", "world"])


# ---------------------------------------------------------------- token ids


def test_logits_of_lists_and_of_nothing(tiny_folder: Callable[..., Path]) -> None:
    pii = TokenClassifier(tiny_folder("pii_masking"), num_threads=1)
    one, other = make_prompt(4), make_prompt(6)
    pairs = pii.logits([one, other, []])
    assert np.array_equal(pairs[0][0], pii.logits(one)[0])
    assert np.array_equal(pairs[1][0], pii.logits(np.array(other))[0])
    assert pairs[2][0].shape == (0, 37)
    assert np.isfinite(pairs[2][1])


def test_token_ids_are_checked(tiny_folder: Callable[..., Path]) -> None:
    pii = TokenClassifier(tiny_folder("pii_masking"), num_threads=1, max_seq_len=16)
    for bad in ([3, TOKENIZER_SIZE], [-1], [2**40]):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            pii.logits(bad)
    for wrong in ([3, "4"], [3, True], [3, 4.0]):
        with pytest.raises(TypeError, match="token ids"):
            pii.logits(wrong)
    with pytest.raises(ContextLengthError, match="17 tokens and the window holds 16"):
        pii.logits([3] * 17)
    assert len(pii.logits([3] * 16)[0]) == 16
