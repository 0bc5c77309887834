"""The prefix cache: same bits with and without a hit, blocks that several hold, and room when it is needed."""

import gc
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import make_prompt

from fastcore import LLM, SamplingParams
from fastcore._kernels import BLOCK_TOKENS, KV_DTYPES, HeldBlocks, KVBlocks
from fastcore.engine import scheduler as planner
from fastcore.engine.completion import Completion
from fastcore.engine.prefixes import PrefixCache
from fastcore.engine.request import Request
from fastcore.engine.sampling import Sampler
from fastcore.engine.state import Piece
from fastcore.model.model import Model

PURE = ("qwen2", "llama", "qwen3")


def is_whole(llm: LLM) -> bool:
    """Whether no sequence holds a block."""
    return llm.pool.free_positions == llm.pool.num_blocks * BLOCK_TOKENS


@pytest.fixture(params=KV_DTYPES)
def kv_dtype(request: pytest.FixtureRequest) -> str:
    dtype: str = request.param
    return dtype


@pytest.mark.case("G06")
@pytest.mark.parametrize("family", PURE)
def test_a_hit_changes_no_bit(tiny_folder: Callable[..., Path], family: str, kv_dtype: str) -> None:
    """Prompts that extend, shorten and change each other at and beside block borders, greedy, sampled and scored."""
    llm = LLM(tiny_folder(family), num_threads=2, kv_dtype=kv_dtype)
    plain = LLM(tiny_folder(family), num_threads=1, kv_dtype=kv_dtype, prefix_cache=False)
    base = make_prompt(100)
    sampled = SamplingParams(temperature=0.9, seed=3, max_tokens=8, logprobs=3, ignore_eos=True)
    for length, cached in ((100, 0), (100, 96), (97, 96), (96, 64), (65, 64), (64, 32), (33, 32), (32, 0), (1, 0)):
        prompt = base[:length]
        for other in (prompt, [*prompt[:-1], (prompt[-1] + 1) % 300], [*prompt, 7, 8, 9]):
            expected, found = plain.generate([other], sampled)[0], llm.generate([other], sampled)[0]
            assert (found.token_ids, found.logprobs) == (expected.token_ids, expected.logprobs)
            assert expected.usage.cached_tokens == 0
            if other is prompt:
                assert found.usage.cached_tokens == cached
                assert found.timings.prompt_tokens == length - cached
        assert np.array_equal(llm.logits(prompt), plain.logits(prompt))
        assert np.array_equal(llm.embed(prompt, pooling="last"), plain.embed(prompt, pooling="last"))
        assert llm.loglikelihood(prompt, base[-9:]) == plain.loglikelihood(prompt, base[-9:])
        scored = SamplingParams(max_tokens=0, prompt_logprobs=2)
        assert llm.generate([prompt], scored)[0].prompt_logprobs == plain.generate([prompt], scored)[0].prompt_logprobs
        assert is_whole(llm)


def test_the_next_turn_reads_only_what_is_new(tiny_folder: Callable[..., Path]) -> None:
    """What was generated is part of the prefix, too; and a prompt is shared while its first reader still runs."""
    llm = LLM(tiny_folder("llama"), num_threads=1)
    text = make_prompt(50)
    for turn in range(5):
        done = llm.generate([text], SamplingParams(max_tokens=40, ignore_eos=True))[0]
        assert done.usage.cached_tokens == (0 if turn == 0 else (len(text) - 8) // BLOCK_TOKENS * BLOCK_TOKENS)
        text = [*text, *done.token_ids, *make_prompt(7, seed=turn)]
    stream = llm.stream(make_prompt(90, seed=9), SamplingParams(max_tokens=50, ignore_eos=True))
    next(stream)
    assert llm.generate([make_prompt(90, seed=9)], max_tokens=1)[0].usage.cached_tokens == 64
    stream.close()
    assert is_whole(llm)


@pytest.mark.parametrize("family", ["llama", "falcon_h1"])
def test_keys_that_follow_the_length_of_the_prompt_are_not_shared(
    tiny_folder: Callable[..., Path], family: str
) -> None:
    folder = tiny_folder(family, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    llm, prompt = LLM(folder, num_threads=1), make_prompt(100)
    first, second = (llm.generate([prompt], max_tokens=4)[0] for _ in range(2))
    assert (second.token_ids, second.usage.cached_tokens) == (first.token_ids, 0)


def test_room_is_made_for_those_who_run(tiny_folder: Callable[..., Path]) -> None:
    """A pool of 8 blocks that keeps 2: every request starts at once, whatever was kept, and gets its own result."""
    plain = LLM(tiny_folder("llama"), num_threads=1, prefix_cache=False)
    llm = LLM(tiny_folder("llama"), num_threads=1, kv_cache_bytes=8 * plain.pool.block_bytes)
    for seed in (*range(6), *range(6)):
        prompt = make_prompt(200, seed=seed)
        found, expected = (each.generate([prompt], max_tokens=20)[0] for each in (llm, plain))
        assert found.token_ids == expected.token_ids
        assert is_whole(llm)
        assert llm.pool.prefixes.num_idle <= 2
    with_whole_pool = llm.generate([make_prompt(240)], SamplingParams(max_tokens=16, ignore_eos=True))[0]
    assert with_whole_pool.usage.completion_tokens == 16


def test_threads_that_share_a_prefix_get_their_own_results(tiny_folder: Callable[..., Path]) -> None:
    plain = LLM(tiny_folder("qwen3"), num_threads=1, prefix_cache=False)
    llm = LLM(tiny_folder("qwen3"), num_threads=1, kv_cache_bytes=40 * plain.pool.block_bytes)
    shared = make_prompt(70)
    prompts = [[*shared, *make_prompt(n, seed=n)] for n in range(1, 9)]
    expected = [plain.generate([prompt], max_tokens=10)[0].token_ids for prompt in prompts]
    found: dict[int, list[list[int]]] = {}

    def work(i: int) -> None:
        found[i] = [llm.generate([prompts[i]], max_tokens=10)[0].token_ids for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: [tokens] * 5 for i, tokens in enumerate(expected)}
    assert is_whole(llm)


# ---------------------------------------------------------------- recurrent states

# Of several blocks.
WIDE_STATE = {"mamba_d_state": 100, "mamba_d_head": 24, "mamba_d_ssm": 144}


def test_a_state_is_kept_where_others_may_go_on(tiny_folder: Callable[..., Path]) -> None:
    """Before the end of a prompt, farther before it, where two texts parted, and as a text grows."""
    llm = LLM(tiny_folder("falcon_h1"), num_threads=1)
    plain = LLM(tiny_folder("falcon_h1"), num_threads=1, prefix_cache=False)
    base = make_prompt(300)

    def cached(prompt: list[int], max_tokens: int = 3) -> int:
        options = SamplingParams(max_tokens=max_tokens, ignore_eos=True, logprobs=2)
        found, expected = (each.generate([prompt], options)[0] for each in (llm, plain))
        assert (found.token_ids, found.logprobs) == (expected.token_ids, expected.logprobs)
        return found.usage.cached_tokens

    assert cached(base) == 0
    assert cached(base) == 288
    assert cached([*base, *make_prompt(9)]) == 288
    assert cached(base[:280]) == 160  # of the states that the first left, after 160 and 288
    assert [cached([*base[:200], *make_prompt(40, seed=seed)]) for seed in (1, 2, 3)] == [160, 192, 192]
    assert [cached([*base[:100], *make_prompt(20, seed=seed)]) for seed in (1, 2, 3)] == [0, 96, 96]
    text = make_prompt(50, seed=5)
    for turn in range(4):
        done = llm.generate([text], SamplingParams(max_tokens=70, ignore_eos=True))[0]
        assert done.usage.cached_tokens == (0 if turn == 0 else (len(text) - 8) // BLOCK_TOKENS * BLOCK_TOKENS)
        text = [*text, *done.token_ids, *make_prompt(7, seed=turn)]
    context = make_prompt(80, seed=6)
    for continuation in ([5], [6, 7], [8, 9, 10]):
        assert llm.loglikelihood(context, continuation) == plain.loglikelihood(context, continuation)
    assert cached([*context, 5]) == 64
    assert is_whole(llm)


def complete(llm: LLM, options: SamplingParams, prompt: list[int]) -> tuple[Completion, tuple[float, bool]]:
    done = llm.generate([prompt], options)[0]
    return done, llm.loglikelihood(prompt, done.token_ids)


@pytest.mark.parametrize(("seed", "num_blocks"), [(0, 30), (1, 80), (2, 1000)])
def test_random_conversations_over_a_recurrent_state(
    tiny_folder: Callable[..., Path], seed: int, num_blocks: int
) -> None:
    """Texts that begin as earlier ones and go on otherwise, by threads that share a pool: the bits of a model alone."""
    plain = LLM(tiny_folder("falcon_h1", **WIDE_STATE), num_threads=1, prefix_cache=False)
    size = num_blocks * plain.pool.block_bytes
    llm = LLM(tiny_folder("falcon_h1", **WIDE_STATE), num_threads=1, kv_cache_bytes=size)
    assert plain.pool.state_blocks > 3
    rng = np.random.default_rng(seed)
    texts, hits = [make_prompt(250, seed=seed)], 0
    for _ in range(4):
        prompts = []
        for _ in range(4):
            start = texts[rng.integers(len(texts))]
            prompts.append([*start[: rng.integers(1, len(start))], *make_prompt(int(rng.integers(1, 40)))])
        options = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.5, seed=seed, logprobs=1)
        expected = [plain.generate([prompt], options)[0] for prompt in prompts]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(partial(complete, llm, options), prompts))
        for prompt, (done, score), alone in zip(prompts, found, expected, strict=True):
            assert (done.token_ids, done.logprobs) == (alone.token_ids, alone.logprobs)
            assert score == plain.loglikelihood(prompt, alone.token_ids)
            assert done.usage.cached_tokens % BLOCK_TOKENS == 0
            hits += done.usage.cached_tokens
        assert is_whole(llm)
        texts += [[*prompt, *each.token_ids] for prompt, each in zip(prompts, expected, strict=True)]
    assert hits > 0 or num_blocks < 1000


def test_a_step_that_was_interrupted_writes_no_shared_block(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is lost, so that all runs again, in blocks of its own."""
    llm = LLM(tiny_folder("falcon_h1"), num_threads=1)
    prompt = make_prompt(100)
    expected = llm.generate([prompt], max_tokens=4)[0].token_ids
    run, shared = planner.run_step, list[set[int]]()

    def interrupted(model: Model, pieces: list[Piece], **options: Any) -> None:
        run(model, pieces, **options)
        shared.append(set(pieces[0].sequence.blocks))
        pieces[0].sequence.rewind(0)
        shared.append(set(pieces[0].sequence.blocks))
        monkeypatch.undo()
        raise KeyboardInterrupt

    stream = llm.stream(prompt, max_tokens=4)
    monkeypatch.setattr(planner, "run_step", interrupted)
    other = Request((9, 8), SamplingParams(), Sampler(SamplingParams(), 300, [9, 8], ()), 1, frozenset())
    request, _ = llm._request(prompt, SamplingParams(max_tokens=4), 0)
    llm._scheduler.submit([request, other])
    with pytest.raises(KeyboardInterrupt):
        llm._scheduler.step()
    assert request.cached_tokens == 96
    assert len(shared[0]) == 4
    assert shared[1] == set()
    for _ in llm._scheduler.run([request]):
        pass
    assert request.token_ids == expected
    assert [token_id for chunk in stream for token_id in chunk.token_ids] == expected
    llm._scheduler.abort([other])
    assert is_whole(llm)


# ---------------------------------------------------------------- the parts


def test_a_block_goes_back_with_its_last_holder() -> None:
    kv = KVBlocks(1, 1, 16, "f32", 4)
    one, two = HeldBlocks(kv), HeldBlocks(kv)
    one.take(2)
    two.share(one.numbers)
    two.take(1)
    assert (kv.num_free, [kv.num_owners(block) for block in range(4)]) == (1, [2, 2, 1, 0])
    one.give_back(2)
    assert (kv.num_free, two.numbers) == (1, [0, 1, 2])
    with pytest.raises(ValueError, match="block 3 is held by nobody"):
        one.share([0, 3])
    assert kv.num_owners(0) == 1
    del two
    assert kv.num_free == 4


@pytest.mark.parametrize("kv_lives", [True, False])
def test_a_sweep_of_the_collector_gives_blocks_back(kv_lives: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order in which it takes a cycle apart, and whether the cache dies in it, too."""
    failures: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", failures.append)
    kept = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        kv = KVBlocks(1, 1, 16, "f32", 8)
        parts: list[list[object]] = [[], [], []]
        held = [HeldBlocks(kv) for _ in range(2)]
        for i, each in enumerate([*held, *([] if kv_lives else [kv])]):
            if i < 2:
                held[i].take(2)
            parts[rng.integers(3)].append(each)
        for i, part in enumerate(parts):
            part.append(parts[(i + 1) % 3])
        if kv_lives:
            kept.append(kv)
        del kv, held, parts, part, each
        gc.collect()
    assert not failures
    assert all(kv.num_free == 8 for kv in kept)


def test_the_longest_unused_goes_first_and_of_one_text_the_last_block() -> None:
    kv = KVBlocks(1, 1, 16, "f32", 8)
    cache = PrefixCache(kv, 6)
    texts = [[seed] * (3 * BLOCK_TOKENS) for seed in range(2)]
    for text in texts:
        held = HeldBlocks(kv)
        held.take(3)
        cache.keep(text, held.numbers)
        del held
    assert (kv.num_free, cache.num_idle) == (2, 6)
    first = cache.find(texts[0], 1000).blocks
    assert (first, cache.find(texts[0], 2 * BLOCK_TOKENS + 1).blocks) == ([0, 1, 2], [0, 1])
    cache.make_room(4)
    assert (len(cache.find(texts[1], 1000).blocks), len(cache.find(texts[0], 1000).blocks)) == (1, 3)
    user = HeldBlocks(kv)
    user.share(cache.find(texts[0], 1000).blocks)
    cache.make_room(8)
    assert (kv.num_free, cache.num_idle) == (5, 0)  # what is in use stays, and stays known
    assert cache.find(texts[0], 1000).blocks == user.numbers
    assert cache.find([9] * 100, 1000) == ([], None, 0)
