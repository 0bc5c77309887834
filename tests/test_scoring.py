"""Scores of given text against the oracle's logits: log-likelihoods, perplexity, embeddings, and batches of them."""

import math

import numpy as np
import pytest
import tolerances
from oracle import llama
from tiny import make_prompt

from fastcore import LLM, ContextLengthError


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
