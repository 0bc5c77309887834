"""Chats that call tools, think aloud or keep to a format, over real sockets, with the templates of Qwen's families."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastcore import LLM

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("llguidance")

from serving import call, serving
from tiny import CHATML_TOOLS, tiny_checkpoint, write_tokenizer

THINKING = CHATML_TOOLS.replace(
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}",
)
USER = {"role": "user", "content": "hello"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'


def model(folder: Path, template: str) -> LLM:
    tiny_checkpoint(folder, "qwen2", max_position_embeddings=2048)
    write_tokenizer(folder, chat_template=template)
    return LLM(folder, num_threads=1)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return model(tmp_path_factory.mktemp("tools") / "m", CHATML_TOOLS)


@pytest.fixture(scope="module")
def port(llm: LLM) -> Iterator[int]:
    with serving(llm, ["tiny"]) as port:
        yield port


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with serving(model(tmp_path_factory.mktemp("thinks") / "m", THINKING), ["tiny"]) as port:
        yield port


def post(port: int, **body: Any) -> tuple[int, Any]:
    status, answer, _ = call(port, "POST", "/v1/chat/completions", {"messages": [USER], "temperature": 1.0} | body)
    return status, answer


def choice(port: int, **body: Any) -> dict[str, Any]:
    status, answer = post(port, **body)
    assert status == 200, answer
    found: dict[str, Any] = answer["choices"][0]
    return found


def written(port: int, text: str, **body: Any) -> dict[str, Any]:
    """The choice of a model that writes this text, by a grammar that allows no other."""
    return choice(port, structured_outputs={"choice": [text]}, max_tokens=400, **body)


def streamed(port: int, **body: Any) -> dict[str, Any]:
    """A stream's choice put together again, as clients do."""
    status, text = post(port, stream=True, **body)
    assert status == 200, text
    *events, done = text[:-2].split("\n\n")
    assert done == "data: [DONE]"
    message: dict[str, Any] = {"role": None, "content": None}
    finish = None
    for event in events:
        part = json.loads(event.removeprefix("data: "))["choices"][0]
        delta = part["delta"]
        assert finish is None
        finish = part["finish_reason"]
        for name in ("role", "content", "reasoning_content"):
            if delta.get(name) is not None:
                message[name] = (message.get(name) or "") + delta[name]
        for piece in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            if piece["index"] == len(calls):
                assert piece["type"] == "function"
                calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
            else:
                assert "id" not in piece
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    return {"message": message, "finish_reason": finish}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**each, "id": None} for each in message.get("tool_calls", [])]
    return {**message, "tool_calls": calls}


# ---------------------------------------------------------------- tools


def test_calls_are_taken_out_of_what_the_model_writes(port: int) -> None:
    found = written(port, f"Let me look.\n{ONE}\n{ONE}", tools=[WEATHER, NOW])
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] == "Let me look."
    calls = found["message"]["tool_calls"]
    assert [each["function"] for each in calls] == [
        {"name": "weather", "arguments": '{"city": "Paris", "days": 2}'}
    ] * 2
    assert len({each["id"] for each in calls}) == 2
    assert {each["type"] for each in calls} == {"function"}
    found = written(port, ONE, tools=[WEATHER])
    assert found["message"]["content"] is None
    found = written(port, "no tools today", tools=[WEATHER])
    assert found["message"] == {"role": "assistant", "content": "no tools today"}
    assert found["finish_reason"] == "stop"


def test_without_tools_a_text_comes_as_it_is(port: int) -> None:
    for body in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        assert written(port, ONE, **body)["message"] == {"role": "assistant", "content": ONE}


@pytest.mark.parametrize("text", [f"Let me look.\n{ONE}\n{ONE}", ONE, "plain  \n", "a <tool_call", "<tool_call>\n{}"])
def test_a_stream_brings_the_same(port: int, text: str) -> None:
    body = {"tools": [WEATHER], "structured_outputs": {"choice": [text]}, "max_tokens": 400}
    whole, pieces = choice(port, **body), streamed(port, **body)
    assert without_ids(pieces["message"]) == without_ids(whole["message"])
    assert pieces["finish_reason"] == whole["finish_reason"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("parallel", [None, True, False])
def test_a_required_call_comes_and_fits_its_schema(port: int, stream: bool, parallel: bool | None) -> None:
    ask = streamed if stream else choice
    for seed in range(4):
        body = {"tools": [WEATHER, NOW], "tool_choice": "required", "parallel_tool_calls": parallel, "max_tokens": 600}
        found = ask(port, seed=seed, **body)
        calls = found["message"]["tool_calls"]
        if parallel is False:
            assert (found["finish_reason"], len(calls)) == ("tool_calls", 1)
        for each in calls[: None if found["finish_reason"] == "tool_calls" else -1]:
            arguments = json.loads(each["function"]["arguments"])
            if each["function"]["name"] == "now":
                assert arguments == {}
            else:
                assert (each["function"]["name"], sorted(arguments)) == ("weather", ["city", "days"])
                assert arguments["city"] in ("Paris", "Rome")
                assert 1 <= arguments["days"] <= 9


def test_a_named_tool_is_the_one_that_is_called(port: int) -> None:
    named = {"type": "function", "function": {"name": "now"}}
    for seed in range(4):
        found = choice(port, tools=[WEATHER, NOW], tool_choice=named, parallel_tool_calls=False, seed=seed)
        assert found["finish_reason"] == "tool_calls"
        (called,) = [each["function"] for each in found["message"]["tool_calls"]]
        assert (called["name"], json.loads(called["arguments"])) == ("now", {})


def test_one_call_at_most_where_they_are_not_parallel(port: int) -> None:
    body = {"tools": [WEATHER], "parallel_tool_calls": False}
    found = written(port, f"{ONE}\n{ONE}", **body)
    assert len(found["message"]["tool_calls"]) == 1
    assert found["finish_reason"] == "tool_calls"


def test_strict_tools_are_called_by_their_schema_or_not_at_all(port: int, llm: LLM) -> None:
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    opening = llm.tokenizer.encode("<tool_call>\n", False)
    bias = {str(token_id): 6 for token_id in opening}
    found = choice(port, tools=[strict], logit_bias=bias, temperature=2.0, seed=1, max_tokens=300, ignore_eos=True)
    for each in found["message"].get("tool_calls", []):
        assert each["function"]["name"] == "weather"
    assert "<tool_call>\n" not in (found["message"]["content"] or "")


def test_calls_and_results_go_back_to_the_template(port: int, llm: LLM) -> None:
    message = written(port, f"Look:{ONE}", tools=[WEATHER])["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    talk = [USER, message, result]
    text = llm.tokenizer.apply_chat_template(talk, tools=[WEATHER])
    assert f"assistant\nLook:{ONE}<|im_end|>\n<|im_start|>tool\nsunny<|im_end|>" in text
    _, answer = post(port, messages=talk, tools=[WEATHER], max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == len(llm.tokenizer.encode_chat(talk, tools=[WEATHER]))


# ---------------------------------------------------------------- formats


def test_answers_keep_to_the_format(port: int) -> None:
    schema = WEATHER["function"]["parameters"]
    wanted = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema, "strict": True}}
    for seed in range(4):
        found = choice(port, response_format=wanted, seed=seed, max_tokens=300)
        value = json.loads(found["message"]["content"])
        assert value["city"] in ("Paris", "Rome")
        assert found["finish_reason"] == "stop"
    found = choice(port, response_format={"type": "json_object"}, max_tokens=40)
    assert found["message"]["content"].lstrip().startswith("{")
    found = choice(port, response_format=wanted, tools=[NOW], seed=1, max_tokens=300)  # an answer or a call
    assert found["message"].get("tool_calls") or json.loads(found["message"]["content"])["days"]


def test_structured_outputs_hold_texts(port: int, llm: LLM) -> None:
    body = {"prompt": "hello", "max_tokens": 300, "temperature": 1.0, "seed": 3}
    for field, option in (("json", "json_schema"), ("regex", "regex"), ("grammar", "grammar"), ("choice", "choice")):
        value: Any = {"json": {"enum": [12, "x"]}, "regex": "[ab]{4}", "grammar": 'start: "a" | "b"', "choice": ["yes"]}
        value = value[field]
        _, answer, _ = call(port, "POST", "/v1/completions", body | {"structured_outputs": {field: value}})
        options: dict[str, Any] = {option: value}
        assert answer["choices"][0]["text"] == llm.generate("hello", temperature=1.0, seed=3, **options).text


# ---------------------------------------------------------------- thoughts


def test_thoughts_stand_apart(thinker: int) -> None:
    text = f"<think>\nhello my\n</think>\n\nname {ONE}"
    found = written(thinker, text, tools=[WEATHER])["message"]
    assert (found["reasoning_content"], found["content"]) == ("hello my", "name")
    assert found["tool_calls"][0]["function"]["name"] == "weather"
    body = {"structured_outputs": {"choice": [text]}, "max_tokens": 400}
    pieces = streamed(thinker, **body)["message"]
    assert pieces == {"role": "assistant", "reasoning_content": "hello my", "content": f"name {ONE}"}
    assert "reasoning_content" not in written(thinker, "name")["message"]
    messages = [USER, pieces, USER]
    assert post(thinker, messages=messages, max_tokens=1)[0] == 200


def test_a_format_leaves_room_for_thoughts(thinker: int) -> None:
    """Thoughts may come first; the answer after them keeps to the format, whether there were any or not."""
    wanted = {"type": "json_schema", "json_schema": {"name": "w", "schema": {"enum": ["a", "b"]}}}
    for seed in range(4):
        found = choice(thinker, response_format=wanted, seed=seed, max_tokens=300)
        if found["finish_reason"] == "stop":
            assert json.loads(found["message"]["content"]) in ("a", "b")
    found = choice(thinker, response_format=wanted, reasoning_effort="none", max_tokens=300)
    assert json.loads(found["message"]["content"]) in ("a", "b")


def test_effort_switches_thinking(thinker: int) -> None:
    def tokens(**body: Any) -> int:
        _, answer = post(thinker, max_tokens=1, **body)
        count: int = answer["usage"]["prompt_tokens"]
        return count

    off = tokens(chat_template_kwargs={"enable_thinking": False})
    assert tokens(reasoning_effort="none") == off > tokens() == tokens(reasoning_effort="low")
    assert tokens(reasoning_effort="high", chat_template_kwargs={"enable_thinking": False}) == off


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools", "tools[0].type is 'custom'"),
        ({"tools": [{"type": "function"}]}, "tools", "tools[0] needs a function with a 'name'"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": [1]}}]}, "tools", "no JSON schema"),
        ({"tools": [NOW], "tool_choice": "any"}, "tool_choice", 'tool_choice is "any"; expected none, auto, required'),
        (
            {"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "y"}}},
            "tool_choice",
            "tool_choice names 'y', which is none of the tools",
        ),
        (
            {
                "tools": [NOW, {"type": "function", "function": {"name": "x", "parameters": {"not": {}}}}],
                "tool_choice": "required",
            },
            "tools[1].function.parameters",
            "json_schema cannot be followed",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "foo"}}}},
            "response_format",
            "Invalid type: foo",
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "response_format",
            "hold the answer to two things",
        ),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "unclosed group"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "held to one of them"),
        ({"structured_outputs": {"xml": 1}}, "structured_outputs", "unknown field `xml`"),
        ({"guided_json": {}}, "guided_json", "send structured_outputs"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "no switch"),
        ({"reasoning_effort": "much"}, "reasoning_effort", "expected one of none, minimal"),
        ({"verbosity": "low"}, "verbosity", "no chat template has a switch"),
    ],
)
def test_what_cannot_be_is_refused_by_name(port: int, body: dict[str, Any], param: str, message: str) -> None:
    status, answer = post(port, **body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert message in answer["error"]["message"]


def test_without_llguidance_the_extra_is_named(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(model(tmp_path / "m", CHATML_TOOLS), ["bare"]) as bare:
        monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
        for body, param in (
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"tools": [NOW], "tool_choice": "required"}, "tools"),
            ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ):
            status, answer = post(bare, **body)
            assert (status, answer["error"]["param"]) == (400, param)
            assert "fastcore-engine[structured]" in answer["error"]["message"]
        assert post(bare, tools=[NOW], max_tokens=2)[0] == 200


def test_llamas_form_is_json_alone(tmp_path: Path) -> None:
    template = (
        CHATML_TOOLS.replace("<tool_call>", "")
        .replace("</tool_call>", "")
        .replace('"arguments": ...', '"parameters": ...')
    )
    with serving(model(tmp_path / "m", template), ["llama"]) as port:
        found = written(port, '{"name": "weather", "parameters": {"city": "Rome", "days": 1}}', tools=[WEATHER])
        assert found["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome", "days": 1}'
        found = choice(port, tools=[WEATHER], tool_choice="required", max_tokens=300)
        assert found["finish_reason"] == "tool_calls"
        assert json.loads(found["message"]["tool_calls"][0]["function"]["arguments"])["city"] in ("Paris", "Rome")
