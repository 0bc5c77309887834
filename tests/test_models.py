"""Whole models: against goldens and the oracle, and the laws that a row's bits depend on its own tokens alone."""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tolerances
from oracle import llama, qwen2, qwen3
from tiny import make_prompt, store, tiny_checkpoint, write_json, write_weights

from fastcore import _kernels
from fastcore._kernels import KV_DTYPES
from fastcore.checkpoints.open import open_checkpoint
from fastcore.engine.state import Piece, SequenceState, StatePool, run_step
from fastcore.errors import CacheFullError, CheckpointError, UnsupportedModelError
from fastcore.models import Model, load_model

ORACLES = {"qwen2": qwen2, "llama": llama, "qwen3": qwen3}
GOLDENS = (
    "qwen2-tied",
    "qwen2-untied-f32",
    "llama3.2-rope",
    "llama-linear-biases",
    "llama-yarn",
    "llama-yarn-mscale",
    "qwen3-causal",
    "qwen3-biases",
)


@contextmanager
def instruction_set(name: str) -> Iterator[None]:
    before = _kernels.active_isa()
    _kernels.use_isa(name)
    try:
        yield
    finally:
        _kernels.use_isa(before)


def new_pool(model: Model, kv_dtype: str = "f32") -> StatePool:
    return StatePool(model, 1 << 24, kv_dtype)


def step(model: Model, pieces: Sequence[tuple[SequenceState, Sequence[int]]], num_threads: int = 1) -> list[np.ndarray]:
    """One step; the logits [tokens, vocab_size] of each sequence, whose argmax must be what the argmax op says."""
    total = sum(len(token_ids) for _, token_ids in pieces)
    logits, best = np.empty((total, model.config.vocab_size), np.float32), np.empty(total, np.int32)
    run_step(
        model,
        [Piece(state, token_ids, range(len(token_ids))) for state, token_ids in pieces],
        num_threads=num_threads,
        logits=logits,
        best=best,
    )
    assert np.array_equal(best, logits.argmax(axis=1))
    return np.split(logits, np.cumsum([len(token_ids) for _, token_ids in pieces])[:-1])


def solo(
    model: Model,
    token_ids: Sequence[int],
    chunks: Sequence[int] | None = None,
    num_threads: int = 1,
    kv_dtype: str = "f32",
) -> np.ndarray:
    """Logits of one sequence alone, computed in steps of these sizes."""
    with SequenceState(new_pool(model, kv_dtype)) as state:
        parts, start = [], 0
        for chunk in chunks or [len(token_ids)]:
            parts += step(model, [(state, token_ids[start : start + chunk])], num_threads)
            start += chunk
    assert start == len(token_ids)
    return np.concatenate(parts)


def greedy(model: Model, token_ids: Sequence[int], n: int, num_threads: int) -> list[int]:
    """The next n tokens: a prefill, then decode steps."""
    found: list[int] = []
    best = np.empty(1, np.int32)
    logits = np.empty((1, model.config.vocab_size), np.float32)
    with SequenceState(new_pool(model)) as state:
        for _ in range(n):
            piece = Piece(state, [found[-1]] if found else token_ids, [0 if found else len(token_ids) - 1])
            run_step(model, [piece], num_threads=num_threads, logits=logits, best=best)
            found.append(int(best[0]))
    return found


def assert_logits_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()


# ---------------------------------------------------------------- against transformers and the oracle


@pytest.mark.parametrize("name", [*GOLDENS, "llama-dynamic"])
def test_logits_equal_the_golden(isa: str, data_folder: Path, name: str) -> None:
    case = json.loads((data_folder / name / "case.json").read_text())
    model = load_model(data_folder / name)
    assert_logits_close(solo(model, case["input_ids"], num_threads=2), np.load(data_folder / name / "logits.npy"))


@pytest.mark.parametrize("name", GOLDENS)
def test_greedy_tokens_equal_the_golden(isa: str, data_folder: Path, name: str) -> None:
    case = json.loads((data_folder / name / "case.json").read_text())
    model = load_model(data_folder / name)
    assert greedy(model, case["input_ids"], len(case["greedy"]), num_threads=2) == case["greedy"]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "mixed"])
@pytest.mark.parametrize("model_type", ORACLES)
def test_logits_equal_the_oracle(isa: str, tiny_folder, model_type: str, dtype: str) -> None:
    folder, token_ids = tiny_folder(model_type, dtype=dtype), make_prompt(70)
    expected = ORACLES[model_type].logits(folder, token_ids)
    assert_logits_close(solo(load_model(folder), token_ids, num_threads=2), expected)


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("qwen2", {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}),
        ("qwen2", {"hidden_size": 28, "num_attention_heads": 14, "num_key_value_heads": 2, "num_hidden_layers": 1}),
        ("llama", {"head_dim": 64, "num_attention_heads": 3, "num_key_value_heads": 1}),
        ("llama", {"head_dim": None, "attention_bias": True, "mlp_bias": True, "intermediate_size": 33}),
        ("llama", {"head_dim": 6, "num_attention_heads": 7, "num_key_value_heads": 7, "vocab_size": 321}),
        ("qwen3", {"head_dim": 24, "attention_bias": True}),
        ("qwen3", {"head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 17}),
    ],
)
def test_logits_of_awkward_shapes_equal_the_oracle(isa: str, tiny_folder, model_type: str, config: dict) -> None:
    folder, token_ids = tiny_folder(model_type, tie=False, tokenizer=False, **config), make_prompt(40)
    assert_logits_close(
        solo(load_model(folder), token_ids, num_threads=2), ORACLES[model_type].logits(folder, token_ids)
    )


def test_logits_past_a_segment_of_positions_equal_the_oracle(isa: str, tiny_folder) -> None:
    folder, token_ids = tiny_folder("llama", max_position_embeddings=2048), make_prompt(700)
    assert_logits_close(solo(load_model(folder), token_ids, num_threads=2), llama.logits(folder, token_ids))


# ---------------------------------------------------------------- laws, bit for bit


def chunkings(length: int) -> list[list[int]]:
    return [
        [length],
        [1] * length,
        [5, 1, length - 6],
        [length - 1, 1],
        [1, length - 1],
        [17] * (length // 17) + [length % 17] * (length % 17 > 0),
    ]


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("model_type", ORACLES)
def test_any_chunking_threads_and_instruction_set_give_the_same_bits(
    tiny_folder, model_type: str, dtype: str, kv_dtype: str
) -> None:
    model, token_ids = load_model(tiny_folder(model_type, dtype=dtype)), make_prompt(43)
    with instruction_set("scalar"):
        expected = solo(model, token_ids, kv_dtype=kv_dtype)
    for isa in _kernels.available_isas():
        with instruction_set(isa):
            for num_threads in (1, 2, 3):
                for chunks in chunkings(len(token_ids)):
                    found = solo(model, token_ids, chunks, num_threads, kv_dtype)
                    assert np.array_equal(found, expected), (isa, num_threads, chunks)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_long_contexts_give_the_same_bits_in_any_chunks_and_threads(isa: str, tiny_folder, kv_dtype: str) -> None:
    """More than two segments of positions; decode steps, and steps of up to four rows, share them between threads."""
    model, token_ids = load_model(tiny_folder("llama", max_position_embeddings=2048)), make_prompt(1100)
    expected = solo(model, token_ids, kv_dtype=kv_dtype)
    assert np.array_equal(solo(model, token_ids, [256] * 4 + [76], 2, kv_dtype), expected)
    for num_threads in (1, 2, 3):
        chunks = [507, 4, 1, 1, 2, 508, 1, 4, 3, 68, 1]  # on both sides of 512 and 1024
        assert np.array_equal(solo(model, token_ids, chunks, num_threads, kv_dtype), expected)


# Each step names its sequences in their order in the step, and how many of its next tokens each computes.
LENGTHS = {0: 1 + 7, 1: 7 + 8, 2: 20 + 6, 3: 33 + 6, 4: 600 + 9}
SCHEDULE = (
    {4: 600, 0: 1, 2: 20, 1: 7},  # prompts of many lengths
    {0: 1, 1: 1, 2: 1, 3: 33, 4: 1},  # a sequence joins while the others decode
    {3: 3, 1: 3},
    {4: 4},
    {0: 1},
    {4: 1, 3: 1, 2: 1, 1: 1, 0: 1},
    {0: 4, 1: 3, 2: 4, 3: 2, 4: 3},  # several rows of each
)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("model_type", ORACLES)
def test_a_batch_equals_its_sequences_alone(isa: str, tiny_folder, model_type: str, kv_dtype: str) -> None:
    model = load_model(tiny_folder(model_type, max_position_embeddings=2048))
    token_ids = {i: make_prompt(length, seed=i) for i, length in LENGTHS.items()}
    expected = {i: solo(model, ids, kv_dtype=kv_dtype) for i, ids in token_ids.items()}
    for num_threads in (1, 2, 3):
        pool = new_pool(model, kv_dtype)
        states = {i: SequenceState(pool) for i in LENGTHS}
        for counts in SCHEDULE:
            starts = {i: states[i].length for i in counts}
            pieces = [(states[i], token_ids[i][starts[i] : starts[i] + n]) for i, n in counts.items()]
            for (i, n), logits in zip(counts.items(), step(model, pieces, num_threads), strict=True):
                assert np.array_equal(logits, expected[i][starts[i] : starts[i] + n]), (counts, i)
        assert {i: state.length for i, state in states.items()} == LENGTHS
        for state in states.values():
            state.free()
        assert pool.free_positions == pool.max_positions


def test_blocks_left_dirty_by_other_sequences_do_not_show(isa: str, tiny_folder) -> None:
    model, token_ids = load_model(tiny_folder("qwen3")), make_prompt(45)
    pool = StatePool(model, 1)
    pool = StatePool(model, 3 * pool.block_bytes)
    pool.kv.memory[:] = 0xFF  # NaN everywhere
    expected = solo(model, token_ids)
    for _ in range(3):
        with SequenceState(pool) as other:
            step(model, [(other, make_prompt(70, seed=1))])
        with SequenceState(pool) as state:
            assert np.array_equal(step(model, [(state, token_ids)])[0], expected)


def test_a_full_pool_is_an_error_that_changes_nothing(tiny_folder) -> None:
    model = load_model(tiny_folder("qwen2"))
    pool = StatePool(model, 1)
    pool = StatePool(model, 2 * pool.block_bytes)
    first, second = SequenceState(pool), SequenceState(pool)
    step(model, [(first, make_prompt(33))])
    with pytest.raises(CacheFullError, match="0 of 2 blocks free"):
        step(model, [(second, [5])])
    assert (first.length, second.length) == (33, 0)
    whole = solo(model, [*make_prompt(33), 7])
    assert np.array_equal(step(model, [(first, [7])])[0], whole[33:])
    first.free()
    assert np.array_equal(step(model, [(second, make_prompt(33))])[0], whole[:33])


def test_only_the_outputs_asked_for_are_computed_in_their_order(isa: str, tiny_folder) -> None:
    model, token_ids = load_model(tiny_folder("llama")), make_prompt(30)
    whole = solo(model, token_ids)
    pool = new_pool(model)
    with SequenceState(pool) as one, SequenceState(pool) as two:
        logits = np.empty((4, model.config.vocab_size), np.float32)
        run_step(
            model, [Piece(one, token_ids, [29, 3]), Piece(two, token_ids[:9], [0, 8])], logits=logits, num_threads=2
        )
    assert np.array_equal(logits, whole[[29, 3, 0, 8]])


# ---------------------------------------------------------------- tied heads and stored dtypes


@pytest.mark.case("L01")
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_a_tied_head_is_the_embedding_and_takes_no_memory(isa: str, tiny_folder, tmp_path: Path, dtype: str) -> None:
    """The untied twin has a copy of the embedding as its head: the same logits, and one matrix more."""
    folder = tiny_folder("qwen2", dtype=dtype)
    with open_checkpoint(folder) as checkpoint:
        tensors = {name: np.array(tensor.array) for name, tensor in checkpoint.items()}
    assert "lm_head.weight" not in tensors
    write_weights(tmp_path, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
    write_json(
        tmp_path / "config.json", json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    )
    tied, untied = load_model(folder), load_model(tmp_path)
    token_ids = make_prompt(20)
    assert np.array_equal(solo(tied, token_ids, num_threads=2), solo(untied, token_ids, num_threads=2))

    def padded_bytes(shape: tuple[int, ...]) -> int:
        element = 2 if dtype != "f32" and len(shape) == 2 else 4  # vectors are held in f32
        return -(-shape[0] // 16) * 16 * shape[1] * element if len(shape) == 2 else shape[0] * element

    head = padded_bytes(tensors["model.embed_tokens.weight"].shape)
    assert untied.weight_bytes - tied.weight_bytes == head
    # panels are padded to 16 rows, nothing else is held
    assert tied.weight_bytes == pytest.approx(sum(padded_bytes(tensor.shape) for tensor in tensors.values()), rel=0.1)


def with_head(folder: Path, to: Path, head: Callable[[np.ndarray], np.ndarray]) -> Path:
    """A tied checkpoint that stores a head nevertheless: head(embedding)."""
    with open_checkpoint(folder) as checkpoint:
        tensors = {name: np.array(tensor.array) for name, tensor in checkpoint.items()}
    write_weights(to, tensors | {"lm_head.weight": head(tensors["model.embed_tokens.weight"])})
    (to / "config.json").write_bytes((folder / "config.json").read_bytes())
    return to


@pytest.mark.fault("A1")
@pytest.mark.parametrize("model_type", [*ORACLES, "falcon_h1"])
def test_a_stored_copy_of_a_tied_head_takes_no_memory(tiny_folder, tmp_path: Path, model_type: str) -> None:
    folder = tiny_folder(model_type, dtype="bf16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied, tied = load_model(with_head(folder, tmp_path, np.copy)), load_model(folder)
    assert copied.weight_bytes == tied.weight_bytes
    assert copied.program.weights[0] is copied.program.weights[-2]
    token_ids = make_prompt(20)
    assert np.array_equal(solo(copied, token_ids), solo(tied, token_ids))


@pytest.mark.fault("A1")
@pytest.mark.parametrize("model_type", [*ORACLES, "falcon_h1"])
def test_a_tied_head_with_other_values_is_used(tiny_folder, tmp_path: Path, model_type: str) -> None:
    folder = tiny_folder(model_type, dtype="f32")
    (tmp_path / "tied").mkdir()
    (tmp_path / "untied").mkdir()
    found = load_model(with_head(folder, tmp_path / "tied", lambda embedding: -embedding[::-1]))
    untied = with_head(folder, tmp_path / "untied", lambda embedding: -embedding[::-1])
    config = json.loads((untied / "config.json").read_text())
    write_json(untied / "config.json", config | {"tie_word_embeddings": False})
    token_ids = make_prompt(20)
    assert np.array_equal(solo(found, token_ids), solo(load_model(untied), token_ids))
    assert not np.array_equal(solo(found, token_ids), solo(load_model(folder), token_ids))


@pytest.mark.fault("A1")
@pytest.mark.parametrize(
    "head",
    [lambda embedding: embedding[:-1], lambda embedding: embedding[:, :-1].copy(), lambda embedding: embedding.T.copy(),
     lambda embedding: embedding.astype(np.int64), lambda embedding: embedding.astype(np.float64)],
)  # fmt: skip
def test_a_tied_head_of_another_shape_or_dtype_is_an_error(
    tiny_folder, tmp_path: Path, head: Callable[[np.ndarray], np.ndarray]
) -> None:
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        load_model(with_head(tiny_folder("qwen2", dtype="f32"), tmp_path, head))


@pytest.mark.fault("A1")
def test_stored_rotary_frequencies_are_looked_at(tiny_folder, tmp_path: Path) -> None:
    folder, name = tiny_folder("llama", dtype="f32"), "model.layers.0.self_attn.rotary_emb.inv_freq"
    half = load_model(folder).config.head_dim // 2
    with open_checkpoint(folder) as checkpoint:
        tensors = {each: np.array(tensor.array) for each, tensor in checkpoint.items()}
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    write_weights(tmp_path, tensors | {name: np.ones(half, np.float32)})
    assert np.array_equal(solo(load_model(tmp_path), make_prompt(9)), solo(load_model(folder), make_prompt(9)))
    for wrong in (np.ones(half + 1, np.float32), np.ones((half, 1), np.float32), np.ones(half, np.int64)):
        write_weights(tmp_path, tensors | {name: wrong})
        with pytest.raises(CheckpointError, match="inv_freq"):
            load_model(tmp_path)


@pytest.mark.fault("C1")
def test_more_layers_than_a_program_holds_are_refused(tiny_folder) -> None:
    assert len(load_model(tiny_folder("falcon_h1", num_hidden_layers=409, head_dim=16)).program.ops) <= 4096
    for layers in (410, 500):
        with pytest.raises(UnsupportedModelError, match="ops a step"):
            load_model(tiny_folder("falcon_h1", num_hidden_layers=layers, head_dim=16))


@pytest.mark.case("X3")
@pytest.mark.parametrize("model_type", ORACLES)
def test_every_stored_dtype_of_the_same_numbers_gives_the_same_bits(isa: str, tiny_folder, model_type: str) -> None:
    token_ids = make_prompt(30)
    expected = solo(load_model(tiny_folder(model_type, dtype="f32")), token_ids)
    for dtype in ("bf16", "f16", "mixed"):
        folder = tiny_folder(model_type, dtype=dtype)
        assert np.array_equal(solo(load_model(folder), token_ids), expected), dtype
        for packed in ("f32", "bf16", "f16"):  # exact in all of them, and packed as asked
            assert np.array_equal(solo(load_model(folder, packed), token_ids, num_threads=2), expected), (dtype, packed)


@pytest.mark.parametrize("packed", ["bf16", "f16"])
def test_a_model_packed_narrower_equals_one_stored_so(isa: str, tiny_folder, tmp_path: Path, packed: str) -> None:
    """f32 weights with full mantissas, packed as bf16, equal the checkpoint whose matrices were rounded before."""
    folder = tiny_folder("llama", dtype="f32")
    rng = np.random.default_rng(1)
    with open_checkpoint(folder) as checkpoint:
        tensors = {
            name: tensor.f32() * rng.uniform(1, 1.01, tensor.shape).astype(np.float32)
            for name, tensor in checkpoint.items()
        }
    narrow = {name: store(value, packed) if value.ndim == 2 else value for name, value in tensors.items()}
    for name, content in (("wide", tensors), ("narrow", narrow)):
        (tmp_path / name).mkdir()
        write_weights(tmp_path / name, content)
        (tmp_path / name / "config.json").write_bytes((folder / "config.json").read_bytes())
    token_ids = make_prompt(25)
    stored = solo(load_model(tmp_path / "narrow"), token_ids)
    assert np.array_equal(solo(load_model(tmp_path / "wide", packed, 3), token_ids), stored)
    assert not np.array_equal(solo(load_model(tmp_path / "wide"), token_ids), stored)


# ---------------------------------------------------------------- large and broken numbers


def with_changes(folder: Path, to: Path, dtype: str, changes) -> Path:
    """A copy of an f32 checkpoint whose tensors went through changes(tensors) and are stored as dtype."""
    with open_checkpoint(folder) as checkpoint:
        tensors = {name: tensor.f32() for name, tensor in checkpoint.items()}
    changes(tensors)
    write_weights(to, {name: store(value, dtype) for name, value in tensors.items()})
    (to / "config.json").write_bytes((folder / "config.json").read_bytes())
    return to


def blow_up(tensors: dict[str, np.ndarray]) -> None:
    """The MLP's inner activations pass 1e5 and come in equal pairs that cancel in down_proj."""
    p = "model.layers.0."
    tensors[f"{p}post_attention_layernorm.weight"] *= 160
    for name in ("gate_proj", "up_proj"):
        tensors[f"{p}mlp.{name}.weight"][1::2] = tensors[f"{p}mlp.{name}.weight"][::2]
    down = tensors[f"{p}mlp.down_proj.weight"]
    down[:, 1::2] = -down[:, ::2]


@pytest.mark.case("N02")
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_activations_beyond_half_precision_stay_finite_and_choose_the_same_tokens(
    isa: str, tiny_folder, tmp_path: Path, dtype: str
) -> None:
    folder = with_changes(tiny_folder("qwen2", dtype="f32", num_hidden_layers=1), tmp_path, dtype, blow_up)
    model, token_ids = load_model(folder), make_prompt(40)
    expected = qwen2.logits(folder, token_ids)
    with SequenceState(new_pool(model)) as state:
        [found] = step(model, [(state, token_ids)], num_threads=2)
        widths = [buffer.width for buffer in model.program.buffers]
        activation = widths.index(model.config.intermediate_size)
        assert np.abs(state.pool.workspace.buffer(model.program, activation, 40)).max() > 1e5
    assert np.isfinite(found).all()
    best, second = np.sort(expected, axis=1)[:, :-3:-1].T
    clear = best - second > tolerances.GREEDY_MIN_GAP_CANCELLED
    assert clear.mean() > 0.8
    assert np.array_equal(found.argmax(axis=1)[clear], expected.argmax(axis=1)[clear])


@pytest.mark.case("N02")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_told_by_the_best_id(
    isa: str, tiny_folder, tmp_path: Path, value: float
) -> None:
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value

    model = load_model(with_changes(tiny_folder("qwen2", dtype="f32"), tmp_path, "f32", spoil))
    best, logits = np.zeros(2, np.int32), np.empty((2, model.config.vocab_size), np.float32)
    with SequenceState(new_pool(model)) as state:
        run_step(model, [Piece(state, make_prompt(5), [0, 4])], logits=logits, best=best, num_threads=2)
    assert best.tolist() == [-1, -1]


@pytest.mark.case("C05")
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_a_head_size_of_its_own_and_shapes_that_contradict_it(
    isa: str, tiny_folder, tmp_path: Path, model_type: str
) -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    folder = tiny_folder(model_type, head_dim=8, **sizes)
    with open_checkpoint(folder) as checkpoint:
        shapes = [checkpoint[f"model.layers.0.self_attn.{part}_proj.weight"].shape for part in "qko"]
    assert shapes == [(32, 16), (16, 16), (16, 32)]
    ids = make_prompt(9)
    assert_logits_close(solo(load_model(folder), ids), ORACLES[model_type].logits(folder, ids))
    for head_dim in (None, 4):
        other = tiny_checkpoint(tmp_path / f"{head_dim}", model_type, head_dim=8, **sizes)
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(config | {"head_dim": head_dim}))
        with pytest.raises(CheckpointError, match=r"self_attn\.q_\w+\.\w+' has shape \[\d+.*config asks for"):
            load_model(other)


@pytest.mark.case("C09")
@pytest.mark.case("X3")
def test_the_configs_dtype_changes_nothing(tiny_folder, tmp_path: Path) -> None:
    """dtype (transformers 5), torch_dtype (4), both, neither: each tensor is read as its own dtype says."""
    ids = make_prompt(12)
    folder = tiny_checkpoint(tmp_path / "m", "qwen2", dtype="mixed")
    with open_checkpoint(folder) as checkpoint:
        assert {tensor.dtype for tensor in checkpoint.values()} == {"F32", "F16", "BF16"}
    expected = solo(load_model(tiny_folder("qwen2", dtype="f32")), ids)
    config = json.loads((folder / "config.json").read_text())
    del config["torch_dtype"]
    for names in (
        {},
        {"dtype": "bfloat16"},
        {"torch_dtype": "float16"},
        {"dtype": "float32", "torch_dtype": "float16"},
    ):
        (folder / "config.json").write_text(json.dumps(config | names))
        assert np.array_equal(solo(load_model(folder), ids), expected), names
