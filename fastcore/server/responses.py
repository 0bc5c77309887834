"""/v1/responses, OpenAI's newer form of a chat: what it asks for becomes a chat, and the reply is written as items."""

import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from fastcore.server.answers import RequestError, error_body, json_response, request_error
from fastcore.server.endpoint import Handler
from fastcore.server.events import Events, event
from fastcore.server.openai import OpenAIService
from fastcore.server.openai_answers import Answer
from fastcore.server.openai_fields import ChatFields, StructuredOutputs
from fastcore.text.replies import Reply

__all__ = ["RESPONSES"]

Item = dict[str, Any]

IGNORED = frozenset(
    {
        "client_metadata", "include", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "service_tier", "store", "stream_options", "user",
    }
)  # fmt: skip
_KEPT = "no response is kept here; send the whole conversation in input"
REFUSED = {
    "background": "an answer comes with its request",
    "context_management": "a conversation is read as it is sent",
    "conversation": _KEPT,
    "max_tool_calls": "tools are called by the client",
    "previous_response_id": _KEPT,
    "prompt": "there are no stored prompts",
    "top_logprobs": "ask /v1/chat/completions for logprobs",
}
NAMES = {
    "messages": "input", "max_tokens": "max_output_tokens", "response_format": "text", "reasoning_effort": "reasoning",
}  # fmt: skip


class Reasoning(msgspec.Struct):
    """effort: as reasoning_effort of a chat; summaries are not made."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesFields(msgspec.Struct):
    """The body of /v1/responses."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    speculate: str | None = None
    mask: bool | None = None
    stream: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: Reasoning | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    truncation: str | None = None
    metadata: dict[str, Any] | None = None


async def responses(service: OpenAIService, http: Request, fields: ResponsesFields, model: str) -> ASGIApp:
    """{"input": text, or messages, calls and their outputs; "instructions": text, ...} -> output items.

    Nothing is kept: earlier turns come in input. Thoughts in it are left out, as chat templates do.
    """
    if fields.truncation not in (None, "disabled"):
        raise RequestError(400, "truncation is not supported here, other than disabled", param="truncation")
    try:
        answer = await service.chat_answer(http, _chat(fields), model)
    except Exception as failure:
        error = request_error(failure)
        error.param = NAMES.get(error.param or "", error.param)
        raise error from failure
    response = _Response(fields, answer, model)
    if fields.stream:
        return Events(lambda: _events(service, response))
    await service.finish(http, answer)
    return json_response(await anyio.to_thread.run_sync(response.whole))


# ---- Into a chat


def _chat(fields: ResponsesFields) -> ChatFields:
    shared = (
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop", "ignore_eos",
        "structured_outputs", "speculate", "mask", "parallel_tool_calls", "chat_template_kwargs",
    )  # fmt: skip
    return ChatFields(
        messages=_messages(fields.instructions, fields.input),
        max_completion_tokens=fields.max_output_tokens,
        response_format=_format(fields.text or {}),
        reasoning_effort=None if fields.reasoning is None else fields.reasoning.effort,
        tools=None if fields.tools is None else [_tool(tool) for tool in fields.tools],
        tool_choice=_choice(fields.tool_choice),
        **{name: getattr(fields, name) for name in shared},
    )


def _messages(instructions: str | None, given: str | list[Item] | None) -> list[Item]:
    if not given:
        what = "missing" if given is None else "empty"
        raise RequestError(400, f"input is {what}; expected a text or a list of items", param="input")
    messages: list[Item] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for i, item in enumerate([{"role": "user", "content": given}] if isinstance(given, str) else given):
        kind, last = item.get("type") or "message", messages[-1] if messages else {}
        if kind == "message":
            role = "system" if item.get("role") == "developer" else item.get("role")
            message = {"role": role, "content": item.get("content")}
            if role == "system" == last.get("role") and isinstance(message["content"], str):
                last["content"] += "\n\n" + message["content"]  # templates know one
            else:
                messages.append(message)
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if last.get("role") == "assistant":
                last.setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            output = item.get("output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        elif kind != "reasoning":
            told = f"input[{i}].type is {kind!r:.80}; expected message, function_call or function_call_output"
            raise RequestError(400, told, param="input")
    return messages


def _format(text: Mapping[str, Any]) -> Item | None:
    unknown = [name for name in text if name not in ("format", "verbosity")]
    if unknown or text.get("verbosity") not in (None, "medium"):
        name = unknown[0] if unknown else "verbosity"
        raise RequestError(400, f"text.{name:.80} is not supported here", param="text")
    form = text.get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": form}
    return form


def _tool(tool: Item) -> Item:
    return {"type": tool.get("type"), "function": {name: value for name, value in tool.items() if name != "type"}}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


# ---- Out of a reply


@dataclass
class _Response:
    """The answer to one request, written in OpenAI's items."""

    fields: ResponsesFields
    answer: Answer
    model: str

    def __post_init__(self) -> None:
        self.key = uuid.uuid4().hex
        self.created = int(time.time())

    def reply(self) -> Reply:
        """What is certain of it by now."""
        progress = self.answer.job.progress[0]
        return self.answer.read(progress.text, progress.finish_reason is not None)

    def items(self, reply: Reply, status: str, is_whole: bool) -> list[Item]:
        """Thoughts, the message, calls: those that there are, in this order. A whole one has some message or call."""
        items: list[Item] = []
        if reply.reasoning:
            thoughts = {"type": "reasoning_text", "text": reply.reasoning}
            items.append({"id": f"rs_{self.key}", "type": "reasoning", "summary": [], "content": [thoughts]})
        if reply.content or (is_whole and not reply.calls):
            said = {"type": "output_text", "text": reply.content, "annotations": [], "logprobs": []}
            items.append({"id": f"msg_{self.key}", "type": "message", "role": "assistant", "content": [said]})
        for i, call in enumerate(reply.calls):
            key = f"{self.key}_{i}"
            items.append({"id": f"fc_{key}", "type": "function_call", "call_id": f"call_{key}", **call._asdict()})
        return [item | {"status": status} for item in items]

    def whole(self) -> Item:
        is_cut = self.answer.job.progress[0].finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        return self.object(
            status,
            output=self.items(self.reply(), status, True),
            usage=self.usage(),
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
        )

    def usage(self) -> Item:
        request, stream = self.answer.job.completions[0]
        thoughts = stream.text.find("</think>") if self.reply().reasoning else 0
        new = self.answer.job.progress[0].num_tokens
        return {
            "input_tokens": len(request.prompt_token_ids),
            "input_tokens_details": {"cached_tokens": request.cached_tokens},
            "output_tokens": new,
            "output_tokens_details": {
                "reasoning_tokens": sum(thoughts < 0 or offset < thoughts for offset in stream.offsets[:new])
            },
            "total_tokens": len(request.prompt_token_ids) + new,
        }

    def object(self, status: str, output: Sequence[Item] = (), **rest: Any) -> Item:
        fields, params = self.fields, self.answer.params
        effort = None if fields.reasoning is None else fields.reasoning.effort
        return {
            "id": f"resp_{self.key}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "metadata": fields.metadata or {},
            "model": self.model,
            "output": list(output),
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": effort, "summary": None},
            "store": False,
            "temperature": params.temperature,
            "text": fields.text or {"format": {"type": "text"}},
            "tool_choice": fields.tool_choice or "auto",
            "tools": fields.tools or [],
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None,
            **self.answer.facts(),
            **rest,
        }


# What grows in an item of each kind: the field, and how its events are called.
GROWS = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


def _grown(item: Item) -> str:
    text: str = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
    return text


@dataclass
class _Told:
    """What clients know of an item: where it stands, its text so far, and whether it has ended."""

    place: int
    text: str = ""
    has_ended: bool = False


class _Writer:
    """The events of a response whose items begin, grow and end."""

    def __init__(self) -> None:
        self._number = 0
        self._told: dict[str, _Told] = {}  # by an item's id

    def event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def update(self, items: Sequence[Item], is_whole: bool) -> list[bytes]:
        """What is new. An item ends when another begins after it, or all do; a message stays open to the end."""
        events: list[bytes] = []
        for i, item in enumerate(items):
            if item["id"] not in self._told:
                self._told[item["id"]] = _Told(len(self._told))
                events += self._begin(len(self._told) - 1, item)
            told, text = self._told[item["id"]], _grown(item)
            if len(text) > len(told.text):
                delta = text[len(told.text) :]
                events.append(self.event(f"{GROWS[item['type']]}.delta", **self._where(told.place, item), delta=delta))
                told.text = text
            if (is_whole or (i + 1 < len(items) and item["type"] != "message")) and not told.has_ended:
                events += self._end(told.place, item)
                told.has_ended = True
        return events

    def _begin(self, place: int, item: Item) -> list[bytes]:
        is_call = item["type"] == "function_call"
        empty: Item = {"arguments": ""} if is_call else {"content": []}
        shown = item | empty | {"status": "in_progress"}
        events = [self.event("response.output_item.added", output_index=place, item=shown)]
        if not is_call:
            part = item["content"][0] | {"text": ""}
            events.append(self.event("response.content_part.added", **self._where(place, item), part=part))
        return events

    def _end(self, place: int, item: Item) -> list[bytes]:
        where, done = self._where(place, item), f"{GROWS[item['type']]}.done"
        if item["type"] == "function_call":
            events = [self.event(done, **where, name=item["name"], arguments=item["arguments"])]
        else:
            part = item["content"][0]
            events = [
                self.event(done, **where, text=part["text"]),
                self.event("response.content_part.done", **where, part=part),
            ]
        return [*events, self.event("response.output_item.done", output_index=place, item=item)]

    @staticmethod
    def _where(place: int, item: Item) -> Item:
        """logprobs: clients expect them with the text of a message; there are none here."""
        where: Item = {"item_id": item["id"], "output_index": place}
        more: dict[str, Item] = {"message": {"content_index": 0, "logprobs": []}, "reasoning": {"content_index": 0}}
        return where | more.get(item["type"], {})


async def _events(service: OpenAIService, response: _Response) -> AsyncGenerator[bytes, None]:
    writer, job = _Writer(), response.answer.job
    yield writer.event("response.created", response=response.object("in_progress"))
    yield writer.event("response.in_progress", response=response.object("in_progress"))
    try:
        async with aclosing(service.steps.run(job)) as progress:
            async for _ in progress:
                response.answer.check()
                reply, is_whole = response.reply(), job.progress[0].finish_reason is not None
                if is_whole or any(reply):
                    status = "incomplete" if job.progress[0].finish_reason == "length" else "completed"
                    for data in writer.update(response.items(reply, status, is_whole), is_whole):
                        yield data
        whole = response.whole()
        yield writer.event(f"response.{whole['status']}", response=whole)
    except Exception as error:
        told = error_body(request_error(error))["error"]
        failed = response.object("failed", error={"code": told["code"] or told["type"], "message": told["message"]})
        yield writer.event("response.failed", response=failed)


RESPONSES: dict[str, Handler[Any]] = {"/v1/responses": Handler(ResponsesFields, responses, IGNORED, REFUSED)}
