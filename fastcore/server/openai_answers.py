"""How completions are written as OpenAI's objects, whole and in pieces."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastcore.engine.completion import TokenLogprob
from fastcore.engine.request import Request
from fastcore.engine.sampling_params import SamplingParams
from fastcore.llm import LLM
from fastcore.server.answers import RequestError
from fastcore.server.guard import Masking
from fastcore.server.step_thread import Job, Progress
from fastcore.text.replies import Reply, ReplyForm
from fastcore.text.tool_calls import ToolCall

__all__ = ["CHAT", "TEXT", "Answer", "Form"]

ChoiceObject = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """How an endpoint writes its answers."""

    prefix: str  # of ids
    whole: str  # the object's name
    chunk: str
    choice: Callable[["Answer", int, Progress], ChoiceObject]
    delta: Callable[["Answer", int, Progress, Progress], ChoiceObject | None]  # None where there is nothing to tell yet


class Answer:
    """The answer to one HTTP request, while its completions grow.

    echo: the text of each prompt, to come first. form: how the reply to a chat is read. masking: of its messages, which
    the answer undoes; is_json: it is held to a schema.
    """

    def __init__(
        self,
        llm: LLM,
        job: Job,
        written: Form,
        model: str,
        params: SamplingParams,
        echo: Sequence[str] | None = None,
        form: ReplyForm | None = None,
        masking: Masking | None = None,
        is_json: bool = False,
    ) -> None:
        self.llm = llm
        self.job = job
        self.written = written
        self.params = params
        self.echo = echo
        self.form = form or ReplyForm()
        self.masking = masking
        self._is_json = is_json
        self.id = f"{written.prefix}-{uuid.uuid4().hex}"
        self._head = {"id": self.id, "created": int(time.time()), "model": model}

    def request(self, index: int) -> Request:
        return self.job.completions[index][0]

    def read(self, text: str, is_whole: bool) -> Reply:
        """The reply to a chat, of which this much has come."""
        reply = self.form.read(text, is_whole)
        return reply if self.masking is None else self.masking.reveal(reply, is_whole, self._is_json)

    def facts(self) -> dict[str, Any]:
        """What is said of the whole answer, once."""
        return {} if self.masking is None else {"masking": self.masking.facts()}

    def check(self) -> None:
        """Raise what a completion ended with, if that is an error."""
        for (request, _), progress in zip(self.job.completions, self.job.progress, strict=True):
            if progress.finish_reason == "error":
                assert request.error is not None
                raise request.error
            if progress.finish_reason == "abort":
                raise RequestError(503, "the server is shutting down")

    def whole(self) -> dict[str, Any]:
        choices = [self.written.choice(self, i, progress) for i, progress in enumerate(self.job.progress)]
        return self._object(self.written.whole, choices) | self.facts() | {"usage": self.usage()}

    def chunk(self, choices: list[ChoiceObject]) -> dict[str, Any]:
        return self._object(self.written.chunk, choices)

    def usage(self) -> dict[str, Any]:
        requests = [request for request, _ in self.job.completions]
        prompts = requests[:: self.params.n]
        prompt = sum(len(request.prompt_token_ids) for request in prompts)
        new = sum(progress.num_tokens for progress in self.job.progress)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": sum(request.cached_tokens for request in prompts)},
        }

    def logprobs(self, index: int, first: int, end: int) -> list[TokenLogprob] | None:
        """Of the completion's tokens from first to end, if they were asked for."""
        request = self.request(index)
        if self.params.logprobs is None:
            return None
        pairs = zip(request.token_ids[first:end], request.logprobs[first:end], strict=True)
        return [TokenLogprob(token_id, *values) for token_id, values in pairs]

    def offsets(self, index: int, first: int, end: int) -> list[int]:
        """How many code points of text came before each of the completion's tokens from first to end."""
        return self.job.completions[index][1].offsets[first:end]

    def token(self, token_id: int) -> str:
        """A token as text; as "bytes:\\xe2\\x98" where it is no text by itself."""
        raw = self.llm.tokenizer.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _object(self, name: str, choices: list[ChoiceObject]) -> dict[str, Any]:
        return {**self._head, "object": name, "choices": choices}


def _text_choice(answer: Answer, index: int, progress: Progress) -> ChoiceObject:
    request = answer.request(index)
    logprobs: list[TokenLogprob | None] | None = None
    if answer.params.logprobs is not None:
        logprobs = [*(answer.logprobs(index, 0, progress.num_tokens) or [])]
        if answer.echo is not None:
            values = zip(request.prompt_token_ids[1:], request.prompt_logprobs, strict=True)
            logprobs = [None, *(TokenLogprob(token_id, *value) for token_id, value in values), *logprobs]
    prompt = "" if answer.echo is None else answer.echo[index // answer.params.n]
    offsets = [len(prompt) + offset for offset in answer.offsets(index, 0, progress.num_tokens)]
    if answer.echo is not None:
        before = answer.llm.tokenizer.text_offsets(request.prompt_token_ids)
        offsets = [*(min(offset, len(prompt)) for offset in before), *offsets]
    return {
        "index": index,
        "text": prompt + progress.text,
        "logprobs": None
        if logprobs is None
        else _text_logprobs(answer, logprobs, offsets, request.prompt_token_ids[0]),
        "finish_reason": progress.finish_reason,
    }


def _text_delta(answer: Answer, index: int, before: Progress, now: Progress) -> ChoiceObject:
    logprobs = answer.logprobs(index, before.num_tokens, now.num_tokens)
    return {
        "index": index,
        "text": now.text[len(before.text) :],
        "logprobs": None
        if logprobs is None
        else _text_logprobs(answer, logprobs, answer.offsets(index, before.num_tokens, now.num_tokens)),
        "finish_reason": now.finish_reason,
    }


def _text_logprobs(
    answer: Answer, logprobs: Sequence[TokenLogprob | None], offsets: list[int], first_token_id: int = 0
) -> dict[str, Any]:
    """OpenAI's four parallel lists. The first token of a prompt, first_token_id, has no logprob."""
    return {
        "tokens": [answer.token(first_token_id if item is None else item.token_id) for item in logprobs],
        "token_logprobs": [None if item is None else item.logprob for item in logprobs],
        "top_logprobs": [
            # the chosen token too, which may not be one of the most probable
            None if item is None else {answer.token(i): x for i, x in (*item.top, (item.token_id, item.logprob))}
            for item in logprobs
        ],
        "text_offset": offsets,
    }


def _message_choice(answer: Answer, index: int, progress: Progress) -> ChoiceObject:
    reply = answer.read(progress.text, True)
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["content"] = reply.content or None
        message["tool_calls"] = [
            {"id": _call_id(answer, index, i), "type": "function", "function": call._asdict()}
            for i, call in enumerate(reply.calls)
        ]
    return {
        "index": index,
        "message": message,
        "logprobs": _message_logprobs(answer, answer.logprobs(index, 0, progress.num_tokens)),
        "finish_reason": _finish_reason(reply, progress),
    }


def _message_delta(answer: Answer, index: int, before: Progress, now: Progress) -> ChoiceObject | None:
    old = answer.read(before.text, False)
    new = answer.read(now.text, now.finish_reason is not None)
    delta: dict[str, Any] = {"role": "assistant"} if before == Progress() else {}
    if new.reasoning != old.reasoning:
        delta["reasoning_content"] = new.reasoning[len(old.reasoning) :]
    if answer.form.is_plain or new.content != old.content:
        delta["content"] = new.content[len(old.content) :]
    if new == old and now.finish_reason is None:
        return None
    if new.calls != old.calls:
        delta["tool_calls"] = [
            _call_delta(answer, index, i, old.calls[i] if i < len(old.calls) else None, call)
            for i, call in enumerate(new.calls)
            if old.calls[i : i + 1] != (call,)
        ]
    return {
        "index": index,
        "delta": delta,
        "logprobs": _message_logprobs(answer, answer.logprobs(index, before.num_tokens, now.num_tokens)),
        "finish_reason": _finish_reason(new, now),
    }


def _call_delta(answer: Answer, index: int, i: int, old: ToolCall | None, new: ToolCall) -> dict[str, Any]:
    """What is new of a completion's i-th call; with its beginning, who it is."""
    if old is None:
        return {"index": i, "id": _call_id(answer, index, i), "type": "function", "function": new._asdict()}
    return {"index": i, "function": {"arguments": new.arguments[len(old.arguments) :]}}


def _call_id(answer: Answer, index: int, i: int) -> str:
    return f"call_{answer.id.rpartition('-')[2]}_{index}_{i}"


def _finish_reason(reply: Reply, progress: Progress) -> str | None:
    return "tool_calls" if reply.calls and progress.finish_reason == "stop" else progress.finish_reason


def _message_logprobs(answer: Answer, logprobs: list[TokenLogprob] | None) -> dict[str, Any] | None:
    if logprobs is None:
        return None

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = answer.llm.tokenizer.token_bytes(token_id)
        return {"token": answer.token(token_id), "logprob": logprob, "bytes": list(raw)}

    return {
        "content": [
            entry(item.token_id, item.logprob) | {"top_logprobs": [entry(*top) for top in item.top]}
            for item in logprobs
        ]
    }


TEXT = Form("cmpl", "text_completion", "text_completion", _text_choice, _text_delta)
CHAT = Form("chatcmpl", "chat.completion", "chat.completion.chunk", _message_choice, _message_delta)
