"""Mask, generate, unmask: the model reads placeholders, and the client its own values, whole and streamed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from labelled import labelled_checkpoint
from tiny import CHATML_TOOLS, tiny_checkpoint, write_tokenizer

from fastcore import LLM, TokenClassifier

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("llguidance")

from serving import call, serving

from fastcore.server import ServedModel, create_app
from fastcore.server.guard import Masking
from fastcore.text.replies import Reply
from fastcore.text.tool_calls import ToolCall

MESSAGES = [{"role": "system", "content": "ask BOB"}, {"role": "user", "content": "i am ANN, not BOB; ring 555"}]
ANSWER = "[x] [PRIVATE_PERSON_2] or [PRIVATE_PERSON_1]: [PRIVATE_PHONE_1], [PRIVATE_PERSON_9] [PRIVATE_PERS"
REVEALED = "[x] ANN or BOB: 555, [PRIVATE_PERSON_9] [PRIVATE_PERS"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, TokenClassifier]]:
    folder = tmp_path_factory.mktemp("guard")
    tiny_checkpoint(folder / "m", "qwen2", max_position_embeddings=2048)
    write_tokenizer(folder / "m", chat_template=CHATML_TOOLS)
    (folder / "pii").mkdir()
    classifier = labelled_checkpoint(folder / "pii")
    with LLM(folder / "m", num_threads=1) as llm, TokenClassifier(classifier, num_threads=1) as pii:
        yield llm, pii


def served(models: tuple[LLM, TokenClassifier]) -> list[ServedModel]:
    return [ServedModel.loaded(model, [name]) for model, name in zip(models, ("tiny", "pii"), strict=True)]


@pytest.fixture(scope="module")
def port(models: tuple[LLM, TokenClassifier]) -> Iterator[int]:
    with serving(served(models)) as port:
        yield port


@pytest.fixture
def read(models: tuple[LLM, TokenClassifier], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the language model is asked to go on from."""
    llm, texts = models[0], []
    prepare = llm._request

    def request(ids: list[int], *rest: Any) -> Any:
        texts.append(llm.tokenizer.decode(ids))
        return prepare(ids, *rest)

    monkeypatch.setattr(llm, "_request", request)
    return texts


def held(text: str, **more: Any) -> dict[str, Any]:
    """A chat whose answer is held to be this text."""
    return {"model": "tiny", "messages": MESSAGES, "structured_outputs": {"choice": [text]}, "max_tokens": 400} | more


def events(port: int, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    status, answer, _ = call(port, "POST", path, body | {"stream": True})
    assert status == 200, answer
    lines = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_the_model_reads_placeholders_and_the_client_its_values(port: int, read: list[str]) -> None:
    status, answer, _ = call(port, "POST", "/v1/chat/completions", held(ANSWER, mask=True))
    assert status == 200, answer
    assert "ask [PRIVATE_PERSON_1]" in read[0]
    assert "i am [PRIVATE_PERSON_2], not [PRIVATE_PERSON_1]; ring [PRIVATE_PHONE_1]" in read[0]
    assert not {"BOB", "ANN", "555"} & set(read[0].replace(",", " ").replace(";", " ").split())
    assert answer["choices"][0]["message"]["content"] == REVEALED
    masking = answer["masking"]
    assert masking["model"] == "pii"
    found = [(item["message"], item["field"], item["label"], item["placeholder"]) for item in masking["items"]]
    assert found == [
        (0, "content", "private_person", "[PRIVATE_PERSON_1]"),
        (1, "content", "private_person", "[PRIVATE_PERSON_2]"),
        (1, "content", "private_person", "[PRIVATE_PERSON_1]"),
        (1, "content", "private_phone", "[PRIVATE_PHONE_1]"),
    ]
    for item in masking["items"]:
        text = MESSAGES[item["message"]]["content"]
        assert text[item["start"] : item["end"]] in ("BOB", "ANN", "555")
    assert "BOB" not in json.dumps(masking)


def test_a_stream_holds_back_what_may_become_a_placeholder(port: int) -> None:
    chunks = events(port, "/v1/chat/completions", held(ANSWER, mask=True))
    parts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(parts) == REVEALED
    assert len(parts) > 2
    assert [("masking" in chunk) for chunk in chunks] == [True] + [False] * (len(chunks) - 1)


def test_what_has_come_of_an_answer_only_grows() -> None:
    mapping = {"[PRIVATE_PERSON_1]": "BOB", "[PRIVATE_PERSON_2]": "ANN", "[PRIVATE_PHONE_1]": "555"}
    masking, shown = Masking([], mapping, [], "pii"), ""
    for end in range(len(ANSWER) + 1):
        now = masking.reveal(Reply("", ANSWER[:end]), False, False).content
        assert now.startswith(shown)
        assert REVEALED.startswith(now)
        shown = now
    assert REVEALED.removeprefix(shown) == "[PRIVATE_PERS"
    assert masking.reveal(Reply("", ANSWER), True, False).content == REVEALED


def test_responses_and_several_answers_are_unmasked_too(port: int, read: list[str]) -> None:
    status, answer, _ = call(port, "POST", "/v1/chat/completions", held(ANSWER, mask=True, n=2, temperature=1))
    assert (status, [choice["message"]["content"] for choice in answer["choices"]]) == (200, [REVEALED] * 2)
    body = {"model": "tiny", "instructions": "ask BOB", "input": MESSAGES[1]["content"], "mask": True}
    body |= {"structured_outputs": {"choice": [ANSWER]}, "max_output_tokens": 400}
    status, answer, _ = call(port, "POST", "/v1/responses", body)
    assert status == 200, answer
    assert answer["output"][0]["content"][0]["text"] == REVEALED
    assert len(answer["masking"]["items"]) == 4
    assert read[-1] == read[0]
    deltas = [event["delta"] for event in events(port, "/v1/responses", body) if event["type"].endswith("text.delta")]
    assert "".join(deltas) == REVEALED


def test_json_stays_json() -> None:
    masking = Masking([], {"[A_1]": 'say "x"\\\n'}, [], "pii")
    for is_whole in (True, False):
        reply = masking.reveal(Reply("[A_1]", '{"a": "[A_1]"}', (ToolCall("f", '{"b": "[A_1]"}'),)), is_whole, True)
        assert reply.reasoning == 'say "x"\\\n'
        assert json.loads(reply.content) == {"a": 'say "x"\\\n'}
        assert json.loads(reply.calls[0].arguments) == {"b": 'say "x"\\\n'}
    assert masking.reveal(Reply("", "[A_1]"), True, False).content == 'say "x"\\\n'


def test_an_answer_held_to_a_schema(port: int) -> None:
    schema = {"type": "object", "properties": {"who": {"const": "[PRIVATE_PERSON_2]"}}, "required": ["who"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema | {"additionalProperties": False}}}
    body = {"model": "tiny", "messages": MESSAGES, "response_format": form, "max_tokens": 200, "mask": True}
    status, answer, _ = call(port, "POST", "/v1/chat/completions", body)
    assert status == 200, answer
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"who": "ANN"}


def test_nothing_is_masked_unasked(port: int, read: list[str]) -> None:
    status, answer, _ = call(port, "POST", "/v1/chat/completions", held(ANSWER))
    assert (status, answer["choices"][0]["message"]["content"]) == (200, ANSWER)
    assert "BOB" in read[0]
    assert "masking" not in answer


def test_a_guard_masks_unasked_and_refuses_what_it_cannot(models: Any, read: list[str]) -> None:
    with serving(served(models), pii_guard=True) as port:
        for mask in ({}, {"mask": False}):
            status, answer, _ = call(port, "POST", "/v1/chat/completions", held(ANSWER) | mask)
            assert (status, answer["choices"][0]["message"]["content"]) == (200, REVEALED)
        count = len(read)
        status, answer, _ = call(port, "POST", "/v1/completions", {"model": "tiny", "prompt": "BOB"})
        assert (status, len(read)) == (400, count)
        assert "/v1/chat/completions" in answer["error"]["message"]
        called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "BOB"}'}}
        message = {"role": "assistant", "content": None, "tool_calls": [called]}
        status, answer, _ = call(port, "POST", "/v1/chat/completions", held("x", messages=[*MESSAGES, message]))
        assert (status, answer["error"]["param"], len(read)) == (400, "messages", count)
        for more in ({"customer": "BOB"}, {"function_call": {"name": "f", "arguments": "BOB"}}, {"name": ["BOB"]}):
            status, answer, _ = call(port, "POST", "/v1/chat/completions", held("x", messages=[MESSAGES[1] | more]))
            assert (status, answer["error"]["param"], len(read)) == (400, "messages", count)
        empty = MESSAGES[1] | {"refusal": None, "annotations": [], "tool_calls": []}  # as clients give answers back
        assert call(port, "POST", "/v1/chat/completions", held("x", messages=[MESSAGES[0], empty]))[0] == 200


def test_masking_needs_a_classifier(models: tuple[LLM, TokenClassifier]) -> None:
    with pytest.raises(ValueError, match="pii_guard needs a token classifier"):
        create_app(models[0], ["tiny"], pii_guard=True)
    with serving(models[0], ["tiny"]) as port:
        status, answer, _ = call(port, "POST", "/v1/chat/completions", held("x", mask=True))
        assert (status, answer["error"]["param"]) == (400, "mask")
        assert "fastcore serve MODEL CLASSIFIER" in answer["error"]["message"]
        assert call(port, "GET", "/v1/models")[1]["data"][0]["can_mask"] is False
