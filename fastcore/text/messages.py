"""Messages as clients send them, made into what chat templates read.

Both ways into a chat, the Python API and the server, prepare their messages here, so that the same conversation gives
the same prompt. A null is an absent key; `content` becomes text; `tool_calls` that are empty go away, and a call's
`arguments`, which are JSON text on the wire, become the object that templates print.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastcore.errors import ChatTemplateError

__all__ = ["plain", "prepare_messages", "prepare_tools"]

MAX_DEPTH = 64  # of lists and objects in one another

TOOL_ROLES = ("tool", "ipython")  # of messages whose content may be an object, which templates encode
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}  # type -> its text


def prepare_messages(messages: object, absent_content: str | None = "") -> list[dict[str, Any]]:
    """A copy of a conversation as templates read it.

    messages: a non-empty list of dicts, each with a "role" and, but for one that calls tools, a "content": text, or a
    list of parts that are text. absent_content: what a message that calls tools and says nothing has as its content.
    Raises ChatTemplateError, which names the message, for anything else.
    """
    if not isinstance(messages, list | tuple) or not messages:
        found = "an empty list" if isinstance(messages, list | tuple) else type(messages).__name__
        raise ChatTemplateError(
            f"messages must be a non-empty list of dicts such as {{'role': 'user', 'content': 'Hello'}}; got {found}"
        )
    return [_message(message, f"messages[{i}]", absent_content) for i, message in enumerate(messages)]


def prepare_tools(tools: object) -> list[Any] | None:
    """A copy of the tools' descriptions; None where there are none."""
    if tools is None:
        return None
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ChatTemplateError("tools must be a list of dicts, each a JSON schema of a function")
    copied: list[Any] = plain(tools, "tools")
    return copied or None


def _message(message: object, where: str, absent_content: str | None) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"{where} must be a dict with 'role' and 'content'; got {type(message).__name__}")
    if not isinstance(message.get("role"), str):
        keys = sorted(map(str, message))
        raise ChatTemplateError(f"{where} needs a 'role' that is a string; its keys are {keys!r:.200}")
    ready: dict[str, Any] = {key: value for key, value in plain(message, where).items() if value is not None}
    if "tool_calls" in ready:
        calls = _tool_calls(ready.pop("tool_calls"), f"{where}.tool_calls")
        if calls:
            ready["tool_calls"] = calls
    content = ready.get("content")
    if isinstance(content, list):
        ready["content"] = "".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    elif content is None:
        if not ("tool_calls" in ready or "reasoning_content" in ready):
            raise ChatTemplateError(f"{where} has no content; expected a text")
        ready["content"] = absent_content
    elif not isinstance(content, str) and not (isinstance(content, dict) and ready["role"] in TOOL_ROLES):
        raise ChatTemplateError(f"{where}.content must be a text, or a list of parts of type text")
    return ready


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(TEXT_PARTS[kind]) if isinstance(kind, str) and kind in TEXT_PARTS else None
    if not isinstance(text, str):
        found = type(part).__name__ if not isinstance(part, dict) else f"of type {kind!r:.80}"
        raise ChatTemplateError(f"{where} is {found}, not of type text with its 'text'; this model reads text alone")
    return text


def _tool_calls(calls: Any, where: str) -> list[Any]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ChatTemplateError(f"{where} must be a list of dicts, each with a 'function'")
    ready = []
    for i, call in enumerate(calls):
        function = call.get("function", call)  # some clients leave the wrapping out
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ChatTemplateError(f"{where}[{i}] needs a function with a 'name' that is a string")
        function = {**function, "arguments": _arguments(function.get("arguments"))}
        ready.append({**call, "function": function} if "function" in call else function)
    return ready


class Arguments(dict[str, Any]):
    """The arguments of a call: an object to a template that encodes or walks it, JSON to one that wants text."""

    def __init__(self, values: Mapping[str, Any], text: str | None = None) -> None:
        super().__init__(values)
        self._text = text

    def like(self, values: Mapping[str, Any], text: str) -> Arguments:
        """The same with other values, and another text where the text was given."""
        return Arguments(values, None if self._text is None else text)

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False) if self._text is None else self._text

    def __add__(self, other: str) -> str:
        return str(self) + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return other + str(self) if isinstance(other, str) else NotImplemented


def _arguments(value: Any) -> Any:
    """An object of what is one; text that is no JSON object, which models write too, as it is."""
    if value is None or value == "":
        return Arguments({})
    if isinstance(value, dict):
        return Arguments(value)
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return Arguments(plain(parsed, "arguments"), value) if isinstance(parsed, dict) else value
    return value


# ---------------------------------------------------------------------- JSON types


class _NotPlain(Exception):
    """path: from the value inwards; it is put together only for what is wrong."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.path: list[str] = []


def plain(value: Any, where: str) -> Any:
    """A copy made of JSON types only: the template never meets an object with methods of its own."""
    try:
        return _plain(value, MAX_DEPTH)
    except _NotPlain as error:
        raise ChatTemplateError(f"{where}{''.join(reversed(error.path))} {error}") from None


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if not isinstance(value, Mapping | Sequence) or isinstance(value, bytes | bytearray | memoryview):
        raise _NotPlain(f"is a {type(value).__name__}; a template takes text, numbers, lists and dicts only")
    if not depth:
        raise _NotPlain(f"lies deeper than {MAX_DEPTH} lists and dicts in one another")
    try:
        if isinstance(value, Mapping):
            copied = {}
            for key, item in value.items():
                copied[_plain(key, 0)] = _plain(item, depth - 1)
            return copied
        items: list[Any] = []
        for key, item in enumerate(value):  # noqa: B007  named where it is wrong
            items.append(_plain(item, depth - 1))
        return items
    except _NotPlain as error:
        error.path.append(f"[{key!r:.80}]")
        raise
