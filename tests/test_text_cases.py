"""The same ids through every door: beginning-of-sequence tokens, empty prompts, and what comes after them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import call, serving
from tiny import tiny_checkpoint, write_tokenizer

from fastcore import LLM, SamplingParams
from fastcore.cli import main
from fastcore.errors import ChatTemplateError

CHATML = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module", params=["bos by the template", "none by the template"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer puts BOS in front of texts."""
    folder = tiny_checkpoint(tmp_path_factory.mktemp("bos") / "m", "llama", vocab_size=400)
    template = ("{{ bos_token }}" if request.param.startswith("bos") else "") + CHATML
    write_tokenizer(folder, add_bos=True, chat_template=template)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, num_threads=1)


@pytest.fixture(scope="module")
def port(llm: LLM) -> Iterator[int]:
    with serving(llm, ["tiny"]) as port:
        yield port


def printed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert main([*map(str, arguments), "--max-tokens", "2", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def served(port: int, path: str, **body: Any) -> dict[str, Any]:
    status, answer, _ = call(port, "POST", path, {"max_tokens": 2, "temperature": 0, **body})
    assert status == 200, answer
    return answer


@pytest.mark.case("T01")
def test_a_beginning_is_written_once_through_every_door(
    folder: Path, llm: LLM, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = llm.tokenizer
    bos = tokenizer.bos_token_id
    assert bos is not None
    raw, chat = tokenizer.encode("hello"), tokenizer.encode_chat(HELLO)
    assert (raw[0], raw.count(bos)) == (bos, 1)
    by_template = tokenizer.apply_chat_template(HELLO).startswith("<|endoftext|>")
    assert chat.count(bos) == by_template
    assert (chat[0] == bos) == by_template

    expected = llm.generate([raw], max_tokens=2)[0]
    assert llm.generate("hello", max_tokens=2).token_ids == expected.token_ids
    found = printed(capsys, "generate", "--model", folder, "hello")
    assert (found["token_ids"], found["usage"]["prompt_tokens"]) == (expected.token_ids, len(raw))
    answer = served(port, "/v1/completions", prompt="hello")
    assert (answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]) == (expected.text, len(raw))

    expected = llm.generate([chat], max_tokens=2)[0]
    assert llm.chat(HELLO, max_tokens=2).token_ids == expected.token_ids
    found = printed(capsys, "generate", "--model", folder, "--chat", "hello", "--temperature", "0")
    assert (found["token_ids"], found["usage"]["prompt_tokens"]) == (expected.token_ids, len(chat))
    answer = served(port, "/v1/chat/completions", messages=HELLO)
    assert answer["choices"][0]["message"]["content"] == expected.text
    assert answer["usage"]["prompt_tokens"] == len(chat)


@pytest.mark.case("T11")
def test_nothing_is_asked_through_every_door(
    folder: Path, llm: LLM, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    after = llm.generate("hello", max_tokens=2).text
    assert llm.generate("", max_tokens=1).usage.prompt_tokens == 1
    assert printed(capsys, "generate", "--model", folder, "")["usage"]["prompt_tokens"] == 1
    assert served(port, "/v1/completions", prompt="")["usage"]["prompt_tokens"] == 1
    assert served(port, "/v1/completions", prompt=["", "a"])["usage"]["prompt_tokens"] == 3
    assert served(port, "/v1/completions", prompt=" \n ")["usage"]["prompt_tokens"] >= 2
    assert llm.generate([]) == []
    for prompt in ([[]], [[5], []]):
        with pytest.raises(ValueError, match="no tokens"):
            llm.generate(prompt)
        assert call(port, "POST", "/v1/completions", {"prompt": prompt})[0] == 400
    assert call(port, "POST", "/v1/completions", {"prompt": []})[0] == 400
    with pytest.raises(ChatTemplateError, match="non-empty list"):
        llm.chat([])
    assert call(port, "POST", "/v1/chat/completions", {"messages": []})[0] == 400
    assert served(port, "/v1/chat/completions", messages=[{"role": "user", "content": ""}])["choices"]
    assert served(port, "/v1/completions", prompt="hello")["choices"][0]["text"] == after
    assert llm._scheduler.num_requests == 0


@pytest.mark.case("T10")
def test_lone_surrogates_are_a_clean_error_through_every_door(llm: LLM, port: int) -> None:
    for ask in (
        lambda: llm.generate("a\ud800b"),
        lambda: llm.chat([{"role": "user", "content": "a\ud800b"}]),
        lambda: llm.loglikelihood("a\ud800", "b"),
    ):
        with pytest.raises(ValueError, match=r"lone surrogate, U\+D800"):
            ask()
    for path, body in (
        ("/v1/completions", {"prompt": "a\ud800b"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a\ud800b"}]}),
    ):
        status, answer, _ = call(port, "POST", path, json.dumps(body).encode())
        assert (status, "error" in answer) == (400, True)
    stopped = llm.generate("hello", SamplingParams(stop="\ud800", max_tokens=2))
    assert stopped.text == llm.generate("hello", max_tokens=2).text


@pytest.mark.case("C10")
def test_a_padded_id_among_others_gives_no_text(llm: LLM) -> None:
    """Its rows of the head have no token: they never crash, and the text goes on around them."""
    beyond = llm.tokenizer.vocab_size
    assert beyond < llm.config.vocab_size
    letter = llm.tokenizer.encode("a", add_special_tokens=False)[0]
    bias = {beyond: 100.0, letter: 100.0}
    params = SamplingParams(logit_bias=bias, max_tokens=12, temperature=1.0, seed=1, logprobs=1)
    done = llm.generate("hello", params)
    assert {beyond, letter} == set(done.token_ids)
    assert done.text == "a" * done.token_ids.count(letter)
    assert "".join(chunk.text for chunk in llm.stream("hello", params)) == done.text
