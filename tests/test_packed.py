"""Packed folders: the same bits as packing at load, mapped and shared; written whole or not at all; damage refused."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import tolerances
from fuzz.checkpoints import AlignedFile
from gguf_files import write_gguf

from fastcore import LLM, TokenClassifier, _kernels
from fastcore._kernels import PackedLinear
from fastcore.checkpoints.folder import PACKED_NAME
from fastcore.checkpoints.open import open_checkpoint
from fastcore.checkpoints.packed import PackedCheckpoint, layout_checksum, read_maps
from fastcore.checkpoints.safetensors import read_header
from fastcore.cli import main
from fastcore.errors import CheckpointError, Error, QualityError, UnsupportedModelError
from fastcore.model.weights import Weights
from fastcore.models import load_model, record_model
from fastcore.models.footprint import plan_model
from fastcore.quantization import gate
from fastcore.quantization.gate import Bounds, Text
from fastcore.quantization.quantize import quantize

IDS = [1, 5, 9, 2, 7, 3, 11, 4, 8, 6]
SHORT = Text("The ferry left the harbour a little after seven, when the fog had thinned.", "a line")
FAMILIES = ("llama", "qwen2", "qwen3", "falcon_h1")


@pytest.fixture(scope="module", autouse=True)
def _time_little() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "PREFILL", 16)
        patch.setattr(gate, "DECODE", 2)
        yield


@pytest.fixture(scope="module")
def packed(tiny_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """packed("llama", "int8") -> a packed folder of a tiny checkpoint, written once; do not change it."""
    root, written = tmp_path_factory.mktemp("packed"), dict[tuple[str, str], Path]()

    def folder(model_type: str, dtype: str) -> Path:
        if (model_type, dtype) not in written:
            out = root / f"{model_type}-{dtype}"
            quantize(tiny_folder(model_type), out, dtype, text=SHORT, num_threads=2, bounds=Bounds(min_agreement=0))
            written[model_type, dtype] = out
        return written[model_type, dtype]

    return folder


# ---------------------------------------------------------------- the same bits


@pytest.mark.parametrize("dtype", ["auto", "f32", "f16", "int8", "int4"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_bits_of_packing_at_load(family: str, dtype: str, tiny_folder: Callable[..., Path], packed: Any) -> None:
    expected = LLM(tiny_folder(family), dtype=dtype, num_threads=1)
    found = LLM(packed(family, dtype), num_threads=2)
    assert np.array_equal(found.logits(IDS), expected.logits(IDS))
    assert found.model.weight_bytes == expected.model.weight_bytes
    assert found.generate("The ferry", max_tokens=4).text == expected.generate("The ferry", max_tokens=4).text


def test_panels_are_read_where_they_are_mapped(packed: Any) -> None:
    with open_checkpoint(packed("llama", "int8")) as checkpoint:
        assert isinstance(checkpoint, PackedCheckpoint)
        begin = np.frombuffer(checkpoint._files[0].buffer(), np.uint8).ctypes.data
        size = checkpoint._files[0].size
        model = load_model(checkpoint)
    maps = {id(each): each for each in model.program.weights if each is not None}.values()
    assert len(maps) == 9  # embedding and head are one; four maps of each layer
    for linear in maps:
        assert begin <= linear.panels.ctypes.data < begin + size
        assert not linear.panels.flags.writeable
        assert linear.panels.ctypes.data % 64 == 0
        with pytest.raises(ValueError, match="only read"):
            linear.pack(np.zeros((1, linear.in_features), np.float32), "f32")


def test_the_file_is_plain_safetensors(packed: Any) -> None:
    with safetensors.safe_open(packed("llama", "int4") / PACKED_NAME, "np") as file:
        metadata = file.metadata()
        assert metadata["format"] == "fastcore-packed"
        maps = json.loads(metadata["maps"])
        q, k, v = (f"model.layers.0.self_attn.{kind}_proj.weight" for kind in "qkv")
        qkv = maps["model.layers.0.self_attn.q_proj.panels"]
        assert qkv == {"dtype": "int8", "in_features": 40, "in_turns": False, "rows": {q: 40, k: 20, v: 20}}
        gate_up = maps["model.layers.1.mlp.gate_proj.panels"]
        assert gate_up["in_turns"]
        assert list(gate_up["rows"].values()) == [72, 72]
        panels = file.get_tensor("model.layers.0.self_attn.q_proj.panels")
        assert panels.shape == (5 * 2 * 544,)
        assert file.get_slice("model.norm.weight").get_shape() == [40]


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_tensors_are_what_their_panels_stand_for(
    dtype: str, tiny_folder: Callable[..., Path], packed: Any, tmp_path: Path
) -> None:
    with open_checkpoint(tiny_folder("llama")) as source, open_checkpoint(packed("llama", dtype)) as checkpoint:
        assert checkpoint.keys() == source.keys()
        for name, tensor in source.items():
            values, found = tensor.f32(), checkpoint[name].f32()
            assert found.shape == values.shape == checkpoint[name].shape
            if len(values.shape) == 1:
                assert np.array_equal(found, values)
                continue
            kind = checkpoint[name].auto_dtype
            linear = PackedLinear(*values.shape, kind)
            linear.pack(values, "f32")
            assert np.array_equal(found, np.stack([linear.row(i) for i in range(len(values))]))
    # another dtype than the stored one is made of these values: what is left is the rounding of activations
    plain = LLM(packed("llama", dtype), dtype="f32", num_threads=1).logits(IDS)
    error = plain - LLM(packed("llama", dtype), num_threads=1).logits(IDS)
    assert np.sqrt(np.square(error).mean()) < tolerances.QUANTISED_LOGITS["int8"] * plain.std()


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_maps_that_are_fused_otherwise_get_the_same_panels(
    dtype: str, tiny_folder: Callable[..., Path], packed: Any
) -> None:
    def plain(folder: Path, dtype: str) -> list[np.ndarray]:
        with open_checkpoint(folder) as checkpoint:
            weights = Weights(checkpoint, dtype, stored=checkpoint.packed)
            model = record_model(checkpoint.config(), weights, fused=False)
        return [each.panels for each in model.program.weights if each is not None]

    expected = plain(tiny_folder("llama"), dtype)
    assert len(expected) == 2 + 7 * 2
    for found, panels in zip(plain(packed("llama", dtype), "auto"), expected, strict=True):
        assert np.array_equal(found, panels)


def test_a_stored_copy_of_the_embedding_is_left_out(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "copy"
    folder.mkdir()
    source = tiny_folder("llama", dtype="f32")
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(source / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}, folder / "model.safetensors")
    quantize(folder, tmp_path / "out", "int8", text=SHORT, num_threads=1)
    assert np.array_equal(
        LLM(tmp_path / "out", num_threads=1).logits(IDS), LLM(source, dtype="int8", num_threads=1).logits(IDS)
    )


@pytest.mark.parametrize("layout", ["pii_masking", "qwen3_token_classification"])
def test_classifiers(layout: str, tiny_folder: Callable[..., Path], packed: Any) -> None:
    expected = TokenClassifier(tiny_folder(layout), dtype="int8", num_threads=1)
    found = TokenClassifier(packed(layout, "int8"), num_threads=2)
    assert np.array_equal(found.logits(IDS)[0], expected.logits(IDS)[0])
    assert found.logits(IDS)[1] == expected.logits(IDS)[1]
    assert found("My name is Ada Quill.") == expected("My name is Ada Quill.")
    card = json.loads((packed(layout, "int8") / "quantization.json").read_text())
    assert 0 < card["figures"]["label_agreement"] <= 1
    assert 0 <= card["figures"]["span_agreement"] <= 1


def test_of_gguf_and_of_packed_folders(tiny_folder: Callable[..., Path], packed: Any, tmp_path: Path) -> None:
    quantize(packed("llama", "auto"), tmp_path / "twice", "int8", text=SHORT, num_threads=1)
    assert np.array_equal(
        LLM(tmp_path / "twice", num_threads=1).logits(IDS), LLM(packed("llama", "int8"), num_threads=1).logits(IDS)
    )
    file = write_gguf(tmp_path / "model.gguf", tiny_folder("llama", dtype="f32"))
    quantize(file, tmp_path / "gguf", "int8", num_threads=1)
    assert np.array_equal(
        LLM(tmp_path / "gguf", num_threads=1).logits(IDS), LLM(file, dtype="int8", num_threads=1).logits(IDS)
    )


def test_info_reads_headers_alone(packed: Any) -> None:
    plan = plan_model(packed("llama", "int4"), 16, 1)
    assert plan.weight_bytes["auto"] == plan.weight_bytes["int4"] == load_model(packed("llama", "int4")).weight_bytes
    assert plan.weight_bytes["bf16"] > plan.weight_bytes["int8"] > plan.weight_bytes["int4"]


# ---------------------------------------------------------------- sharing and memory

CHILD = """
import sys
from fastcore import LLM
llm = LLM(sys.argv[1], num_threads=1)
llm.logits(list(range(40)))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc/PID/smaps")
def test_processes_share_one_copy(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    quantize(tiny_folder("llama", hidden_size=160, intermediate_size=640), folder, "int8", text=SHORT, num_threads=1)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            memory = mapped(child.pid, folder / PACKED_NAME)
            assert memory["Rss"] > 500 << 10
            assert memory["Private_Clean"] + memory["Private_Dirty"] == 0
            assert memory["Pss"] <= 0.6 * memory["Rss"]  # each page counts half: both have it
    finally:
        for child in children:
            child.communicate()


def mapped(pid: int, file: Path) -> dict[str, int]:
    """Bytes of a process's mappings of a file, by what /proc calls them."""
    found: dict[str, int] = {}
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            inside = line.endswith(str(file))
        elif inside and rest and rest[-1] == "kB":
            found[name[:-1]] = found.get(name[:-1], 0) + 1024 * int(rest[0])
    return found


PEAK = """
import resource, sys
from pathlib import Path
from fastcore.checkpoints.open import open_checkpoint
from fastcore.quantization import quantize
quantize.measure_language_model = lambda *arguments: sys.exit(
    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > 22 << 10
)
with open_checkpoint(sys.argv[1]) as checkpoint:
    checkpoint.config()
    checkpoint.tokenizer()
import fastcore.llm
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
quantize.quantize(sys.argv[1], sys.argv[2], "bf16", num_threads=1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB there")
def test_one_map_is_in_memory_at_a_time(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    """44 MB are read and written; the largest map is 8 MB. What is read counts too, until it is let go."""
    folder = tiny_folder("llama", hidden_size=512, intermediate_size=4096, num_hidden_layers=3, head_dim=64)
    assert (folder / "model.safetensors").stat().st_size > 40_000_000
    assert subprocess.run([sys.executable, "-c", PEAK, folder, tmp_path / "out"]).returncode == 0


# ---------------------------------------------------------------- the gate


def test_figures(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    """The figures are those of the definition, computed here from whole logits in double."""
    folder, out = tiny_folder("qwen2"), tmp_path / "out"
    figures = quantize(folder, out, "int4", text=SHORT, num_threads=2)
    source, written = LLM(folder, num_threads=1), LLM(out, num_threads=1)
    ids = source.tokenizer.encode(SHORT.content)
    p, q = (log_softmax(llm.logits(ids).astype(np.float64)) for llm in (source, written))
    kl = (np.exp(p) * (p - q)).sum(-1)
    assert figures.num_tokens == len(ids)
    assert figures.mean_kl == pytest.approx(kl.mean(), rel=1e-4)
    assert figures.p99_kl == pytest.approx(np.quantile(kl, 0.99), rel=1e-4)
    assert figures.top1_agreement == (p.argmax(-1) == q.argmax(-1)).mean()
    assert figures.perplexity == pytest.approx([llm.perplexity(ids) for llm in (source, written)], rel=1e-5)
    assert figures.weight_bytes == (source.model.weight_bytes, written.model.weight_bytes)
    assert figures.decode_rate is not None
    assert min(*figures.prefill_rate, *figures.decode_rate) > 0
    card = json.loads((out / "quantization.json").read_text())
    assert card["figures"]["mean_kl"] == figures.mean_kl
    assert card["packed_sha256"] == hashlib.sha256((out / PACKED_NAME).read_bytes()).hexdigest()
    assert card["files"] == {
        "model.safetensors": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    }
    assert card["maps"]["model.embed_tokens.weight"] == "int8"
    assert f"{figures.mean_kl:.5f}" in (out / "README.md").read_text()
    assert quantize(folder, tmp_path / "auto", "auto", text=SHORT).mean_kl == 0


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_bounds_leave_nothing(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(QualityError, match=r"the mean KL divergence is 0\.\d+, expected at most 1e-09"):
        quantize(tiny_folder("llama"), tmp_path / "out", "int8", text=SHORT, bounds=Bounds(max_kl=1e-9))
    with pytest.raises(QualityError, match=r"of the labels agree, expected at least 200\.0%"):
        quantize(tiny_folder("pii_masking"), tmp_path / "out", "int8", bounds=Bounds(min_agreement=2))
    with pytest.raises(UnsupportedModelError, match="--force"):
        quantize(tiny_folder("pii_masking"), tmp_path / "out", "int4")
    assert os.listdir(tmp_path) == []
    quantize(tiny_folder("pii_masking"), tmp_path / "out", "int4", force=True, bounds=Bounds(min_agreement=0))
    assert os.listdir(tmp_path) == ["out"]


def test_without_a_tokenizer(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    figures = quantize(tiny_folder("llama", tokenizer=False), tmp_path / "out", "int8", num_threads=1)
    assert figures.text == "random token ids"
    assert figures.num_tokens == 512


# ---------------------------------------------------------------- writing


def test_the_command(tiny_folder: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out, text = str(tiny_folder("llama")), str(tmp_path / "out"), tmp_path / "text.txt"
    text.write_text(SHORT.content)
    command = ["quantize", folder, out, "--text", str(text), "--threads", "1"]
    assert main([*command, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["folder"] == out
    assert shown["text"] == "text.txt"
    assert main(command) == 1
    assert "--force replaces it" in capsys.readouterr().err
    before = (tmp_path / "out" / PACKED_NAME).stat().st_ino
    assert main([*command, "--force", "--dtype", "int4"]) == 0
    assert "mean KL divergence" in capsys.readouterr().out
    assert (tmp_path / "out" / PACKED_NAME).stat().st_ino != before
    assert main([*command, "--force", "--max-kl", "1e-9"]) == 1
    assert json.loads((tmp_path / "out" / "quantization.json").read_text())["dtype"] == "int4"
    assert main(["quantize", folder, str(tmp_path), "--force"]) == 1
    assert "no packed folder" in capsys.readouterr().err
    assert main(["quantize", folder, str(tmp_path / "no" / "out")]) == 1
    assert main(["quantize", folder, out, "--dtype", "int3"]) == 1
    assert sorted(os.listdir(tmp_path)) == ["out", "text.txt"]


def test_an_interrupted_write_leaves_nothing_that_loads(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_folder("llama")
    for kind in (signal.SIGINT, signal.SIGKILL):
        command = [sys.executable, "-m", "fastcore", "quantize", folder, tmp_path / "out"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
            assert child.stderr is not None
            child.stderr.readline()  # packing has begun
            child.send_signal(kind)
            child.communicate()
        left = os.listdir(tmp_path)
        assert "out" not in left
        assert len(left) == (kind == signal.SIGKILL)
        for name in left:
            with pytest.raises(Error):
                LLM(tmp_path / name)


def test_a_write_that_fails_leaves_what_was_there(
    tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    quantize(tiny_folder("llama"), out, "int8", text=SHORT, num_threads=1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        quantize(tiny_folder("llama"), out, "int4", text=SHORT, force=True)
    assert os.listdir(tmp_path) == ["out"]
    assert json.loads((out / "quantization.json").read_text())["dtype"] == "int8"


# ---------------------------------------------------------------- damage


def parts(folder: Path) -> tuple[dict[str, Any], bytes]:
    data = (folder / PACKED_NAME).read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def read(header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    metadata, tensors = read_header(AlignedFile(len(text).to_bytes(8, "little") + text + data))
    read_maps(metadata, tensors, "packed.safetensors")


def change(metadata: dict[str, str], name: str, changed: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(metadata[name])
    changed(value)
    metadata[name] = json.dumps(value)


OUT = "model.layers.0.self_attn.o_proj.panels"
UP = "model.layers.0.mlp.gate_proj.panels"


def of_map(name: str, **changes: Any) -> Callable[[dict[str, str]], object]:
    return lambda metadata: change(metadata, "maps", lambda maps: maps[name].update(changes))


def rows(name: str, **changes: int) -> Callable[[dict[str, str]], object]:
    return lambda metadata: change(metadata, "maps", lambda maps: maps[name]["rows"].update(changes))


def maps(changed: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, str]], object]:
    return lambda metadata: change(metadata, "maps", changed)


def layouts(**changes: str) -> Callable[[dict[str, str]], object]:
    return lambda metadata: change(metadata, "layouts", lambda given: given.update(changes))


DAMAGE: dict[str, tuple[Callable[[dict[str, str]], object], str]] = {
    "another version": (lambda m: m.update(version="2"), "version '2' .*, expected '1'.*fastcore quantize"),
    "no version": (lambda m: m.pop("version"), "version None"),
    "no maps": (lambda m: m.pop("maps"), "maps is missing from the header"),
    "maps are no JSON": (lambda m: m.update(maps="{"), "maps is not valid JSON"),
    "another layout": (layouts(int8="00000000"), "int8 panels are laid out as"),
    "an unknown dtype": (of_map(OUT, dtype="int3"), 'o_proj.panels.dtype is "int3"'),
    "another dtype": (of_map(OUT, dtype="f16"), "f16 panels are laid out as None"),
    "other rows": (rows(OUT, x=32), "expected U8 .* for 72 rows"),
    "negative rows": (of_map(OUT, rows={"x": -1}), "numbers of rows from 1"),
    "uneven turns": (rows(UP, x=3), "equal numbers"),
    "other columns": (of_map(OUT, in_features=400), "are U8 .*; expected U8"),
    "no columns": (of_map(OUT, in_features=None), "in_features is missing"),
    "a map less": (maps(lambda given: given.pop(OUT)), "is not described by the header"),
    "a map that is no object": (maps(lambda given: given.update({OUT: 3})), "expected an object"),
    "no such panels": (maps(lambda given: given.update({"a.panels": given[OUT]})), "missing from the file"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_headers(what: str, packed: Any) -> None:
    header, data = parts(packed("llama", "int8"))
    read(header, data)
    damage, message = DAMAGE[what]
    damage(header["__metadata__"])
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        read(header, data)


def test_a_tensor_in_two_maps(packed: Any) -> None:
    header, data = parts(packed("llama", "int8"))
    rows = json.loads(header["__metadata__"]["maps"])[OUT]["rows"]
    other = "model.layers.1.self_attn.o_proj.panels"
    change(header["__metadata__"], "maps", lambda maps: maps[other].update(rows=rows))
    with pytest.raises(CheckpointError, match="is in two maps"):
        read(header, data)


@pytest.mark.parametrize("keep", [0, 7, 100, -1, -100_000])
def test_truncated_files(keep: int, packed: Any, tmp_path: Path) -> None:
    for file in packed("llama", "int8").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    file = tmp_path / PACKED_NAME
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"truncated|too short|empty"):
        LLM(tmp_path)


def test_another_file_of_that_name(packed: Any, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = tiny_folder("llama")
    for file in source.iterdir():
        (tmp_path / file.name.replace("model.safetensors", PACKED_NAME)).write_bytes(file.read_bytes())
    with pytest.raises(CheckpointError, match="is not a packed file"):
        LLM(tmp_path)
    # by whatever name, a packed file is one
    file = tmp_path / "weights"
    file.write_bytes((packed("llama", "int8") / PACKED_NAME).read_bytes())
    assert np.array_equal(LLM(file).logits(IDS), LLM(packed("llama", "int8")).logits(IDS))


def test_a_config_of_another_model(packed: Any, tmp_path: Path) -> None:
    for file in packed("llama", "int8").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))
    with pytest.raises(
        CheckpointError, match=r"gate_proj.weight' has shape \[72, 40\]; the config asks for \[80, 40\]"
    ):
        LLM(tmp_path)


def test_layouts_are_told_apart() -> None:
    checksums = [layout_checksum(dtype) for dtype in _kernels.DTYPES]
    assert len(set(checksums)) == len(checksums)
    assert layout_checksum("int8") == "10f45d0e"
    assert layout_checksum("int4") == "a47b9183"


def test_panels_are_checked_at_the_border() -> None:
    memory = np.zeros(2000, np.uint8)
    aligned = memory[-memory.ctypes.data % 64 :]
    assert PackedLinear(16, 32, "int8", panels=aligned[:544]).nbytes == 544
    with pytest.raises(ValueError, match="expected a multiple of 64"):
        PackedLinear(16, 32, "int8", panels=aligned[2:546])
    for wrong in (aligned[:543], aligned[:1088:2], aligned[:544].view(np.int8), aligned[:544].reshape(2, 272)):
        with pytest.raises(ValueError, match="expected uint8"):
            PackedLinear(16, 32, "int8", panels=wrong)
