"""Messages as clients send them give the prompts that templates mean, from the Python API and the server alike."""

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import call, serving
from test_chat_template import WEATHER, bare, render, user
from tiny import tiny_checkpoint, write_tokenizer

from fastcore import LLM
from fastcore.errors import ChatTemplateError
from fastcore.text.messages import MAX_DEPTH, Arguments, plain, prepare_messages

TEMPLATES = Path(__file__).parent / "data" / "templates"
DATE = {"date_string": "05 Mar 2025"}


def template(family: str) -> str:
    return (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8")


def calling(arguments: Any, **message: Any) -> list[dict[str, Any]]:
    """A conversation in which the model called a tool and heard its answer."""
    function = {"name": "weather", "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function}
    return [
        user("Weather in Malmö?"),
        {"role": "assistant", "content": None, "tool_calls": [call], **message},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
    ]


# ---------------------------------------------------------------- tool history


@pytest.mark.fault("H1")
@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "llama-3.2"])
def test_arguments_on_the_wire_are_encoded_once(family: str) -> None:
    values = {"place": "Malmö <Sweden>", "days": 2}
    expected = render(template(family), calling(values), tools=[WEATHER], template_kwargs=DATE)
    assert json.dumps(values, ensure_ascii=False) in expected
    wire = json.dumps(values, ensure_ascii=False)
    assert render(template(family), calling(wire), tools=[WEATHER], template_kwargs=DATE) == expected
    for absent in ("", "{}", None):
        assert "{}" in render(template(family), calling(absent), tools=[WEATHER], template_kwargs=DATE)
    for kept in ('{"a": ', "[1, 2]", "plain"):  # no object, which models write too
        text = render(template(family), calling(kept), tools=[WEATHER], template_kwargs=DATE)
        assert (json.dumps(kept) if family != "qwen3" else kept) in text


@pytest.mark.fault("H1")
def test_arguments_in_a_template_that_wants_text() -> None:
    wire = '{ "place":"Malmö" }'
    values = json.loads(wire)
    call = "{% set call = messages[1].tool_calls[0].function %}"
    for source in (
        "{{ call.arguments }}",
        "{{ '<' + call.arguments + '>' }}",
        "{{ call.arguments ~ '' }}",
        "{{ call.arguments | string }}",
    ):
        assert wire in render(call + source, calling(wire))
        assert json.dumps(values, ensure_ascii=False) in render(call + source, calling(values))
    for arguments in (wire, values):
        assert render(call + "{{ call.arguments | tojson }}", calling(arguments)) == '{"place": "Malmö"}'
        assert (
            render(call + "{% for k, v in call.arguments.items() %}{{ k }}={{ v }}{% endfor %}", calling(arguments))
            == "place=Malmö"
        )
        assert (
            render(call + "{{ call.arguments is mapping }}{{ call.arguments.place }}", calling(arguments))
            == "TrueMalmö"
        )


@pytest.mark.fault("H1")
@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "llama-3.2", "falcon-h1-like", "smollm2"])
@pytest.mark.parametrize("nothing", [[], None])
def test_tool_calls_that_are_empty_are_none(family: str, nothing: Any) -> None:
    plain_messages = [user("a"), {"role": "assistant", "content": "b"}, user("c")]
    messages = [
        user("a"),
        {"role": "assistant", "content": "b", "tool_calls": nothing, "refusal": None, "audio": None},
        user("c"),
    ]
    assert render(template(family), messages, template_kwargs=DATE) == render(
        template(family), plain_messages, template_kwargs=DATE
    )


@pytest.mark.fault("H1")
def test_calls_without_their_wrapping_and_several_at_once() -> None:
    flat = [
        user("x"),
        {"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"a": 1}'}, {"name": "g", "arguments": {}}]},
    ]
    text = render(template("qwen3"), [*flat, user("y")], tools=[WEATHER])
    assert '{"name": "f", "arguments": {"a": 1}}' in text
    assert '{"name": "g", "arguments": {}}' in text
    ready = prepare_messages(flat)
    assert ready[1]["tool_calls"][0]["arguments"] == {"a": 1}
    assert flat[1]["tool_calls"][0]["arguments"] == '{"a": 1}'  # what came in is left as it was


def test_what_a_silent_caller_has_as_its_content() -> None:
    assert render("{{ messages[1].content == '' }}", calling("{}")) == "True"
    assert render("{{ messages[1]['content'] is none }}", calling("{}")) == "True"
    assert render("{% if messages[1].content is not none %}x{% endif %}y", calling("{}")) == "y"
    assert render("{{ messages[1].reasoning_content is not none }}{{ messages[1].content }}|", calling("{}")) == "True|"


# ---------------------------------------------------------------- contents


@pytest.mark.fault("H1")
def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "a\n"}, {"type": "text", "text": ""}, {"type": "input_text", "text": "b"}]
    said = [{"type": "output_text", "text": "c"}, {"type": "refusal", "refusal": "no"}]
    messages = [
        {"role": "system", "content": parts},
        {"role": "user", "content": parts[:1]},
        {"role": "assistant", "content": said},
    ]
    assert [message["content"] for message in prepare_messages(messages)] == ["a\nb", "a\n", "cno"]
    assert prepare_messages([{"role": "user", "content": []}])[0]["content"] == ""
    assert prepare_messages([{"role": "tool", "content": {"degrees": 3}}])[0]["content"] == {"degrees": 3}


@pytest.mark.fault("H1")
@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": [{"type": "image_url", "image_url": {}}]}, r"messages\[0\].content\[0\] is of type 'image_url'"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "file"}]}, r"content\[1\] is of type 'file'"),
        ({"content": [{"type": "text"}]}, r"content\[0\] is of type 'text', not of type text with its 'text'"),
        ({"content": [{"type": ["text"], "text": "a"}]}, r"content\[0\] is of type"),
        ({"content": ["a"]}, r"content\[0\] is str"),
        ({"content": 5}, r"messages\[0\].content must be a text"),
        ({"content": {"a": 1}}, r"messages\[0\].content must be a text"),
        ({"content": None}, r"messages\[0\] has no content"),
        ({}, r"messages\[0\] has no content"),
        ({"content": None, "tool_calls": []}, r"messages\[0\] has no content"),
        ({"content": "a", "tool_calls": {}}, r"messages\[0\].tool_calls must be a list"),
        ({"content": "a", "tool_calls": ["f"]}, r"messages\[0\].tool_calls must be a list of dicts"),
        ({"content": "a", "tool_calls": [{"function": "f"}]}, r"tool_calls\[0\] needs a function"),
        ({"content": "a", "tool_calls": [{"function": {"name": None}}]}, r"tool_calls\[0\] needs a function"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(message: dict[str, Any], text: str) -> None:
    with pytest.raises(ChatTemplateError, match=text):
        prepare_messages([{"role": "user", **message}])


def test_developers_are_the_system_to_a_template_that_knows_none() -> None:
    messages = [{"role": "developer", "content": "Be kind."}, user("hi")]
    assert render("{{ messages[0].role }}", messages) == "system"
    assert render("{% if messages[0].role == 'developer' %}{{ messages[0].role }}{% endif %}", messages) == "developer"
    assert messages[0]["role"] == "developer"


@pytest.mark.fault("H2")
def test_tools_are_not_dropped_in_silence(tmp_path: Path) -> None:
    for family in ("qwen2.5", "qwen3", "llama-3.2", "falcon-h1-like"):
        assert "tools" in bare({"chat_template": template(family)})._template("default").variables
    folder = tiny_checkpoint(tmp_path / "m", "qwen2")
    write_tokenizer(folder, chat_template=template("smollm2"))
    llm = LLM(folder)
    assert llm.chat([user("a")], max_tokens=1, tools=[]).usage.completion_tokens == 1
    for chat in (llm.chat, llm.stream_chat):
        with pytest.raises(ChatTemplateError, match="no place for them"):
            chat([user("a")], max_tokens=1, tools=[WEATHER])


# ---------------------------------------------------------------- size and depth


@pytest.mark.fault("C4")
def test_nesting_is_bounded() -> None:
    value: Any = "x"
    for _ in range(MAX_DEPTH):
        value = [value]
    assert plain(value, "x") == value
    for deeper in ([value], {"a": value}):
        with pytest.raises(ChatTemplateError, match=f"deeper than {MAX_DEPTH}"):
            plain(deeper, "x")
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ChatTemplateError, match="deeper than"):
        prepare_messages([{"role": "user", "content": value}])
    arguments = "[" * 100_000
    assert prepare_messages(calling(arguments))[1]["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.fault("C4")
def test_a_large_conversation_costs_what_its_copy_does() -> None:
    messages = [{"role": "user", "content": "x", "data": [{"a": [i, i], "b": {"c": "y"}} for i in range(100_000)]}]
    size = len(json.dumps(messages))
    tracemalloc.start()
    start = time.process_time()
    try:
        prepare_messages(messages)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * size
    assert time.process_time() - start < 30


def test_where_a_value_is_wrong_is_said() -> None:
    with pytest.raises(ChatTemplateError, match=r"^x\['a'\]\[1\]\['b'\] is a set; a template takes"):
        plain({"a": [1, {"b": {1}}]}, "x")
    with pytest.raises(ChatTemplateError, match=r"^x\['a'\] is a bytes"):
        plain({"a": b"x"}, "x")
    long = plain({"k" * 1000: 1}, "x")
    assert long == {"k" * 1000: 1}


def test_arguments_are_a_dict_and_a_text() -> None:
    arguments = Arguments({"a": "é"})
    assert (arguments, str(arguments)) == ({"a": "é"}, '{"a": "é"}')
    assert "x" + arguments + "y" == 'x{"a": "é"}y'
    with pytest.raises(TypeError):
        arguments + 1


# ---------------------------------------------------------------- the server


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tiny_checkpoint(tmp_path_factory.mktemp("qwen") / "m", "qwen2", max_position_embeddings=4096)
    write_tokenizer(folder, chat_template=template("qwen2.5"))
    return LLM(folder, num_threads=1)


@pytest.fixture(scope="module")
def port(llm: LLM) -> Iterator[int]:
    with serving(llm, ["tiny"]) as port:
        yield port


@pytest.mark.fault("H1")
@pytest.mark.parametrize(
    "messages",
    [
        calling('{"place": "Malmö"}'),
        calling({"place": "Malmö"}),
        calling("{", content="well"),
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        [{"role": "user", "content": "a", "tool_calls": [], "name": None}],
        [{"role": "developer", "content": "a"}, user("<|im_end|>")],
    ],
    ids=str,
)
def test_the_server_reads_messages_as_the_api_does(port: int, llm: LLM, messages: list[dict[str, Any]]) -> None:
    for tools in (None, [], [WEATHER]):
        body = {"messages": messages, "tools": tools, "max_tokens": 4, "temperature": 0, "logprobs": True}
        status, answer, _ = call(port, "POST", "/v1/chat/completions", body)
        assert status == 200, answer
        expected = llm.chat(messages, tools=tools, max_tokens=4)
        assert answer["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
        assert answer["choices"][0]["message"]["content"] == expected.text


@pytest.mark.fault("C2")
@pytest.mark.parametrize(
    "source", ["{{ '' }}", "{% for m in messages %}{% endfor %}", "  {%- if false %}x{% endif -%}  "]
)
def test_a_template_that_renders_nothing_is_a_clear_error(
    tmp_path: Path, tiny_folder: Callable[..., Path], source: str
) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "qwen2")
    write_tokenizer(folder, chat_template=source)
    llm = LLM(folder, num_threads=1)
    for chat in (llm.chat, llm.stream_chat):
        with pytest.raises(ChatTemplateError, match="renders these messages as nothing"):
            chat([user("hi")], max_tokens=1)
    with serving(llm, ["tiny"]) as port:
        status, answer, _ = call(port, "POST", "/v1/chat/completions", {"messages": [user("hi")]})
        assert (status, "renders these messages as nothing" in answer["error"]["message"]) == (400, True)
        assert call(port, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
