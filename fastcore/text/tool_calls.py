"""Calls of tools as families of models write them: read from a reply while it grows, and as rules of grammars.

Two forms cover them: JSON objects between tags (`<tool_call>`: Qwen, Hermes and others), and a reply that is such
objects and nothing else (Llama 3, and templates that say nothing). Llama's may also be Python: `[name(key=value)]`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastcore.text.grammars import json_rule

__all__ = ["CallForm", "ToolCall", "held_back"]


MAX_PYTHON = 20_000  # characters that are parsed
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


class ToolCall(NamedTuple):
    """arguments: JSON text, of a call that is not complete as far as it has come."""

    name: str
    arguments: str


@dataclass(frozen=True)
class CallForm:
    """How a family writes calls. opening, closing: the tags around each, if any; key: what the arguments are under."""

    opening: str
    closing: str
    key: str

    @classmethod
    def of(cls, template: str) -> CallForm:
        """The form that a chat template asks for."""
        if "<tool_call>" in template:
            return cls("<tool_call>", "</tool_call>", "arguments")
        return cls("", "", "parameters" if '"parameters":' in template else "arguments")

    def read(self, text: str, is_whole: bool, names: Collection[str]) -> tuple[str, list[ToolCall]]:
        """What a reply says, and the calls in it. names: of the tools that there are.

        Of a reply that is not whole yet, what is certain: each of the two only grows as the text does.
        """
        return self._read_tagged(text, is_whole) if self.opening else _read_bare(text, is_whole, names)

    def _read_tagged(self, text: str, is_whole: bool) -> tuple[str, list[ToolCall]]:
        """A call ends where its JSON does, in whose strings tags may stand; one that is malformed, at the next tag."""
        said, calls, start = "", list[ToolCall](), 0
        while (place := text.find(self.opening, start)) >= 0:
            said += text[start:place].rstrip()
            inner = place + len(self.opening)
            call, end = _call(text[inner:])
            if end is None:
                ends = [at for tag in (self.closing, self.opening) if (at := text.find(tag, inner)) >= 0]
                end = min(ends, default=len(text)) - inner
                if call is not None:  # as much of it as there is
                    part = text[inner : inner + end]
                    call, _ = _call(
                        part if is_whole or ends else held_back(held_back(part, self.closing), self.opening)
                    )
                if not is_whole:
                    return said, calls if call is None else [*calls, call]
            start = inner + end
            start = self._closed(text, start)
            if call is None:  # it is none after all
                said += text[place:start]
            else:
                calls.append(call)
        rest = text[start:]
        if not start:
            return (rest if is_whole else held_back(rest, self.opening)), calls
        rest = rest.rstrip() if is_whole else held_back(held_back(rest, self.opening), self.closing)
        return said + rest, calls

    def _closed(self, text: str, start: int) -> int:
        """Behind the closing tag that stands there, if one does."""
        at = start + len(text[start:]) - len(text[start:].lstrip())
        return at + len(self.closing) if text.startswith(self.closing, at) else start

    # ---------------------------------------------------------------- grammars

    def rules(self, functions: Sequence[Mapping[str, Any]], parallel: bool) -> str:
        """Lark rules: `calls`, one or more, and `talk`, any text in which there may be calls; parallel: several.

        functions: {"name", "parameters": a JSON schema, ...} each. They need the terminal ANY.
        """
        rules = []
        for i, function in enumerate(functions):
            head = f'{{"name": {json.dumps(function["name"])}, "{self.key}": '
            schema = function.get("parameters") or NO_PARAMETERS
            rules += [f'call_{i}: {json.dumps(head)} args_{i} "}}"', f"args_{i}: {json_rule(schema)}"]
        one = " | ".join(f"call_{i}" for i in range(len(functions)))
        if not self.opening:
            return "\n".join(["calls: call", r"talk: calls | /([^{\[\s](?s:.*))?/", f"call: {one}", *rules])
        begin = json.dumps(f"{self.opening}\n")
        return "\n".join(
            [
                f"calls: {begin} call" + (rf' ("\n" {begin} call)*' if parallel else ""),
                "talk: (talk_call)* ANY" if parallel else "talk: ANY | talk_call",
                "talk_call: talk_begin call",
                f"talk_begin[lazy]: ANY {begin}",
                f"call: ({one}) {json.dumps(chr(10) + self.closing)}",
                *rules,
            ]
        )


def held_back(text: str, tag: str) -> str:
    """A text that goes on, without spaces at its end and without what may turn out to begin the tag."""
    for size in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:size]):
            text = text[:-size]
            break
    return text.rstrip()


# ---------------------------------------------------------------------- JSON

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_TAIL = re.compile(r"\s*\}")
_DECODER = json.JSONDecoder()


def _call(text: str) -> tuple[ToolCall | None, int | None]:
    """The call that a text begins with, or as much of it as there is, and where it ends if it does."""
    head = _HEAD.match(text)
    if head is None:
        try:
            value, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
        except (ValueError, RecursionError):
            return None, None
        return _as_call(value), end
    try:
        name = json.loads(head[1])
    except ValueError:
        return None, None
    try:
        _, end = _DECODER.raw_decode(text, head.end())
    except (ValueError, RecursionError):
        return ToolCall(name, text[head.end() :].rstrip()), None
    tail = _TAIL.match(text, end)
    return ToolCall(name, text[head.end() : end]), end if tail is None else tail.end()


def _as_call(value: Any) -> ToolCall | None:
    """A call of what was written with its keys in another order, or its arguments as text."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        return ToolCall(value["name"], arguments)
    return ToolCall(value["name"], json.dumps({} if arguments is None else arguments, ensure_ascii=False))


def _read_bare(text: str, is_whole: bool, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    start = len(text) - len(text.lstrip())
    if start == len(text):
        return (text if is_whole else ""), []
    if text[start] == "[":  # a list of calls, which shows what it is at its end
        calls = _listed(text[start:], names) if is_whole else []
        return ("", calls) if calls or not is_whole else (text, [])
    calls = list[ToolCall]()
    may_be_call = False
    while text.startswith("{", start):
        call, end = _call(text[start:])
        may_be_call = call is None and end is None and not is_whole
        if call is None or call.name not in names:
            break
        calls.append(call)
        start = len(text) if end is None else start + end
        start += len(text[start:]) - len(text[start:].lstrip(" \n\t\r;,"))
    said = text[start:] if calls else text
    return ("" if may_be_call else said if is_whole else said.rstrip()), calls


def _listed(text: str, names: Collection[str]) -> list[ToolCall]:
    """The calls of a JSON list, or of a Python list of calls with values as arguments; none where it is neither."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        calls = _python_calls(text)
    else:
        calls = [_as_call(value) for value in values]
    known = [call for call in calls if call is not None and call.name in names]
    return known if len(known) == len(calls) else []


def _python_calls(text: str) -> list[ToolCall | None]:
    if len(text) > MAX_PYTHON:
        return []
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if not isinstance(tree, ast.List):
            return []
        return [_python_call(node) for node in tree.elts]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []


def _python_call(node: ast.expr) -> ToolCall | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        return None
    if any(keyword.arg is None for keyword in node.keywords):
        return None
    values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
    return ToolCall(node.func.id, json.dumps(values, ensure_ascii=False))
