"""The endpoints of a language model, as OpenAI's API has them: /v1/completions and /v1/chat/completions."""

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fastcore.engine.completion import TokenLogprob
from fastcore.engine.request import Request
from fastcore.engine.sampling import SamplingParams
from fastcore.errors import Error
from fastcore.llm import LLM
from fastcore.server.engine import Engine, Job, Progress
from fastcore.server.http import Body, Handler, RequestError, error_body, json_bytes, json_response, until_gone

__all__ = ["OpenAIService"]

COMPLETION_MAX_TOKENS = 16  # where a request does not say, as OpenAI has it
CHAT_MAX_TOKENS = 1024
MAX_COMPLETIONS = 128  # prompts times n, in one request
IGNORED = ("user", "metadata", "store", "service_tier")  # about accounts and logs, not about the answer


class OpenAIService:
    """Completions of one language model."""

    def __init__(self, llm: LLM) -> None:
        self.engine = Engine(llm)
        self.handlers: dict[str, Handler] = {
            "/v1/completions": self.completions,
            "/v1/chat/completions": self.chat,
        }

    def status(self) -> dict[str, Any]:
        return {"active_requests": self.engine.num_requests}

    def close(self) -> None:
        self.engine.close()

    async def completions(self, http: HttpRequest, body: Body, model: str) -> ASGIApp:
        """{"prompt": text, token ids, or a list of either, ...}: text completions.

        max_tokens is 16 and temperature 1 where they are not given. logprobs is a number of tokens; with echo, the
        prompt and its logprobs come first.
        """
        prompts = _prompts(body.take("prompt"))
        logprobs = body.integer("logprobs")
        echo = body.boolean("echo")
        params = _sampling_params(
            body,
            max_tokens=_either(body.integer("max_tokens"), COMPLETION_MAX_TOKENS),
            logprobs=logprobs,
            prompt_logprobs=logprobs if echo else None,
        )
        _only(body, "suffix", None)
        _only(body, "best_of", params.n)
        stream = _stream_options(body)
        body.finish()
        if len(prompts) * params.n > MAX_COMPLETIONS:
            raise RequestError(400, f"{len(prompts)} prompts with n {params.n}; at most {MAX_COMPLETIONS} completions")
        if stream.on and echo:
            raise RequestError(400, "echo and stream do not go together here")

        def prepare() -> Job:
            return self.engine.prepare([self.engine.llm._prompt_ids(prompt) for prompt in prompts], params)

        job = await anyio.to_thread.run_sync(prepare)
        form = _Form("cmpl", "text_completion", "text_completion", model, _text_choice, _text_delta)
        echoed = [prompt if isinstance(prompt, str) else self._decode(prompt) for prompt in prompts] if echo else None
        answer = _Answer(self.engine.llm, job, form, params, echoed)
        return _Events(self.engine, answer, stream) if stream.on else await _whole(http, self.engine, answer)

    def _decode(self, token_ids: list[int]) -> str:
        return self.engine.llm.tokenizer.decode(token_ids)

    async def chat(self, http: HttpRequest, body: Body, model: str) -> ASGIApp:
        """{"messages": [{"role": ..., "content": ...}, ...], ...}: the model's answer, by its own chat template.

        max_tokens (or max_completion_tokens) is 1024 and temperature 1 where they are not given. tools and
        chat_template_kwargs go to the template; what the model answers comes as it is, also where it calls a tool.
        """
        messages = body.take("messages")
        if messages is None:
            raise RequestError(400, "messages is missing; expected a list of one or more messages")
        limits = body.integer("max_completion_tokens"), body.integer("max_tokens")
        top_logprobs = body.integer("top_logprobs")
        wants_logprobs = body.boolean("logprobs")
        if top_logprobs is not None and not wants_logprobs:
            raise RequestError(400, "top_logprobs needs logprobs: true")
        params = _sampling_params(
            body,
            max_tokens=_either(*limits, CHAT_MAX_TOKENS),
            logprobs=_either(top_logprobs, 0) if wants_logprobs else None,
            prompt_logprobs=None,
        )
        tools, template_kwargs = body.take("tools"), body.take("chat_template_kwargs")
        if template_kwargs is not None and not isinstance(template_kwargs, dict):
            raise RequestError(400, "chat_template_kwargs must be an object")
        _only(body, "response_format", {"type": "text"})
        _only(body, "tool_choice", "auto" if tools else "none")
        stream = _stream_options(body)
        body.finish()
        if params.n > MAX_COMPLETIONS:
            raise RequestError(400, f"n is {params.n}; expected at most {MAX_COMPLETIONS}")

        def prepare() -> Job:
            encode = self.engine.llm.tokenizer.encode_chat
            return self.engine.prepare([encode(messages, tools=tools, template_kwargs=template_kwargs)], params)

        job = await anyio.to_thread.run_sync(prepare)
        form = _Form("chatcmpl", "chat.completion", "chat.completion.chunk", model, _message_choice, _message_delta)
        answer = _Answer(self.engine.llm, job, form, params)
        return _Events(self.engine, answer, stream) if stream.on else await _whole(http, self.engine, answer)


# ---------------------------------------------------------------- what is asked for


def _prompts(value: Any) -> list[Any]:
    """A list of prompts: strings or lists of token ids, which the model checks."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        what = "missing" if value is None else "empty" if value == [] else "neither text nor a list"
        raise RequestError(400, f"prompt is {what}; expected a text, token ids, or a list of either")
    if all(type(item) is int for item in value):
        return [value]
    for item in value:
        if not isinstance(item, str) and not (isinstance(item, list) and all(type(token) is int for token in item)):
            raise RequestError(400, "prompt holds something that is neither a text nor a list of token ids")
    return value


def _sampling_params(
    body: Body, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
) -> SamplingParams:
    for name in IGNORED:
        body.take(name)
    return SamplingParams(
        temperature=body.number("temperature", 1.0),
        top_k=_either(body.integer("top_k"), 0),
        top_p=body.number("top_p", 1.0),
        min_p=body.number("min_p", 0.0),
        repetition_penalty=body.number("repetition_penalty", 1.0),
        presence_penalty=body.number("presence_penalty", 0.0),
        frequency_penalty=body.number("frequency_penalty", 0.0),
        seed=body.integer("seed"),
        max_tokens=max_tokens,
        min_tokens=_either(body.integer("min_tokens"), 0),
        stop=_stop(body.take("stop")),
        stop_token_ids=_integers(body.take("stop_token_ids")),
        ignore_eos=body.boolean("ignore_eos"),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=_logit_bias(body.take("logit_bias")),
        n=_either(body.integer("n"), 1),
    )


def _either(*values: int | None) -> int:
    """The first that is given."""
    return next(value for value in values if value is not None)


def _stop(value: Any) -> str | list[str]:
    if value is None:
        return []
    if not isinstance(value, str) and not (isinstance(value, list) and all(isinstance(text, str) for text in value)):
        raise RequestError(400, "stop must be a text or a list of texts")
    return value


def _integers(value: Any) -> list[int]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise RequestError(400, "stop_token_ids must be a list of token ids")
    return value


def _logit_bias(value: Any) -> dict[int, float] | None:
    """Keys are token ids, which JSON writes as strings."""
    if value is None:
        return None
    try:
        if not all(type(bias) in (int, float) for bias in value.values()):
            raise ValueError
        return {int(token_id): float(bias) for token_id, bias in value.items()}
    except (AttributeError, ValueError):
        raise RequestError(400, "logit_bias must be an object of token id: number") from None


def _only(body: Body, name: str, supported: Any) -> None:
    value = body.take(name)
    if value is not None and value != supported:
        raise RequestError(
            400, f"{name} is not supported here{'' if supported is None else f', other than {supported}'}"
        )


@dataclass(frozen=True)
class _Stream:
    on: bool
    include_usage: bool


def _stream_options(body: Body) -> _Stream:
    on, options = body.boolean("stream"), body.take("stream_options")
    if options is None:
        return _Stream(on, False)
    if not on or not isinstance(options, dict) or set(options) - {"include_usage"}:
        raise RequestError(400, "stream_options goes with stream: true, and has include_usage")
    return _Stream(on, options.get("include_usage") is True)


# ---------------------------------------------------------------- what is answered

Choice = dict[str, Any]


@dataclass(frozen=True)
class _Form:
    """How an endpoint writes its answers."""

    prefix: str  # of ids
    whole: str  # the object's name
    chunk: str
    model: str
    choice: Callable[["_Answer", int, Progress], Choice]
    delta: Callable[["_Answer", int, Progress, Progress], Choice]


class _Answer:
    """The answer to one HTTP request, while its completions grow. echo: the text of each prompt, to come first."""

    def __init__(
        self, llm: LLM, job: Job, form: _Form, params: SamplingParams, echo: Sequence[str] | None = None
    ) -> None:
        self.llm = llm
        self.job = job
        self.form = form
        self.params = params
        self.echo = echo
        self._head = {"id": f"{form.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": form.model}

    def request(self, index: int) -> Request:
        return self.job.completions[index][0]

    def check(self) -> None:
        """Raise what a completion ended with, if that is an error."""
        for (request, _), progress in zip(self.job.completions, self.job.progress, strict=True):
            if progress.finish_reason == "error":
                assert request.error is not None
                raise request.error
            if progress.finish_reason == "abort":
                raise RequestError(503, "the server is shutting down")

    def whole(self) -> dict[str, Any]:
        choices = [self.form.choice(self, i, progress) for i, progress in enumerate(self.job.progress)]
        return self._object(self.form.whole, choices) | {"usage": self.usage()}

    def chunk(self, choices: list[Choice]) -> dict[str, Any]:
        return self._object(self.form.chunk, choices)

    def usage(self) -> dict[str, int]:
        requests = [request for request, _ in self.job.completions]
        prompt = sum(len(request.prompt_token_ids) for request in requests[:: self.params.n])
        new = sum(progress.num_tokens for progress in self.job.progress)
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}

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

    def _object(self, name: str, choices: list[Choice]) -> dict[str, Any]:
        return {**self._head, "object": name, "choices": choices}


def _text_choice(answer: _Answer, index: int, progress: Progress) -> Choice:
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


def _text_delta(answer: _Answer, index: int, before: Progress, now: Progress) -> Choice:
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
    answer: _Answer, logprobs: Sequence[TokenLogprob | None], offsets: list[int], first_token_id: int = 0
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


def _message_choice(answer: _Answer, index: int, progress: Progress) -> Choice:
    return {
        "index": index,
        "message": {"role": "assistant", "content": progress.text},
        "logprobs": _message_logprobs(answer, answer.logprobs(index, 0, progress.num_tokens)),
        "finish_reason": progress.finish_reason,
    }


def _message_delta(answer: _Answer, index: int, before: Progress, now: Progress) -> Choice:
    role = {"role": "assistant"} if before == Progress() else {}
    return {
        "index": index,
        "delta": {**role, "content": now.text[len(before.text) :]},
        "logprobs": _message_logprobs(answer, answer.logprobs(index, before.num_tokens, now.num_tokens)),
        "finish_reason": now.finish_reason,
    }


def _message_logprobs(answer: _Answer, logprobs: list[TokenLogprob] | None) -> dict[str, Any] | None:
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


async def _whole(http: HttpRequest, engine: Engine, answer: _Answer) -> Response:
    """The answer in one piece; the work ends when the client goes."""
    async with anyio.create_task_group() as group:
        group.start_soon(until_gone, http.receive, group.cancel_scope.cancel)
        async with aclosing(engine.run(answer.job)) as steps:
            async for _ in steps:
                pass
        group.cancel_scope.cancel()
    if not answer.job.is_done:
        raise RequestError(400, "the client went away")
    answer.check()
    return json_response(await anyio.to_thread.run_sync(answer.whole))


class _Events:
    """The answer as server-sent events, an ASGI application; the work ends when the client goes."""

    def __init__(self, engine: Engine, answer: _Answer, stream: _Stream) -> None:
        self._engine = engine
        self._answer = answer
        self._include_usage = stream.include_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with anyio.create_task_group() as group:
            group.start_soon(until_gone, receive, group.cancel_scope.cancel)
            async with aclosing(self._events()) as events:
                async for event in events:
                    data = b"data: " + event + b"\n\n"
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            group.cancel_scope.cancel()

    async def _events(self) -> AsyncGenerator[bytes, None]:
        answer, job = self._answer, self._answer.job
        sent = job.progress
        try:
            async with aclosing(self._engine.run(job)) as steps:
                async for _ in steps:
                    answer.check()
                    for index, now in enumerate(job.progress):
                        before = sent[index]
                        if len(now.text) > len(before.text) or now.finish_reason != before.finish_reason:
                            choice = answer.form.delta(answer, index, before, now)
                            sent = [*sent[:index], now, *sent[index + 1 :]]
                            yield json_bytes(answer.chunk([choice]))
            if self._include_usage:
                yield json_bytes(answer.chunk([]) | {"usage": answer.usage()})
        except (Error, RequestError) as error:
            status = error.status if isinstance(error, RequestError) else 500
            yield json_bytes(error_body(RequestError(status, str(error))))
        yield b"[DONE]"
