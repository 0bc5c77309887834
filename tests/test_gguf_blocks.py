"""ggml's groups of 32 in int8 and int4 maps: the integers and scales of the file, exactly."""

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from fastcore._kernels import STORED_AS, PackedLinear
from fastcore.checkpoints.gguf import GgufTensor
from fastcore.checkpoints.gguf_blocks import EXACT
from fastcore.errors import CheckpointError, UnsupportedModelError
from fastcore.model.weights import LinearMap, Weights


class Stored:
    """Blocks of a file in memory, as GgufTensor takes them."""

    def __init__(self, name: str, kind: str, rows: np.ndarray, shape: tuple[int, ...]) -> None:
        self.name, self.type, self.data, self.shape = name, gguf.GGMLQuantizationType[kind].value, rows, shape
        self.byte_shape, self.begin, self.file = rows.shape, 0, self

    def release(self, begin: int, end: int) -> None:
        pass


def random_blocks(kind: str, rows: int, groups: int, seed: int = 0) -> np.ndarray:
    """Any bytes [rows, bytes of a row] whose halves are below 32, of both signs, subnormal ones too."""
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows, groups, size)).astype(np.uint8)
    for at in (0, 2) if kind == "Q4_1" else (0,):
        halves = rng.integers(0, 0x5000, (rows, groups)) | rng.integers(0, 2, (rows, groups)) << 15
        blocks[..., at : at + 2] = halves.astype("<u2")[..., None].view(np.uint8)
    if kind == "Q8_0":
        q = blocks[..., 2:].view(np.int8)
        q[q == -128] = -127
    return blocks.reshape(rows, -1)


def tensor_of(kind: str, data: np.ndarray, name: str = "x", heads: int | None = None) -> GgufTensor:
    blocks = data.shape[1] // gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    return GgufTensor(name, Stored(name, kind, data, (len(data), 32 * blocks)), heads)


def rows_of(linear: PackedLinear) -> np.ndarray:
    return np.stack([linear.row(i) for i in range(linear.out_features)])


def packed(maps: LinearMap, dtype: str = "auto") -> PackedLinear:
    return Weights({}, dtype, num_threads=2).pack(maps)


@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("kind", EXACT)
def test_packed_blocks_are_the_packages_numbers(kind: str, rows: int) -> None:
    for groups in (1, 3, 9):
        data = random_blocks(kind, rows, groups, seed=groups)
        tensor = tensor_of(kind, data)
        linear = packed(LinearMap((tensor,)))
        assert linear.dtype == tensor.auto_dtype == EXACT[kind][0].lower()
        expected = dequantize(data, gguf.GGMLQuantizationType[kind])
        assert np.array_equal(rows_of(linear), expected)
        assert np.array_equal(tensor.f32(), expected)


@pytest.mark.parametrize("kind", EXACT)
def test_blocks_become_other_dtypes_through_their_values(kind: str) -> None:
    data = random_blocks(kind, 20, 11)
    values = dequantize(data, gguf.GGMLQuantizationType[kind])
    for dtype in {"f32", "bf16", "f16", "int8", "int4"} - {EXACT[kind][0].lower()}:
        expected = PackedLinear(20, 11 * 32, dtype)
        expected.pack(values, "f32")
        assert np.array_equal(rows_of(packed(LinearMap((tensor_of(kind, data),)), dtype)), rows_of(expected)), dtype


@pytest.mark.parametrize("kind", EXACT)
def test_fused_maps_keep_the_integers(kind: str) -> None:
    """Stacked at rows that are no multiple of 16, interleaved up to a panel that is not full, of heads in halves."""
    type_ = gguf.GGMLQuantizationType[kind]
    data = [random_blocks(kind, 20, 3, seed) for seed in range(3)]
    values = [dequantize(each, type_) for each in data]
    maps = [LinearMap((tensor_of(kind, each),)) for each in data]
    assert np.array_equal(rows_of(packed(LinearMap.stacked(maps))), np.concatenate(values))
    found = rows_of(packed(LinearMap.interleaved(maps[:2]))).reshape(2, 2, 16, -1).swapaxes(0, 1).reshape(2, 32, -1)
    assert np.array_equal(found[:, :20], values[:2])
    assert not found[:, 20:].any()
    order = [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    expected = values[0][order + [10 + i for i in order]]
    assert np.array_equal(rows_of(packed(LinearMap((tensor_of(kind, data[0], heads=2),)))), expected)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_what_the_package_quantises_comes_back(kind: str) -> None:
    weight = np.random.default_rng(0).standard_normal((33, 96)).astype(np.float32)
    type_ = gguf.GGMLQuantizationType[kind]
    data = quantize(weight, type_)
    expected = dequantize(data, type_)
    if kind == "Q5_1":
        expected = (expected.view(np.uint32) + 0x7FFF + (expected.view(np.uint32) >> 16 & 1) & 0xFFFF0000).view("f4")
    assert np.array_equal(rows_of(packed(LinearMap((tensor_of(kind, data),)))), expected)


def test_an_integer_that_int8_does_not_hold_is_refused_by_name() -> None:
    data = random_blocks("Q8_0", 33, 3)
    data[32, 2 * 34 + 2 + 31] = 0x80
    with pytest.raises(CheckpointError, match=r"tensor 'odd': an integer is -128.*dtype 'bf16'"):
        packed(LinearMap((tensor_of("Q8_0", data, "odd"),)))
    found = rows_of(packed(LinearMap((tensor_of("Q8_0", data),)), "f32"))
    assert np.array_equal(found, dequantize(data, gguf.GGMLQuantizationType.Q8_0))


def test_a_scale_whose_minimum_is_beyond_f16_is_refused_by_name() -> None:
    data = random_blocks("Q4_0", 3, 2)
    data[1, :2] = np.array([8192], "<f2").view(np.uint8)
    with pytest.raises(UnsupportedModelError, match=r"'odd' is stored as Q4_0.*scale of 8192"):
        packed(LinearMap((tensor_of("Q4_0", data, "odd"),)))


@pytest.mark.parametrize(("dtype", "nbytes"), [("int8", 34), ("int4", 20)])
def test_elements_of_the_wrong_size_are_refused(dtype: str, nbytes: int) -> None:
    linear = PackedLinear(4, 70, dtype)
    assert STORED_AS[dtype].itemsize == nbytes
    with pytest.raises(ValueError, match="rows of 3"):
        linear.pack(np.zeros((4, 2), f"V{nbytes}"), dtype)
    with pytest.raises(ValueError, match="stored as"):
        linear.pack(np.zeros((4, 3), "V18"), dtype)
