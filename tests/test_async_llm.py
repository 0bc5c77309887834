"""AsyncLLM: what LLM gives, for many tasks at once, and nothing left of a call that is given up."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tiny import CHATML, tiny_checkpoint, write_tokenizer

from fastcore import AsyncLLM, ClosedError, ContextLengthError, SamplingParams

PROMPTS = [f"hello number {i}" for i in range(12)]
OPTIONS: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("async") / "m"
    tiny_checkpoint(folder, "qwen2", max_position_embeddings=1 << 14)
    write_tokenizer(folder, chat_template=CHATML)
    return folder


@pytest.fixture
def model(folder: Path) -> Iterator[AsyncLLM]:
    model = AsyncLLM(folder, num_threads=1)
    yield model
    asyncio.run(model.close())


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def text_of(stream: Any) -> str:
    return "".join([chunk.text async for chunk in stream])


def test_many_tasks_get_what_each_would_get_alone(model: AsyncLLM) -> None:
    expected = [model.llm.generate(prompt, temperature=0.8, seed=3, **OPTIONS).text for prompt in PROMPTS]

    async def ask() -> list[Any]:
        options = {"temperature": 0.8, "seed": 3, **OPTIONS}
        calls: list[Awaitable[Any]] = [model.generate(prompt, **options) for prompt in PROMPTS[:6]]
        calls += [text_of(model.stream(prompt, SamplingParams(**options))) for prompt in PROMPTS[6:]]
        return await asyncio.gather(*calls, model.generate(PROMPTS[:2], **options))

    *found, batch = asyncio.run(ask())
    assert [getattr(each, "text", each) for each in found] == expected
    assert [each.text for each in batch] == expected[:2]


def test_chats(model: AsyncLLM) -> None:
    expected = model.llm.chat(MESSAGES, **OPTIONS)

    async def ask() -> tuple[Any, str, list[Any]]:
        streamed = await text_of(model.stream_chat(MESSAGES, **OPTIONS))
        return await model.chat(MESSAGES, **OPTIONS), streamed, await model.chat([MESSAGES] * 2, **OPTIONS)

    answer, streamed, batch = asyncio.run(ask())
    assert [each.token_ids for each in batch] == [expected.token_ids] * 2
    assert (answer.token_ids, answer.text, streamed) == (expected.token_ids, expected.text, expected.text)


@pytest.mark.parametrize("way", ["call", "stream", "left stream"])
def test_what_is_given_up_ends_and_frees_its_memory(model: AsyncLLM, way: str) -> None:
    free = model.llm.pool.free_positions
    long: dict[str, Any] = {"max_tokens": 15_000, "ignore_eos": True}

    async def ask() -> None:
        if way == "left stream":
            async with aclosing(model.stream("hello", **long)) as chunks:
                async for _ in chunks:
                    break
            return
        task = asyncio.ensure_future(
            model.generate("hello", **long) if way == "call" else text_of(model.stream("hello", **long))
        )
        while model.llm._scheduler.num_requests == 0:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    until(lambda: model.llm._scheduler.num_requests == 0)
    until(lambda: model.llm.pool.free_positions == free)
    assert model.llm.generate("hello", **OPTIONS).finish_reason == "length"


def test_errors_are_those_of_the_call(model: AsyncLLM) -> None:
    async def ask() -> None:
        with pytest.raises(ContextLengthError):
            await model.generate([1] * 20_000)
        with pytest.raises(ContextLengthError):
            await text_of(model.stream([1] * 20_000))
        with pytest.raises(TypeError, match="unknown"):
            await model.generate("x", unknown=1)  # type: ignore[call-overload]

    asyncio.run(ask())


def test_closing_ends_what_is_under_way(folder: Path) -> None:
    async def ask() -> None:
        async with AsyncLLM(folder, num_threads=1) as model:
            task = asyncio.ensure_future(model.generate("hello", max_tokens=15_000, ignore_eos=True))
            while model.llm._scheduler.num_requests == 0:
                await asyncio.sleep(0.001)
        with pytest.raises(ClosedError):
            await task
        with pytest.raises(ClosedError):
            await model.generate("hello")
        with pytest.raises(ClosedError):
            await text_of(model.stream("hello"))

    before = threading.active_count()
    asyncio.run(ask())
    until(lambda: threading.active_count() <= before)


def test_closing_ends_what_waits_for_a_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastcore.async_llm.MAX_CALLS", 1)

    async def ask() -> list[Any]:
        async with AsyncLLM(folder, num_threads=1) as model:
            long: dict[str, Any] = {"max_tokens": 15_000, "ignore_eos": True}
            calls = [model.generate("a", **long), text_of(model.stream("b", **long)), model.generate("c", **long)]
            tasks = [asyncio.ensure_future(call) for call in calls]
            while model.llm._scheduler.num_requests == 0:
                await asyncio.sleep(0.001)
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)

    assert [type(found) for found in asyncio.run(ask())] == [ClosedError] * 3
