"""Chat templates: the checkpoint's own Jinja source, rendered in a sandbox with the helpers transformers gives it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from fastcore.errors import ChatTemplateError
from fastcore.locks import cached_property

if TYPE_CHECKING:
    import jinja2

__all__ = ["ChatTemplate", "split_reasoning"]

_RESERVED = ("messages", "tools", "add_generation_prompt")


class ChatTemplate:
    """One template; compiled at first use and kept."""

    def __init__(self, source: str) -> None:
        self.source = source

    @cached_property
    def _compiled(self) -> jinja2.Template:
        from jinja2 import TemplateSyntaxError

        try:
            return _environment().from_string(self.source)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template does not compile, line {error.lineno}: {error.message}"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation.

        messages: a non-empty list of dicts, each with a "role"; keys whose value is None are left out, as templates
        expect. variables: further names the template sees (special tokens, `enable_thinking`, ...).
        Raises ChatTemplateError for malformed messages and for anything the template raises, with its text.
        """
        _check(messages, tools)
        names = dict(variables or {})
        for name in _RESERVED:
            if name in names:
                raise ChatTemplateError(f"template_kwargs may not hold {name!r}: pass it as the argument of that name")
        scope = {
            "messages": [
                {key: value for key, value in _plain(message, f"messages[{i}]").items() if value is not None}
                for i, message in enumerate(messages)
            ],
            "tools": _plain(tools, "tools"),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **_plain(names, "template_kwargs"),
        }
        template = self._compiled
        try:
            return template.render(scope)
        # a template is a program of its own: whatever it raises is its answer to these messages
        except Exception as error:
            raise ChatTemplateError(f"the chat template refused the messages: {error}") from error


def split_reasoning(text: str, opened: bool = False) -> tuple[str, str]:
    """(reasoning, answer) of a reply that thinks aloud between <think> and </think>.

    opened: the prompt already ends with the opening tag. A reply cut off while thinking is all reasoning; a reply
    without the tags is all answer, unless the prompt opened them.
    """
    before, closing, after = text.partition("</think>")
    tagged = before.lstrip().startswith("<think>")
    if not (closing or tagged or opened):
        return "", text
    reasoning = before.lstrip().removeprefix("<think>") if tagged else before
    return reasoning.strip("\n"), after.lstrip("\n")


def _check(messages: object, tools: object) -> None:
    if not isinstance(messages, (list, tuple)) or not messages:
        found = "an empty list" if isinstance(messages, (list, tuple)) else type(messages).__name__
        raise ChatTemplateError(
            f"messages must be a non-empty list of dicts such as {{'role': 'user', 'content': 'Hello'}}; got {found}"
        )
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ChatTemplateError(
                f"messages[{i}] must be a dict with 'role' and 'content'; got {type(message).__name__}"
            )
        if not isinstance(message.get("role"), str):
            raise ChatTemplateError(
                f"messages[{i}] needs a 'role' that is a string; its keys are {sorted(map(str, message))}"
            )
    if tools is not None and not (isinstance(tools, (list, tuple)) and all(isinstance(t, Mapping) for t in tools)):
        raise ChatTemplateError("tools must be a list of dicts, each a JSON schema of a function")


def _plain(value: Any, where: str) -> Any:
    """A copy made of JSON types only: the template never meets an object with methods of its own."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_plain(key, where): _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise ChatTemplateError(
        f"{where} is a {type(value).__name__}; a template takes text, numbers, lists and dicts only"
    )


@cache
def _environment() -> jinja2.Environment:
    import jinja2
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %} marks the assistant's text; here it is a plain scope."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    class Sandbox(ImmutableSandboxedEnvironment):
        def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
            # jinja2 would go on with an undefined value, which prints as nothing
            raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is unsafe")

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter would escape <, > and & for HTML
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
