"""One planner: completions, scored texts and passages share a queue, a pool and their steps."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tiny import make_prompt

from fastcore import LLM, CacheFullError, SamplingParams, TokenClassifier
from fastcore._kernels import BLOCK_TOKENS
from fastcore.engine import scheduler as planner
from fastcore.engine.passage import Passage
from fastcore.engine.request import Request
from fastcore.engine.sampling import Sampler
from fastcore.engine.scheduler import LONG_ROWS, MAX_ROWS, MAX_RUNNING, SHARED_ROWS, Scheduler
from fastcore.engine.state import Piece, SequenceState, StatePool
from fastcore.engine.work import Caller
from fastcore.models import Model, load_model

FOREVER = SamplingParams(ignore_eos=True, max_tokens=100_000)


def request(prompt: list[int], max_tokens: int = 4) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(tuple(prompt), params, Sampler(params, 300, prompt, ()), max_tokens, frozenset())


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[..., Path]) -> Model:
    return load_model(tiny_folder("llama"))


def new(model: Model, num_blocks: int = 200) -> Scheduler:
    return Scheduler(model, StatePool(model, num_blocks * StatePool(model, 0).block_bytes), 1)


def finish(scheduler: Scheduler, *requests: Request) -> None:
    for _ in scheduler.run(requests):
        pass


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """(first token, rows) of each piece of each step to come."""
    seen: list[list[tuple[int, int]]] = []
    run = planner.run_step

    def recorded(model: Model, pieces: list[Piece], **options: object) -> None:
        seen.append([(piece.token_ids[0], len(piece.token_ids)) for piece in pieces])
        run(model, pieces, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(planner, "run_step", recorded)
    return seen


# ---------------------------------------------------------------- a full pool


@pytest.mark.fault("F2")
@pytest.mark.parametrize("family", ["llama", "falcon_h1"])
def test_every_kind_of_work_waits_for_a_full_pool(tiny_folder: Callable[..., Path], family: str) -> None:
    """While a stream holds all blocks, whoever needs some runs its steps, and then gets its own result."""
    roomy = LLM(tiny_folder(family), num_threads=1)
    small = LLM(
        tiny_folder(family), num_threads=1, kv_cache_bytes=(4 + roomy.pool.state_blocks) * roomy.pool.block_bytes
    )
    ids, pair = make_prompt(40), (make_prompt(20), make_prompt(15))
    calls: list[Callable[[LLM], object]] = [
        lambda llm: llm.logits(ids).tolist(),
        lambda llm: llm.loglikelihood(*pair),
        lambda llm: llm.perplexity(ids),
        lambda llm: llm.embed(ids).tolist(),
        lambda llm: llm.generate([ids], max_tokens=3)[0].token_ids,
    ]
    for call in calls:
        stream = small.stream(make_prompt(100), FOREVER)
        next(stream)
        assert small.pool.free_positions < len(ids)
        assert call(small) == call(roomy)
        stream.close()
        assert small.pool.free_positions == small.pool.num_blocks * BLOCK_TOKENS


def test_what_never_fits_is_an_error_at_once_with_the_numbers(model: Model) -> None:
    scheduler = new(model, 2)
    beside, large = request([3] * 10), request([3] * 60, max_tokens=6)
    finish(scheduler, beside, large)
    assert isinstance(large.error, CacheFullError)
    assert "65 positions are needed and the cache holds 64" in str(large.error)
    assert len(beside.token_ids) == 4


def test_no_work_overtakes_one_that_does_not_fit_yet(model: Model, steps: list[list[tuple[int, int]]]) -> None:
    scheduler = new(model, 4)
    running, large, small = request([3] * 60, max_tokens=30), request([4] * 120), request([5])
    scheduler.submit([running])
    scheduler.step()
    scheduler.submit([large])
    scheduler.submit([small])
    scheduler.step()
    assert small.started is None  # though there is a free block
    finish(scheduler, small)
    assert [rows for rows in steps if rows[0][0] == 4]
    assert steps.index(next(rows for rows in steps if rows[0][0] == 4)) < steps.index(
        next(s for s in steps if (5, 1) in s)
    )


def solo(model: Model, *requests: Request) -> list[list[int]]:
    """What each gets in a roomy pool, alone."""
    results = []
    for each in requests:
        alone = request(list(each.prompt_token_ids), each.max_new_tokens)
        finish(Scheduler(model, StatePool(model, 1 << 24), 1, prefix_cache=False), alone)
        results.append(alone.token_ids)
    return results


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("family", ["llama", "falcon_h1"])
def test_works_start_when_what_they_have_to_run_fits(
    tiny_folder: Callable[..., Path], family: str, prefix_cache: bool
) -> None:
    """They need 4 blocks each in the end: all start, and the youngest give up their state and take it up again."""
    model = load_model(tiny_folder(family))
    size = StatePool(model, 0)
    pool = StatePool(model, (9 + 4 * size.state_blocks) * size.block_bytes)
    scheduler = Scheduler(model, pool, 1, prefix_cache)
    works = [request(make_prompt(20, seed=i), 100) for i in range(4)]
    scheduler.submit(works)
    gave_up, most = set(), 0
    while any(work.finish_reason is None for work in works):
        scheduler.step()
        having = [work for work in works if work.sequence is not None]
        most = max(most, len(having))
        assert works[0].sequence is not None or works[0].finish_reason is not None
        gave_up |= {
            i for i, each in enumerate(works) if each.token_ids and not each.sequence and not each.finish_reason
        }
    assert most == 4
    assert gave_up == {2, 3}
    assert [work.token_ids for work in works] == solo(model, *works)
    assert [work.cached_tokens for work in works] == [0] * 4
    assert scheduler.num_requests == 0
    assert pool.free_positions == pool.num_blocks * BLOCK_TOKENS


@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_arrivals_loses_or_stops_a_work(model: Model, seed: int) -> None:
    """Random requests of several callers in a pool that the largest fills, some of which are given up."""
    rng = np.random.default_rng(seed)
    scheduler = new(model, 8)
    works: list[Request] = []
    left: list[Request] = []
    for count in itertools.count():
        if len(works) < 40 and rng.random() < 0.3:
            lengths = rng.integers(1, 120, rng.integers(1, 5))
            batch = [request(make_prompt(int(n), seed=int(n)), int(rng.integers(1, 257 - n))) for n in lengths]
            scheduler.submit(batch)
            works += batch
        if works and rng.random() < 0.02:
            left.append(works[rng.integers(len(works))])
            scheduler.abort(left[-1:])
        scheduler.step()
        if len(works) >= 40 and all(work.finish_reason for work in works):
            break
        assert count < 20_000
    done = [work for work in works if work.finish_reason == "length"]
    assert len(done) >= len(works) - len(left)
    sample = done[:12]
    assert [work.token_ids for work in sample] == solo(model, *sample)
    assert scheduler.num_requests == 0
    assert scheduler.pool.free_positions == scheduler.pool.num_blocks * BLOCK_TOKENS


@pytest.mark.parametrize("moment", ["listed", "freed"])
def test_an_interrupt_while_a_work_gives_up_its_state(
    model: Model, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    scheduler = new(model, 5)
    old, young = request(make_prompt(60), 60), request(make_prompt(60, seed=1), 60)
    scheduler.submit([old])
    scheduler.submit([young])
    scheduler.step()
    caller = scheduler._callers[1]

    def step_on() -> None:
        while old.finish_reason is None:
            scheduler.step()

    class Waiting(type(caller.waiting)):  # type: ignore[misc]
        def appendleft(self, work: Request) -> None:
            super().appendleft(work)
            if moment == "freed":
                work.sequence = None
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(caller, "waiting", Waiting(caller.waiting))
        with pytest.raises(KeyboardInterrupt):
            step_on()
    assert young.finish_reason is None
    finish(scheduler, old, young)
    assert [old.token_ids, young.token_ids] == solo(model, old, young)
    assert scheduler.num_requests == 0
    assert scheduler.pool.free_positions == scheduler.pool.num_blocks * BLOCK_TOKENS


# ---------------------------------------------------------------- turns


@pytest.mark.fault("C7")
def test_callers_share_a_step(model: Model, steps: list[list[tuple[int, int]]]) -> None:
    """A long prompt beside others keeps steps short; a short one is in the next step whole, long ones share alike."""
    scheduler = new(model)
    one, two, short = request([3] * 2000, 1), request([4] * 2000, 1), request([5] * 9, 1)
    scheduler.submit([one])
    scheduler.step()
    scheduler.submit([two])
    scheduler.submit([short])
    while one.finish_reason is None or two.finish_reason is None:
        scheduler.step()
    assert steps[0] == [(3, MAX_ROWS)]
    long = SHARED_ROWS - 9
    assert sorted(steps[1]) == [(3, long // 2), (4, long - long // 2), (5, 9)]
    assert sorted(steps[2]) == [(3, SHARED_ROWS // 2), (4, SHARED_ROWS // 2)]
    assert all(sum(rows for _, rows in step) <= MAX_ROWS for step in steps)


def test_long_prompts_go_on_by_few_rows_while_others_decode(model: Model, steps: list[list[tuple[int, int]]]) -> None:
    """In turns, so that all come to an end; a short prompt that comes later is in the next step whole."""
    scheduler = new(model)
    decoding, one, two = request([5] * 9, 60), request([3] * 400, 1), request([4] * 400, 1)
    scheduler.submit([decoding])
    scheduler.step()
    scheduler.submit([one])
    scheduler.submit([two])
    scheduler.step()
    scheduler.step()
    short = request([6] * (SHARED_ROWS - LONG_ROWS), 1)
    scheduler.submit([short])
    scheduler.step()
    finish(scheduler, decoding, one, two, short)
    assert [{token: rows for token, rows in step if rows > 1} for step in steps[1:4]] == [
        {3: LONG_ROWS},
        {4: LONG_ROWS},
        {3: LONG_ROWS, 6: SHARED_ROWS - LONG_ROWS},
    ]
    assert all(1 in [rows for _, rows in step] for step in steps[1:4])
    both = [sum(rows for token, rows in step if token in (3, 4)) for step in steps[1:]]
    assert sum(both) == 800
    assert all(rows <= SHARED_ROWS for rows in both)
    assert [work.token_ids for work in (decoding, one, two, short)] == solo(model, decoding, one, two, short)


def test_many_short_prompts_of_one_caller_share_steps_while_others_decode(
    model: Model, steps: list[list[tuple[int, int]]]
) -> None:
    """Only a prompt that is long by itself goes on by few rows."""
    scheduler = new(model)
    decoding, batch = request([5] * 9, 60), [request([3] * 40, 1) for _ in range(20)]
    scheduler.submit([decoding])
    scheduler.step()
    scheduler.submit(batch)
    while any(work.finish_reason is None for work in batch):
        scheduler.step()
    rows = [sum(count for token, count in step if token == 3) for step in steps[1:]]
    assert rows[:-1] == [SHARED_ROWS] * (len(rows) - 1)
    assert sum(rows) == 20 * 40


def test_works_of_one_caller_run_in_order(model: Model, steps: list[list[tuple[int, int]]]) -> None:
    scheduler = new(model)
    finish(scheduler, request([3] * 400, 1), request([4] * 400, 1))
    assert steps == [[(3, 400), (4, MAX_ROWS - 400)], [(4, 800 - MAX_ROWS)]]


@pytest.mark.fault("C7")
def test_windows_of_callers_take_turns(tiny_folder: Callable[..., Path], steps: list[list[tuple[int, int]]]) -> None:
    pii = TokenClassifier(tiny_folder("pii_masking"), num_threads=1, max_seq_len=400)
    long = [Passage([3] * 400) for _ in range(50)]
    short = [Passage([4] * 200)]
    expected = pii.logits([4] * 200)[0]
    scheduler = pii._scheduler
    scheduler.submit(long)
    scheduler.step()
    scheduler.submit(short)
    del steps[:]
    for _ in scheduler.run(short):
        pass
    assert len(steps) <= 2
    assert short[0].scores is not None
    assert np.array_equal(short[0].scores[:, : len(pii.labels.names)], expected)
    scheduler.abort(long)
    assert scheduler.num_requests == 0


def test_a_large_batch_leaves_places_for_others(model: Model) -> None:
    scheduler = new(model, 4000)
    batch = [request([3, 4], 1000) for _ in range(300)]
    scheduler.submit(batch)
    scheduler.step()
    other = request([5], 3)
    finish(scheduler, other)
    assert other.finish_reason == "length"
    assert not any(each.finish_reason for each in batch)
    assert len(batch[0].token_ids) <= 5
    scheduler.abort(batch)


def test_a_short_call_beside_a_long_one_waits_for_few_steps(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever thread runs the steps, others submit between two of them and see each of them end."""
    llm = LLM(tiny_folder("llama"), num_threads=1)
    run, count = planner.run_step, 0

    def slow(*arguments: object, **options: object) -> None:
        nonlocal count
        count += 1
        time.sleep(0.003)  # so that a thread which could go on has the time to
        run(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(planner, "run_step", slow)
    is_over = threading.Event()

    def read() -> None:
        with closing(llm.stream([7, 8], FOREVER)) as stream:
            for _ in stream:
                if is_over.is_set():
                    break

    long = threading.Thread(target=read)
    long.start()
    for _ in range(5):
        before = count
        assert len(llm.generate([[5, 6]], max_tokens=3, ignore_eos=True)[0].token_ids) == 3
        assert count - before <= 10
    assert long.is_alive()
    is_over.set()
    long.join()


def test_outputs_of_different_kinds_take_turns(tiny_folder: Callable[..., Path]) -> None:
    """Threads that generate, score and embed at once each get what they get alone."""
    llm = LLM(tiny_folder("llama"), num_threads=1)
    texts = [make_prompt(n, seed=n) for n in (400, 3, 90)]
    calls: list[Callable[[], object]] = [
        lambda: [each.token_ids for each in llm.generate(texts, max_tokens=30)],
        lambda: llm.embed(texts).tolist(),
        lambda: [each.tolist() for each in llm.logits(texts)],
        lambda: llm.loglikelihood([(texts[1], text) for text in texts]),
        lambda: llm.generate(texts, SamplingParams(max_tokens=0, prompt_logprobs=2))[0].prompt_logprobs,
    ]
    expected = [call() for call in calls]
    found: list[object] = [None] * len(calls)

    def work(i: int) -> None:
        found[i] = calls[i]()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
    assert llm.pool.free_positions == llm.pool.num_blocks * BLOCK_TOKENS


# ---------------------------------------------------------------- reading ahead


def test_works_are_read_as_they_are_consumed(model: Model) -> None:
    scheduler, taken = new(model), 0

    def endless() -> Iterator[Request]:
        nonlocal taken
        for taken in itertools.count(1):
            yield request([3] * (1 + taken % 7), 1)

    results = scheduler.in_order(endless(), lambda each: [each])
    for given, each in enumerate(itertools.islice(results, 1000), start=1):
        assert len(each.token_ids) == 1
        assert taken - given <= MAX_RUNNING
        assert scheduler.num_requests <= MAX_RUNNING
    results.close()
    assert scheduler.num_requests == 0


@pytest.mark.fault("C7")
def test_whoever_leaves_is_let_go_within_a_step(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, caller, run = new(model), Caller(), planner.run_step
    count = 0

    def leaving(*arguments: object, **options: object) -> None:
        nonlocal count
        count += 1
        caller.has_left = count == 3
        run(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(planner, "run_step", leaving)
    assert list(scheduler.in_order([request([3] * 4000)], lambda each: [each], caller)) == []
    assert count == 3
    assert scheduler.num_requests == 0


# ---------------------------------------------------------------- what stops a step


@pytest.mark.fault("C2")
def test_what_has_no_tokens_is_refused_where_all_pass() -> None:
    with pytest.raises(ValueError, match="the prompt has no tokens"):
        request([])
    with pytest.raises(ValueError, match="the passage has no tokens"):
        Passage([])


@pytest.mark.fault("C2")
def test_work_without_rows_does_not_stop_the_others(model: Model) -> None:
    scheduler, odd, other = new(model), request([3, 4]), request([5, 6])
    odd.prompt_token_ids = ()  # as no check would let it
    scheduler.submit([odd])
    finish(scheduler, other)
    assert len(other.token_ids) == 4
    scheduler.abort([odd])


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interrupt_before_the_lists_are_in_order_again(
    model: Model, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It comes when a request has finished and is still listed, and another thread's step comes next."""
    alone = request([5, 6])
    finish(new(model), alone)
    scheduler, mine, theirs = new(model), request([3, 4], 1), request([5, 6])
    scheduler.submit([theirs])
    scheduler.submit([mine])
    tidy = scheduler._tidy

    def interrupted() -> None:
        if mine.finish_reason is not None:
            if moment == "after":
                tidy()
            raise KeyboardInterrupt
        tidy()

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "_tidy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scheduler.step()
    finish(scheduler, theirs)
    assert mine.finish_reason == "length"
    assert theirs.token_ids == alone.token_ids
    assert scheduler.num_requests == 0
    assert scheduler.pool.free_positions == scheduler.pool.num_blocks * BLOCK_TOKENS


@pytest.mark.parametrize("interrupted_at", ["reserve", "started", "popped"])
def test_an_interrupt_while_work_starts(model: Model, monkeypatch: pytest.MonkeyPatch, interrupted_at: str) -> None:
    alone = request([5, 6])
    finish(new(model), alone)
    scheduler, each = new(model), request([5, 6])
    scheduler.submit([each])

    class Clock:
        def perf_counter(self) -> float:
            raise KeyboardInterrupt

    class Stubborn(type(scheduler._callers[0].waiting)):  # type: ignore[misc]
        def popleft(self) -> object:
            raise KeyboardInterrupt

    def reserve(sequence: SequenceState, num_positions: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if interrupted_at == "reserve":
            patch.setattr(SequenceState, "reserve", reserve)
        elif interrupted_at == "started":
            patch.setattr(planner, "time", Clock())
        else:
            patch.setattr(scheduler._callers[0], "waiting", Stubborn(scheduler._callers[0].waiting))
        with pytest.raises(KeyboardInterrupt):
            scheduler.step()
    finish(scheduler, each)
    assert each.token_ids == alone.token_ids
    assert scheduler.num_requests == 0
    assert scheduler.pool.free_positions == scheduler.pool.num_blocks * BLOCK_TOKENS
