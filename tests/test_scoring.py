"""Scores of given text against the oracle's logits: log-likelihoods, perplexity, embeddings, and batches of them."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tolerances
from oracle import falcon_h1, llama, qwen2, qwen3
from tiny import make_prompt, write_weights

from fastcore import LLM, ContextLengthError
from fastcore.checkpoints.open import open_checkpoint
from fastcore.engine import scheduler

ORACLES = {"qwen2": qwen2, "llama": llama, "qwen3": qwen3, "falcon_h1": falcon_h1}


@pytest.fixture(scope="module")
def llm(tiny_folder) -> LLM:
    return LLM(tiny_folder("llama"), num_threads=2)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def oracle_logprobs(tiny_folder, ids: list[int]) -> np.ndarray:
    """[len(ids) - 1]: of each token but the first, given those before it."""
    table = log_softmax(llama.logits(tiny_folder("llama"), ids))
    return table[np.arange(len(ids) - 1), ids[1:]]


def test_loglikelihood_sums_the_continuations_logprobs(llm: LLM, tiny_folder) -> None:
    ids = make_prompt(21)
    for cut in (1, 7, 20):
        total, greedy = llm.loglikelihood(ids[:cut], ids[cut:])
        expected = oracle_logprobs(tiny_folder, ids)[cut - 1 :].sum()
        assert total == pytest.approx(expected, abs=tolerances.LOGPROB * (21 - cut))
        assert not greedy
    written = llm.generate([ids], max_tokens=5)[0].token_ids
    assert llm.loglikelihood(ids, written)[1]
    assert not llm.loglikelihood(ids, [*written[:-1], (written[-1] + 1) % 300])[1]
    assert llm.loglikelihood(ids, []) == (0.0, True)


def test_pairs_in_a_batch_score_as_alone(llm: LLM) -> None:
    pairs = [
        (make_prompt(n, seed=n), make_prompt(m, seed=m + 9)) for n, m in ((3, 4), (40, 1), (40, 1), (1, 30), (9, 2))
    ]
    pairs += [(pairs[1][0], [i]) for i in range(5, 9)]  # answers of one token share a forward pass
    assert llm.loglikelihood(pairs) == [llm.loglikelihood(*pair) for pair in pairs]


def test_text_is_cut_where_the_contexts_own_encoding_ends(llm: LLM) -> None:
    encode = llm.tokenizer.encode
    context, continuation = "The cat sat", " on the mat"
    whole = encode(context + continuation)
    cut = len(encode(context))
    assert llm.loglikelihood(context, continuation) == llm.loglikelihood(whole[:cut], whole[cut:])
    assert llm.loglikelihood(context + " ", "on the mat") == llm.loglikelihood(context, continuation)
    start = llm.start_token_id
    assert start is not None
    assert llm.loglikelihood("", "abc") == llm.loglikelihood([start], encode("abc"))
    with pytest.raises(TypeError, match="both text, or both lists"):
        llm.loglikelihood("a", [1])


def test_perplexity_is_the_exponential_of_the_mean(llm: LLM, tiny_folder) -> None:
    ids = make_prompt(50)
    expected = math.exp(-oracle_logprobs(tiny_folder, ids).mean())
    assert llm.perplexity(ids) == pytest.approx(expected, rel=tolerances.LOGPROB)


@pytest.mark.parametrize(("window", "stride"), [(16, 16), (16, 4), (20, 7), (49, 1), (1, 1)])
def test_perplexity_by_windows(llm: LLM, tiny_folder, window: int, stride: int) -> None:
    """The first window scores all its tokens; each later one the next `stride`, seeing at most `window` before each."""
    ids = make_prompt(50)
    total, end = 0.0, min(1 + window, 50)
    total += oracle_logprobs(tiny_folder, ids[:end]).sum()
    while end < 50:
        new = min(end + stride, 50)
        start = max(0, new - 1 - window)
        total += oracle_logprobs(tiny_folder, ids[start:new])[end - 1 - start :].sum()
        end = new
    found = llm.perplexity(ids, window=window, stride=stride)
    assert found == pytest.approx(math.exp(-total / 49), rel=tolerances.LOGPROB)


def test_perplexity_refuses_what_has_none(llm: LLM) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        llm.perplexity([3])
    with pytest.raises(ValueError, match="stride 9"):
        llm.perplexity(make_prompt(20), window=8, stride=9)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_in_a_batch_are_those_alone_and_of_unit_length(llm: LLM, pooling: str) -> None:
    texts = [make_prompt(n, seed=n) for n in (1, 30, 7, 90)]
    batch = llm.embed(texts, pooling=pooling)
    assert batch.shape == (4, llm.config.hidden_size)
    assert np.array_equal(batch, [llm.embed(text, pooling=pooling) for text in texts])
    assert np.linalg.norm(batch, axis=1) == pytest.approx(np.ones(4), abs=tolerances.NORM)
    raw = llm.embed(texts, pooling=pooling, normalize=False)
    assert raw / np.linalg.norm(raw, axis=1, keepdims=True) == pytest.approx(batch, abs=tolerances.NORM)


def test_the_last_hidden_state_gives_the_logits(llm: LLM) -> None:
    """The head is tied: the embedding matrix times the pooled last hidden state is the last row of the logits."""
    ids = make_prompt(12)
    hidden = llm.embed(ids, pooling="last", normalize=False).astype(np.float64)
    matrix = np.array([llm.model.program.weights[0].row(i) for i in range(llm.config.vocab_size)], np.float64)
    expected = llm.logits(ids)[-1]
    assert np.abs(matrix @ hidden - expected).max() <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()


def test_logits_of_lists_are_those_alone(llm: LLM) -> None:
    texts = [make_prompt(n, seed=n) for n in (5, 140, 1, 33)]
    for one, text in zip(llm.logits(texts), texts, strict=True):
        assert np.array_equal(one, llm.logits(text))
    with pytest.raises(ContextLengthError, match="text 0 has"):
        llm.logits(make_prompt(llm.max_seq_len + 1))


@pytest.mark.parametrize("model_type", ORACLES)
def test_embeddings_are_the_oracles_hidden_states(tiny_folder, tmp_path: Path, model_type: str) -> None:
    """With the identity as its head, a model's logits are its hidden states after the last norm."""
    folder = tiny_folder(model_type, dtype="f32", tie=False)
    with open_checkpoint(folder) as checkpoint:
        tensors = {name: tensor.f32() for name, tensor in checkpoint.items()}
    tensors["lm_head.weight"] = np.eye(*tensors["lm_head.weight"].shape, dtype=np.float32)
    write_weights(tmp_path, tensors)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    scale = json.loads((folder / "config.json").read_text()).get("lm_head_multiplier", 1.0)

    llm, ids = LLM(tmp_path, num_threads=2), make_prompt(45)
    width = llm.config.hidden_size
    hidden = ORACLES[model_type].logits(tmp_path, ids)[:, :width] / scale
    bound = tolerances.LOGITS_RELATIVE_TO_STD * hidden.std()
    for pooling, expected in (("mean", hidden.mean(axis=0)), ("last", hidden[-1])):
        assert np.abs(llm.embed(ids, pooling=pooling, normalize=False) - expected).max() <= bound
        unit = llm.embed(ids, pooling=pooling)
        assert np.abs(unit - expected / np.linalg.norm(expected)).max() <= bound / np.linalg.norm(expected)


def test_what_cannot_be_embedded_is_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="pooling is 'max'; expected one of mean, last"):
        llm.embed("abc", pooling="max")
    with pytest.raises(ValueError, match="no tokens"):
        llm.embed([[1, 2], []])
    assert llm.embed([]).shape == (0, llm.config.hidden_size)


@pytest.mark.parametrize(("rows", "outputs"), [(1, 1), (7, 3), (64, 5), (5, 64)])
@pytest.mark.parametrize("model_type", ["qwen3", "falcon_h1"])
def test_the_size_of_the_steps_does_not_matter(
    tiny_folder, monkeypatch: pytest.MonkeyPatch, model_type: str, rows: int, outputs: int
) -> None:
    llm = LLM(tiny_folder(model_type), num_threads=2)
    texts = [make_prompt(n, seed=n) for n in (1, 20, 3, 3, 31)]
    pairs = [(text, make_prompt(n + 2, seed=n)) for n, text in enumerate(texts)]

    def scores() -> list:
        embeddings = [llm.embed(texts), llm.embed(texts, pooling="last")]
        return [
            llm.loglikelihood(pairs),
            llm.perplexity(texts[-1], window=9, stride=4),
            *llm.logits(texts),
            *embeddings,
        ]

    expected = scores()
    monkeypatch.setattr(scheduler, "MAX_ROWS", rows)
    monkeypatch.setattr(scheduler, "LOGIT_BYTES", 4 * llm.config.vocab_size * outputs)
    for found, other in zip(scores(), expected, strict=True):
        assert np.array_equal(found, other)


@pytest.mark.parametrize("model_type", ["llama", "falcon_h1"])
def test_a_small_cache_runs_texts_one_after_another(tiny_folder, model_type: str) -> None:
    whole = LLM(tiny_folder(model_type))
    blocks = 3 + whole.pool.state_blocks
    llm = LLM(tiny_folder(model_type), kv_cache_bytes=blocks * whole.pool.block_bytes)
    texts = [make_prompt(n, seed=n) for n in (40, 33, 60, 5, 64, 1)]
    for found, expected in zip(llm.logits(texts), whole.logits(texts), strict=True):
        assert np.array_equal(found, expected)
    assert np.array_equal(llm.embed(texts), whole.embed(texts))


def test_progress_is_shown_when_asked_for(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make_prompt(40)
    llm.perplexity(ids, progress=True)
    assert capsys.readouterr().err == ""  # no place for a bar
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert llm.perplexity(ids, progress=True) == llm.perplexity(ids)
    assert "39/39" in capsys.readouterr().err
    llm.perplexity(ids)
    assert capsys.readouterr().err == ""


def test_a_continuation_that_merges_into_the_context_counts(tiny_folder: Callable[..., Path]) -> None:
    """It has no token of its own, and must not score as certain."""
    llm = LLM(tiny_folder("qwen2"), num_threads=1)
    merged = 0
    for context, continuation in [("call th", "e"), (" nam", "e"), ("i", "n"), ("hello wor", "ld")]:
        whole, ids = llm.tokenizer.encode(context + continuation), llm.tokenizer.encode(context)
        if len(whole) > len(ids):
            continue
        merged += 1
        cut = next(i for i, (a, b) in enumerate(zip(whole, ids, strict=False)) if a != b)
        score = llm.loglikelihood(context, continuation)
        assert score == llm.loglikelihood(whole[:cut] or [llm.start_token_id], whole[cut:])
        assert score[0] < 0
    assert merged


@pytest.mark.parametrize("wrong", [["ab", "cd"], [("a",)], [("a", "b", "c")], "ab", [b"ab"], [1, 2]])
def test_what_is_no_pair_is_refused(tiny_folder: Callable[..., Path], wrong: Any) -> None:
    with pytest.raises(TypeError, match="expected a context and a continuation"):
        LLM(tiny_folder("qwen2"), num_threads=1).loglikelihood(wrong)


def test_bytes_are_no_token_ids(tiny_folder: Callable[..., Path]) -> None:
    llm = LLM(tiny_folder("qwen2"), num_threads=1)
    for call in (llm.generate, llm.stream, llm.logits, llm.embed, llm.perplexity):
        with pytest.raises(TypeError, match="a prompt is a string or a list of token ids, not bytes"):
            call(b"the quick")  # type: ignore[operator]
