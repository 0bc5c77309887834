"""Language models in use: reasoning, neighbours in a batch, texts without tokens, large and broken numbers."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tolerances
from tiny import make_prompt, store, tiny_checkpoint, write_tokenizer, write_weights

from fastcore import LLM, Completion, NonFiniteError, SamplingParams, TokenClassifier
from fastcore.checkpoints.open import open_checkpoint

FAMILIES = ("qwen2", "llama", "qwen3", "falcon_h1")
USER = [{"role": "user", "content": "hello"}]


def changed(folder: Path, to: Path, dtype: str, change: Any) -> Path:
    """A copy of an f32 checkpoint after change(tensors), stored as dtype."""
    with open_checkpoint(folder) as checkpoint:
        tensors = {name: tensor.f32() for name, tensor in checkpoint.items()}
    change(tensors)
    to.mkdir()
    write_weights(to, {name: store(value, dtype) for name, value in tensors.items()})
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (to / name).write_bytes((folder / name).read_bytes())
    return to


# ---------------------------------------------------------------- reasoning


@pytest.fixture
def thinker(data_folder: Path, tmp_path: Path) -> LLM:
    """A tiny model with the chat template of Qwen3."""
    folder = tiny_checkpoint(tmp_path / "thinker", "qwen3")
    write_tokenizer(folder, chat_template=(data_folder / "templates" / "qwen3.jinja").read_text())
    return LLM(folder)


def test_the_thinking_switch_goes_to_the_template(thinker: LLM) -> None:
    """Off, the prompt ends with an empty thought; on or unset, thinking is the model's to begin."""
    tokenizer = thinker.tokenizer
    closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    prompts = {}
    for switch in (None, True, False):
        kwargs = None if switch is None else {"enable_thinking": switch}
        prompts[switch] = tokenizer.apply_chat_template(USER, template_kwargs=kwargs)
        assert prompts[switch].endswith("<|im_start|>assistant\n") != (switch is False)
        assert prompts[switch].endswith(closed) == (switch is False)
        ids = tokenizer.encode(prompts[switch], add_special_tokens=False)
        params = SamplingParams(max_tokens=5, ignore_eos=True)
        reply = thinker.chat(USER, params, template_kwargs=kwargs)
        assert reply.usage.prompt_tokens == len(ids)
        assert reply.token_ids == thinker.generate(ids, params).token_ids
        chunks = list(thinker.stream_chat(USER, params, template_kwargs=kwargs))
        assert [token_id for chunk in chunks for token_id in chunk.token_ids] == reply.token_ids
    assert prompts[None] == prompts[True]


@pytest.mark.parametrize(
    ("reply", "reasoning", "answer"),
    [
        ("<think>\nfirst this\n</think>\n\nthe answer", "first this", "the answer"),
        ("no thoughts", "", "no thoughts"),
        ("<think>\ncut off", "cut off", ""),
        ("the tag was in the prompt</think>yes", "the tag was in the prompt", "yes"),
    ],
)
def test_reasoning_is_split_from_the_answer_on_request(
    thinker: LLM, monkeypatch: pytest.MonkeyPatch, reply: str, reasoning: str, answer: str
) -> None:
    complete = LLM._complete

    def said(self: LLM, prompts: Any, params: Sequence[SamplingParams]) -> list[Any]:
        done = complete(self, prompts, params)
        return [
            [dataclasses.replace(one, text=reply) for one in row]
            if each.n > 1
            else dataclasses.replace(row, text=reply)
            for row, each in zip(done, params, strict=True)
        ]

    monkeypatch.setattr(LLM, "_complete", said)
    plain = thinker.chat(USER, max_tokens=2)
    assert (plain.text, plain.reasoning) == (reply, None)
    found = thinker.chat(USER, max_tokens=2, split_reasoning=True)
    assert isinstance(found, Completion)
    assert (found.text, found.reasoning) == (answer, reasoning)
    assert found.token_ids == plain.token_ids
    pair = thinker.chat(USER, SamplingParams(n=2, max_tokens=2), split_reasoning=True)
    assert [(one.text, one.reasoning) for one in pair] == [(answer, reasoning)] * 2


def test_a_thought_that_the_prompt_opens_is_reasoning_from_the_start(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "qwen3")
    write_tokenizer(folder, chat_template="{{ messages[0].content }}{% if think %}<think>\n{% endif %}")
    llm = LLM(folder)
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    opened = {"think": True}
    text = llm.chat(USER, params, template_kwargs=opened).text
    found = llm.chat(USER, params, template_kwargs=opened, split_reasoning=True)
    assert text
    assert (found.text, found.reasoning) == ("", text.strip("\n"))
    text = llm.chat(USER, params).text
    found = llm.chat(USER, params, split_reasoning=True)
    assert (found.text, found.reasoning) == (text, "")


# ---------------------------------------------------------------- neighbours and the future


@pytest.mark.case("N13")
@pytest.mark.parametrize("model_type", FAMILIES)
def test_no_row_sees_later_tokens_or_other_texts(tiny_folder, model_type: str) -> None:
    """Causality holds beside neighbours of any length: the last token changes the last row alone."""
    llm = LLM(tiny_folder(model_type), num_threads=2)
    texts = [make_prompt(9), make_prompt(40, seed=1), make_prompt(3, seed=2)]
    before = llm.logits(texts)
    texts[1][-1] = (texts[1][-1] + 1) % 300
    after = llm.logits(texts)
    assert np.array_equal(after[0], before[0])
    assert np.array_equal(after[2], before[2])
    assert np.array_equal(after[1][:-1], before[1][:-1])
    assert not np.array_equal(after[1][-1], before[1][-1])
    assert np.array_equal(after[1], llm.logits(texts[1]))


@pytest.mark.case("N13")
def test_a_classifier_sees_later_tokens_and_no_padding(tiny_folder) -> None:
    classifier = TokenClassifier(tiny_folder("pii_masking"))
    ids = make_prompt(12)
    before, _ = classifier.logits(ids)
    after, _ = classifier.logits([*ids[:-1], (ids[-1] + 1) % 300])
    assert not np.array_equal(after[0], before[0])
    text = "my name is Alice"
    alone = classifier.score(text)
    for length in (1, 20, 300):
        beside, _ = classifier.score([text, "x" * length])
        assert np.array_equal(beside.logits, alone.logits)
        assert beside.sensitivity_logit == alone.sensitivity_logit


# ---------------------------------------------------------------- rows without a context, and large numbers


@pytest.mark.case("N03")
def test_texts_without_tokens_stay_finite_and_touch_no_others(tiny_folder) -> None:
    classifier = TokenClassifier(tiny_folder("pii_masking"))
    texts = ["", "a b c", "my name is Alice " * 40]
    together = classifier.score(texts)
    assert together[0].logits.shape == (0, 37)
    for text, found in zip(texts, together, strict=True):
        alone = classifier.score(text)
        assert np.isfinite(found.logits).all()
        assert np.array_equal(found.logits, alone.logits)
        assert found.sensitivity_logit == alone.sensitivity_logit


@pytest.mark.case("N03")
def test_logits_of_ten_thousand_are_probabilities(tiny_folder, tmp_path: Path) -> None:
    def scale(tensors: dict[str, np.ndarray]) -> None:
        tensors["lm_head.weight"] *= 1e4 / 2

    llm = LLM(changed(tiny_folder("llama", dtype="f32", tie=False), tmp_path / "m", "f32", scale))
    ids = make_prompt(30)
    logits = llm.logits(ids).astype(np.float64)
    assert np.abs(logits).max() > 1e4
    done = llm.generate(ids, SamplingParams(max_tokens=3, logprobs=320, prompt_logprobs=320, ignore_eos=True))
    for one in [*done.prompt_logprobs[1:], *done.logprobs]:
        values = np.array([value for _, value in one.top])
        assert len(values) == 320
        assert np.isfinite(values).all()
        assert np.exp(values).sum() == pytest.approx(1, abs=tolerances.SOFTMAX)
    peaks = logits.max(axis=1)
    expected = logits[np.arange(29), ids[1:]] - peaks[:-1] - np.log(np.exp(logits - peaks[:, None]).sum(axis=1)[:-1])
    found, _ = llm.loglikelihood(ids[:1], ids[1:])
    assert found == pytest.approx(expected.sum(), rel=tolerances.LOG_SOFTMAX)
    sampled = llm.generate(ids, SamplingParams(max_tokens=4, temperature=1.0, seed=0, ignore_eos=True))
    assert len(sampled.token_ids) == 4


@pytest.mark.case("N02")
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_activations_beyond_half_precision_do_not_change_the_text(tiny_folder, tmp_path: Path, dtype: str) -> None:
    """Inner activations of the MLP above 1e5 cancel in pairs in down_proj: what comes out is as without the MLP."""

    def cancel(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.0.post_attention_layernorm.weight"] *= 160
        for name in ("gate_proj", "up_proj"):
            weight = tensors[f"model.layers.0.mlp.{name}.weight"]
            weight[1::2] = weight[::2]
        down = tensors["model.layers.0.mlp.down_proj.weight"]
        down[:, 1::2] = -down[:, ::2]

    def silence(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.0.mlp.down_proj.weight"][:] = 0

    source = tiny_folder("qwen2", dtype="f32", num_hidden_layers=1)
    large = LLM(changed(source, tmp_path / "large", dtype, cancel))
    silent = LLM(changed(source, tmp_path / "silent", dtype, silence))
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    prompts = [make_prompt(n, seed=n) for n in (5, 30)]
    for found, expected in zip(large.generate(prompts, params), silent.generate(prompts, params), strict=True):
        assert found.token_ids == expected.token_ids
        assert any(found.token_ids)  # a NaN would be read as token 0


@pytest.mark.case("N02")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_weight_that_is_not_finite_is_an_error_everywhere(
    tiny_folder, tmp_path: Path, model_type: str, value: float
) -> None:
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        name = "feed_forward.up_proj" if model_type == "falcon_h1" else "mlp.up_proj"
        tensors[f"model.layers.0.{name}.weight"][3, 5] = value

    llm = LLM(changed(tiny_folder(model_type, dtype="f32"), tmp_path / "m", "f32", spoil))
    ids, free = make_prompt(6), llm.pool.free_positions
    calls = (
        lambda: llm.generate(ids, max_tokens=2),
        lambda: llm.generate(ids, temperature=1.0, max_tokens=2),
        lambda: list(llm.stream(ids, max_tokens=2)),
        lambda: llm.logits(ids),
        lambda: llm.loglikelihood(ids, ids),
        lambda: llm.perplexity(ids),
        lambda: llm.embed(ids),
        lambda: llm.embed([ids[:2], ids], pooling="last"),
    )
    for call in calls:
        with pytest.raises(NonFiniteError):
            call()
        assert llm.pool.free_positions == free
