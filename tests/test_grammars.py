"""Texts held to a schema, a regular expression, a grammar or a choice: the tokens are the best that these allow."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastcore import LLM, SamplingParams
from fastcore._kernels import mask_logits
from fastcore.errors import CheckpointError, ClosedError, GrammarError, MissingPackageError

pytest.importorskip("llguidance")

PROMPT = "hello my name is"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tiny_folder: Callable[..., Path]) -> LLM:
    return LLM(tiny_folder("qwen2"), num_threads=1)


def is_person(text: str) -> bool:
    value = json.loads(text)
    return (
        sorted(value) == ["age", "name", "tags"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 6
        and type(value["age"]) is int
        and 0 <= value["age"] <= 99
        and len(value["tags"]) <= 2
        and {*value["tags"]} <= {"a", "b"}
    )


def test_texts_fit_the_schema(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, n=12, seed=1, max_tokens=300, json_schema=PERSON)
    replies = llm.generate(PROMPT, params)
    assert {reply.finish_reason for reply in replies} == {"stop"}
    assert all(is_person(reply.text) for reply in replies)
    assert len({reply.text for reply in replies}) == 12
    assert llm.generate(PROMPT, params.replace(json_schema=json.dumps(PERSON)))[0].text == replies[0].text


def test_a_discriminator_tells_parts_apart(llm: LLM) -> None:
    """As pydantic writes unions. Without it, parts of `oneOf` that may overlap are refused."""
    parts = {
        kind: {
            "type": "object",
            "properties": {"kind": {"const": kind}},
            "required": ["kind"],
            "additionalProperties": False,
        }
        for kind in ("a", "b")
    }
    schema: dict[str, Any] = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": parts}
    with pytest.raises(GrammarError, match="oneOf"):
        llm.generate(PROMPT, json_schema=schema)
    schema["discriminator"] = {"propertyName": "kind"}
    texts = {llm.generate(PROMPT, json_schema=schema, temperature=1.0, seed=seed).text for seed in range(9)}
    assert {json.loads(text)["kind"] for text in texts} == {"a", "b"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_match_the_regex(llm: LLM, temperature: float) -> None:
    pattern = "(yes|no), [a-f]{3}-[0-9]{2,4}é?"
    for seed in range(8):
        reply = llm.generate(PROMPT, temperature=temperature, seed=seed, regex=pattern, max_tokens=100)
        assert reply.finish_reason == "stop"
        assert re.fullmatch(pattern, reply.text)


def test_texts_are_one_of_the_choice(llm: LLM) -> None:
    choice = ["yes", "no", 'perhaps "not"\n', "é"]
    replies = llm.generate(PROMPT, temperature=3.0, n=32, seed=0, choice=choice, max_tokens=40)
    assert {reply.text for reply in replies} <= set(choice)
    assert len({reply.text for reply in replies}) > 1
    assert {reply.finish_reason for reply in replies} == {"stop"}


def test_texts_follow_the_grammar(llm: LLM) -> None:
    grammar = 'start: sum ";"\nsum: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]{1,3}/'
    for seed in range(6):
        reply = llm.generate(PROMPT, temperature=1.0, seed=seed, grammar=grammar, max_tokens=30)
        assert re.fullmatch(r"\d{1,3}(\+\d{1,3})*;", reply.text) or reply.finish_reason == "length"


def test_greedy_takes_the_best_token_that_is_allowed(llm: LLM) -> None:
    """Against a search: of all tokens that keep to [ab]{4}, the one with the highest logit."""
    reply = llm.generate(PROMPT, regex="[ab]{4}", max_tokens=9, logprobs=0)
    ids, text = llm.tokenizer.encode(PROMPT), ""
    while len(text) < 4:
        logits = llm.logits(ids)[-1]
        spelled = [llm.tokenizer.token_bytes(i).decode("latin-1") for i in range(llm.tokenizer.vocab_size)]
        fits = [i for i, token in enumerate(spelled) if re.fullmatch("[ab]+", token) and len(text + token) <= 4]
        best = max(fits, key=lambda i: (logits[i], -i))
        ids, text = [*ids, best], text + spelled[best]
    assert reply.text == text
    assert reply.token_ids == ids[-len(reply.token_ids) :]  # nothing is written once the text is whole
    assert reply.finish_reason == "stop"
    assert reply.logprobs is not None
    row = llm.logits(ids)[-2].astype(np.float64)  # logprobs are the model's own, not those of the mask
    assert reply.logprobs[-1].logprob == pytest.approx(row[ids[-1]] - np.log(np.exp(row).sum()), abs=1e-4)


def test_a_text_may_end_where_the_grammar_lets_it(llm: LLM) -> None:
    """`[ab]*` may end at once; the token that ends it is no part of the text."""
    eos = llm.eos_token_ids[0]
    reply = llm.generate(PROMPT, regex="[ab]*", logit_bias={eos: 100.0}, max_tokens=9)
    assert (reply.text, reply.token_ids, reply.finish_reason) == ("", [eos], "stop")
    reply = llm.generate(PROMPT, regex="[ab]{2,}", logit_bias={eos: 100.0}, max_tokens=9)
    assert re.fullmatch("[ab]{2,4}", reply.text)
    assert reply.token_ids[-1] == eos
    reply = llm.generate(PROMPT, regex="[ab]*", logit_bias={eos: 100.0}, max_tokens=9, min_tokens=5)
    assert len(reply.token_ids) == 6  # the ending one is not itself one of the five
    reply = llm.generate(PROMPT, regex="[ab]", ignore_eos=True, min_tokens=5, max_tokens=9)
    assert (len(reply.text), reply.finish_reason) == (1, "stop")  # there is nothing else to write


def test_grammars_in_one_batch_are_each_followed(llm: LLM) -> None:
    """Threads with different grammars, and one without, share steps: each gets what it gets alone."""
    from concurrent.futures import ThreadPoolExecutor

    held: list[dict[str, Any]] = [{"regex": "[a-c]{5}"}, {"choice": ["one", "two"]}, {"json_schema": PERSON}, {}]
    params = [SamplingParams(temperature=1.0, seed=5, max_tokens=60, **each) for each in held]
    alone = [llm.generate(PROMPT, each).token_ids for each in params]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda each: llm.generate(PROMPT, each).token_ids, params * 2))
    assert together == alone * 2


def test_a_stop_string_still_ends_the_text(llm: LLM) -> None:
    reply = llm.generate(PROMPT, regex="ab-cd", stop="-", max_tokens=20)
    assert (reply.text, reply.finish_reason) == ("ab", "stop")


def test_every_kind_of_tokenizer_is_followed(tiny_folder: Callable[..., Path]) -> None:
    for family in ("llama", "qwen3", "falcon_h1"):
        other = LLM(tiny_folder(family), num_threads=1)
        assert is_person(other.generate(PROMPT, json_schema=PERSON, temperature=1.0, seed=2, max_tokens=300).text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "("}, "regex cannot be followed: .*unclosed group"),
        ({"regex": "(?=a)b"}, "regex cannot be followed: .*look-around"),
        ({"grammar": "nonsense"}, "grammar cannot be followed"),
        ({"grammar": "start: missing"}, "grammar cannot be followed: .*missing"),
        ({"json_schema": {"type": "foo"}}, "json_schema cannot be followed: Invalid type: foo"),
        ({"json_schema": {"not": {}}}, "json_schema cannot be followed: .*not"),
        ({"json_schema": {"type": "array", "uniqueItems": True}}, "json_schema cannot be followed: .*uniqueItems"),
        ({"json_schema": {"allOf": [{"type": "string"}, {"type": "null"}]}}, "json_schema cannot be followed: Unsat"),
        ({"json_schema": {"$ref": "http://example.com/x"}}, "json_schema cannot be followed"),
        ({"json_schema": {"pattern": "(?=a)"}}, "json_schema cannot be followed"),
        ({"regex": "(a{1000}){1000}"}, "regex cannot be followed"),
    ],
)
def test_what_cannot_be_followed_is_refused(llm: LLM, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        llm.generate(PROMPT, max_tokens=2, **options)
    assert llm._scheduler.num_requests == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": ""}, "regex is ''; expected a text that is not empty"),
        ({"grammar": 5}, "grammar is 5"),
        ({"choice": []}, r"choice is \[\]; expected a list"),
        ({"choice": "yes"}, "choice is 'yes'; expected a list"),
        ({"choice": ["a", ""]}, "choice is .*; expected texts, none of them empty"),
        ({"json_schema": "{"}, "json_schema is '{'; expected a JSON schema"),
        ({"json_schema": "[]"}, r"json_schema is '\[\]'; expected a JSON schema"),
        ({"json_schema": {"a": {1}}}, "json_schema is .*; expected a JSON schema"),
        ({"json_schema": {"a": float("nan")}}, "json_schema is .*; expected a JSON schema"),
        ({"regex": "a", "choice": ["a"]}, "regex and choice are given"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**options)


def test_without_the_package_the_extra_is_named(tiny_folder: Callable[..., Path], monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingPackageError, match=r"fastcore-engine\[structured\]"):
        LLM(tiny_folder("qwen2"), num_threads=1).generate(PROMPT, regex="a")


def test_a_model_that_has_no_words_or_is_closed(tiny_folder: Callable[..., Path]) -> None:
    llm = LLM(tiny_folder("qwen2"), num_threads=1)
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        LLM.from_model(llm.model, None, num_threads=1).generate([5], regex="a")
    assert llm.generate(PROMPT, regex="a").text == "a"
    llm.close()
    with pytest.raises(ClosedError):
        llm.generate([5], regex="a")


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 97, 320])
def test_a_mask_leaves_the_allowed_logits(size: int) -> None:
    rng = np.random.default_rng(size)
    logits = rng.standard_normal(size).astype(np.float32)
    words = rng.integers(0, 2**32, -(-size // 32), dtype=np.uint32)
    out = np.zeros(size, np.float32)
    mask_logits(logits, words, out)
    allowed = np.unpackbits(words.view(np.uint8), bitorder="little", count=size).astype(bool)
    assert (out == np.where(allowed, logits, -np.inf)).all()
    with pytest.raises(ValueError, match="logits into"):
        mask_logits(logits, np.zeros(words.size + 1, np.uint32), out)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_guessed_tokens_keep_to_the_grammar(llm: LLM, temperature: float) -> None:
    grammar = 'start: ("hello my name is " | "hello")+ "."'
    params = SamplingParams(temperature=temperature, seed=4, grammar=grammar, max_tokens=60)
    prompt = "hello my name is hello my name is hello my name is "
    assert llm.generate(prompt, params, speculate="ngram").token_ids == llm.generate(prompt, params).token_ids
