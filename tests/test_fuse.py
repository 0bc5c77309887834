"""Plain ops and fused ones: the same bits on the kernels, the oracle's numbers on its NumPy; what is fused."""

import ast
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tolerances
from oracle import falcon_h1, llama, ops, qwen2, qwen3
from replay import Replay, replay
from test_models import new_pool
from tiny import make_prompt

from fastcore import _kernels
from fastcore.checkpoints.open import open_checkpoint
from fastcore.engine.state import Piece, SequenceState, run_step
from fastcore.model.config import ModelConfig
from fastcore.model.layers import o_proj, qkv, swiglu_mlp
from fastcore.model.ops import OUTPUT, Linear, Norm, Op
from fastcore.model.program import without_head
from fastcore.model.recorder import Recorder
from fastcore.model.weights import Weights
from fastcore.models import MODELS, Model, record_model, record_program

TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True, "tie": False}),
    "llama with heads of whole panels": ("llama", {"head_dim": 16}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3 with heads of whole panels": ("qwen3", {"head_dim": 32}),
    "falcon_h1": ("falcon_h1", {}),
    "falcon_h1 with a gated norm": ("falcon_h1", {"mamba_rms_norm": True}),
    "a token classifier": ("pii_masking", {}),
}
ORACLES = {"llama": llama, "qwen2": qwen2, "qwen3": qwen3, "falcon_h1": falcon_h1}
CHUNKS = [1, 6, 20, 3]


@pytest.fixture(params=TINY)
def folder(request: pytest.FixtureRequest, tiny_folder: Callable[..., Path]) -> Path:
    model_type, options = TINY[request.param]
    return tiny_folder(model_type, **options)


def model_of(folder: Path, *, fused: bool) -> Model:
    with open_checkpoint(folder) as checkpoint:
        return record_model(checkpoint.config(), Weights(checkpoint), fused=fused)


def output_of(model: Model, token_ids: Sequence[int], num_threads: int, **options: Any) -> np.ndarray:
    """The output of every row of a sequence, run in CHUNKS where the model is causal."""
    chunks = CHUNKS if model.config.is_causal else [sum(CHUNKS)]
    width = model.config.hidden_size if options else model.program.output_width
    result, start = np.empty((len(token_ids), width), np.float32), 0
    with SequenceState(new_pool(model)) as state:
        for chunk in chunks:
            piece = Piece(state, token_ids[start : start + chunk], range(chunk))
            rows = {"hidden" if options else "logits": result[start : start + chunk]}
            run_step(model, [piece], num_threads=num_threads, **rows)
            start += chunk
    return result


def test_plain_ops_give_the_bits_of_the_fused_ones(isa: str, folder: Path) -> None:
    token_ids, fused, plain = make_prompt(sum(CHUNKS)), model_of(folder, fused=True), model_of(folder, fused=False)
    assert plain.program.num_ops > fused.program.num_ops
    expected = output_of(fused, token_ids, 2)
    for num_threads in (1, 2, 3):
        assert np.array_equal(output_of(plain, token_ids, num_threads), expected)
    hidden = output_of(fused, token_ids, 2, hidden=True)
    assert np.array_equal(output_of(plain, token_ids, 2, hidden=True), hidden)


@pytest.mark.parametrize("fused", [False, True])
def test_a_program_runs_on_the_oracles_ops(folder: Path, fused: bool) -> None:
    token_ids, model = make_prompt(sum(CHUNKS)), model_of(folder, fused=True)
    cos, sin = model.rope.rows([(0, len(token_ids), len(token_ids))])
    with open_checkpoint(folder) as checkpoint:
        program = record_program(checkpoint.config(), Weights(checkpoint), lambda linear: linear, fused=fused)
        found = replay(program, token_ids, cos, sin)
    computed = output_of(model, token_ids, 2)
    assert np.abs(found - computed).max() <= tolerances.LOGITS_RELATIVE_TO_STD * found.std()
    if model.config.model_type in ORACLES:
        expected = ORACLES[model.config.model_type].logits(folder, token_ids)
        assert np.abs(found - expected).max() <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()


def test_a_program_that_is_not_packed_does_not_run(tiny_folder: Callable[..., Path]) -> None:
    with open_checkpoint(tiny_folder("llama")) as checkpoint:
        config = checkpoint.config()
        program = record_program(config, Weights(checkpoint), lambda linear: linear)
    model = Model(config, program, 0)
    with SequenceState(new_pool(model)) as state, pytest.raises(ValueError, match="not packed"):
        run_step(model, [Piece(state, [1, 2])])


def shape_of(op: Op) -> str:
    if not isinstance(op, Linear):
        return op.kind
    parts = ["norm"] * (op.norm is not None) + ["linear"] + ["heads"] * (op.heads is not None)
    return "+".join(parts + [op.epilogue] * (op.epilogue != "store"))


ATTENTION = ["norm+linear+heads", "attention", "linear+add"]
MLP = ["norm+linear+swiglu", "linear+add"]
MIXER = ["conv", "time_steps", "scan", "linear+add"]
LAYERS = {
    "llama": ATTENTION + MLP,
    "qwen2": ATTENTION + MLP,
    "qwen3": ATTENTION + MLP,
    "falcon_h1": ["norm+linear", *ATTENTION, *MIXER, *MLP],
}


@pytest.mark.parametrize("model_type", LAYERS)
def test_every_layer_is_fused(tiny_folder: Callable[..., Path], model_type: str) -> None:
    folder = tiny_folder(model_type, head_dim=16)
    program = model_of(folder, fused=True).program
    layers = LAYERS[model_type] * (program.max_layer + 1)
    assert [shape_of(op) for op in program.ops] == ["embed", *layers, "norm+linear", "argmax"]
    assert [shape_of(op) for op in without_head(program).ops] == ["embed", *layers, "norm"]
    assert len(program.buffers) <= (8 if model_type == "falcon_h1" else 4)


def test_what_is_needed_otherwise_is_not_fused_away(tiny_folder: Callable[..., Path]) -> None:
    """A sum that is read twice, a norm whose source changes before it is read, q without its rotation."""
    with open_checkpoint(tiny_folder("llama")) as checkpoint:
        config, weights = checkpoint.config(), Weights(checkpoint)
        size, w = config.hidden_size, weights.under("model.layers.0")
        m, norm = Recorder(), w.vector("input_layernorm.weight", config.hidden_size)
        hidden = m.embed(weights.linear("model.embed_tokens", config.vocab_size, size))
        q, k, v, _ = qkv(m, m.rms_norm(hidden, norm, 1e-5), w.under("self_attn"), config)
        mixed = m.attention(0, q, m.rope(k, config.head_dim), v, config.head_dim)
        x = m.rms_norm(hidden, norm, 1e-5)
        hidden += o_proj(m, mixed, w.under("self_attn"), config)
        more = swiglu_mlp(m, x, w.under("mlp"), config)
        hidden += more
        hidden += more
        m.output(m.rms_norm(hidden, norm, 1e-5, rows="out"))
        kinds = [shape_of(op) for op in m.finish(weights.pack).ops]
    attention = ["norm+linear"] * 3 + ["rope", "cache_write", "attention", "norm", "linear+add"]
    assert kinds == ["embed", *attention, "linear+swiglu", "linear", "add", "add", "norm", "argmax"]


def test_maps_to_be_packed_apart_are_not_merged(tiny_folder: Callable[..., Path]) -> None:
    with open_checkpoint(tiny_folder("llama")) as checkpoint:
        config, weights = checkpoint.config(), Weights(checkpoint)
        w, m = weights.under("model.layers.0.mlp"), Recorder()
        hidden = m.embed(weights.linear("model.embed_tokens", config.vocab_size, config.hidden_size))
        gate = m.linear(hidden, w.linear("gate_proj", config.intermediate_size, config.hidden_size, dtype="f32"))
        up = m.linear(hidden, w.linear("up_proj", config.intermediate_size, config.hidden_size))
        m.glu(gate, up)
        assert [shape_of(op) for op in m.finish(weights.pack).ops] == ["embed", "linear", "linear", "glu"]


# ---------------------------------------------------------------- adding an architecture, and an op


def post_norm(m: Recorder, config: ModelConfig, weights: Weights) -> None:
    """A toy of its own: attention and MLP are normalised after they are computed, scores have a scale of their own."""
    size, head_dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
    embed_tokens = weights.linear("model.embed_tokens", config.vocab_size, size)
    hidden = m.embed(embed_tokens)
    for layer, w in weights.layers("model.layers", config.num_hidden_layers):
        q, k, v, _ = qkv(m, hidden, w.under("self_attn"), config)
        q, k = m.rope(q, head_dim), m.rope(k, head_dim)
        mixed = o_proj(m, m.attention(layer, q, k, v, head_dim, score_scale=0.11), w.under("self_attn"), config)
        hidden += m.rms_norm(mixed, w.vector("input_layernorm.weight", size), eps)
        more = swiglu_mlp(m, hidden, w.under("mlp"), config)
        hidden += m.rms_norm(more, w.vector("post_attention_layernorm.weight", size), eps)
    hidden = m.rms_norm(hidden, weights.vector("model.norm.weight", size), eps, rows="out")
    m.output(m.linear(hidden, weights.head("lm_head", embed_tokens, tied=config.tie_word_embeddings)))


def test_an_architecture_is_a_file_and_a_row(tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recorded, fused and run by what is there, and debugged on the oracle's ops, op by op."""
    toy = ModuleType("fastcore.models.toy")
    toy.record = post_norm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fastcore.models.toy", toy)
    monkeypatch.setitem(MODELS, "llama", "toy")
    folder, token_ids = tiny_folder("llama"), make_prompt(sum(CHUNKS))
    fused, plain = model_of(folder, fused=True), model_of(folder, fused=False)
    cos, sin = fused.rope.rows([(0, len(token_ids), len(token_ids))])
    seen: list[str] = []
    with open_checkpoint(folder) as checkpoint:
        config, weights = checkpoint.config(), Weights(checkpoint)
        program = record_program(config, weights, lambda linear: linear, fused=False)
        run = Replay(token_ids, cos, sin, lambda op, result: seen.append(op.kind))
        expected = run.run(program.ops)
        tensors = {name: tensor.f32().astype(float) for name, tensor in checkpoint.items()}
    assert seen == [op.kind for op in program.ops]
    assert np.array_equal(output_of(plain, token_ids, 2), output_of(fused, token_ids, 2))
    difference = np.abs(output_of(fused, token_ids, 2) - expected).max()
    assert difference <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()

    # the same, written as an oracle is
    hidden = tensors["model.embed_tokens.weight"][token_ids]
    for layer in range(config.num_hidden_layers):
        p = f"model.layers.{layer}."
        q, k, v = (
            ops.linear(hidden, tensors[f"{p}self_attn.{name}.weight"]).reshape(len(hidden), -1, config.head_dim)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        q = 0.11 * config.head_dim**0.5 * ops.rope(q, cos, sin)
        mixed = ops.attention(q, ops.rope(k, cos, sin), v).reshape(len(hidden), -1)
        mixed = ops.linear(mixed, tensors[f"{p}self_attn.o_proj.weight"])
        hidden = hidden + ops.rms_norm(mixed, tensors[f"{p}input_layernorm.weight"], config.rms_norm_eps)
        gate, up = (ops.linear(hidden, tensors[f"{p}mlp.{name}_proj.weight"]) for name in ("gate", "up"))
        more = ops.linear(ops.swiglu(gate, up), tensors[f"{p}mlp.down_proj.weight"])
        hidden = hidden + ops.rms_norm(more, tensors[f"{p}post_attention_layernorm.weight"], config.rms_norm_eps)
    hidden = ops.rms_norm(hidden, tensors["model.norm.weight"], config.rms_norm_eps)
    logits = ops.linear(hidden, tensors["model.embed_tokens.weight"])
    assert np.abs(expected - logits).max() <= tolerances.LOGITS_RELATIVE_TO_STD * logits.std()


def test_every_op_of_c_has_its_record_its_driver_and_its_oracle() -> None:
    """The places that CONTRIBUTING.md names for a new op: a row, a driver, a record, a line of the replay."""
    root = Path(__file__).parents[1]
    listed = set(_kernels.OP_KINDS)
    drivers = {name for path in (root / "csrc").glob("ops_*.c") for name in _drivers(path)}
    assert listed == drivers
    assert listed == {op.kind for op in _records(Op)}
    tree = ast.parse((root / "tests" / "replay.py").read_text())
    assert listed <= {node.name[1:] for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _drivers(path: Path) -> list[str]:
    lines = [line for line in path.read_text().splitlines() if line.startswith("void fc_run_")]
    return [line.removeprefix("void fc_run_").split("(")[0] for line in lines]


def _records(root: type[Op]) -> list[type[Op]]:
    return root.__subclasses__()


def test_a_program_may_end_in_a_norm(tiny_folder: Callable[..., Path]) -> None:
    with open_checkpoint(tiny_folder("llama")) as checkpoint:
        config, weights = checkpoint.config(), Weights(checkpoint)
        m = Recorder()
        hidden = m.embed(weights.linear("model.embed_tokens", config.vocab_size, config.hidden_size))
        norm = weights.vector("model.norm.weight", config.hidden_size)
        m.output(m.rms_norm(hidden, norm, 1e-5, rows="out"))
        last = m.finish(weights.pack).ops[-2]
    assert isinstance(last, Norm)
    assert last.dst == OUTPUT
