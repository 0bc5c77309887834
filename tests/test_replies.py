"""Replies of chats taken apart: thoughts, text and calls of tools, whole and at every cut of a reply that grows."""

import json

import pytest

from fastcore.text.replies import Reply, ReplyForm
from fastcore.text.tool_calls import CallForm, ToolCall

TAGGED = CallForm.of("... <tool_call> ...")
LLAMA = CallForm.of('... {"name": function name, "parameters": dictionary} ...')
BARE = CallForm.of("... {{ tools }} ...")
FUNCTIONS = ({"name": "weather"}, {"name": "now"})
PARIS = ToolCall("weather", '{"city": "Paris"}')

CASES = [
    # thinks, is_thinking, calls, text, reply
    (False, False, None, " <think>x</think> <tool_call>\n", Reply(content=" <think>x</think> <tool_call>\n")),
    (True, False, None, "<think>\nhm\n</think>\n\nso", Reply("hm", "so")),
    (True, False, None, "\n<think>\n\n</think>\n\nso\n", Reply("", "so\n")),
    (True, False, None, "<think>\nhm\n\nand", Reply("hm\n\nand")),
    (True, False, None, "<thinking> is hard", Reply(content="<thinking> is hard")),
    (True, False, None, "plain </think> text", Reply(content="plain </think> text")),
    (True, False, None, "  ", Reply(content="  ")),
    (True, True, None, "hm\n</think>\n\nso", Reply("hm", "so")),
    (True, True, None, "<think>\nhm\n</think>\n\nso", Reply("hm", "so")),
    (True, True, None, "a < b </thin", Reply("a < b </thin")),
    (False, False, TAGGED, "no calls here \n", Reply(content="no calls here \n")),
    (False, False, TAGGED, "a <tool_cal", Reply(content="a <tool_cal")),
    (
        False, False, TAGGED, '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        Reply(calls=(PARIS,)),
    ),
    (
        True, False, TAGGED,
        '<think>\nweather?\n</think>\n\nLet me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}'
        '\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        Reply("weather?", "Let me look.", (PARIS, ToolCall("now", "{}"))),
    ),
    (
        False, False, TAGGED,  # a brace and a tag inside a string are no end
        '<tool_call>{"name":"weather","arguments":{"city":"}} \\" < {é"}}</tool_call> done',
        Reply(content=" done", calls=(ToolCall("weather", '{"city":"}} \\" < {é"}'),)),
    ),
    (
        False, False, TAGGED, '<tool_call>{"arguments": {"city": "Paris"}, "name": "weather"}</tool_call>',
        Reply(calls=(PARIS,)),
    ),
    (
        False, False, TAGGED, '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        Reply(calls=(PARIS,)),
    ),
    (False, False, TAGGED, '<tool_call>{"name": "now"}</tool_call>', Reply(calls=(ToolCall("now", "{}"),))),
    (
        False, False, TAGGED, '<tool_call>\n{"name": "weather", "arguments": {"city": "Par',  # cut off by max_tokens
        Reply(calls=(ToolCall("weather", '{"city": "Par'),)),
    ),
    (
        False, False, TAGGED, '<tool_call>\n{"name": "weather", "arguments": {"city": "</tool_call><tool_call>"}}\n'
        '</tool_call>\n<tool_call>{"name": "now"}</tool_call>',  # tags in a string
        Reply(calls=(ToolCall("weather", '{"city": "</tool_call><tool_call>"}'), ToolCall("now", "{}"))),
    ),
    (
        False, False, TAGGED, '<tool_call>{"name": "now", "arguments": {"a<tool_call>{"name": "now"}</tool_call>',
        Reply(calls=(ToolCall("now", '{"a'), ToolCall("now", "{}"))),
    ),
    (False, False, TAGGED, "<tool_call>nonsense</tool_call>", Reply(content="<tool_call>nonsense</tool_call>")),
    (False, False, TAGGED, "<tool_call>[1, 2]</tool_call>", Reply(content="<tool_call>[1, 2]</tool_call>")),
    (False, False, LLAMA, '{"name": "weather", "parameters": {"city": "Paris"}}', Reply(calls=(PARIS,))),
    (
        False, False, LLAMA,
        '\n{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "now", "parameters": {}}',
        Reply(calls=(PARIS, ToolCall("now", "{}"))),
    ),
    (False, False, LLAMA, '[weather(city="Paris"), now()]', Reply(calls=(PARIS, ToolCall("now", "{}")))),
    (False, False, LLAMA, '[weather(city=open("x"))]', Reply(content='[weather(city=open("x"))]')),
    (False, False, LLAMA, "[1] says so", Reply(content="[1] says so")),
    (False, False, LLAMA, '{"name": "Anna", "age": 5}', Reply(content='{"name": "Anna", "age": 5}')),
    (
        False, False, LLAMA, '{"name": "Anna", "parameters": {"a": 1}} ',  # no tool of that name: an answer
        Reply(content='{"name": "Anna", "parameters": {"a": 1}} '),
    ),
    (False, False, LLAMA, "{x} is a set", Reply(content="{x} is a set")),
    (False, False, LLAMA, "In Paris {it rains}", Reply(content="In Paris {it rains}")),
    (
        False, False, LLAMA, '{"name": "weather", "parameters": {"city": "Paris"}} I hope',
        Reply(content="I hope", calls=(PARIS,)),
    ),
    (
        False, False, BARE, '[{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "now"}]',
        Reply(calls=(PARIS, ToolCall("now", "{}"))),
    ),
    (False, False, BARE, '{"name": "weather", "arguments": {"city": "Paris"}}', Reply(calls=(PARIS,))),
    (False, False, BARE, '[{"name": "weather"}, 5]', Reply(content='[{"name": "weather"}, 5]')),
    (False, False, BARE, " \n", Reply(content=" \n")),
    (False, False, BARE, "[" * 5000, Reply(content="[" * 5000)),
]  # fmt: skip


@pytest.mark.parametrize(("thinks", "is_thinking", "calls", "text", "reply"), CASES)
def test_replies(thinks: bool, is_thinking: bool, calls: CallForm | None, text: str, reply: Reply) -> None:
    form = ReplyForm(thinks, is_thinking, calls, FUNCTIONS if calls else ())
    assert form.read(text, True) == reply
    before = Reply()
    for now in (*(form.read(text[:i], False) for i in range(min(len(text), 300))), reply):
        assert now.reasoning.startswith(before.reasoning)
        assert now.content.startswith(before.content)
        assert len(now.calls) >= len(before.calls)
        for old, new in zip(before.calls, now.calls, strict=False):
            assert new.name == old.name
            assert new.arguments.startswith(old.arguments)
        before = now


def test_arguments_come_while_they_are_written() -> None:
    form = ReplyForm(calls=TAGGED, functions=FUNCTIONS)
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris'
    assert form.read(text, False).calls == (ToolCall("weather", '{"city": "Paris'),)
    assert form.read(text[:20], False) == Reply()


def test_the_form_of_replies_follows_template_and_prompt() -> None:
    thinking = "{% if x %}<think>{% endif %}</think> <tool_call>"
    assert ReplyForm.of(thinking, "<|im_start|>assistant\n") == ReplyForm(True, False)
    assert ReplyForm.of(thinking, "<|im_start|>assistant\n<think>\n") == ReplyForm(True, True)
    assert ReplyForm.of(thinking, "<think>\n\n</think>\n\n").is_plain
    assert ReplyForm.of(thinking, "assistant\n", FUNCTIONS).calls == TAGGED
    assert ReplyForm.of("{{ messages }}", "assistant\n").is_plain
    assert (TAGGED.key, LLAMA.key, BARE.key) == ("arguments", "parameters", "arguments")


def test_a_python_call_is_not_run() -> None:
    for text in ("[__import__('os').system('x')]", "[now(**{'a': 1})]", "[now(1)]", "[lambda: now()]"):
        assert ReplyForm(calls=LLAMA, functions=FUNCTIONS).read(text, True).calls == ()
    deep = "[now(a=" + "[" * 300 + "]" * 300 + ")]"
    assert json.dumps(ReplyForm(calls=LLAMA, functions=FUNCTIONS).read(deep, True))
