"""Rotary positions in whole models: "dynamic" frequencies follow each sequence, and how far each rope_type reaches."""

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import oracle.rope
import pytest
import tolerances
from oracle import llama
from tiny import make_prompt

from fastcore import LLM, CheckpointError, SamplingParams, UnsupportedModelError
from fastcore.engine.state import Piece, SequenceState, StatePool, run_step
from fastcore.model.config import RopeConfig
from fastcore.model.rope import RopeTable, rope_tables
from fastcore.models import load_model

TRAINED = 32
DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": TRAINED}


@pytest.fixture(scope="module")
def folder(tiny_folder) -> Path:
    return tiny_folder("llama", **DYNAMIC)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, num_threads=2)


def row_lengths(prompt_length: int, num_tokens: int) -> list[int]:
    """The length that each row's frequencies follow: the prompt's, then the tokens so far."""
    return [max(prompt_length, position + 1) for position in range(num_tokens)]


def oracle_logits(
    folder: Path, ids: Sequence[int], lengths: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> np.ndarray:
    """The oracle with a length for each row."""

    def tables(config: dict, head_dim: int, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        angles = [p * oracle.rope.inv_freq(config, head_dim, lengths[p])[0] for p in range(num_tokens)]
        return np.cos(angles), np.sin(angles)

    with monkeypatch.context() as patch:
        patch.setattr(oracle.rope, "tables", tables)
        return llama.logits(folder, ids)


def assert_logits_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()


# ---------------------------------------------------------------- the rule


@pytest.mark.case("C04")
@pytest.mark.parametrize("num_tokens", [20, TRAINED])
def test_up_to_the_trained_length_nothing_is_scaled(llm: LLM, tiny_folder, num_tokens: int) -> None:
    plain = LLM(tiny_folder("llama", max_position_embeddings=TRAINED))
    assert np.array_equal(llm.logits(make_prompt(num_tokens)), plain.logits(make_prompt(num_tokens)))


@pytest.mark.case("C04")
def test_a_longer_prompt_has_one_larger_base(tiny_folder) -> None:
    """factor 2 and half again the trained length: theta * 2^(d / (d - 2)), d = 10."""
    scaling = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": TRAINED}
    grown = tiny_folder("llama", rope_theta=10000.0 * 2 ** (10 / 8))
    ids = make_prompt(48)
    found = LLM(tiny_folder("llama", **scaling)).logits(ids)
    assert_logits_close(found, LLM(grown).logits(ids))
    assert np.abs(found - LLM(tiny_folder("llama")).logits(ids)).max() > 0.01 * found.std()


@pytest.mark.parametrize("prompt_length", [1, 30, TRAINED, 45])
def test_each_new_token_has_the_base_of_its_own_length(
    llm: LLM, folder: Path, monkeypatch: pytest.MonkeyPatch, prompt_length: int
) -> None:
    """The logprobs along a generation that crosses the trained length are those of the oracle with a base a row."""
    prompt, count = make_prompt(prompt_length), 60 - prompt_length
    done = llm.generate(prompt, SamplingParams(max_tokens=count, logprobs=0, ignore_eos=True))
    ids = [*prompt, *done.token_ids]
    assert len(ids) == 60
    logits = oracle_logits(folder, ids, row_lengths(prompt_length, 60), monkeypatch)
    logprobs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    found = [one.logprob for one in done.logprobs]
    expected = logprobs[np.arange(prompt_length - 1, 59), done.token_ids]
    assert np.abs(found - expected).max() <= tolerances.LOGPROB
    other = oracle_logits(folder, ids, [60] * 60, monkeypatch)
    assert np.abs(logits - other).max() > 0.01 * logits.std()


def test_all_positions_of_a_text_have_the_base_of_its_length(llm: LLM, folder: Path) -> None:
    ids = make_prompt(100)
    assert_logits_close(llm.logits(ids), llama.logits(folder, ids))


def run(model, state: SequenceState, ids: Sequence[int], sizes: Sequence[int], num_threads: int = 1) -> np.ndarray:
    """Logits of the next tokens of a sequence, run in pieces of these sizes."""
    rows, start = np.empty((len(ids), model.config.vocab_size), np.float32), 0
    for size in sizes:
        piece = Piece(state, ids[start : start + size], range(size))
        run_step(model, [piece], num_threads=num_threads, logits=rows[start : start + size])
        start += size
    assert start == len(ids)
    return rows


def test_the_pieces_of_a_prompt_do_not_matter(folder: Path) -> None:
    model, ids = load_model(folder), make_prompt(70)
    pool = StatePool(model, 1 << 24)
    found = []
    for sizes in ([70], [1] * 70, [31, 2, 37], [50, 20]):
        with SequenceState(pool, prompt_length=60) as state:
            found.append(run(model, state, ids, sizes, num_threads=len(sizes) % 3 + 1))
    for other in found[1:]:
        assert np.array_equal(other, found[0])
    with SequenceState(pool, prompt_length=40) as state:
        assert not np.array_equal(run(model, state, ids, [70]), found[0])


def test_without_a_prompt_length_the_first_piece_is_the_prompt(folder: Path) -> None:
    model, ids = load_model(folder), make_prompt(60)
    pool = StatePool(model, 1 << 24)
    with SequenceState(pool) as state, SequenceState(pool, prompt_length=45) as other:
        assert np.array_equal(run(model, state, ids, [45, 10, 5]), run(model, other, ids, [60]))
        assert state.prompt_length == 45
        state.free()
        assert state.prompt_length == 0


def test_a_snapshot_keeps_the_prompts_length(folder: Path) -> None:
    model, ids = load_model(folder), make_prompt(60)
    with SequenceState(StatePool(model, 1 << 24), prompt_length=50) as state:
        run(model, state, ids[:20], [20])
        with state.snapshot() as copy:
            assert np.array_equal(run(model, copy, ids[20:], [40]), run(model, state, ids[20:], [40]))


def test_sequences_of_a_step_follow_their_own_lengths(llm: LLM) -> None:
    prompts = [make_prompt(n, seed=n) for n in (3, 31, 40, 90)]
    params = SamplingParams(max_tokens=20, ignore_eos=True, logprobs=1, prompt_logprobs=1)
    together = llm.generate(prompts, params)
    for prompt, one in zip(prompts, together, strict=True):
        alone = llm.generate(prompt, params)
        assert (one.token_ids, one.logprobs, one.prompt_logprobs) == (
            alone.token_ids,
            alone.logprobs,
            alone.prompt_logprobs,
        )


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize("rope_type", ["default", "dynamic"])
def test_rows_are_those_of_the_tables_however_they_are_asked_for(rope_type: str) -> None:
    rope = RopeConfig(rope_type, 1e4, 40, factor=2.0)
    table = RopeTable(rope, 10)
    spans = [(0, 5, 5), (30, 20, 45), (2999, 1, 7), (39, 1, 40)]
    expected_parts = []
    for first, count, prompt_length in spans:
        for position in range(first, first + count):
            length = max(prompt_length, position + 1)
            expected_parts.append([part[0] for part in rope_tables(rope, 10, 1, length, position)])
    for found, expected in zip(table.rows(spans), zip(*expected_parts, strict=True), strict=True):
        assert found.dtype == np.float32
        assert found.flags.c_contiguous
        assert np.array_equal(found, np.array(expected))
    for found, expected in zip(table.rows([(2999, 1, 7)]), zip(*expected_parts, strict=True), strict=True):
        assert np.array_equal(found[0], expected[25])


def test_rows_do_not_change_as_the_table_grows() -> None:
    table = RopeTable(RopeConfig(rope_theta=5e5), 64)
    before = [part.copy() for part in table.rows([(0, 100, 100)])]
    table.rows([(20_000, 3, 1)])
    for found, expected in zip(table.rows([(0, 100, 100)]), before, strict=True):
        assert np.array_equal(found, expected)


def test_a_table_may_grow_from_several_threads() -> None:
    rope = RopeConfig(rope_theta=5e5)
    table, failures = RopeTable(rope, 64), []
    expected, _ = rope_tables(rope, 64, 9000)

    def read(step: int) -> None:
        for first in range(0, 8000, step):
            if not np.array_equal(table.rows([(first, 7, 1)])[0], expected[first : first + 7]):
                failures.append(first)

    threads = [threading.Thread(target=read, args=(step,)) for step in (97, 211, 401)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.case("C04")
def test_linear_scaling_divides_positions() -> None:
    """A factor of 4 is exact in binary: position 4 p has the angles of position p."""
    scaled = rope_tables(RopeConfig("linear", factor=4.0), 16, 400)
    for found, expected in zip(scaled, rope_tables(RopeConfig(), 16, 100), strict=True):
        assert np.array_equal(found[::4], expected)


# ---------------------------------------------------------------- how far positions reach


@pytest.mark.parametrize(
    ("scaling", "reach"),
    [
        (None, 64),
        ({"rope_type": "linear", "factor": 4.0}, 256),
        ({"rope_type": "dynamic", "factor": 2.5}, 160),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, 128),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}, 64),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
            64,
        ),
    ],
)
def test_the_context_is_what_scaling_stretches_it_to(tiny_folder, scaling: dict | None, reach: int) -> None:
    folder = tiny_folder("llama", rope_scaling=scaling, max_position_embeddings=64)
    llm = LLM(folder)
    assert llm.max_seq_len == reach
    assert llm.logits(make_prompt(reach)).shape == (reach, 320)
    with pytest.raises(ValueError, match=f"from 1 to the model's {reach}"):
        LLM(folder, max_seq_len=reach + 1)


@pytest.mark.case("C04")
def test_an_unknown_rope_type_is_refused(tiny_folder) -> None:
    with pytest.raises(UnsupportedModelError, match="rope_type 'foo' is not implemented"):
        LLM(tiny_folder("llama", rope_scaling={"rope_type": "foo", "factor": 2.0}))


@pytest.mark.case("C01")
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_the_base_counts_wherever_it_stands(tiny_folder, model_type: str) -> None:
    """At the top (transformers 4), in rope_parameters (5), in both, as an integer: the same bits at position 30."""
    ids = make_prompt(31)

    def logits(**fields: object) -> np.ndarray:
        return LLM(tiny_folder(model_type, **fields)).logits(ids)

    expected = logits(rope_theta=1e6)
    table = {"rope_type": "default", "rope_theta": 1e6}
    for fields in (
        {"rope_theta": None, "rope_parameters": table},
        {"rope_theta": 1e6, "rope_parameters": table},
        {"rope_theta": 1_000_000},
        {"rope_theta": "1e6"},
    ):
        assert np.array_equal(logits(**fields), expected), fields
    assert not np.allclose(logits(rope_theta=1e4)[30], expected[30])
    with pytest.raises(CheckpointError, match="rope_theta"):
        logits(rope_theta=5e5, rope_parameters=table)
