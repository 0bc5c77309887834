"""Falcon-H1: goldens, oracle, one result however a prompt is split or batched, state that can be kept and restored."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tolerances
from oracle import falcon_h1, ops
from oracle.checkpoint import Weights as OracleWeights
from tiny import TOKENIZER_SIZE, from_bf16, make_prompt, tiny_checkpoint, write_weights

from fastcore import _kernels
from fastcore.checkpoints.open import load_config, open_checkpoint
from fastcore.engine.request import Request
from fastcore.engine.sampling import Sampler
from fastcore.engine.sampling_params import SamplingParams
from fastcore.engine.scheduler import Scheduler
from fastcore.engine.state import Piece, SequenceState, StatePool, run_step
from fastcore.errors import CacheFullError, CheckpointError, UnsupportedModelError
from fastcore.model.config import FalconMultipliers
from fastcore.model.recorder import Recorder, Rows
from fastcore.model.weights import Weights
from fastcore.models import Model, load_model, record_model
from fastcore.models.export import export_fh1w

GOLDENS = ("falcon-h1", "falcon-h1-groups-norm", "falcon-h1-biases")


def new_pool(model: Model, max_bytes: int = 1 << 24) -> StatePool:
    return StatePool(model, max_bytes)


def step(model: Model, pieces: Iterable[tuple[SequenceState, Sequence[int]]], num_threads: int = 1) -> list[np.ndarray]:
    """One step; the logits [tokens, vocab_size] of each sequence."""
    taken = [Piece(state, token_ids, range(len(token_ids))) for state, token_ids in pieces]
    counts = [len(piece.token_ids) for piece in taken]
    logits = np.empty((sum(counts), model.config.vocab_size), np.float32)
    run_step(model, taken, num_threads=num_threads, logits=logits)
    return np.split(logits, np.cumsum(counts)[:-1])


def run(
    state: SequenceState, model: Model, token_ids: Sequence[int], chunks: Sequence[int] = (), num_threads: int = 1
) -> np.ndarray:
    """Logits of the tokens, fed to the sequence in chunks, by default at once."""
    ends = np.cumsum(chunks or [len(token_ids)]).tolist()
    parts = zip([0, *ends[:-1]], ends, strict=True)
    return np.concatenate([step(model, [(state, token_ids[a:b])], num_threads)[0] for a, b in parts])


def logits_of(model: Model, token_ids: Sequence[int], chunks: Sequence[int] = (), num_threads: int = 1) -> np.ndarray:
    with SequenceState(new_pool(model)) as state:
        return run(state, model, token_ids, chunks, num_threads)


def greedy(state: SequenceState, model: Model, logits: np.ndarray, n: int) -> list[int]:
    """The next n tokens of a sequence whose last logits these are."""
    token_ids: list[int] = []
    while True:
        token_ids.append(int(logits[-1].argmax()))
        if len(token_ids) == n:
            return token_ids
        (logits,) = step(model, [(state, token_ids[-1:])])


def assert_logits_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()


# ---------------------------------------------------------------- against goldens and the oracle


@pytest.mark.parametrize("name", GOLDENS)
def test_logits_and_greedy_tokens_equal_the_golden(isa: str, data_folder: Path, name: str) -> None:
    case, expected = (
        json.loads((data_folder / name / "case.json").read_text()),
        np.load(data_folder / name / "logits.npy"),
    )
    model = load_model(data_folder / name)
    with SequenceState(new_pool(model)) as state:
        logits = run(state, model, case["input_ids"])
        assert_logits_close(logits, expected)
        assert case["smallest_top2_margin"] > tolerances.GREEDY_MIN_GAP
        assert greedy(state, model, logits, len(case["greedy"])) == case["greedy"]


SHAPES: dict[str, dict[str, Any]] = {
    "as published": {},
    "untied f32": {"dtype": "f32", "tie": False},
    "three dtypes in one file": {"dtype": "mixed"},
    "heads of one dim": {"mamba_d_head": 1, "mamba_d_ssm": 5, "mamba_n_heads": 5},
    "heads of 17 dims": {"mamba_d_head": 17, "mamba_d_ssm": 51, "mamba_n_heads": 3, "mamba_n_groups": 3},
    "heads of 40 dims": {"mamba_d_head": 40, "mamba_d_ssm": 80, "mamba_n_heads": 2, "mamba_d_state": 31},
    "a state of one": {"mamba_d_state": 1, "mamba_n_groups": 2},
    "a kernel of one tap": {"mamba_d_conv": 1},
    "a kernel of two taps": {"mamba_d_conv": 2, "mamba_conv_bias": False},
    "a kernel longer than the prompt": {"mamba_d_conv": 40},
    "norm after the gate": {"mamba_rms_norm": True, "mamba_n_groups": 3},
    "norm before the gate": {"mamba_rms_norm": True, "mamba_norm_before_gate": True, "mamba_n_groups": 2},
    "every bias": {"attention_bias": True, "mlp_bias": True, "projectors_bias": True, "mamba_proj_bias": True},
    "inner width from expand": {"mamba_d_ssm": None, "mamba_expand": 3, "mamba_n_heads": 10, "mamba_d_head": 12},
    "heads of attention in whole panels": {"head_dim": 16},
    "clamped steps": {"time_step_limit": [0.03, 0.4]},
}


@pytest.mark.parametrize("name", SHAPES)
def test_logits_equal_the_oracle(isa: str, tiny_folder: Callable[..., Path], name: str) -> None:
    folder, token_ids = tiny_folder("falcon_h1", **SHAPES[name]), make_prompt(37)
    assert_logits_close(logits_of(load_model(folder), token_ids), falcon_h1.logits(folder, token_ids))


# ---------------------------------------------------------------- one result


LAW_SHAPES = ("as published", "heads of 17 dims", "norm after the gate", "a kernel longer than the prompt")


@pytest.mark.case("N04")
@pytest.mark.parametrize("name", LAW_SHAPES)
def test_any_split_threads_and_instruction_set_give_the_same_bits(tiny_folder: Callable[..., Path], name: str) -> None:
    model, token_ids = load_model(tiny_folder("falcon_h1", **SHAPES[name])), make_prompt(37)
    before, results, continuations = _kernels.active_isa(), [], []
    try:
        for isa in _kernels.available_isas():
            _kernels.use_isa(isa)
            for chunks in ([37], [1] * 37, [5, 32], [20, 17], [1, 36]):
                for num_threads in (1, 2, 3):
                    with SequenceState(new_pool(model)) as state:
                        results.append(run(state, model, token_ids, chunks, num_threads))
                        continuations.append(greedy(state, model, results[-1], 5))
    finally:
        _kernels.use_isa(before)
    assert np.isfinite(results[0]).all()
    assert all(np.array_equal(result, results[0]) for result in results)
    assert all(tokens == continuations[0] for tokens in continuations)


@pytest.mark.parametrize("name", LAW_SHAPES)
def test_a_batch_equals_its_sequences_alone(isa: str, tiny_folder: Callable[..., Path], name: str) -> None:
    model = load_model(tiny_folder("falcon_h1", **SHAPES[name]))
    prompts = [make_prompt(n, seed=n) for n in (3, 7, 20, 33)]
    alone = [logits_of(model, [*prompt, *prompt[:3]]) for prompt in prompts]
    pool = new_pool(model)
    states = [SequenceState(pool) for _ in prompts]
    parts: list[list[np.ndarray]] = [[] for _ in prompts]
    for turn in range(60):  # uneven steps: some decode while others are in their prompt, some sit out
        pieces = {}
        for i, prompt in enumerate(prompts):
            start = states[i].length
            if start < len(prompt) + 3 and (turn + i) % 3:
                pieces[i] = [*prompt, *prompt[:3]][start : start + 1 + 3 * i]
        if pieces:
            logits = step(model, [(states[i], token_ids) for i, token_ids in pieces.items()], num_threads=2)
            for i, rows in zip(pieces, logits, strict=True):
                parts[i].append(rows)
    for part, expected in zip(parts, alone, strict=True):
        assert np.array_equal(np.concatenate(part), expected)


def test_dirty_blocks_of_earlier_sequences_do_not_show(isa: str, tiny_folder: Callable[..., Path]) -> None:
    model, token_ids = load_model(tiny_folder("falcon_h1")), make_prompt(20)
    expected = logits_of(model, token_ids, [2, 18])
    pool = new_pool(model)
    pool.kv.memory.view(np.float32)[:] = np.nan
    for _ in range(2):
        with SequenceState(pool) as state:
            assert np.array_equal(run(state, model, token_ids, [2, 18]), expected)


# ---------------------------------------------------------------- multipliers


class Counted:
    """Multipliers that count how often each is read."""

    def __init__(self, multipliers: FalconMultipliers) -> None:
        self.multipliers = multipliers
        self.reads = dict.fromkeys((field.name for field in fields(multipliers)), 0)

    def __getattr__(self, name: str) -> Any:
        self.reads[name] += 1
        return getattr(self.multipliers, name)


def test_every_multiplier_is_read_exactly_once(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("falcon_h1")
    config = load_config(folder)
    assert config.multipliers is not None
    counted = Counted(config.multipliers)
    with open_checkpoint(folder) as checkpoint:
        record_model(replace(config, multipliers=counted), Weights(checkpoint))  # type: ignore[arg-type]
    assert len(counted.reads) == 9
    assert set(counted.reads.values()) == {1}


def single_multipliers() -> dict[str, dict[str, Any]]:
    """Each multiplier alone, every entry of a list by itself, set to a value unlike the tiny checkpoint's."""
    cases: dict[str, dict[str, Any]] = {}
    for name, value in falcon_defaults().items():
        if isinstance(value, list):
            for i in range(len(value)):
                cases[f"{name}[{i}]"] = {name: [1.7 if j == i else entry for j, entry in enumerate(value)]}
        else:
            cases[name] = {name: 1.7}
    return cases


def falcon_defaults() -> dict[str, Any]:
    return {
        "embedding_multiplier": 2.3,
        "lm_head_multiplier": 0.7,
        "key_multiplier": 0.39,
        "attention_in_multiplier": 1.1,
        "attention_out_multiplier": 0.9375,
        "ssm_in_multiplier": 1.25,
        "ssm_out_multiplier": 0.6,
        "ssm_multipliers": [0.35, 0.8, 1.3, 0.5, 0.9],
        "mlp_multipliers": [0.88, 0.58],
    }


@pytest.mark.parametrize("case", single_multipliers())
@pytest.mark.parametrize("biases", [False, True])
def test_each_multiplier_acts_where_the_oracle_has_it(
    tiny_folder: Callable[..., Path], case: str, biases: bool
) -> None:
    options = falcon_defaults() | single_multipliers()[case] | (SHAPES["every bias"] if biases else {})
    folder, token_ids = tiny_folder("falcon_h1", **options), make_prompt(9)
    assert_logits_close(logits_of(load_model(folder), token_ids), falcon_h1.logits(folder, token_ids))


def test_multipliers_are_not_rounded_into_weights(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("falcon_h1", tie=False)
    stored = OracleWeights(folder, np.float32)
    packed = [linear for linear in load_model(folder).program.weights if linear is not None]
    rows = {linear.row(0).tobytes() for linear in packed} | {
        linear.row(linear.out_features - 1).tobytes() for linear in packed
    }
    for name in ("mamba.in_proj", "mamba.out_proj", "self_attn.q_proj", "self_attn.o_proj", "feed_forward.gate_proj"):
        assert stored[f"model.layers.1.{name}.weight"][0].tobytes() in rows
    for name in ("model.embed_tokens", "lm_head"):
        assert stored[f"{name}.weight"][0].tobytes() in rows
        assert stored[f"{name}.weight"][-1].tobytes() in rows
    assert all(linear.dtype == "bf16" for linear in packed)


# ---------------------------------------------------------------- shapes and numbers of the mixer


NARROW = {
    "hidden_size": 16,
    "head_dim": 8,
    "mamba_d_head": 4,
    "mamba_n_heads": 6,
    "mamba_d_ssm": 24,
    "mamba_d_state": 8,
}


@pytest.mark.case("C13")
def test_rows_of_in_proj_follow_the_mixers_own_sizes(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder, token_ids = tiny_folder("falcon_h1", **NARROW), make_prompt(9)
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint["model.layers.0.mamba.in_proj.weight"].shape == (70, 16)
    assert_logits_close(logits_of(load_model(folder), token_ids), falcon_h1.logits(folder, token_ids))

    # One head fewer in dt alone: 69 rows for a config that asks for 70.
    other = tiny_checkpoint(tmp_path / "other", "falcon_h1", **NARROW)
    shorten(other, "model.layers.0.mamba.in_proj.weight")
    with pytest.raises(CheckpointError, match=r"in_proj\.weight' has shape \[69, 16\].*\[70, 16\]"):
        load_model(other)


def shorten(folder: Path, name: str) -> None:
    """Rewrite the checkpoint with one row fewer in a tensor."""
    from tiny import write_safetensors

    with open_checkpoint(folder) as checkpoint:
        tensors = {key: np.array(tensor.array) for key, tensor in checkpoint.items()}
    tensors[name] = tensors[name][:-1]
    write_safetensors(folder / "model.safetensors", tensors)


@pytest.mark.case("C13")
def test_the_inner_width_falls_back_to_expand(tiny_folder: Callable[..., Path]) -> None:
    options = NARROW | {"mamba_d_ssm": None, "mamba_expand": 2, "mamba_n_heads": 8}
    folder, token_ids = tiny_folder("falcon_h1", **options), make_prompt(9)
    model = load_model(folder)
    assert model.config.mamba is not None
    assert model.config.mamba.mamba_d_ssm == 32
    assert_logits_close(logits_of(model, token_ids), falcon_h1.logits(folder, token_ids))


@pytest.mark.case("N08")
def test_bounds_of_initialisation_do_not_clamp_steps(tiny_folder: Callable[..., Path]) -> None:
    token_ids = make_prompt(9)
    expected = logits_of(load_model(tiny_folder("falcon_h1")), token_ids)
    bounded = tiny_folder("falcon_h1", time_step_min=0.1, time_step_max=0.2)
    assert np.array_equal(logits_of(load_model(bounded), token_ids), expected)
    clamped = tiny_folder("falcon_h1", time_step_limit=[0.1, 0.2])
    assert not np.array_equal(logits_of(load_model(clamped), token_ids), expected)


@pytest.mark.case("N11")
def test_decay_rates_are_computed_beyond_the_precision_of_the_checkpoint(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rates = tiny_folder("falcon_h1", dtype="bf16"), []
    record = Recorder.time_steps

    def keep(self: Recorder, x: Rows, column: int, bias: Any, rate: Any, limit: Any) -> Rows:
        rates.append(rate)
        return record(self, x, column, bias, rate, limit)

    monkeypatch.setattr(Recorder, "time_steps", keep)
    load_model(folder)
    with open_checkpoint(folder) as checkpoint:
        for layer, rate in enumerate(rates):
            stored = checkpoint[f"model.layers.{layer}.mamba.A_log"]
            assert stored.dtype == "BF16"
            exact = -np.exp(from_bf16(np.array(stored.array)).astype(np.float64))
            np.testing.assert_allclose(rate, exact, rtol=tolerances.DECAY_RATE)
    assert len(rates) == 2


def ssm_states(model: Model, state: SequenceState) -> list[np.ndarray]:
    """The scan's state [heads, head_dim, d_state] of each layer: after each layer's convolution inputs, in tiles."""
    mamba = model.config.mamba
    assert mamba is not None
    assert state.state is not None
    start = state.state * state.pool.block_bytes
    held = state.pool.kv.memory[start : start + model.program.state_bytes].view(np.float32)
    heads, tiles = mamba.mamba_n_heads, -(-mamba.mamba_d_head // 16)
    conv = (mamba.mamba_d_conv - 1) * -(-mamba.conv_dim // 16) * 16
    scan = heads * tiles * mamba.mamba_d_state * 16
    layers = held.reshape(model.config.num_hidden_layers, conv + scan)[:, conv:]
    tiled = layers.reshape(-1, heads, tiles, mamba.mamba_d_state, 16).swapaxes(3, 4)
    return list(tiled.reshape(-1, heads, tiles * 16, mamba.mamba_d_state)[:, :, : mamba.mamba_d_head])


@pytest.mark.case("N11")
def test_state_of_512_decode_steps_does_not_drift(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, token_ids = tiny_folder("falcon_h1", dtype="bf16"), make_prompt(512)
    model, expected = load_model(folder), []
    scan = ops.selective_scan

    def selective_scan(*args: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        result = scan(*args, **options)
        expected.append(result[1])
        return result

    monkeypatch.setattr(ops, "selective_scan", selective_scan)
    falcon_h1.logits(folder, token_ids)
    with SequenceState(new_pool(model)) as state:
        run(state, model, token_ids, [1] * 512)
        for found, exact in zip(ssm_states(model, state), expected, strict=True):
            assert np.abs(found - exact).max() <= tolerances.STATE_DRIFT * np.abs(exact).max()


# ---------------------------------------------------------------- the pool, snapshots, failures


# A state of several blocks.
WIDE_STATE = {"mamba_d_state": 100, "mamba_d_head": 24, "mamba_d_ssm": 144}


def test_state_and_blocks_share_the_cap(tiny_folder: Callable[..., Path]) -> None:
    model = load_model(tiny_folder("falcon_h1", **WIDE_STATE))
    probe = StatePool(model, 0)
    size = probe.state_blocks
    assert (size - 1) * probe.block_bytes < model.program.state_bytes <= size * probe.block_bytes
    assert probe.num_blocks == size + 1

    assert size > 3

    pool = StatePool(model, (3 * size + 5) * probe.block_bytes)
    assert pool.kv.memory.nbytes == (3 * size + 5) * probe.block_bytes
    assert pool.max_positions == (2 * size + 5) * _kernels.BLOCK_TOKENS
    first, second, third, fourth = (SequenceState(pool) for _ in range(4))
    first.reserve(33)
    second.reserve(64)
    third.reserve(32)
    with pytest.raises(CacheFullError, match=r"0 of .* blocks free.*kv_cache_bytes"):
        fourth.reserve(1)
    assert sorted(owned_blocks(first, second, third)) == list(range(pool.num_blocks))
    second.free()
    with pytest.raises(CacheFullError, match=f"{size} consecutive"):
        fourth.reserve(3 * 32)  # the blocks would do, but not the state beside them
    assert (fourth.blocks, fourth.state) == ([], None)
    fourth.reserve(64)
    assert sorted(owned_blocks(first, third, fourth)) == list(range(pool.num_blocks))


def owned_blocks(*states: SequenceState) -> list[int]:
    owned = []
    for state in states:
        owned += state.blocks
        if state.state is not None:
            owned += range(state.state, state.state + state.pool.state_blocks)
    return owned


def test_no_block_has_two_owners(tiny_folder: Callable[..., Path]) -> None:
    model = load_model(tiny_folder("falcon_h1", **WIDE_STATE))
    size, block = StatePool(model, 0).state_blocks, StatePool(model, 0).block_bytes
    pool = StatePool(model, (5 * size + 9) * block)
    rng, states, refusals = np.random.default_rng(0), [SequenceState(pool) for _ in range(8)], 0
    for _ in range(400):
        state = states[rng.integers(len(states))]
        if rng.random() < 0.3:
            state.free()
        else:
            held = (list(state.blocks), state.state)
            try:
                state.reserve(int(rng.integers(1, 200)))
            except CacheFullError:
                refusals += 1
                assert (state.blocks, state.state) == held
        owned = owned_blocks(*states)
        assert len(owned) == len(set(owned))
        assert pool.free_positions == (pool.num_blocks - len(owned)) * _kernels.BLOCK_TOKENS
    assert refusals > 0
    for state in states:
        state.free()
    assert pool.free_positions == pool.num_blocks * _kernels.BLOCK_TOKENS


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 40])
def test_a_restored_snapshot_continues_as_the_first_time(tiny_folder: Callable[..., Path], length: int) -> None:
    model = load_model(tiny_folder("falcon_h1", **WIDE_STATE))
    prompt, first, second = make_prompt(length), make_prompt(40, seed=1), make_prompt(9, seed=2)
    expected = [logits_of(model, [*prompt, *more])[length:] for more in (first, second)]
    pool = new_pool(model)
    with SequenceState(pool) as state, SequenceState(pool) as other:
        run(state, model, prompt)
        with state.snapshot() as snapshot:
            assert np.array_equal(run(state, model, first), expected[0])
            state.restore(snapshot)
            assert state.length == length
            assert np.array_equal(run(state, model, second), expected[1])
            other.restore(snapshot)
            assert np.array_equal(run(other, model, first), expected[0])
            assert np.array_equal(run(snapshot, model, second), expected[1])
    assert pool.free_positions == pool.num_blocks * _kernels.BLOCK_TOKENS


def test_a_snapshot_of_nothing_and_of_another_pool(tiny_folder: Callable[..., Path]) -> None:
    model, token_ids = load_model(tiny_folder("falcon_h1")), make_prompt(9)
    with SequenceState(new_pool(model)) as state, SequenceState(new_pool(model)) as stranger:
        with state.snapshot() as empty:
            run(state, model, token_ids)
            state.restore(empty)
        assert np.array_equal(run(state, model, token_ids), logits_of(model, token_ids))
        with pytest.raises(ValueError, match="another pool"):
            stranger.restore(state)


class Interrupted:
    """A program that stops in the middle of a step."""

    def __init__(self, model: Model) -> None:
        self.program = model.program

    def run(self, *args: Any, **options: Any) -> None:
        self.program.run(*args, **options | {"num_ops": self.program.num_ops // 2})
        raise KeyboardInterrupt


class Fragile:
    """A program that stops in the middle of its n-th armed step."""

    def __init__(self, model: Model, n: int) -> None:
        self.interrupted, self.program, self.armed, self.left = Interrupted(model), model.program, False, n

    def run(self, *args: Any, **options: Any) -> None:
        self.left -= self.armed
        (self.interrupted if self.armed and self.left == 0 else self.program).run(*args, **options)


def test_an_interrupted_step_leaves_the_sequence_empty(tiny_folder: Callable[..., Path]) -> None:
    model, token_ids = load_model(tiny_folder("falcon_h1")), make_prompt(20)
    expected = logits_of(model, token_ids)
    stopping = Model(model.config, Interrupted(model), model.weight_bytes)  # type: ignore[arg-type]
    with SequenceState(new_pool(model)) as state:
        run(state, model, token_ids[:12])
        with state.snapshot() as snapshot:
            with pytest.raises(KeyboardInterrupt):
                step(stopping, [(state, token_ids[12:])])
            assert state.length == 0
            assert np.array_equal(run(state, model, token_ids), expected)

            state.restore(snapshot)
            with pytest.raises(KeyboardInterrupt):
                step(stopping, [(state, token_ids[12:])])
            state.restore(snapshot)
            assert np.array_equal(run(state, model, token_ids[12:]), expected[12:])


def request_for(prompt: Sequence[int]) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=2, prompt_logprobs=1)
    return Request(tuple(prompt), params, Sampler(params, TOKENIZER_SIZE, prompt, ()), 8, frozenset())


@pytest.mark.parametrize("interrupted_step", [1, 2, 3, 4])
def test_requests_of_others_outlive_an_interrupted_step(
    tiny_folder: Callable[..., Path], interrupted_step: int
) -> None:
    model, prompt, short = load_model(tiny_folder("falcon_h1")), make_prompt(300), make_prompt(5)
    alone = request_for(prompt)
    for _ in Scheduler(model, new_pool(model), 1).run([alone]):
        pass

    fragile = Fragile(model, interrupted_step)
    scheduler = Scheduler(Model(model.config, fragile, model.weight_bytes), new_pool(model), 1)  # type: ignore[arg-type]
    mine, theirs = request_for(short), request_for(prompt)
    my_steps, their_steps = scheduler.run([mine]), scheduler.run([theirs])

    def take_turns() -> None:
        while True:
            fragile.armed = True
            next(my_steps)  # over both requests
            fragile.armed = False
            next(their_steps)

    with pytest.raises(KeyboardInterrupt):
        take_turns()
    for _ in their_steps:
        pass
    assert mine.finish_reason == "abort"
    assert theirs.finish_reason == "length"
    assert theirs.token_ids == alone.token_ids
    assert theirs.logprobs == alone.logprobs
    assert theirs.prompt_logprobs == alone.prompt_logprobs
    assert len(theirs.prompt_logprobs) == 299


def test_a_step_of_a_model_without_recurrent_state_can_be_repeated(tiny_folder: Callable[..., Path]) -> None:
    model, token_ids = load_model(tiny_folder("llama")), make_prompt(20)
    stopping = Model(model.config, Interrupted(model), model.weight_bytes)  # type: ignore[arg-type]
    with SequenceState(new_pool(model)) as state:
        first = run(state, model, token_ids[:12])
        with pytest.raises(KeyboardInterrupt):
            step(stopping, [(state, token_ids[12:])])
        assert state.length == 12
        rest = run(state, model, token_ids[12:])
    assert np.array_equal(np.concatenate([first, rest]), logits_of(model, token_ids))


# ---------------------------------------------------------------- FH1W


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "mixed"])
def test_a_pack_loads_to_the_same_bits(tiny_folder: Callable[..., Path], tmp_path: Path, tie: bool, dtype: str) -> None:
    folder, token_ids = tiny_folder("falcon_h1", tie=tie, dtype=dtype), make_prompt(20)
    pack = tmp_path / "pack" / "model.fh1w"
    pack.parent.mkdir()
    export_fh1w(folder, pack)
    expected = logits_of(load_model(folder), token_ids)
    for path in (pack, pack.parent):
        assert np.array_equal(logits_of(load_model(path), token_ids), expected)
    with open_checkpoint(pack) as tensors:
        assert "lm_head.weight" in tensors
        assert {tensor.dtype for tensor in tensors.values()} == {"F32"}
    again = tmp_path / "again"
    again.mkdir()
    export_fh1w(pack, again / "model.fh1w")
    assert (again / "model.fh1w").read_bytes() == pack.read_bytes()


def test_a_model_that_would_not_load_is_not_exported(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    name = "model.layers.1.mamba.D"
    with open_checkpoint(tiny_folder("falcon_h1")) as checkpoint:
        tensors = {name: np.array(tensor.array) for name, tensor in checkpoint.items()}
    (tmp_path / "config.json").write_bytes((tiny_folder("falcon_h1") / "config.json").read_bytes())
    changes = {
        "a shape": tensors | {name: tensors[name][:-1]},
        "one missing": {other: values for other, values in tensors.items() if other != name},
        "one too many": tensors | {"model.layers.1.mamba.E": tensors[name]},
    }
    for what, changed in changes.items():
        write_weights(tmp_path, changed)
        with pytest.raises(CheckpointError, match=r"mamba\.[DE]"):
            export_fh1w(tmp_path, tmp_path / "out.fh1w")
        assert not (tmp_path / "out.fh1w").exists(), what


def test_only_falcon_h1_models_are_exported_and_not_beside_another_models_config(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match="llama"):
        export_fh1w(tiny_folder("llama"), tmp_path / "model.fh1w")
    export_fh1w(tiny_folder("falcon_h1"), tmp_path / "model.fh1w")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        export_fh1w(tiny_folder("falcon_h1", mamba_d_conv=2), tmp_path / "other.fh1w")
    assert not (tmp_path / "other.fh1w").exists()
