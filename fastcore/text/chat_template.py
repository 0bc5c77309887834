"""Chat templates: the checkpoint's own Jinja source, rendered in a sandbox with the helpers transformers gives it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastcore.errors import ChatTemplateError
from fastcore.locks import cached_property
from fastcore.text.messages import plain, prepare_messages, prepare_tools

if TYPE_CHECKING:
    import jinja2

__all__ = ["ChatTemplate", "split_reasoning"]

_RESERVED = ("messages", "tools", "add_generation_prompt")
MAX_ERROR = 2000  # characters of what a template raises
_ASKS_FOR_NONE = re.compile(r"\bcontent['\"]?\]?\s+is\s+(not\s+)?none")


class ChatTemplate:
    """One template; compiled at first use and kept."""

    def __init__(self, source: str) -> None:
        self.source = source

    @cached_property
    def _compiled(self) -> jinja2.Template:
        from jinja2 import TemplateSyntaxError

        from fastcore.text.sandbox import budget, environment

        try:
            with budget():
                return environment().from_string(self.source)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template does not compile, line {error.lineno}: {_short(error.message)}"
            ) from error
        # nested too deeply for jinja2 or Python, or larger than is read
        except Exception as error:
            raise ChatTemplateError(f"the chat template does not compile: {_short(error)}") from error

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names that the template reads: of tools, of switches such as `enable_thinking`."""
        from jinja2 import meta

        from fastcore.text.sandbox import environment

        assert self._compiled  # says what is wrong where it does not compile
        return frozenset(meta.find_undeclared_variables(environment().parse(self.source)))

    def prepare(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[list[dict[str, Any]], list[Any] | None]:
        """Messages and tools as this template reads them. Raises ChatTemplateError for malformed ones."""
        ready = prepare_messages(messages, None if _ASKS_FOR_NONE.search(self.source) else "")
        if "developer" not in self.source:  # a newer name of the same
            for message in ready:
                message["role"] = {"developer": "system"}.get(message["role"], message["role"])
        return ready, prepare_tools(tools)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation.

        messages, tools: as `prepare` gives them. variables: further names the template sees (special tokens,
        `enable_thinking`, ...). Raises ChatTemplateError for anything the template raises, with its text.
        """
        names = dict(variables or {})
        for name in _RESERVED:
            if name in names:
                raise ChatTemplateError(f"template_kwargs may not hold {name!r}: pass it as the argument of that name")
        scope = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **plain(names, "template_kwargs"),
        }
        template = self._compiled
        from fastcore.text.sandbox import budget

        try:
            with budget():
                return template.render(scope)
        # a template is a program of its own: whatever it raises is its answer to these messages
        except Exception as error:
            raise ChatTemplateError(f"the chat template refused the messages: {_short(error)}") from error


def _short(error: object) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]}..."


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
