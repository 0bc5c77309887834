"""A language model for asyncio: calls that wait without blocking, and end their work when they are cancelled."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from types import TracebackType
from typing import Any, TypeVar, overload

from typing_extensions import Self, Unpack

from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.checkpoints.open import ModelPath
from fastcore.engine.completion import Chunk, Completion
from fastcore.engine.sampling_params import SamplingOptions, SamplingParams
from fastcore.engine.work import CALLER, Caller
from fastcore.llm import LLM, LLMOptions, Message, Prompt

__all__ = ["AsyncLLM"]

T = TypeVar("T")

MAX_CALLS = 256  # under way at once, each in a thread that mostly waits; more wait for their turn


class AsyncLLM:
    """An LLM whose calls are awaited. Calls of many tasks share steps, and each gets what it would get alone.

    A task that is cancelled, and a stream that is left (by `break`, with `contextlib.aclosing` at once), end their work
    within a step. llm: the model, for everything else; its own calls block.
    """

    def __init__(self, model: ModelPath | Checkpoint | None = None, **options: Unpack[LLMOptions]) -> None:
        """Load a model, which blocks; arguments are those of LLM."""
        self.llm = LLM(model, **options)
        self._threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="fastcore call")

    @overload
    async def generate(  # type: ignore[overload-overlap]  # a string is a sequence of strings
        self, prompts: Prompt, params: SamplingParams | None = None, **options: Unpack[SamplingOptions]
    ) -> Completion: ...
    @overload
    async def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> list[Completion]: ...
    async def generate(self, prompts: Any, params: Any = None, **options: Unpack[SamplingOptions]) -> Any:
        """LLM.generate."""
        return await self._call(lambda: self.llm.generate(prompts, params, **options))

    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        allow_special_tokens: bool = False,
        split_reasoning: bool = False,
        **options: Unpack[SamplingOptions],
    ) -> Completion:
        """LLM.chat."""
        return await self._call(
            lambda: self.llm.chat(
                messages,
                params,
                tools=tools,
                template_kwargs=template_kwargs,
                allow_special_tokens=allow_special_tokens,
                split_reasoning=split_reasoning,
                **options,
            )
        )

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[SamplingOptions]
    ) -> AsyncGenerator[Chunk, None]:
        """LLM.stream, as `async for chunk in model.stream(prompt)`."""
        return self._iterate(lambda: self.llm.stream(prompt, params, **options))

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        allow_special_tokens: bool = False,
        **options: Unpack[SamplingOptions],
    ) -> AsyncGenerator[Chunk, None]:
        """LLM.stream_chat, as `async for chunk in model.stream_chat(messages)`."""
        return self._iterate(
            lambda: self.llm.stream_chat(
                messages,
                params,
                tools=tools,
                template_kwargs=template_kwargs,
                allow_special_tokens=allow_special_tokens,
                **options,
            )
        )

    async def close(self) -> None:
        """End what is under way with ClosedError, and free the memory."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.llm.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, call: Callable[[], T]) -> T:
        """What the call returns, in a thread."""
        with _Leaving() as context:
            return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, call)

    async def _iterate(self, start: Callable[[], Generator[Chunk, None, None]]) -> AsyncGenerator[Chunk, None]:
        """The chunks that an iterator has in a thread, as they come."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue()

        def work() -> None:
            end = None
            try:
                with closing(start()) as chunks:
                    for chunk in chunks:
                        loop.call_soon_threadsafe(arrived.put_nowait, chunk)
            except Exception as error:
                end = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.put_nowait, end)

        with _Leaving() as context:
            loop.run_in_executor(self._threads, context.run, work)
            while (item := await arrived.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item


class _Leaving:
    """A context for a call in a thread, whose work ends when this one does."""

    def __enter__(self) -> Any:
        self._caller = Caller()
        context = copy_context()
        context.run(CALLER.set, self._caller)
        return context

    def __exit__(self, *_: object) -> None:
        self._caller.has_left = True
