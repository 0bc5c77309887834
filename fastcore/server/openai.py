"""The endpoints of a language model, as OpenAI's API has them: /v1/completions and /v1/chat/completions."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp

from fastcore.engine.request import Request
from fastcore.engine.sampling_params import SamplingParams
from fastcore.errors import GrammarError, MissingPackageError
from fastcore.llm import LLM
from fastcore.server.answers import RequestError, error_body, json_response, request_error
from fastcore.server.chat import Chat
from fastcore.server.endpoint import Handler, Room, until_gone
from fastcore.server.events import DONE, Events, event
from fastcore.server.guard import Guard, Masking
from fastcore.server.limits import RequestLimits
from fastcore.server.openai_answers import CHAT, TEXT, Answer
from fastcore.server.openai_fields import (
    CHAT_REFUSED,
    IGNORED,
    REFUSED,
    ChatFields,
    CompletionFields,
    SamplingFields,
    check_work,
    prompts,
    sampling_params,
)
from fastcore.server.step_thread import Job, StepThread
from fastcore.text.replies import ReplyForm

if TYPE_CHECKING:
    from fastcore.text.tokenizer import Tokenizer

__all__ = ["OpenAIService"]

T = TypeVar("T")

LARGE_CHARS = 1 << 15  # a text of which encoding takes a while; one at a time


class OpenAIService:
    """Completions of one language model.

    defaults: how to sample where a request does not say. done: called with each completion that has ended. guard: masks
    chats, where there is a classifier to do it.
    """

    def __init__(
        self,
        llm: LLM,
        limits: RequestLimits,
        defaults: SamplingParams,
        done: Callable[[Request], None],
        guard: Guard | None = None,
    ) -> None:
        self.llm = llm
        self._guard = guard
        self.limits = limits
        self._defaults = defaults
        self.steps = StepThread(llm, limits.max_requests, done)
        self.room = Room(limits.max_requests)  # for those that are no completions
        self._turns = anyio.CapacityLimiter(1)  # of large prompts

    @property
    def tokenizer(self) -> "Tokenizer":
        return self.llm.tokenizer

    @property
    def max_seq_len(self) -> int:
        return self.llm.max_seq_len

    def status(self) -> dict[str, float]:
        return {"active_requests": self.steps.num_requests, "free_cache_positions": self.llm.pool.free_positions}

    def facts(self) -> dict[str, Any]:
        """default_sampling: how answers are sampled where a request does not say."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        defaults = {name: getattr(self._defaults, name) for name in names}
        can_mask = self._guard is not None
        return {"max_model_len": self.llm.max_seq_len, "default_sampling": defaults, "can_mask": can_mask}

    def stop(self) -> None:
        self.steps.stop()

    def close(self) -> None:
        self.steps.close()

    async def completions(self, http: HttpRequest, fields: CompletionFields, model: str) -> ASGIApp:
        """{"prompt": text, token ids, or a list of either, ...}: text completions.

        max_tokens is 16 where it is not given. logprobs is a number of tokens; with echo, the prompt and its logprobs
        come first.
        """
        if self._guard is not None and self._guard.is_always:
            raise RequestError(
                400, "this server masks what it is asked, which it can of chats: use /v1/chat/completions"
            )
        given = prompts(fields.prompt, self.limits)
        params = sampling_params(fields, self._defaults, self.limits)
        _only("suffix", fields.suffix, None, "")
        _only("best_of", fields.best_of, None, params.n)
        if fields.stream and fields.echo:
            raise RequestError(400, "echo and stream do not go together here", param="echo")
        check_work(params, len(given), 1, self.limits)

        def prepare() -> Job:
            llm = self.llm
            return self._job([llm._prompt_ids(prompt) for prompt in given], params)

        job = await self._prepared(prepare, sum(map(len, given)))
        echo = None
        if fields.echo:
            echo = [prompt if isinstance(prompt, str) else self.llm.tokenizer.decode(prompt) for prompt in given]
        return await self._answered(http, Answer(self.llm, job, TEXT, model, params, echo), fields)

    async def chat(self, http: HttpRequest, fields: ChatFields, model: str) -> ASGIApp:
        """{"messages": [{"role": ..., "content": ...}, ...], ...}: the model's answer, by its own chat template.

        max_tokens (or max_completion_tokens) is 1024 where neither is given. tools and chat_template_kwargs go to the
        template; calls of tools and thoughts are taken out of what the model answers. mask: a classifier replaces
        personal data of the messages by placeholders, and the answer has the originals in their place.
        """
        return await self._answered(http, await self.chat_answer(http, fields, model), fields)

    async def chat_answer(self, http: HttpRequest, fields: ChatFields, model: str) -> Answer:
        """The answer to a chat, which has not begun."""
        params = sampling_params(fields, self._defaults, self.limits)
        masking = await self._masking(http, fields)
        chat = Chat(fields, params)
        _only("modalities", fields.modalities, None, ["text"])
        check_work(params, 1, 1, self.limits)

        def prepare() -> tuple[Job, ReplyForm]:
            ids, held, form = chat.prompt(self.llm)
            return self._job([ids], held), form

        job, form = await self._prepared(prepare, int(http.headers.get("content-length") or LARGE_CHARS))
        return Answer(self.llm, job, CHAT, model, params, form=form, masking=masking, is_json=chat.is_json)

    async def _masking(self, http: HttpRequest, fields: ChatFields) -> Masking | None:
        """Mask the messages, where that is asked for."""
        if self._guard is None and fields.mask:
            message = (
                "mask needs a token classifier: serve one beside this model, as in `fastcore serve MODEL CLASSIFIER`"
            )
            raise RequestError(400, message, code="unsupported_parameter", param="mask")
        if self._guard is None or not (fields.mask or self._guard.is_always) or not fields.messages:
            return None
        fields.messages, masking = await self._guard.masked_messages(http, fields.messages)
        return masking

    async def finish(self, http: HttpRequest, answer: Answer) -> None:
        """Run an answer to its end; the work ends when the client goes. Raises what went wrong."""
        async with anyio.create_task_group() as group:
            group.start_soon(until_gone, http.receive, group.cancel_scope.cancel)
            async with aclosing(self.steps.run(answer.job)) as progress:
                async for _ in progress:
                    pass
            group.cancel_scope.cancel()
        if not answer.job.is_done:
            raise RequestError(400, "the client went away")
        answer.check()

    def _job(self, prompts: list[list[int]], params: SamplingParams) -> Job:
        try:
            job = self.steps.prepare(prompts, params)
        except (GrammarError, MissingPackageError) as error:
            raise RequestError(400, str(error), param="structured_outputs") from None
        positions = max(
            request.max_new_tokens + (len(request.prompt_token_ids) if params.prompt_logprobs is not None else 0)
            for request, _ in job.completions
        )
        check_work(params, len(prompts), positions, self.limits)
        return job

    async def _prepared(self, prepare: Callable[[], T], size: int) -> T:
        """What `prepare` makes, in a thread. Large ones take turns, and small ones do not wait for them."""
        limiter = self._turns if size > LARGE_CHARS else None
        return await anyio.to_thread.run_sync(prepare, limiter=limiter)

    async def _answered(self, http: HttpRequest, answer: Answer, fields: SamplingFields) -> ASGIApp:
        options = fields.stream_options
        if fields.stream:
            include_usage = options is not None and options.include_usage is True
            return Events(lambda: _chunks(self.steps, answer, include_usage))
        await self.finish(http, answer)
        return json_response(await anyio.to_thread.run_sync(answer.whole))

    handlers: ClassVar[dict[str, Handler[Any]]] = {
        "/v1/completions": Handler(CompletionFields, completions, IGNORED, REFUSED),
        "/v1/chat/completions": Handler(ChatFields, chat, IGNORED, CHAT_REFUSED),
    }


def _only(name: str, value: Any, *supported: Any) -> None:
    if not any(value == each and type(value) is type(each) for each in supported):
        allowed = [each for each in supported if each not in (None, "")]
        rest = f", other than {' or '.join(map(str, allowed))}" if allowed else ""
        raise RequestError(400, f"{name} is not supported here{rest}", code="unsupported_value", param=name)


async def _chunks(steps: StepThread, answer: Answer, include_usage: bool) -> AsyncGenerator[bytes, None]:
    job = answer.job
    sent = job.progress
    first = answer.facts()
    try:
        async with aclosing(steps.run(job)) as progress:
            async for _ in progress:
                answer.check()
                for index, now in enumerate(job.progress):
                    before = sent[index]
                    if len(now.text) > len(before.text) or now.finish_reason != before.finish_reason:
                        choice = answer.written.delta(answer, index, before, now)
                        if choice is not None:
                            sent = [*sent[:index], now, *sent[index + 1 :]]
                            yield event(answer.chunk([choice]) | first)
                            first = {}
        if include_usage:
            yield event(answer.chunk([]) | {"usage": answer.usage()})
    except Exception as error:
        yield event(error_body(request_error(error)))
    yield DONE
