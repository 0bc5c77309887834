"""GPTQ, AWQ and compressed-tensors folders give the numbers that their integers and scales stand for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tolerances
from safetensors.numpy import load_file, save_file
from tiny import make_prompt, tiny_checkpoint

from fastcore import LLM
from fastcore.checkpoints.open import open_checkpoint
from fastcore.errors import CheckpointError, UnsupportedModelError
from fastcore.model.weights import LinearMap, Weights

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
Q_PROJ = "model.layers.0.self_attn.q_proj"
Map = tuple[dict[str, np.ndarray], np.ndarray]  # the parts that are stored, and the weight [out, in] they stand for


def words(values: np.ndarray, bits: int) -> np.ndarray:
    """[rows, columns] of unsigned integers -> int32 [rows, columns * bits / 32], bit by bit, the first lowest."""
    rows, columns = values.shape
    packed = np.zeros((rows, -(-columns * bits // 32)), np.uint32)
    for column in range(columns):
        packed[:, column * bits // 32] |= values[:, column].astype(np.uint32) << np.uint32(column * bits % 32)
    return packed.view(np.int32)


class Quantizer:
    """Random integers, zeros and scales for each map, and the weights they stand for, in f64."""

    def __init__(self, bits: int, group_size: int, seed: int = 0) -> None:
        self.bits, self.group_size = bits, group_size
        self.rng = np.random.default_rng(seed)

    def draw(self, out: int, inputs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q [out, in], zero [out, groups], scale f16 [out, groups]."""
        groups = 1 if self.group_size == -1 else -(-inputs // self.group_size)
        q = self.rng.integers(0, 2**self.bits, (out, inputs))
        zero = self.rng.integers(1, 2**self.bits, (out, groups))
        scale = (self.rng.uniform(0.5, 2, (out, groups)) / 2**self.bits / 8).astype(np.float16)
        return q, zero, scale

    def group(self, inputs: int, order: str = "plain") -> np.ndarray:
        group = np.arange(inputs) // (inputs if self.group_size == -1 else self.group_size)
        return self.rng.permutation(group) if order == "act" else group


def gptq(quantizer: Quantizer, out: int, inputs: int, version: str, order: str) -> Map:
    q, zero, scale = quantizer.draw(out, inputs)
    group = quantizer.group(inputs, order)
    stored = zero - 1 if version == "gptq" else zero
    parts = {
        "qweight": np.ascontiguousarray(words(q, quantizer.bits).T),
        "qzeros": words(stored.T, quantizer.bits),
        "scales": np.ascontiguousarray(scale.T),
    }
    if order != "absent":
        parts["g_idx"] = group.astype(np.int32)
    return parts, scale.astype(np.float64)[:, group] * (q - zero[:, group])


def awq(quantizer: Quantizer, out: int, inputs: int) -> Map:
    q, zero, scale = quantizer.draw(out, inputs)
    group = quantizer.group(inputs)

    def shuffled(values: np.ndarray) -> np.ndarray:  # nibble n of a word holds column 0 2 4 6 1 3 5 7 [n]
        return np.concatenate([values[:, at + np.array([0, 2, 4, 6, 1, 3, 5, 7])] for at in range(0, out, 8)], axis=1)

    parts = {
        "qweight": words(shuffled(q.T), 4),
        "qzeros": words(shuffled(zero.T), 4),
        "scales": np.ascontiguousarray(scale.T),
    }
    return parts, scale.astype(np.float64)[:, group] * (q - zero[:, group])


def packed(quantizer: Quantizer, out: int, inputs: int, symmetric: bool, order: str) -> Map:
    q, zero, scale = quantizer.draw(out, inputs)
    group = quantizer.group(inputs, order)
    parts = {
        "weight_packed": words(q, quantizer.bits),
        "weight_scale": scale,
        "weight_shape": np.array([out, inputs], np.int64),
    }
    if symmetric:
        zero[:] = 2 ** (quantizer.bits - 1)
    else:
        parts["weight_zero_point"] = np.ascontiguousarray(words(zero.T, quantizer.bits).T)
    if order != "absent":
        parts["weight_g_idx"] = group.astype(np.int32)
    return parts, scale.astype(np.float64)[:, group] * (q - zero[:, group])


def int8(quantizer: Quantizer, out: int, inputs: int, symmetric: bool) -> Map:
    q, zero, scale = quantizer.draw(out, inputs)
    group, zero = quantizer.group(inputs), zero * (not symmetric)
    parts = {"weight": (q - 128).astype(np.int8), "weight_scale": scale}
    if not symmetric:
        parts["weight_zero_point"] = (zero - 128).astype(np.int8)
    return parts, scale.astype(np.float64)[:, group] * (q - 128 - (zero - 128 if not symmetric else zero)[:, group])


def compressed(form: str, bits: int, group_size: int, symmetric: bool) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False, "actorder": None}
    weights |= {"strategy": "channel", "group_size": None}
    weights |= {} if group_size == -1 else {"strategy": "group", "group_size": group_size}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


def folder_of(folder: Path, settings: dict[str, Any], quantize: Callable[[int, int], Map]) -> dict[str, np.ndarray]:
    """Quantise every linear map of a tiny model but its head in place; the weights that the maps stand for."""
    tiny_checkpoint(folder, "qwen2", dtype="f32", **SIZES)
    stored, weights = {}, {}
    for name, value in load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            stored[name] = value
            continue
        parts, weights[name] = quantize(*value.shape)
        stored |= {name.removesuffix("weight") + part: array for part, array in parts.items()}
    save_file(stored, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return weights


def check(folder: Path, weights: dict[str, np.ndarray], twin: Path) -> set[str]:
    """Each map is its f64 weight rounded once to f32, packed too unless as bf16, and the model computes what the
    dequantised folder does. Returns what the maps are packed as."""
    dtypes = set()
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.config().unrecognised == ()
        for name, weight in weights.items():
            tensor = checkpoint[name]
            assert tensor.shape == weight.shape
            assert np.array_equal(tensor.f32(), weight.astype(np.float32)), name
            dtypes.add(tensor.auto_dtype)
            if tensor.auto_dtype != "bf16":
                packed = Weights({}).pack(LinearMap((tensor,)))
                assert packed.dtype == tensor.auto_dtype
                assert np.array_equal(np.stack([packed.row(i) for i in range(len(weight))]), weight), name
        values = {name: tensor.f32() for name, tensor in checkpoint.items()}
    tiny_checkpoint(twin, "qwen2", dtype="f32", **SIZES)
    save_file(values, twin / "model.safetensors")
    ids = make_prompt(11)
    for dtype in ("f32", "bf16"):
        assert np.array_equal(LLM(folder, dtype=dtype).logits(ids), LLM(twin, dtype=dtype).logits(ids))
    found = LLM(folder).logits(ids)
    assert np.array_equal(LLM(folder, num_threads=2).logits(ids), found)
    error = np.sqrt(np.square(found - LLM(twin).logits(ids)).mean()) / found.std()
    assert error < tolerances.QUANTISED_LOGITS["int8"]  # of what the rows, not the weights, are rounded to
    return dtypes


@pytest.mark.parametrize("group_size", [32, -1])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("order", ["plain", "act", "absent"])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_gptq(tmp_path: Path, version: str, order: str, bits: int, group_size: int) -> None:
    quantizer = Quantizer(bits, group_size)
    settings = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "desc_act": order == "act",
        "sym": False,
    }
    settings |= {} if version == "gptq" else {"checkpoint_format": version}
    weights = folder_of(tmp_path / "m", settings, lambda *shape: gptq(quantizer, *shape, version, order))
    exact = bits == 4 and (order != "act" or group_size == -1)
    assert check(tmp_path / "m", weights, tmp_path / "twin") == {"int8" if exact else "bf16"}


def test_gptq_zeros_wrap_as_they_are_stored_less_one(tmp_path: Path) -> None:
    """A stored 15 means 0 in the first form: 15 + 1 keeps its low four bits."""
    quantizer = Quantizer(4, 32)
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    folder_of(tmp_path / "m", settings, lambda *shape: gptq(quantizer, *shape, "gptq", "absent"))
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    tensors[f"{Q_PROJ}.qzeros"][:] = -1
    tensors[f"{Q_PROJ}.qweight"][:] = 0x22222222
    tensors[f"{Q_PROJ}.scales"][:] = 0.5
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    with open_checkpoint(tmp_path / "m") as checkpoint:
        assert (checkpoint[f"{Q_PROJ}.weight"].f32() == 1.0).all()


@pytest.mark.parametrize("group_size", [16, 32, -1])
def test_awq(tmp_path: Path, group_size: int) -> None:
    quantizer = Quantizer(4, group_size if group_size != 64 else 32)
    settings = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": quantizer.group_size,
        "version": "gemm",
        "zero_point": True,
    }
    weights = folder_of(tmp_path / "m", settings, lambda *shape: awq(quantizer, *shape))
    assert check(tmp_path / "m", weights, tmp_path / "twin") == {"bf16" if group_size == 16 else "int8"}


@pytest.mark.parametrize("group_size", [32, -1])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("order", ["absent", "act"])
def test_compressed_tensors(tmp_path: Path, order: str, symmetric: bool, bits: int, group_size: int) -> None:
    quantizer = Quantizer(bits, group_size)
    settings = compressed("pack-quantized", bits, group_size, symmetric)
    weights = folder_of(tmp_path / "m", settings, lambda *shape: packed(quantizer, *shape, symmetric, order))
    exact = bits == 4 and (order != "act" or group_size == -1)
    assert check(tmp_path / "m", weights, tmp_path / "twin") == {
        "bf16" if not exact else "int4" if symmetric else "int8"
    }


@pytest.mark.parametrize("group_size", [32, -1])
@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_of_plain_int8(tmp_path: Path, symmetric: bool, group_size: int) -> None:
    quantizer = Quantizer(8, group_size)
    settings = compressed("int-quantized", 8, group_size, symmetric)
    weights = folder_of(tmp_path / "m", settings, lambda *shape: int8(quantizer, *shape, symmetric))
    assert check(tmp_path / "m", weights, tmp_path / "twin") == {"bf16"}  # some integers are -128


class Symmetric(Quantizer):
    """Integers and zeros as quantisers that are symmetric choose them: never the lowest, and the middle."""

    def draw(self, out: int, inputs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, zero, scale = super().draw(out, inputs)
        return np.maximum(q, 1), np.full_like(zero, 2 ** (self.bits - 1)), scale


@pytest.mark.parametrize("group_size", [32, 64, -1])
@pytest.mark.parametrize("bits", [4, 8])
def test_symmetric_integers_stay_what_they_are(tmp_path: Path, bits: int, group_size: int) -> None:
    """Groups of more than 32 repeat their scale. Maps of 96 inputs end in half a group of 64."""
    quantizer = Symmetric(bits, group_size)
    settings = {"quant_method": "gptq", "bits": bits, "group_size": group_size}
    many = {"gptq": (settings, lambda *shape: gptq(quantizer, *shape, "gptq", "plain"))}
    many["packed"] = (
        compressed("pack-quantized", bits, group_size, True),
        lambda *shape: packed(quantizer, *shape, True, "absent"),
    )
    if bits == 8:
        plain = compressed("int-quantized", bits, group_size, True)
        many["plain"] = (plain, lambda *shape: int8(quantizer, *shape, True))
    for name, (settings, quantize) in many.items():
        weights = folder_of(tmp_path / name, settings, quantize)
        assert check(tmp_path / name, weights, tmp_path / f"{name} twin") == {f"int{bits}"}


@pytest.mark.parametrize(("scale", "dtype"), [(2.0**-13, "int4"), (2.0**-20 + 2.0**-27, "bf16"), (65536.0, "bf16")])
def test_scales_that_are_no_halves_make_bf16(tmp_path: Path, scale: float, dtype: str) -> None:
    quantizer = Symmetric(4, 32)
    folder_of(tmp_path / "m", GPTQ, lambda *shape: gptq(quantizer, *shape, "gptq", "absent"))
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    tensors[f"{Q_PROJ}.scales"] = np.full(tensors[f"{Q_PROJ}.scales"].shape, scale, np.float32)
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    with open_checkpoint(tmp_path / "m") as checkpoint:
        assert checkpoint[f"{Q_PROJ}.weight"].auto_dtype == dtype


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (GPTQ | {"bits": 3}, r"quantization_config\.bits is 3"),
        (GPTQ | {"bits": "4"}, r'bits is "4"'),
        (GPTQ | {"bits": None}, "bits is null"),
        (GPTQ | {"bits": 10**400}, "bits is 1000"),
        (GPTQ | {"group_size": 0}, "group_size is 0"),
        (GPTQ | {"group_size": 10**30}, "group_size is 1000"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is"),
        (GPTQ | {"dynamic": {"x": {"bits": 8}}}, "dynamic is"),
        (AWQ | {"version": "gemv"}, "version is"),
        (AWQ | {"bits": 8}, "bits is 8"),
        (AWQ | {"zero_point": False}, "zero_point is false"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantization_config is"),
        (compressed("float-quantized", 8, -1, True), "format is"),
        (compressed("pack-quantized", 5, -1, True), r"config_groups\.group_0\.weights\.num_bits is 5"),
        (compressed("int-quantized", 4, -1, True), "num_bits is 4"),
        (compressed("pack-quantized", 4, 32, True) | {"config_groups": {}}, "config_groups is"),
        (compressed("pack-quantized", 4, 32, True) | {"config_groups": {"a": {}, "b": {}}}, "config_groups is"),
        (compressed("pack-quantized", 4, 32, True) | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is"),
        (compressed("pack-quantized", 4, 32, True) | {"sparsity_config": {"format": "x"}}, "sparsity_config is"),
        (
            compressed("int-quantized", 8, -1, True)
            | {"config_groups": {"g": {"weights": {"num_bits": 8}, "input_activations": {"num_bits": 8}}}},
            "input_activations is",
        ),
        (
            compressed("pack-quantized", 8, -1, True)
            | {"config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}},
            "type is",
        ),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    quantizer = Quantizer(4, 32)
    folder_of(tmp_path / "m", settings, lambda *shape: gptq(quantizer, *shape, "gptq", "plain"))
    with pytest.raises((UnsupportedModelError, CheckpointError), match=named):
        LLM(tmp_path / "m")


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("scales", None, "q_proj.weight' is quantised, but its scales is missing"),
        ("qzeros", None, "q_proj.weight' is quantised, but its qzeros is missing"),
        ("scales", lambda a: a[:-1], r"scales is F16 \[1, 64\], expected F16 or BF16 or F32 \[2, 64\]"),
        ("scales", lambda a: a.astype(np.int32), "scales is I32"),
        ("qzeros", lambda a: a[:, :-1], r"qzeros is I32 \[2, 7\]"),
        ("qweight", lambda a: a[0], "qweight is I32"),
        ("qweight", lambda a: a.astype(np.float32), "qweight is F32"),
        ("qweight", lambda a: a[:-1], "q_proj.weight'"),
        ("g_idx", lambda a: a[:-1], "g_idx is I32"),
        ("g_idx", lambda a: a + 5, "g_idx names groups 5 to 6, expected 0 to 1"),
        ("g_idx", lambda a: a - 1, "g_idx names groups -1 to 0"),
        ("weight", lambda a: np.zeros((64, 64), np.float32), "both as it is and quantised"),
    ],
)
def test_parts_that_do_not_fit_are_named(tmp_path: Path, part: str, change: Any, message: str) -> None:
    quantizer = Quantizer(4, 32)
    folder_of(tmp_path / "m", GPTQ, lambda *shape: gptq(quantizer, *shape, "gptq", "plain"))
    file = tmp_path / "m" / "model.safetensors"
    tensors = load_file(file)
    old = tensors.pop(f"{Q_PROJ}.{part}", None)
    if change is not None:
        tensors[f"{Q_PROJ}.{part}"] = np.ascontiguousarray(change(old))
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=message):
        LLM(tmp_path / "m")


def test_settings_without_quantised_maps_are_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "qwen2", dtype="f32", **SIZES)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": GPTQ}))
    with pytest.raises(CheckpointError, match=r"quant_method says that the maps are quantised.*\.qweight"):
        LLM(folder)


def test_biases_of_zeros_that_the_model_does_not_have_are_dropped(tmp_path: Path) -> None:
    """Some writers store one beside every quantised map; zeros add nothing, other values are an error."""
    quantizer = Quantizer(4, 32)
    folder_of(tmp_path / "m", GPTQ, lambda *shape: gptq(quantizer, *shape, "gptq", "plain"))
    file = tmp_path / "m" / "model.safetensors"
    tensors, name = load_file(file), "model.layers.0.self_attn.o_proj.bias"
    expected = LLM(tmp_path / "m").logits([1, 2, 3])
    save_file(tensors | {name: np.zeros(64, np.float16)}, file)
    assert np.array_equal(LLM(tmp_path / "m").logits([1, 2, 3]), expected)
    save_file(tensors | {name: np.eye(1, 64, dtype=np.float16)[0]}, file)
    with pytest.raises(CheckpointError, match=r"not part of this architecture: .*o_proj\.bias"):
        LLM(tmp_path / "m")
