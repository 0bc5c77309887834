"""What a model replies in a chat: its thoughts, what it says, and the tools that it calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastcore.text.chat_template import split_reasoning
from fastcore.text.grammars import json_rule
from fastcore.text.tool_calls import CallForm, ToolCall, held_back

__all__ = ["Reply", "ReplyForm"]


class Reply(NamedTuple):
    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class ReplyForm:
    """How the replies to one prompt are written.

    thinks: whether a reply may begin with thoughts between <think> and </think>; is_thinking: the prompt has opened
    them. calls: how tools are called, where there are any; functions: the tools, {"name", "parameters", ...} each.
    """

    thinks: bool = False
    is_thinking: bool = False
    calls: CallForm | None = None
    functions: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, template: str, prompt: str, functions: Sequence[Mapping[str, Any]] = ()) -> ReplyForm:
        """Of the replies to a prompt that a chat template has made."""
        end = prompt.rstrip()
        return cls(
            thinks="</think>" in template and not end.endswith("</think>"),
            is_thinking=end.endswith("<think>"),
            calls=CallForm.of(template) if functions else None,
            functions=functions,
        )

    @property
    def is_plain(self) -> bool:
        """Whether a reply is what it says and nothing else."""
        return self.calls is None and not self.thinks and not self.is_thinking

    def read(self, text: str, is_whole: bool) -> Reply:
        """The parts of a reply. Of one that is not whole, what is certain: each part only grows as the text does."""
        if self.is_plain:
            return Reply(content=text)
        reasoning, text = self._thoughts(text, is_whole)
        if self.calls is None:
            return Reply(reasoning, text)
        said, calls = self.calls.read(text, is_whole, [function["name"] for function in self.functions])
        return Reply(reasoning, said, tuple(calls))

    def _thoughts(self, text: str, is_whole: bool) -> tuple[str, str]:
        lead = text.lstrip()
        if not self.is_thinking:
            if not self.thinks:
                return "", text
            if not lead.startswith("<think>"):
                return "", "" if not is_whole and "<think>".startswith(lead) else text
        if not is_whole and "</think>" not in text:
            if "<think>".startswith(lead):
                return "", ""
            text = held_back(text, "</think>")
        return split_reasoning(text, self.is_thinking)

    # ---------------------------------------------------------------- grammars

    def grammar(
        self, *, answer: Mapping[str, Any] | None = None, must_call: bool = False, parallel: bool = True
    ) -> str:
        """A Lark grammar of the replies: thoughts where there may be any, then an answer or calls.

        answer: the schema of an answer; None lets it be any text, in which calls may stand. must_call: calls alone.
        parallel: there may be several.
        """
        thoughts = "thoughts " if self.is_thinking else '("<think>" thoughts)? ' if self.thinks else ""
        lines = ["ANY: /(?s:.*)/", r"thoughts: thought /\n{0,4}/", 'thought[lazy]: ANY "</think>"']
        reply = "talk"
        if answer is not None:
            lines.append(f"answer: {json_rule(answer)}")
            reply = "answer" if self.calls is None else "(answer | calls)"
        if self.calls is not None:
            lines.append(self.calls.rules(self.functions, parallel))
            reply = "calls" if must_call else reply
        return "\n".join([f"start: {thoughts}{reply}", *lines])
