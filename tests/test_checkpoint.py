"""Checkpoint files: values come back exactly, and a damaged file is an error that names the fault."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny import from_bf16, make_prompt, tiny_checkpoint, to_bf16, write_safetensors

from fastcore import LLM
from fastcore.checkpoints.dense import DenseTensor
from fastcore.checkpoints.open import open_checkpoint
from fastcore.errors import (
    CheckpointError,
    Error,
    MissingShardError,
    ModelNotFoundError,
    UnsupportedModelError,
)


def raw(header: object, data: bytes = b"", pad: int = 8) -> bytes:
    """A file with this header, given as bytes or as something to write as JSON, and this data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % pad)
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


# ---------------------------------------------------------------- values


def test_each_dtype_gives_the_stored_values(weights: Path) -> None:
    rng = np.random.default_rng(0)
    f32 = rng.standard_normal((3, 5)).astype(np.float32)
    stored: dict[str, np.ndarray] = {"f32": f32, "f16": f32.astype(np.float16), "bf16": to_bf16(f32), "bool": f32 > 0}
    write_safetensors(weights, stored)
    with open_checkpoint(weights) as tensors:
        assert [(t.name, t.dtype, t.shape, t.nbytes) for t in tensors.values()] == [
            ("f32", "F32", (3, 5), 60),
            ("f16", "F16", (3, 5), 30),
            ("bf16", "BF16", (3, 5), 30),
            ("bool", "BOOL", (3, 5), 15),
        ]
        for name, value in stored.items():
            assert tensors[name].array.dtype == value.dtype
            assert np.array_equal(tensors[name].array, value)
        assert np.array_equal(tensors["f32"].f32(), f32)
        assert np.array_equal(tensors["f16"].f32(), f32.astype(np.float16).astype(np.float32))
        assert np.array_equal(tensors["bf16"].f32(), from_bf16(to_bf16(f32)))
        assert all(tensors[name].f32().dtype == np.float32 for name in ("f32", "f16", "bf16"))
        assert tensors.nbytes == 135
        assert tensors.paths == (weights,)


def test_bf16_to_f32_keeps_every_bit_pattern(weights: Path) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    write_safetensors(weights, {"all": bits})
    with open_checkpoint(weights) as tensors:
        assert np.array_equal(tensors["all"].f32().view(np.uint32), bits.astype(np.uint32) << 16)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("I64", np.array([-(2**63), 5], np.int64)),
        ("U8", np.array([0, 255], np.uint8)),
        ("F64", np.array([np.pi, -1.5])),
        ("I32", np.array([-7, 7], np.int32)),
    ],
)
def test_other_dtypes_are_readable(weights: Path, dtype: str, values: np.ndarray) -> None:
    weights.write_bytes(raw({"x": entry(dtype, [2], 0, values.nbytes)}, values.tobytes()))
    with open_checkpoint(weights) as tensors:
        assert np.array_equal(tensors["x"].array, values)
        if dtype == "F64":
            assert np.array_equal(tensors["x"].f32(), values.astype(np.float32))
        else:
            with pytest.raises(CheckpointError, match=f"'x' holds {dtype}"):
                tensors["x"].f32()


def test_arrays_are_read_only_views(weights: Path) -> None:
    write_safetensors(weights, {"x": np.arange(4, dtype=np.float32)})
    with open_checkpoint(weights) as tensors:
        array = tensors["x"].array
        assert np.shares_memory(array, tensors["x"].array)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        tensors["x"].f32()[0] = 1  # a copy
        assert array[0] == 0


def test_unaligned_tensors_are_read(weights: Path) -> None:
    values = np.array([1.5, -2.25], np.float32)
    for shift in range(1, 5):
        header = {"pad": entry("U8", [shift], 0, shift), "x": entry("F32", [2], shift, shift + 8)}
        weights.write_bytes(raw(header, bytes(shift) + values.tobytes()))
        with open_checkpoint(weights) as tensors:
            assert tensors["x"].array.flags.aligned
            assert np.array_equal(tensors["x"].array, values)
            assert np.array_equal(tensors["x"].f32(), values)


@pytest.mark.case("L08")
def test_zero_length_tensors_and_scalars(weights: Path) -> None:
    weights.write_bytes(
        raw(
            {"none": entry("F32", [0], 0, 0), "no_rows": entry("F16", [0, 4], 0, 0), "one": entry("F32", [], 0, 4)},
            np.float32(2.5).tobytes(),
        )
    )
    with open_checkpoint(weights) as tensors:
        assert tensors["none"].array.shape == tensors["none"].f32().shape == (0,)
        assert tensors["no_rows"].array.shape == (0, 4)
        assert tensors["one"].shape == ()
        assert tensors["one"].array.shape == tensors["one"].f32().shape == ()
        assert tensors["one"].f32() == 2.5
        tensors["none"].release()


@pytest.mark.case("L08")
def test_a_shape_that_needs_bytes_with_an_empty_range_is_refused(weights: Path) -> None:
    weights.write_bytes(raw({"one": entry("F32", [1], 0, 0)}))
    with pytest.raises(CheckpointError, match=r"'one'.*hold 0 bytes, expected 4"):
        open_checkpoint(weights)


def test_a_file_without_tensors_is_empty(weights: Path) -> None:
    weights.write_bytes(raw({"__metadata__": {"format": "pt"}}))
    with open_checkpoint(weights) as tensors:
        assert dict(tensors) == {}


def test_bool_bytes_other_than_0_and_1_are_refused(weights: Path) -> None:
    weights.write_bytes(raw({"mask": entry("BOOL", [3], 0, 3)}, b"\0\1\2"))
    with open_checkpoint(weights) as tensors, pytest.raises(CheckpointError, match=r"'mask': BOOL byte 2"):
        _ = tensors["mask"].array


def test_files_written_by_safetensors_are_read(weights: Path) -> None:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(1)
    stored: dict[str, np.ndarray] = {
        "b": rng.standard_normal((7, 3)).astype(np.float16),
        "a": rng.standard_normal(5).astype(np.float32),
        "empty": np.zeros((0, 2), np.float32),
        "mask": np.array([[True, False]]),
    }
    save_file(stored, weights, metadata={"format": "pt"})
    with open_checkpoint(weights) as tensors:
        assert tensors.keys() == stored.keys()
        for name, value in stored.items():
            assert np.array_equal(tensors[name].array, value)


def test_tensors_of_arrays_in_memory() -> None:
    bits = to_bf16(np.array([[1.0, -2.5]], np.float32))
    assert DenseTensor.from_array("x", bits, "BF16").f32().tolist() == [[1.0, -2.5]]
    assert DenseTensor.from_array("x", bits).dtype == "U16"
    columns = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert np.array_equal(DenseTensor.from_array("x", columns).array, columns)
    assert np.array_equal(DenseTensor.from_array("x", columns.astype(">f4")).array, columns)
    scalar = DenseTensor.from_array("x", np.array(1.5, np.float16))
    assert (scalar.shape, scalar.dtype, scalar.f32()) == ((), "F16", 1.5)
    with pytest.raises(TypeError, match="BF16 does not go with an array of float32"):
        DenseTensor.from_array("x", columns, "BF16")
    with pytest.raises(TypeError, match="complex64"):
        DenseTensor.from_array("x", np.zeros(1, np.complex64))
    assert scalar.nbytes == 2


# ---------------------------------------------------------------- life of the mapping


def test_release_keeps_values_and_lets_pages_go(weights: Path) -> None:
    values = np.arange(2**22, dtype=np.float32)
    write_safetensors(weights, {"head": values[:3], "x": values, "tail": values[:5]})
    with open_checkpoint(weights) as tensors:
        view = tensors["x"].array
        assert np.array_equal(view, values)
        before = resident_bytes()
        tensors["x"].release()
        if before is not None:
            assert before - resident_bytes() > 0.9 * values.nbytes
        assert np.array_equal(view, values)
        for name in ("head", "tail"):  # smaller than a page: nothing to let go
            tensors[name].release()
            assert np.array_equal(tensors[name].array, values[: tensors[name].shape[0]])


def resident_bytes() -> Any:
    """Resident bytes of this process, None where /proc does not tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") if statm.exists() else None


def test_arrays_outlive_the_checkpoint_and_closed_tensors_say_so(weights: Path) -> None:
    values = np.arange(1000, dtype=np.float32)
    write_safetensors(weights, {"x": values})
    tensors = open_checkpoint(weights)
    tensor = tensors["x"]
    view = tensor.array
    tensors.close()
    tensors.close()
    assert np.array_equal(view, values)
    with pytest.raises(CheckpointError, match="is closed"):
        _ = tensor.array
    tensor.release()


@pytest.mark.case("X2")
def test_a_read_only_folder_is_enough_and_nothing_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", {"x": np.ones(3, np.float32)})
    (folder / "model.safetensors").chmod(0o444)
    folder.chmod(0o555)
    before = [(p.name, p.stat().st_mtime_ns, p.stat().st_size) for p in folder.iterdir()]
    try:
        with open_checkpoint(folder) as tensors:
            assert tensors["x"].f32().tolist() == [1, 1, 1]
        assert [(p.name, p.stat().st_mtime_ns, p.stat().st_size) for p in folder.iterdir()] == before
    finally:
        folder.chmod(0o755)


# ---------------------------------------------------------------- damaged files


@pytest.mark.case("L04")
def test_a_repeated_tensor_name_is_refused(weights: Path) -> None:
    first, second = json.dumps(entry("F32", [1], 0, 4)), json.dumps(entry("F32", [1], 4, 8))
    weights.write_bytes(raw(f'{{"a":{first},"a":{second}}}'.encode(), bytes(8)))
    with pytest.raises(CheckpointError, match="duplicate key 'a'"):
        open_checkpoint(weights)


@pytest.mark.case("L04")
def test_a_repeated_key_inside_a_tensor_is_refused(weights: Path) -> None:
    weights.write_bytes(raw(b'{"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}}', bytes(4)))
    with pytest.raises(CheckpointError, match="duplicate key 'shape'"):
        open_checkpoint(weights)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "0 bytes, too short"),
    "seven bytes": (bytes(7), "7 bytes, too short"),
    "header length 2^63": ((2**63).to_bytes(8, "little") + b"{}", "header length 9223372036854775808"),
    "header longer than the file": ((100).to_bytes(8, "little") + b"{}", "header length 100, expected 1 to 2"),
    "header of nothing": ((0).to_bytes(8, "little") + b"{}", "header length 0"),
    "not JSON": (raw(b"not json"), "not valid JSON"),
    "not UTF-8": (raw(b'{"\xff":1}'), "not valid JSON in UTF-8"),
    "UTF-16": (raw("{}".encode("utf-16-le")), "not valid JSON"),
    "a list": (raw([1]), "JSON list, expected an object"),
    "nested too deep": (raw(b"[" * 100_000), "not valid JSON"),
    "a number of many digits": (raw(b'{"a":' + b"9" * 5000 + b"}"), "header"),
    "metadata of numbers": (raw({"__metadata__": {"a": 1}}), "__metadata__"),
    "tensor that is a number": (raw({"a": 1}), "'a': expected an object"),
    "tensor without a shape": (raw({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4)), "'a'.*shape"),
    "offsets reversed": (raw({"a": entry("F32", [1], 8, 4)}, bytes(8)), "hold -4 bytes, expected 4"),
    "offsets past the end": (raw({"a": entry("F32", [10**12 // 4], 0, 10**12)}, bytes(8)), "ends at byte 10+ of 8"),
    "offsets negative": (raw({"a": entry("F32", [1], -4, 0)}, bytes(8)), r"data_offsets \[-4, 0\]"),
    "offsets that are floats": (raw({"a": entry("F32", [1], 0.0, 4.0)}, bytes(4)), "data_offsets"),
    "offsets that are booleans": (raw({"a": entry("U8", [1], False, True)}, bytes(1)), "data_offsets"),
    "three offsets": (raw({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, bytes(2)), "data_off"),
    "shape negative": (raw({"a": entry("F32", [-1, -1], 0, 4)}, bytes(4)), r"shape \[-1, -1\]"),
    "shape of a string": (raw({"a": entry("F32", ["1"], 0, 4)}, bytes(4)), "shape"),
    "shape that overflows": (raw({"a": entry("F32", [2**62, 4], 0, 4)}, bytes(4)), "'a'.*larger than any memory"),
    "shape that overflows beside a 0": (raw({"a": entry("F32", [0, 2**62, 4], 0, 0)}), "larger than any memory"),
    "rank 9": (raw({"a": entry("F32", [1] * 9, 0, 4)}, bytes(4)), "at most 8"),
    "shape larger than the range": (raw({"a": entry("F32", [2], 0, 4)}, bytes(4)), "hold 4 bytes, expected 8"),
    "overlap": (
        raw({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(12)),
        "'b' overlaps 'a': begins at 4, expected 8",
    ),
    "hole": (
        raw({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, bytes(12)),
        "'b' leaves a hole after 'a': begins at 8, expected 4",
    ),
    "hole at the start": (raw({"a": entry("F32", [1], 4, 8)}, bytes(8)), "hole after the header"),
    "bytes after the last tensor": (raw({"a": entry("F32", [1], 0, 4)}, bytes(6)), "2 bytes follow 'a'"),
    "truncated": (raw({"a": entry("F32", [4], 0, 16)}, bytes(9)), "ends at byte 16 of 9"),
}


@pytest.mark.case("L05")
@pytest.mark.parametrize("fault", HOSTILE)
def test_a_damaged_file_is_refused(weights: Path, fault: str) -> None:
    content, message = HOSTILE[fault]
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(weights)


@pytest.mark.case("L05")
def test_hostile_headers_allocate_nothing(tmp_path: Path) -> None:
    """All of them in one child process, whose resident memory must not grow with the numbers they claim."""
    paths = []
    for i, fault in enumerate(HOSTILE):
        if fault != "nested too deep":  # 100 kB of its own
            paths.append(tmp_path / f"{i}.safetensors")
            paths[-1].write_bytes(HOSTILE[fault][0])
    code = """
import resource, sys
from fastcore.checkpoints.open import open_checkpoint
from fastcore.errors import CheckpointError
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
for path in sys.argv[1:]:
    try:
        open_checkpoint(path)
    except CheckpointError:
        continue
    sys.exit(f"{path} was opened")
kilobytes = (peak() - before) // (1024 if sys.platform == "darwin" else 1)
sys.exit(f"grew by {kilobytes} kB" if kilobytes > 8192 else 0)
"""
    pytest.importorskip("resource")
    child = subprocess.run([sys.executable, "-c", code, *map(str, paths)], check=False, capture_output=True, text=True)
    assert (child.returncode, child.stderr) == (0, "")


@pytest.mark.case("X3")
@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "C64", "Q4"])
def test_an_unknown_dtype_is_refused_with_the_tensor(weights: Path, dtype: str) -> None:
    weights.write_bytes(raw({"ok": entry("F32", [1], 0, 4), "odd one": entry(dtype, [4], 4, 8)}, bytes(8)))
    with pytest.raises(UnsupportedModelError, match=f"tensor 'odd one': unsupported dtype '{dtype}'"):
        open_checkpoint(weights)


def test_what_is_not_a_checkpoint_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"no model.safetensors.*found: nothing"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"found: pytorch_model.bin; save the model as safetensors"):
        open_checkpoint(tmp_path)
    (tmp_path / "x.bin").write_bytes(b"GGUF" + bytes(20))  # its first bytes say what it is
    with pytest.raises(UnsupportedModelError, match=r"x\.bin: GGUF version 0"):
        open_checkpoint(tmp_path / "x.bin")
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_checkpoint(tmp_path / "pipe.safetensors")


# ---------------------------------------------------------------- shards


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Three shards of one tensor each, a, b, c, and their index."""
    for i, name in enumerate("abc"):
        write_safetensors(tmp_path / f"model-{i + 1}.safetensors", {name: np.full(2, i, np.float32)})
    write_index(tmp_path, {name: f"model-{i + 1}.safetensors" for i, name in enumerate("abc")})
    return tmp_path


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_shards_are_one_checkpoint(sharded: Path) -> None:
    with open_checkpoint(sharded) as tensors:
        assert {name: tensor.f32().tolist() for name, tensor in tensors.items()} == {
            "a": [0, 0],
            "b": [1, 1],
            "c": [2, 2],
        }
        assert [path.name for path in tensors.paths] == [f"model-{i}.safetensors" for i in (1, 2, 3)]
    with open_checkpoint(sharded / "model.safetensors.index.json") as tensors:
        assert set(tensors) == set("abc")


@pytest.mark.case("L09")
def test_every_missing_shard_is_listed_before_weights_are_read(sharded: Path) -> None:
    (sharded / "model-1.safetensors").write_bytes(b"damaged")
    (sharded / "model-2.safetensors").unlink()
    (sharded / "model-3.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"missing: model-2.safetensors, model-3.safetensors;") as caught:
        open_checkpoint(sharded)
    assert isinstance(caught.value, MissingShardError)
    assert isinstance(caught.value, Error)


@pytest.mark.case("L09")
def test_a_tensor_that_its_shard_lacks_is_named_with_the_shard(sharded: Path) -> None:
    shards = {name: f"model-{i + 1}.safetensors" for i, name in enumerate("abc")}
    write_index(sharded, shards | {"d": "model-2.safetensors"})
    with pytest.raises(CheckpointError, match=r"'d' should be in model-2.safetensors, but no shard has it"):
        open_checkpoint(sharded)
    write_index(sharded, shards | {"a": "model-2.safetensors", "b": "model-1.safetensors"})
    with pytest.raises(
        CheckpointError, match=r"'a' should be in model-2.safetensors, but it is in model-1.safetensors"
    ):
        open_checkpoint(sharded)


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    write_safetensors(sharded / "model-2.safetensors", {"a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)})
    with pytest.raises(CheckpointError, match=r"'a' is in both model-1.safetensors and model-2.safetensors"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("shard", ["../other.safetensors", "/etc/passwd", "a\\b", "", "..", 3, None])
def test_a_shard_outside_the_folder_is_refused(sharded: Path, shard: object) -> None:
    write_index(sharded, {"a": shard})
    with pytest.raises(CheckpointError, match=r"tensor 'a' is in .*expected a file name"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": {}}', '{"weight_map": ["a"]}', "[]", "{"])
def test_an_index_without_a_map_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"index.json"):
        open_checkpoint(tmp_path)


@pytest.mark.case("L04")
def test_a_repeated_name_in_the_index_is_refused(sharded: Path) -> None:
    text = '{"weight_map": {"a": "model-1.safetensors", "a": "model-2.safetensors"}}'
    (sharded / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="duplicate key 'a'"):
        open_checkpoint(sharded)


def test_a_single_file_comes_before_an_index(sharded: Path) -> None:
    whole = {name: np.ones(1, np.float32) for name in "abc"}
    write_safetensors(sharded / "model.safetensors", whole)
    with open_checkpoint(sharded) as tensors:
        assert [path.name for path in tensors.paths] == ["model.safetensors"]


@pytest.mark.fault("E4")
def test_a_stray_file_beside_a_complete_index_is_explained(sharded: Path) -> None:
    """What is left of another download is not taken for the model, and not for a damaged model either."""
    single, index = sharded / "model.safetensors", sharded / "model.safetensors.index.json"
    explained = r"index\.json are beside it: remove model\.safetensors"
    write_safetensors(single, {"a": np.zeros(2, np.float32)})
    with pytest.raises(CheckpointError, match=rf"lacks 2 of the 3 tensors .*'b'.*{explained}"):
        open_checkpoint(sharded)
    for damaged in (b"", single.read_bytes()[:-1], b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"):
        single.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=explained):
            open_checkpoint(sharded)
    with open_checkpoint(index) as tensors:
        assert set(tensors) == set("abc")
    (sharded / "model-2.safetensors").unlink()  # an index that is not complete explains nothing
    with pytest.raises(CheckpointError, match="Git LFS pointer") as caught:
        open_checkpoint(sharded)
    assert "index" not in str(caught.value)


# ---------------------------------------------------------------- checkpoints as users have them


@pytest.mark.fault("E2")
@pytest.mark.parametrize("model_type", ["qwen3", "llama", "falcon_h1"])
@pytest.mark.parametrize("shards", [1, 2])
def test_names_without_the_models_prefix_are_the_same_model(tmp_path: Path, model_type: str, shards: int) -> None:
    """As a model saved without its head (Qwen3-Embedding) names them; a head beside them keeps its name."""
    folder = tiny_checkpoint(tmp_path / "m", model_type, dtype="f32")
    twin = tiny_checkpoint(tmp_path / "twin", model_type, dtype="f32")
    stored = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): value for name, value in stored.items()}
    assert not any(name.startswith("model.") for name in bare)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", bare)
    else:
        (folder / "model.safetensors").unlink()
        names = sorted(bare)
        parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
        for file, part in parts.items():
            write_safetensors(folder / file, {name: bare[name] for name in part})
        write_index(folder, {name: file for file, part in parts.items() for name in part})
    with open_checkpoint(folder) as tensors:
        assert set(tensors) == set(stored)
        assert all(np.array_equal(tensors[name].f32(), value) for name, value in stored.items())
    ids = make_prompt(9)
    assert np.array_equal(LLM(folder).logits(ids), LLM(twin).logits(ids))


@pytest.mark.fault("E2")
def test_a_prefix_is_added_to_all_names_or_to_none(weights: Path) -> None:
    write_safetensors(weights, {"embed_tokens.weight": np.ones(1, np.float32), "model.x": np.ones(1, np.float32)})
    with open_checkpoint(weights) as tensors:
        assert set(tensors) == {"embed_tokens.weight", "model.x"}
    names = ("embed_tokens.weight", "layers.0.x", "norm.weight", "lm_head.weight", "score.weight")
    write_safetensors(weights, {name: np.ones(1, np.float32) for name in names})
    with open_checkpoint(weights) as tensors:
        assert list(tensors) == [*(f"model.{name}" for name in names[:3]), *names[3:]]
        assert tensors["model.norm.weight"].name == "norm.weight"  # as the file spells it


@pytest.mark.fault("E2")
def test_every_path_that_python_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_checkpoint(tmp_path / "odd é.gguf", "llama", dtype="f32", shards=2)  # the name says nothing
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    index = folder / "model.safetensors.index.json"
    link = tmp_path / "link"
    link.symlink_to(folder, target_is_directory=True)
    single = tiny_checkpoint(tmp_path / "single", "llama", dtype="f32") / "model.safetensors"
    renamed = single.with_name("no suffix at all")
    single.rename(renamed)
    ids = make_prompt(5)
    expected = LLM(folder).logits(ids)
    for path in (
        str(folder), os.fsencode(folder), "odd é.gguf", "~/odd é.gguf", b"~/odd \xc3\xa9.gguf", index, str(index),
        os.fsencode(index), link, f"{link}/", "./link/../odd é.gguf", renamed, os.fsencode(renamed),
    ):  # fmt: skip
        assert np.array_equal(LLM(path).logits(ids), expected), path
    with open_checkpoint(os.fsencode(renamed)) as checkpoint:
        assert checkpoint.config().model_type == "llama"
        assert checkpoint.tokenizer() is not None


@pytest.mark.fault("C9")
def test_a_path_that_cannot_be_looked_at_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("x" * 5000, "a\0b", b"\xff\xfe", tmp_path / "file" / "below", "~nobody-of-this-name/x"):
        (tmp_path / "file").touch()
        with pytest.raises((ModelNotFoundError, CheckpointError)):
            open_checkpoint(path)
        with pytest.raises((ModelNotFoundError, CheckpointError)):
            LLM(path)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises((ModelNotFoundError, CheckpointError)):
        open_checkpoint(loop)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("os.listdir", "os.scandir", "pathlib.Path.iterdir"):
        monkeypatch.setattr(name, refuse)
    with pytest.raises(CheckpointError, match="Permission denied"):
        open_checkpoint(tmp_path)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 988097824\n"


@pytest.mark.fault("E4")
@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_git_lfs_pointer_is_named_as_such(tmp_path: Path, name: str) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "qwen2")
    (folder / name).write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=rf"{name} is a Git LFS pointer, not the file itself; run `git lfs pull`"):
        LLM(folder).generate("a", max_tokens=1)


@pytest.mark.fault("E4")
def test_a_pointer_in_place_of_any_weights_file_is_named(tmp_path: Path, sharded: Path) -> None:
    (sharded / "model-2.safetensors").write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=r"model-2\.safetensors is a Git LFS pointer"):
        open_checkpoint(sharded)
    for name in ("x.gguf", "x.fh1w", "model.safetensors.index.json"):
        (sharded / name).write_bytes(POINTER)
        with pytest.raises(CheckpointError, match=rf"{name} is a Git LFS pointer"):
            open_checkpoint(sharded / name)


@pytest.mark.fault("E4")
def test_a_lora_adapter_is_mentioned(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "qwen2")
    write_safetensors(folder / "adapter_model.safetensors", {"base_model.x.lora_A.weight": np.ones(1, np.float32)})
    with pytest.warns(UserWarning, match="holds a LoRA adapter beside the model's own weights; the adapter is not app"):
        LLM(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"it holds a LoRA adapter only: merge it into its base model"):
        LLM(folder)


@pytest.mark.fault("C8")
def test_a_header_of_repeated_keys_is_refused_in_linear_time(weights: Path) -> None:
    text = ",".join(f'"{i % 10_000}":0' for i in range(20_000))
    weights.write_bytes(raw(f"{{{text}}}".encode()))
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match=r"duplicate key '0', '1', .* and 9992 more"):
        open_checkpoint(weights)
    assert time.perf_counter() - start < 5


@pytest.mark.fault("C9")
@pytest.mark.parametrize("number", [10**30, 10**400, 1e39, 1e308, -(10**400)])
def test_a_header_number_of_any_size_is_a_typed_error(weights: Path, number: Any) -> None:
    for broken in (
        entry("F32", [number], 0, 4),
        entry("F32", [0, number], 0, 0),
        entry("F32", [1], number, number),
        entry("F32", [1], 0, number),
        {"dtype": number, "shape": [1], "data_offsets": [0, 4]},
    ):
        weights.write_bytes(raw({"a": broken}, bytes(4)))
        with pytest.raises((CheckpointError, UnsupportedModelError), match="tensor 'a'"):
            open_checkpoint(weights)


# ---------------------------------------------------------------- without a tokenizer


@pytest.mark.fault("E1")
@pytest.mark.parametrize("model_type", ["qwen2", "falcon_h1"])
def test_token_ids_need_no_tokenizer(tmp_path: Path, model_type: str) -> None:
    bare = LLM(tiny_checkpoint(tmp_path / "bare", model_type, tokenizer=False))
    whole = LLM(tiny_checkpoint(tmp_path / "whole", model_type))
    ids = make_prompt(7)
    assert np.array_equal(bare.logits(ids), whole.logits(ids))
    found, expected = (llm.generate(ids, max_tokens=5, logprobs=2) for llm in (bare, whole))
    assert found.token_ids == expected.token_ids
    assert found.logprobs == expected.logprobs
    streamed = [token for chunk in bare.stream(ids, max_tokens=5) for token in chunk.token_ids]
    assert streamed == found.token_ids
    assert bare.loglikelihood(ids[:3], ids[3:]) == whole.loglikelihood(ids[:3], ids[3:])


@pytest.mark.fault("E1")
def test_asking_for_text_says_what_is_missing(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "qwen2", tokenizer=False)
    llm = LLM(folder)
    for ask in (
        lambda: llm.tokenizer,
        lambda: llm.generate("text", max_tokens=1),
        lambda: llm.generate([[1, 2], "text"], max_tokens=1),
        lambda: llm.generate([1, 2], max_tokens=1, stop="x"),
        lambda: list(llm.stream("text")),
        lambda: llm.chat([{"role": "user", "content": "a"}]),
        lambda: llm.logits("text"),
        lambda: llm.loglikelihood("a", "b"),
        lambda: llm.perplexity("text"),
    ):
        with pytest.raises(CheckpointError, match=r"has no tokenizer, so it takes token ids only.*tokenizer\.json"):
            ask()
    assert len(llm.generate([1, 2], max_tokens=1).token_ids) == 1  # it goes on
