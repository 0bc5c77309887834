"""The face of LLM and TokenClassifier: options, what is returned, closing, pickling, token ids without a tokenizer."""

import copy
import dataclasses
import inspect
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny_checkpoint

import fastcore
from fastcore import (
    LLM,
    CheckpointError,
    ClosedError,
    Completion,
    LLMOptions,
    SamplingOptions,
    SamplingParams,
    TokenClassifier,
    UnsupportedModelError,
)
from fastcore._kernels import BLOCK_TOKENS
from fastcore.pii.masking import MaskingOptions, MaskingRules

FOREVER = SamplingParams(ignore_eos=True, max_tokens=100_000)
OPTIONS: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 5,
    "top_p": 0.9,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "seed": 7,
    "max_tokens": 6,
    "min_tokens": 2,
    "stop": "zz",
    "stop_token_ids": [9],
    "ignore_eos": True,
    "logprobs": 2,
    "prompt_logprobs": 1,
    "logit_bias": {5: 1.0},
    "n": 1,
    "speculate": "ngram",
}
HELD: dict[str, Any] = {
    "json_schema": {"type": "integer"},
    "regex": "[0-9]+",
    "grammar": "start: /[0-9]+/",
    "choice": ["1"],
}


@pytest.fixture(scope="module")
def llm(tiny_folder: Callable[..., Path]) -> LLM:
    return LLM(tiny_folder("qwen2"), num_threads=1)


@pytest.fixture
def pii(tiny_folder: Callable[..., Path]) -> TokenClassifier:
    return TokenClassifier(tiny_folder("pii_masking"), num_threads=1)


# ---------------------------------------------------------------- options and results


def test_options_as_keywords_are_the_fields() -> None:
    assert list(SamplingOptions.__annotations__) == [field.name for field in dataclasses.fields(SamplingParams)]
    assert ["operator", *MaskingOptions.__annotations__] == [field.name for field in dataclasses.fields(MaskingRules)]
    assert {*OPTIONS, *HELD} == {*SamplingOptions.__annotations__}


@pytest.mark.fault("H5")
def test_every_sampling_option_is_a_keyword_of_every_call(llm: LLM) -> None:
    """One at a time and all at once, alone and over params, they do what params does."""
    messages = [{"role": "user", "content": "hi"}]
    for options in (OPTIONS, *({name: value} for name, value in (OPTIONS | HELD).items())):
        fixed = {"seed": 1, "max_tokens": 4} | options
        params = SamplingParams(**fixed)
        for call in (llm.generate, llm.chat):
            prompt: Any = messages if call == llm.chat else "hi"
            expected = call(prompt, params)
            for found in (call(prompt, **fixed), call(prompt, SamplingParams(seed=2, max_tokens=9), **fixed)):
                assert found.token_ids == expected.token_ids
                assert (found.logprobs, found.prompt_logprobs) == (expected.logprobs, expected.prompt_logprobs)
        for stream, whole in ((llm.stream, llm.generate), (llm.stream_chat, llm.chat)):
            prompt = messages if stream == llm.stream_chat else "hi"
            last = [chunk.completion for chunk in stream(prompt, **fixed)][-1]
            assert last is not None
            assert last.token_ids == whole(prompt, params).token_ids


def test_unknown_options_are_type_errors(tiny_folder: Callable[..., Path], llm: LLM, pii: TokenClassifier) -> None:
    with pytest.raises(TypeError, match="unknown option 'num_thread'"):
        LLM(tiny_folder("qwen2"), num_thread=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unknown option 'dtype'"):
        LLM.from_model(llm.model, llm.tokenizer, dtype="f32")
    with pytest.raises(TypeError, match="max_token"):
        llm.generate("x", max_token=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="treshold"):
        pii.mask("x", treshold=0.5)  # type: ignore[call-overload]


def test_what_is_returned_is_exported(llm: LLM, pii: TokenClassifier) -> None:
    done = llm.generate("hi", max_tokens=2, logprobs=1)
    assert type(done) is fastcore.Completion is Completion
    assert type(done.usage) is fastcore.Usage
    assert type(done.timings) is fastcore.Timings
    assert done.logprobs is not None
    assert type(done.logprobs[0]) is fastcore.TokenLogprob
    assert type(next(llm.stream("hi"))) is fastcore.Chunk
    assert type(pii("Alice")) is fastcore.Classification
    assert type(pii.score("Alice")) is fastcore.TokenScores
    assert type(pii.mask("Alice")) is fastcore.MaskedText
    assert all(type(entity) is fastcore.Entity for entity in pii("Alice Bob " * 20).entities)


def test_no_public_method_returns_any() -> None:
    for owner in (LLM, TokenClassifier):
        for name, method in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_") or name == "__call__":
                returned = inspect.signature(method).return_annotation
                assert returned is not inspect.Signature.empty, name


@pytest.mark.fault("C9")
@pytest.mark.parametrize("value", [2**62, 10**400, -1, 1.5, "1G", True])
def test_a_cache_of_impossible_size_is_a_value_error(tiny_folder: Callable[..., Path], value: Any) -> None:
    with pytest.raises(ValueError, match="kv_cache_bytes is"):
        LLM(tiny_folder("qwen2"), kv_cache_bytes=value)


@pytest.mark.fault("C9")
@pytest.mark.parametrize("size", [2**33, 2**40, 2**47])
def test_a_large_cap_costs_nothing_or_says_what_is_missing(tiny_folder: Callable[..., Path], size: int) -> None:
    try:
        llm = LLM(tiny_folder("qwen2"), kv_cache_bytes=size)
    except fastcore.OutOfMemoryError:
        return
    assert llm.generate([[5, 6]], max_tokens=2)[0].usage.completion_tokens == 2


@pytest.mark.fault("C9")
@pytest.mark.parametrize(
    "options", [{"max_seq_len": 10**400}, {"num_threads": 10**400}, {"overlap": 10**400}, {"overlap": 1.5}]
)
def test_impossible_options_are_value_errors(tiny_folder: Callable[..., Path], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        TokenClassifier(tiny_folder("pii_masking"), **options)
    if "overlap" not in options:
        with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
            LLM(tiny_folder("qwen2"), **options)


# ---------------------------------------------------------------- no tokens, no tokenizer


@pytest.mark.fault("C2")
def test_a_template_that_renders_nothing_is_an_error_and_stops_nobody(tmp_path: Path) -> None:
    from tiny import write_tokenizer

    folder = tiny_checkpoint(tmp_path / "m", "qwen2")
    write_tokenizer(folder, chat_template="")
    llm = LLM(folder, num_threads=1)
    other = llm.stream([5, 6], FOREVER)
    next(other)
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(ValueError, match="renders these messages as nothing"):
        llm.chat(messages)
    with pytest.raises(ValueError, match="renders these messages as nothing"):
        list(llm.stream_chat(messages))
    for call in (llm.generate, llm.logits, llm.embed):
        with pytest.raises(ValueError, match="no tokens"):
            call([[5], []])
    for one in (llm.stream, llm.perplexity):
        with pytest.raises(ValueError, match="no tokens"):
            one([])  # type: ignore[operator]
    with pytest.raises(ValueError, match="no tokens"):
        llm.loglikelihood([], [5])
    next(other)
    other.close()
    assert llm.pool.free_positions == llm.pool.num_blocks * BLOCK_TOKENS


@pytest.mark.fault("E1")
def test_a_model_without_a_tokenizer_takes_token_ids(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "qwen2")
    whole = LLM(folder, num_threads=1)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    llm, ids = LLM(folder, num_threads=1), [5, 6, 7]
    expected = whole.generate([ids], max_tokens=5, logprobs=1)[0]
    found = llm.generate([ids], max_tokens=5, logprobs=1)[0]
    assert (found.token_ids, found.logprobs, found.text) == (expected.token_ids, expected.logprobs, "")
    assert [token for chunk in llm.stream(ids, max_tokens=5) for token in chunk.token_ids] == expected.token_ids
    ended = llm.generate([ids], max_tokens=5, stop_token_ids=[expected.token_ids[1]])[0]
    assert (ended.finish_reason, ended.token_ids) == ("stop", expected.token_ids[:2])
    assert np.array_equal(llm.logits(ids), whole.logits(ids))
    assert llm.loglikelihood(ids, ids) == whole.loglikelihood(ids, ids)
    assert llm.perplexity(ids) == whole.perplexity(ids)
    assert np.array_equal(llm.embed(ids), whole.embed(ids))
    messages = [{"role": "user", "content": "hi"}]
    for asks_for_text in (
        lambda: llm.generate("hi"),
        lambda: llm.stream("hi"),
        lambda: llm.chat(messages),
        lambda: llm.stream_chat(messages),
        lambda: llm.logits("hi"),  # type: ignore[call-overload]
        lambda: llm.loglikelihood("a", "b"),
        lambda: llm.generate(ids, stop="x"),
        lambda: llm.tokenizer,
    ):
        with pytest.raises(CheckpointError, match=r"no tokenizer.*tokenizer\.json"):
            asks_for_text()


def test_a_stream_of_several_prompts_is_refused(tiny_folder: Callable[..., Path]) -> None:
    llm = LLM(tiny_folder("llama"), num_threads=1)
    for prompts in (["a", "b"], [[5, 6], [7]]):
        with pytest.raises(TypeError, match="a stream completes one prompt; generate takes a list of them"):
            llm.stream(prompts)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'max_tokens'"):
        llm.generate([5, 6], max_token=4)  # type: ignore[call-overload]


def test_a_token_classifier_is_named_where_a_language_model_is_asked_for(tiny_folder: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"^PiiMaskingModel classifies tokens; open it with"):
        LLM(tiny_folder("pii_masking"))


# ---------------------------------------------------------------- closing


def test_a_closed_llm_says_so(tiny_folder: Callable[..., Path]) -> None:
    with LLM(tiny_folder("llama"), num_threads=1) as llm:
        stream = llm.stream([5, 6], FOREVER)
        next(stream)
        scheduler, model = llm._scheduler, llm.model
    messages = [{"role": "user", "content": "hi"}]
    for use in (
        lambda: llm.generate([[5, 6]]),
        lambda: llm.generate("hi"),
        lambda: next(llm.stream([5, 6])),
        lambda: next(stream),
        lambda: llm.chat(messages),
        lambda: llm.logits([5, 6]),
        lambda: llm.loglikelihood([5], [6]),
        lambda: llm.embed([5]),
        lambda: llm.tokenizer,
        lambda: llm.model,
        lambda: scheduler.submit([]),
        lambda: llm.__enter__().generate("x"),
    ):
        with pytest.raises(ClosedError, match="this model is closed; open it again"):
            use()
    llm.close()
    with pytest.raises(AttributeError, match="no_such_name"):
        llm.no_such_name  # noqa: B018
    shared = LLM.from_model(model, None, num_threads=1)  # weights live as long as somebody has them
    assert shared.generate([[5, 6]], max_tokens=2)[0].usage.completion_tokens == 2


def test_a_closed_classifier_says_so(pii: TokenClassifier) -> None:
    results = pii(f"text {i}" for i in range(1000))
    next(results)
    with pii:
        pass
    for use in (lambda: pii("Alice"), lambda: pii.logits([5]), lambda: pii.mask(["a"]), lambda: list(results)):
        with pytest.raises(ClosedError, match="this model is closed"):
            use()
    pii.close()


def test_closing_ends_the_calls_of_other_threads(tiny_folder: Callable[..., Path]) -> None:
    llm, errors = LLM(tiny_folder("llama", max_position_embeddings=100_000), num_threads=1), []
    begun = threading.Event()

    def work() -> None:
        try:
            for _ in llm.stream([5, 6], FOREVER):
                begun.set()
        except ClosedError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait()
    llm.close()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 3


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_a_hundred_openings_and_closings_leave_nothing(tiny_folder: Callable[..., Path]) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
    folder = tiny_folder("llama", **sizes)

    def cycle() -> int:
        with LLM(folder, num_threads=2) as llm:
            llm.generate([[5, 6, 7]], max_tokens=2)
            llm.embed([5, 6])
            weights: int = llm.model.weight_bytes
        return weights

    for _ in range(10):
        weights = cycle()
    before = resident_bytes()
    for _ in range(100):
        cycle()
    assert weights > 4 << 20
    assert resident_bytes() - before < weights


@pytest.mark.parametrize("copies", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_holds_a_model_is_not_pickled(llm: LLM, pii: TokenClassifier, copies: Callable[[Any], Any]) -> None:
    for model in (llm, pii):
        with pytest.raises(TypeError, match=f"a {type(model).__name__} cannot be pickled.*open it there"):
            copies(model)


def test_the_options_of_loading_are_known() -> None:
    assert list(LLMOptions.__annotations__) == [
        "dtype",
        "num_threads",
        "max_seq_len",
        "kv_cache_bytes",
        "kv_dtype",
        "prefix_cache",
        "speculate",
    ]
