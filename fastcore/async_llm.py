"""A language model for asyncio: calls that wait without blocking, and end their work when they are cancelled."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import Context, copy_context
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from typing_extensions import Self, Unpack

from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.checkpoints.open import ModelPath
from fastcore.engine.completion import Chunk
from fastcore.engine.work import CALLER, Caller
from fastcore.llm import LLM, LLMOptions

__all__ = ["AsyncLLM"]

P = ParamSpec("P")
T = TypeVar("T")

MAX_CALLS = 256  # under way at once, each in a thread that mostly waits; more wait for their turn


def _awaited(method: Callable[Concatenate[LLM, P], T]) -> Callable[Concatenate["AsyncLLM", P], Coroutine[Any, Any, T]]:
    """The method of LLM, to be awaited."""

    @wraps(method)
    async def call(self: "AsyncLLM", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with _Leaving() as context:
            return await self._start(context, lambda: method(self.llm, *args, **kwargs))

    return call


def _iterated(
    method: Callable[Concatenate[LLM, P], Generator[Chunk, None, None]],
) -> Callable[Concatenate["AsyncLLM", P], AsyncGenerator[Chunk, None]]:
    """The method of LLM, for `async for`."""

    @wraps(method)
    async def iterate(self: "AsyncLLM", /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Chunk, None]:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue()

        def work() -> None:
            end = None
            try:
                with closing(method(self.llm, *args, **kwargs)) as chunks:
                    for chunk in chunks:
                        loop.call_soon_threadsafe(arrived.put_nowait, chunk)
            except Exception as error:
                end = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.put_nowait, end)

        with _Leaving() as context:
            self._start(context, work)
            while (item := await arrived.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item

    return iterate


class AsyncLLM:
    """An LLM whose calls are awaited. Calls of many tasks share steps, and each gets what it would get alone.

    A task that is cancelled, and a stream that is left (by `break`, with `contextlib.aclosing` at once), end their work
    within a step. llm: the model, for everything else; its own calls block.
    """

    def __init__(self, model: ModelPath | Checkpoint | None = None, **options: Unpack[LLMOptions]) -> None:
        """Load a model, which blocks; arguments are those of LLM."""
        self.llm = LLM(model, **options)
        self._threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="fastcore call")

    generate = _awaited(LLM.generate)
    chat = _awaited(LLM.chat)
    stream = _iterated(LLM.stream)
    stream_chat = _iterated(LLM.stream_chat)

    async def close(self) -> None:
        """End what is under way with ClosedError, and free the memory."""
        await asyncio.to_thread(self.llm.close)
        self._threads.shutdown(wait=False)  # calls that wait for a thread get one, and ClosedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _start(self, context: Context, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Begin the call in a thread. Raises ClosedError after `close`."""
        _ = self.llm.model
        return asyncio.get_running_loop().run_in_executor(self._threads, context.run, call)


class _Leaving:
    """A context for a call in a thread, whose work ends when this one does."""

    def __enter__(self) -> Context:
        self._caller = Caller()
        context = copy_context()
        context.run(CALLER.set, self._caller)
        return context

    def __exit__(self, *_: object) -> None:
        self._caller.has_left = True
