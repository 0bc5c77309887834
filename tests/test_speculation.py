"""Speculation: the same tokens, logprobs and ends as without, in fewer steps where text repeats."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import make_prompt

from fastcore import LLM, SamplingParams, UnsupportedModelError
from fastcore._kernels import BLOCK_TOKENS
from fastcore.engine import drafts
from fastcore.engine import scheduler as planner
from fastcore.engine.completion import Completion
from fastcore.engine.drafts import Drafts
from fastcore.engine.state import Piece
from fastcore.model.model import Model

SENTENCE = " Alice is in the capital of France and the world is"
PARAMS = [
    {"max_tokens": 90},
    {"max_tokens": 61, "logprobs": 3, "ignore_eos": True},
    {"max_tokens": 80, "temperature": 0.4, "seed": 5, "logprobs": 0},
    {"max_tokens": 80, "temperature": 0.05, "seed": 6, "top_k": 20, "top_p": 0.9},
    {"max_tokens": 70, "repetition_penalty": 1.02, "frequency_penalty": 0.01, "min_tokens": 30},
    {"max_tokens": 70, "min_tokens": 20, "stop": [" the", "is"], "stop_token_ids": [40, 50]},
    {"max_tokens": 70, "logit_bias": {0: 5.0, 2: 5.0}, "min_tokens": 25, "prompt_logprobs": 1},
    {"max_tokens": 1},
    {"max_tokens": 0, "prompt_logprobs": 1},
    {"max_tokens": 60, "n": 3, "temperature": 0.3, "seed": 1},
]


class Steps:
    """What steps ran: rows, and guesses among them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.guesses = 0
        run = planner.run_step

        def counted(model: Model, pieces: list[Piece], **options: Any) -> None:
            self.count += 1
            self.guesses += sum(piece.num_guesses for piece in pieces)
            run(model, pieces, **options)

        monkeypatch.setattr(planner, "run_step", counted)


def facts(completions: Any) -> list[Any]:
    flat = [each for row in completions for each in (row if isinstance(row, list) else [row])]
    assert all(isinstance(each, Completion) for each in flat)
    return [(each.text, each.token_ids, each.finish_reason, each.logprobs, each.prompt_logprobs) for each in flat]


@pytest.mark.parametrize("family", ["qwen2", "llama", "qwen3"])
@pytest.mark.parametrize("options", PARAMS, ids=str)
def test_the_same_completion_in_fewer_steps(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, family: str, options: dict[str, Any]
) -> None:
    llm = LLM(tiny_folder(family), num_threads=1, prefix_cache=False)
    prompts = [llm.tokenizer.encode(SENTENCE * 3), make_prompt(40), [7, 8] * 20]
    steps = Steps(monkeypatch)
    expected = facts(llm.generate(prompts, SamplingParams(**options)))
    plain, steps.count = steps.count, 0
    assert steps.guesses == 0
    assert facts(llm.generate(prompts, SamplingParams(**options), speculate="ngram")) == expected
    assert steps.count <= plain
    if options["max_tokens"] > 1 and options.get("n", 1) == 1:
        assert steps.guesses > 0
    alone = [facts([llm.generate([prompt], SamplingParams(**options), speculate="ngram")[0]]) for prompt in prompts]
    assert [each for row in alone for each in row] == expected
    if options.get("n", 1) == 1:
        chunks = list(llm.stream(prompts[0], SamplingParams(**options), speculate="ngram"))
        assert "".join(chunk.text for chunk in chunks) == expected[0][0]
        assert [token_id for chunk in chunks for token_id in chunk.token_ids] == expected[0][1]


def test_what_repeats_takes_a_fraction_of_the_steps(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bias that leaves two tokens makes the text repeat; the last guess never goes beyond max_tokens."""
    llm = LLM(tiny_folder("llama"), num_threads=1, speculate="ngram")
    steps = Steps(monkeypatch)
    bias = {5: 1e4}
    done = llm.generate([make_prompt(20)], max_tokens=200, logit_bias=bias, ignore_eos=True)[0]
    assert done.token_ids == [5] * 200
    assert steps.count < 50
    steps.count = 0
    assert llm.generate([make_prompt(20)], max_tokens=50, logit_bias=bias, speculate="off")[0].token_ids == [5] * 50
    assert steps.count == 50


def test_threads_in_a_pool_that_is_too_small_for_all(tiny_folder: Callable[..., Path]) -> None:
    """Guesses, shared prefixes and works that give up their state: each gets its own result, and all goes back."""
    plain = LLM(tiny_folder("qwen2"), num_threads=1, prefix_cache=False)
    llm = LLM(tiny_folder("qwen2"), num_threads=1, kv_cache_bytes=14 * plain.pool.block_bytes, speculate="ngram")
    prompts = [[*llm.tokenizer.encode(SENTENCE * 2), *make_prompt(n, seed=n)] for n in range(1, 9)]
    options = SamplingParams(max_tokens=100, ignore_eos=True, temperature=0.2, seed=3)
    expected = [plain.generate([prompt], options)[0].token_ids for prompt in prompts]
    found: dict[int, list[list[int]]] = {}

    def work(i: int) -> None:
        found[i] = [llm.generate([prompts[i]], options)[0].token_ids for _ in range(3)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: [tokens] * 3 for i, tokens in enumerate(expected)}
    assert llm.pool.free_positions == llm.pool.num_blocks * BLOCK_TOKENS


def test_a_recurrent_state_cannot_go_back(tiny_folder: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"recurrent state, which cannot go back.*leave it off"):
        LLM(tiny_folder("falcon_h1"), speculate="ngram")
    llm = LLM(tiny_folder("falcon_h1"), num_threads=1, speculate="off")
    with pytest.raises(ValueError, match="speculate is ngram, and this model has recurrent state"):
        llm.generate([[5, 6]], speculate="ngram")
    with pytest.raises(ValueError, match="speculate is 'fast'; expected ngram, off or None"):
        SamplingParams(speculate="fast")


# ---------------------------------------------------------------- the guesses


def test_a_guess_is_what_followed_last() -> None:
    text = Drafts([1, 2, 3, 4, 5, 9, 1, 2, 3, 6, 7, 8, 0, 1, 2, 3])
    assert text.guess(2, 1) == [6, 7]
    assert text.guess(0, 1) == []
    text.add(4)
    assert text.guess(2, 1) == [5, 9]
    text.add(11)
    assert text.guess(2, 1) == []


def test_what_repeats_up_to_the_end_is_guessed_to_go_on() -> None:
    text = Drafts([7, 8, 9] * 4)
    for _ in range(30):
        text.learn(5, 5)
    assert text.guess(4, 1) == [7, 8, 9, 7]
    assert len(text.guess(100, 1)) == drafts.LONGEST


@pytest.mark.parametrize("num_rows", [1, 4, 16, 64])
def test_guesses_that_are_never_right_cost_a_bounded_share(num_rows: int) -> None:
    """Text of two tokens at random, so that everything has stood there before, and every guess is taken for wrong."""
    rng = np.random.default_rng(0)
    text = Drafts(rng.integers(0, 2, 50).tolist())
    row = drafts.ROW_COST * num_rows / (1 - drafts.ROW_COST + drafts.ROW_COST * num_rows)
    cost = 0.0
    for count in range(1, 2001):
        guesses = text.guess(100, num_rows)
        if guesses:
            text.learn(len(guesses), 0)
        cost += row * len(guesses)
        assert cost <= drafts.FIRST_CREDIT + drafts.FREE_SHARE * count + 1e-9
        text.add(int(rng.integers(0, 2)))
    assert cost > 0  # it still tries


def test_right_guesses_make_longer_drafts_and_wrong_ones_shorter() -> None:
    text = Drafts([3] * 20)
    lengths = []
    for right in (*[True] * 12, *[False] * 12):
        guesses = text.guess(100, 1)
        lengths.append(len(guesses))
        text.learn(len(guesses), len(guesses) if right else 0)
    assert lengths[11] == drafts.LONGEST > lengths[0] > 0
    assert lengths[-1] <= 2
