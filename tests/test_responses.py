"""/v1/responses over real sockets: what a chat answers, in items, whole and as events; and OpenAI's own client."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fastcore import LLM

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("llguidance")

from serving import call, serving
from test_chat import ONE, THINKING, USER, WEATHER, model

FUNCTION = {"type": "function", **WEATHER["function"]}
THOUGHT = "<think>\nhm\n</think>\n\nred"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return model(tmp_path_factory.mktemp("responses") / "m", THINKING)


@pytest.fixture(scope="module")
def port(llm: LLM) -> Iterator[int]:
    with serving(llm, ["tiny"]) as port:
        yield port


def respond(port: int, **body: Any) -> dict[str, Any]:
    status, answer, _ = call(port, "POST", "/v1/responses", {"input": "hello", "temperature": 0} | body)
    assert status == 200, answer
    return answer


def written(text: str) -> dict[str, Any]:
    """Options by which the model writes this text and no other."""
    return {"structured_outputs": {"choice": [text]}, "max_output_tokens": 400}


def events(port: int, **body: Any) -> list[dict[str, Any]]:
    status, text, _ = call(port, "POST", "/v1/responses", {"input": "hello", "temperature": 0, "stream": True} | body)
    assert status == 200, text
    found = []
    for i, part in enumerate(text[:-2].split("\n\n")):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        assert found[-1].pop("sequence_number") == i
    return found


def text_of(response: dict[str, Any]) -> str:
    return "".join(item["content"][0]["text"] for item in response["output"] if item["type"] == "message")


def asked(port: int, messages: list[dict[str, Any]], **body: Any) -> str:
    """What a chat of these messages answers."""
    body = {"messages": messages, "temperature": 0, "max_tokens": 9, "ignore_eos": True} | body
    status, answer, _ = call(port, "POST", "/v1/chat/completions", body)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"]


def test_a_response_is_what_a_chat_answers(port: int, llm: LLM) -> None:
    answer = respond(port, instructions="be red", max_output_tokens=9, ignore_eos=True, metadata={"a": "b"})
    messages = [{"role": "system", "content": "be red"}, USER]
    assert text_of(answer) == asked(port, messages)
    assert (answer["object"], answer["status"], answer["metadata"]) == ("response", "incomplete", {"a": "b"})
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["type"] for item in answer["output"]] == ["message"]
    count = len(llm.tokenizer.encode_chat(messages))
    usage = answer["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (count, 9, count + 9)
    done = respond(port, **written("red"))
    assert (text_of(done), done["status"], done["incomplete_details"]) == ("red", "completed", None)


def test_earlier_turns_come_in_the_input(port: int) -> None:
    call_id = {"call_id": "c1"}
    given = [
        {"role": "developer", "content": "short"},
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "reasoning", "summary": [], "id": "rs_1"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hm"}]},
        {"type": "function_call", "name": "weather", "arguments": '{"city": "Rome"}', **call_id},
        {"type": "function_call_output", "output": "sun", **call_id},
    ]
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    messages = [
        {"role": "system", "content": "kind\n\nshort"},
        USER,
        {"role": "assistant", "content": "hm", "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]
    answer = respond(port, input=given, instructions="kind", max_output_tokens=9, ignore_eos=True)
    assert text_of(answer) == asked(port, messages)


@pytest.mark.parametrize(
    ("text", "tools", "kinds"),
    [
        ("red", [], ["message"]),
        (THOUGHT, [], ["reasoning", "message"]),
        (f"so {ONE}", [FUNCTION], ["message", "function_call"]),
        (f"{ONE}\n{ONE}", [FUNCTION], ["function_call", "function_call"]),
    ],
)
def test_events_add_up_to_the_response(port: int, text: str, tools: list[Any], kinds: list[str]) -> None:
    whole = respond(port, tools=tools, **written(text))
    assert [item["type"] for item in whole["output"]] == kinds
    first, second, *between, last = events(port, tools=tools, **written(text))
    assert [first["type"], second["type"], last["type"]] == [
        "response.created", "response.in_progress", "response.completed",
    ]  # fmt: skip
    assert first["response"]["status"] == "in_progress"
    texts = {}
    ended = []
    for event in between:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            texts[event["item"]["id"]] = ""
            assert event["output_index"] == len(texts) - 1
        elif kind.endswith(".delta"):
            texts[event["item_id"]] += event["delta"]
        elif kind == "output_item.done":
            ended.append(event["item"])
    assert ended == last["response"]["output"]
    for item, streamed in zip(ended, texts.values(), strict=True):
        assert streamed == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
    for made, other in zip(whole["output"], ended, strict=True):
        assert {k: v for k, v in made.items() if "id" not in k} == {k: v for k, v in other.items() if "id" not in k}
    if "reasoning" in kinds:
        assert 0 < whole["usage"]["output_tokens_details"]["reasoning_tokens"] < whole["usage"]["output_tokens"]
    assert {k: v for k, v in last["response"]["usage"].items() if "input" not in k} == {
        k: v for k, v in whole["usage"].items() if "input" not in k
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "json_schema"}}}, "text"),
        ({"text": {"verbosity": "low"}}, "text"),
        ({"reasoning": {"effort": "much"}}, "reasoning"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_cannot_be_is_refused_by_its_own_name(port: int, body: dict[str, Any], param: str) -> None:
    status, answer, _ = call(port, "POST", "/v1/responses", {"input": "hello"} | body)
    assert (status, answer["error"]["param"]) == (400, param), answer


def test_openais_client(port: int) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        done = client.responses.create(model="tiny", input="hello", max_output_tokens=400, extra_body=written("red"))
        assert (done.output_text, done.status) == ("red", "completed")
        with client.responses.stream(model="tiny", input="hello", tools=[FUNCTION], extra_body=written(ONE)) as stream:
            for _ in stream:
                pass
            (item,) = stream.get_final_response().output
        assert (item.type, json.loads(item.arguments)) == ("function_call", {"city": "Paris", "days": 2})
        vectors = client.embeddings.create(model="tiny", input=["a", "b"], dimensions=8)
        assert [len(item.embedding) for item in vectors.data] == [8, 8]
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            client.responses.create(model="tiny", input="hello", previous_response_id="resp_1")
