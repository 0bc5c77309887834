"""Benchmarks: what they count, that results are checked before they count, and how peers take part."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from test_models import solo, with_head
from tiny import make_prompt

from fastcore._kernels import BLOCK_TOKENS, PackedLinear
from fastcore.bench.gguf_file import write_gguf
from fastcore.bench.machine_limits import MachineLimits
from fastcore.bench.peers import PEERS, LlamaCpp, Torch
from fastcore.bench.profile import OpProfile, profile
from fastcore.bench.runner import Fastcore
from fastcore.bench.turns import measure, time_in_turns
from fastcore.bench.workload import Workload, standard_workloads
from fastcore.checkpoints.open import open_checkpoint
from fastcore.cli import main
from fastcore.engine.state import Piece, SequenceState, StatePool, run_step
from fastcore.errors import ContextLengthError, MissingPackageError, NonFiniteError, UnsupportedModelError
from fastcore.model.rope import inv_freq
from fastcore.models import Model, load_model

LAYER = [(80, 40), (40, 40), (160, 40), (40, 72)]  # q | k | v, o, gate | up in whole panels, down
HEAD = (320, 40)


@pytest.fixture(scope="module")
def folder(tiny_folder: Callable[..., Path]) -> Path:
    return tiny_folder("qwen2")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder)


def command_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["bench", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


class Echo:
    """A peer that gives the logits of fastcore, times `scale`, plus `noise`."""

    name, version, weight_bytes, position_bytes = "echo", "1.0", 1000, 10

    def __init__(self, model: Model, scale: float = 1.0) -> None:
        self._engine = Fastcore(model, 1)
        self._scale = scale
        self.calls: list[str] = []

    def start(self, batch: int, positions: int) -> None:
        self.calls.append("start")
        self._engine.start(batch, positions)

    def run(self, token_ids: NDArray[np.int32]) -> None:
        self.calls.append(f"run {token_ids.shape[0]} x {token_ids.shape[1]}")
        self._engine.run(token_ids)

    def logits(self) -> NDArray[np.float32]:
        return self._engine.logits() * np.float32(self._scale)

    def mark(self) -> None:
        self._engine.mark()

    def rewind(self) -> None:
        self.calls.append("rewind")
        self._engine.rewind()

    def close(self) -> None:
        self.calls.append("close")


# ---------------------------------------------------------------- engines


@pytest.mark.parametrize("model_type", ["qwen2", "falcon_h1"])
def test_fastcore_continues_every_sequence_and_rewinds(model_type: str, tiny_folder: Callable[..., Path]) -> None:
    model = load_model(tiny_folder(model_type))
    tokens = np.random.default_rng(1).integers(0, 320, (3, 40)).astype(np.int32)
    expected = np.empty((3, 320), np.float32)
    pool = StatePool(model, 1 << 24)
    for row, out in zip(tokens, expected, strict=True):
        with SequenceState(pool) as sequence:
            run_step(model, [Piece(sequence, row, [39])], logits=out[None])
    engine = Fastcore(model, 1)
    engine.start(3, 40)
    engine.run(tokens[:, :33])
    engine.mark()
    for _ in range(2):
        engine.rewind()
        for i in range(33, 40):
            engine.run(tokens[:, i : i + 1])
        assert np.array_equal(engine.logits(), expected)


def test_a_prompt_longer_than_a_step(tiny_folder: Callable[..., Path]) -> None:
    model = load_model(tiny_folder("llama", max_position_embeddings=2048))
    tokens = np.random.default_rng(1).integers(0, 320, (2, 700)).astype(np.int32)
    engine = Fastcore(model, 1)
    engine.start(2, 700)
    engine.run(tokens)
    together = engine.logits().copy()
    for row, expected in zip(tokens, together, strict=True):
        engine.start(1, 700)
        engine.run(row[None, :300])
        engine.run(row[None, 300:])
        assert np.array_equal(engine.logits()[0], expected)


def test_bounds(model: Model) -> None:
    with pytest.raises(ContextLengthError, match="513 tokens are asked for and the model's context holds 512"):
        measure(model, 1, [Workload(rows=1, depth=512)])
    with pytest.raises(ValueError, match="rows is 0; expected at least 1"):
        Workload(rows=0)
    with pytest.raises(ValueError, match="repeats is 0"):
        measure(model, 1, [Workload()], repeats=0)


def test_a_token_classifier_is_refused(tiny_folder: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedModelError, match="classifies tokens"):
        Fastcore(load_model(tiny_folder("pii_masking")), 1)


# ---------------------------------------------------------------- what is counted


def test_flops_and_bytes(model: Model) -> None:
    """Two layers of 4 heads of 10; every weight counts for each token, the head for each sequence and step."""
    (timing,) = time_in_turns(model, [Fastcore(model, 1)], Workload(rows=3, depth=5, batch=2, steps=2), 1)
    layers = 2 * sum(rows * columns for rows, columns in LAYER)
    attention = 2 * 4 * 10 * 2 * 2 * sum(range(6, 12))  # layers, heads, head_dim, two products, sequences, positions
    assert timing.flops == 2 * (12 * layers + 4 * HEAD[0] * HEAD[1] + attention)
    packed = [PackedLinear(*shape, "bf16").nbytes for shape in [*LAYER, *LAYER, HEAD]]
    assert timing.weight_bytes == 2 * sum(packed)
    assert timing.kv_bytes == 2 * (8 + 11) * StatePool(model, 1).block_bytes // BLOCK_TOKENS
    assert timing.workload.tokens == 12


def test_recurrent_state_is_read_in_each_step(tiny_folder: Callable[..., Path]) -> None:
    model = load_model(tiny_folder("falcon_h1"))
    (timing,) = time_in_turns(model, [Fastcore(model, 1)], Workload(depth=2, batch=2, steps=3), 1)
    position_bytes = StatePool(model, 1).block_bytes // BLOCK_TOKENS
    assert model.program.state_bytes > 0
    assert timing.kv_bytes == 2 * ((3 + 4 + 5) * position_bytes + 3 * model.program.state_bytes)


def test_figures_follow_from_seconds(model: Model) -> None:
    (timing,) = time_in_turns(model, [Fastcore(model, 1)], Workload(depth=4, steps=3), 3)
    best, limits = min(timing.seconds), MachineLimits(read=2e9, compute=3e9)
    figures = timing.to_dict(limits)
    assert len(timing.seconds) == 3
    assert figures["tokens_per_second"] == 3 / best
    assert figures["bytes_per_second"] == (timing.weight_bytes + timing.kv_bytes) / best
    assert figures["share_of_read_limit"] == figures["bytes_per_second"] / 2e9
    assert figures["share_of_compute_limit"] == timing.flops / best / 3e9
    assert timing.limit(limits) == min(3e9, timing.intensity * 2e9)
    assert figures["fastcore_speedup"] is None


def test_profile_counts_every_op_once(model: Model) -> None:
    ops = profile(model, 1, rows=3, depth=5, repeats=2)
    assert sum(op.count for op in ops[:-1]) == model.program.num_ops
    assert all(isinstance(op, OpProfile) and op.seconds > 0 for op in ops[:-1])
    assert sum(op.weight_bytes for op in ops) == Fastcore(model, 1).weight_bytes


def test_standard_workloads() -> None:
    assert [w.name for w in standard_workloads(20, 5)] == ["prefill 20", "decode at 20"]
    plotted = standard_workloads(64, 5, plot=True)
    assert len(plotted) == len(set(plotted))
    assert {w.batch for w in plotted if w.rows == 1} == {1, 2, 4, 8}


# ---------------------------------------------------------------- peers


def test_peers_take_turns_on_the_same_tokens(model: Model) -> None:
    peer = Echo(model)
    workloads = [Workload(rows=4, steps=2), Workload(depth=3, batch=2)]
    result = measure(model, 1, workloads, repeats=2, peers=[("echo", lambda: peer)])
    assert result.versions["echo"] == "1.0"
    assert [(t.engine, t.workload) for t in result.timings] == [
        *((result.timings[0].engine, workload) for workload in workloads),
        *(("echo", workload) for workload in workloads),
    ]
    turn = ["rewind", "run 1 x 4", "run 1 x 4"]
    assert peer.calls == ["start", *turn, *turn, "start", "run 2 x 3", *["rewind", "run 2 x 1"] * 2, "close"]
    timing = result.timings[2]
    assert timing.difference == 0.0
    assert len(timing.beside) == 2
    assert timing.speedup == min(timing.seconds) / min(timing.beside)
    assert timing.weight_bytes == 2 * 1000
    assert timing.kv_bytes == (4 + 8) * 10


def test_a_peer_that_disagrees_is_skipped(model: Model) -> None:
    peer = Echo(model, scale=2.0)
    result = measure(model, 1, [Workload(rows=8)], repeats=1, peers=[("echo", lambda: peer)])
    assert "logits of echo are 1.0" in result.skipped["echo"]
    assert [timing.workload for timing in result.timings] == [Workload(rows=8)]
    assert peer.calls[-1] == "close"


def test_a_peer_that_is_not_installed_is_skipped(
    folder: Path, model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("llama_cpp", "torch"):
        monkeypatch.setitem(sys.modules, package, None)
    arguments = ["--prompt-tokens", "4", "--new-tokens", "2", "--repeat", "1", "--threads", "1", "--peers"]
    printed = command_json(capsys, str(folder), *arguments)
    assert printed["skipped"].keys() == PEERS.keys()
    assert "llama-cpp-python is not installed" in printed["skipped"]["llama.cpp"]
    assert len(printed["timings"]) == 2
    with pytest.raises(MissingPackageError, match="torch is not installed"):
        Torch(folder, 1, dtype="f32")


def test_results_that_cannot_be_trusted(model: Model) -> None:
    class Restless(Fastcore):
        calls = 0

        def logits(self) -> NDArray[np.float32]:
            self.calls += 1
            return super().logits() + np.float32(self.calls)

    with pytest.raises(RuntimeError, match="two runs on the same tokens gave different logits"):
        time_in_turns(model, [Restless(model, 1)], Workload(rows=4), 2)


def test_logits_that_are_not_numbers(tiny_folder: Callable[..., Path]) -> None:
    model = load_model(tiny_folder("qwen2", seed=3))
    [weights for weights in model.program.weights if weights is not None][-1].panels[:] = 0xFF  # NaN
    with pytest.raises(NonFiniteError):
        time_in_turns(model, [Fastcore(model, 1)], Workload(rows=4), 1)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_torch_runs_the_same_model(tiny_folder: Callable[..., Path], dtype: str) -> None:
    pytest.importorskip("torch", reason="torch comes with the extra `peers`")
    pytest.importorskip("transformers", reason="transformers comes with the extra `peers`")
    folder = tiny_folder("qwen3")
    workloads = [Workload(rows=20), Workload(depth=9, batch=3, steps=4)]
    peers = [("torch", lambda: Torch(folder, 1, dtype=dtype))]
    result = measure(load_model(folder), 1, workloads, repeats=2, peers=peers)
    assert result.skipped == {}
    assert [timing.engine for timing in result.timings[2:]] == [f"torch {dtype}"] * 2


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_llama_cpp_runs_the_same_model(tiny_folder: Callable[..., Path], model_type: str) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python comes with the extra `peers`")
    folder = tiny_folder(model_type, head_dim=16, hidden_size=64, intermediate_size=96)
    workloads = [Workload(rows=20), Workload(depth=9, batch=3, steps=4)]
    peers = [("llama.cpp", lambda: LlamaCpp(folder, 1))]
    result = measure(load_model(folder), 1, workloads, repeats=2, peers=peers)
    assert result.skipped == {}
    assert [timing.engine for timing in result.timings[2:]] == ["llama.cpp bf16"] * 2


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tie", [True, False])
def test_a_gguf_file_holds_the_same_weights(
    model_type: str, tie: bool, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_folder(model_type, tie=tie)
    file = open_checkpoint(write_gguf(folder, tmp_path / "model.gguf"))
    with open_checkpoint(folder) as checkpoint:
        assert set(file) == set(checkpoint)
        for name, tensor in checkpoint.items():
            assert np.array_equal(file[name].f32(), tensor.f32()), name
    for field in ("hidden_size", "num_hidden_layers", "num_key_value_heads", "head_dim", "rms_norm_eps", "vocab_size"):
        assert file.hf_config[field] == getattr(load_model(folder).config, field), field


def test_a_gguf_file_holds_a_head_that_a_tied_model_stores(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = with_head(tiny_folder("llama", dtype="f32"), tmp_path, lambda embedding: -embedding[::-1])
    file = write_gguf(folder, tmp_path / "model.gguf")
    token_ids = make_prompt(9)
    assert np.array_equal(solo(load_model(file), token_ids), solo(load_model(folder), token_ids))


def test_a_gguf_file_of_scaled_rope(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    folder = tiny_folder("llama", rope_scaling=rope | {"original_max_position_embeddings": 8192})
    config = load_model(folder).config
    file = open_checkpoint(write_gguf(folder, tmp_path / "model.gguf")).config()
    expected, _ = inv_freq(config.rope, config.head_dim)
    assert inv_freq(file.rope, file.head_dim)[0] == pytest.approx(expected, rel=1e-6)


def test_models_without_a_gguf_form(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"no \.gguf is written of falcon_h1 models"):
        write_gguf(tiny_folder("falcon_h1"), tmp_path / "model.gguf")
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    with pytest.raises(UnsupportedModelError, match=r"no \.gguf is written of yarn rope in llama models"):
        write_gguf(tiny_folder("llama", rope_scaling=yarn), tmp_path / "model.gguf")


# ---------------------------------------------------------------- the command


def test_bench_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--prompt-tokens", "20", "--new-tokens", "5", "--repeat", "2", "--threads", "1", "--profile"]
    printed = command_json(capsys, str(folder), *arguments)
    prefill, decode = printed["timings"]
    assert (prefill["workload"], prefill["rows"], prefill["depth"], prefill["steps"]) == ("prefill 20", 20, 0, 1)
    assert (decode["workload"], decode["rows"], decode["depth"], decode["steps"]) == ("decode at 20", 1, 20, 5)
    assert len(prefill["seconds"]) == len(decode["seconds"]) == 2
    assert decode["tokens_per_second"] == pytest.approx(5 / min(decode["seconds"]))
    assert decode["share_of_read_limit"] == pytest.approx(decode["bytes_per_second"] / printed["read_limit"])
    assert [op["name"] for op in printed["decode_profile"]][-1] == "outside the program"
    assert printed["machine"]["cpu"]


def test_bench_prints_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--prompt-tokens", "20", "--new-tokens", "5", "--repeat", "1", "--profile"]
    assert main(["bench", str(folder), *arguments]) == 0
    out = capsys.readouterr().out
    assert "prefill 20\n  fastcore bf16" in out
    assert "decode at 20\n  fastcore bf16" in out
    assert "one decode step" in out


def test_plot_needs_matplotlib(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", str(folder), "--plot", str(tmp_path / "roofline.png")]) == 1
    assert 'pip install "fastcore-engine[plot]"' in capsys.readouterr().err


def test_plot(folder: Path, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra `plot`")
    from fastcore.bench.roofline import draw

    result = measure(model, 1, standard_workloads(16, 4), repeats=1, peers=[("echo", lambda: Echo(model))])
    file = tmp_path / "roofline.svg"
    draw(result, file, "a title")
    assert file.read_text(encoding="utf-8").startswith("<?xml")
    for name, message in {"a.gif": "ends in .png", "missing/a.png": "there is no folder"}.items():
        assert main(["bench", str(folder), "--plot", str(tmp_path / name)]) == 1
        assert message in capsys.readouterr().err
