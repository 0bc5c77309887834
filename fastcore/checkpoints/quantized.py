"""Linear maps stored as integers with scales and zeros: GPTQ, AWQ and compressed-tensors folders.

A map `x.weight` is stored as several tensors (`x.qweight`, `x.scales` ...), and is weight = scale * (q - zero), where
scale and zero are those of a group of inputs. Each form is one class here: the names of its parts, their shapes, and
what they hold. Integers of b bits lie in int32 words, the first in the lowest bits.

Products of a half-precision scale and an integer are exact in f32. Where groups of 32 inputs share scale and zero,
int4 and int8 maps hold such weights exactly if the scale is a half, and -scale * zero too (int4) or the differences lie
from -127 to 127 (int8).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fastcore.checkpoints.fields import Fields
from fastcore.checkpoints.groups import GROUP, int4_groups, int8_groups
from fastcore.errors import CheckpointError
from fastcore.locks import cached_property
from fastcore.model.tensor import Tensor

__all__ = ["METHODS", "dequantized"]

METHODS = ("gptq", "awq", "compressed-tensors")

_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # the column, of eight, that each nibble of a word belongs to
_SCALE_DTYPES = ("F16", "BF16", "F32")

Parts = Mapping[str, Tensor]


class _Form(Protocol):
    """How a map is stored. main: the part that tells a quantised map. others: parts that it may have besides.

    index: the part that gives the group of each input, where it is not the place that does. middle: the zero of
    integers that are symmetric.
    """

    main: ClassVar[str]
    others: ClassVar[tuple[str, ...]]
    index: ClassVar[str]

    @property
    def bits(self) -> int: ...

    @property
    def middle(self) -> int: ...

    @property
    def group_size(self) -> int | None: ...

    def shape(self, name: str, parts: Parts) -> tuple[int, int]:
        """[out_features, in_features], after every part's shape was checked."""

    def integers(self, name: str, parts: Parts) -> NDArray[np.int16]:
        """q [out_features, in_features]."""

    def scales(self, name: str, parts: Parts) -> tuple[NDArray[np.float32], NDArray[np.int16]]:
        """Scales and zeros [out_features, groups]."""


class QuantizedTensor:
    """A linear map that is stored in parts. shape: [out_features, in_features]."""

    def __init__(self, name: str, form: _Form, parts: Parts) -> None:
        self.name = name
        self.shape: tuple[int, ...] = form.shape(name, parts)
        self.nbytes = sum(part.nbytes for part in parts.values())
        self._form = form
        self._parts = parts

    @property
    def dtype(self) -> str:
        """INT4 or INT8 where such a map holds it exactly, F32 else."""
        return self._exact or "F32"

    @property
    def auto_dtype(self) -> str:
        return self._exact.lower() if self._exact else "bf16"

    @property
    def array(self) -> NDArray[Any]:
        """Groups of the dtype, or the values as `f32` gives them."""
        if self._exact is None:
            return self.f32()
        q, (scales, zeros) = self._form.integers(self.name, self._parts), self._form.scales(self.name, self._parts)
        out, inputs = q.shape
        starts = np.arange(0, inputs, GROUP)
        of = starts // (self._form.group_size or inputs)
        halves = scales.astype(np.float16)[:, of]
        filled = np.zeros((out, len(starts) * GROUP), np.int8)
        if self._exact == "INT4":
            filled[:, :inputs] = q
            low, high = np.split(filled.view(np.uint8).reshape(out, -1, GROUP), 2, axis=-1)
            nibbles = np.bitwise_or(low, high << 4, dtype=np.uint8)
            return int4_groups(halves, (scales * -zeros).astype(np.float16)[:, of], nibbles)
        filled[:, :inputs] = q - zeros[:, self._group(scales.shape[1])]
        return int8_groups(halves, filled.reshape(out, -1, GROUP))

    def f32(self) -> NDArray[np.float32]:
        """The values as a new f32 array."""
        scales, zeros = self._form.scales(self.name, self._parts)
        group = self._group(scales.shape[1])
        q = self._form.integers(self.name, self._parts) - zeros[:, group]
        return np.ascontiguousarray(q.astype(np.float32) * scales[:, group])

    def release(self) -> None:
        for part in self._parts.values():
            part.release()

    def _group(self, num_groups: int) -> NDArray[np.int64]:
        """The group of each input."""
        inputs, index = self.shape[1], self._form.index
        if index not in self._parts:
            return np.arange(inputs) // (self._form.group_size or inputs or 1)
        group: NDArray[np.int64] = self._parts[index].array.astype(np.int64)
        if inputs and not 0 <= int(group.min()) <= int(group.max()) < num_groups:
            raise CheckpointError(
                f"tensor {self.name!r}: {index} names groups {group.min()} to {group.max()}, expected 0 to "
                f"{num_groups - 1}"
            )
        return group

    @cached_property
    def _exact(self) -> str | None:
        """Scales and zeros tell; of 8 bits, integers too."""
        form, (out, inputs) = self._form, self.shape
        scales, zeros = form.scales(self.name, self._parts)
        plain = np.arange(inputs) // (form.group_size or inputs or 1)
        if not out or not inputs or (form.group_size or GROUP) % GROUP or not _are_halves(scales):
            return None
        if form.index in self._parts and not np.array_equal(self._group(scales.shape[1]), plain):
            return None
        if form.bits == 4:
            return "INT4" if _are_halves(scales * -zeros) else "INT8"
        least = np.uint8(form.middle - 128 & 255)  # the octet of -128
        octets = np.ascontiguousarray(self._parts[form.main].array).view(np.uint8)
        return "INT8" if (zeros == form.middle).all() and not (octets == least).any() else None


def _are_halves(values: NDArray[np.float32]) -> bool:
    with np.errstate(over="ignore"):
        return bool((values.astype(np.float16) == values).all())


def dequantized(tensors: Mapping[str, Tensor], settings: Fields, has_bias: Callable[[str], bool]) -> dict[str, Tensor]:
    """The tensors of a folder with each quantised map as one tensor.

    settings: quantization_config of config.json. has_bias: whether the model has one in a map of this name; some
    writers store zeros beside every map, which are left out then. Raises UnsupportedModelError for a form that has no
    counterpart here.
    """
    form = _form(settings)
    ending = f".{form.main}"
    # int8 weights keep the name of plain ones: their dtype tells
    names = [
        name for name in tensors if name.endswith(ending) and (form.main != "weight" or tensors[name].dtype == "I8")
    ]
    maps = [name.removesuffix(form.main) for name in names]
    taken = {f"{stem}{part}" for stem in maps for part in (form.main, *form.others)}
    result: dict[str, Tensor] = {name: tensor for name, tensor in tensors.items() if name not in taken}
    for stem in maps:
        parts = {part: tensors[f"{stem}{part}"] for part in (form.main, *form.others) if f"{stem}{part}" in tensors}
        name = f"{stem}weight"
        if name in result:
            raise CheckpointError(f"tensor {name!r} is there both as it is and quantised, as {stem}{form.main}")
        result[name] = QuantizedTensor(name, form, parts)
        bias = result.get(f"{stem}bias")
        if bias is not None and not has_bias(stem) and not bias.f32().any():
            del result[f"{stem}bias"]
    if not maps:
        raise CheckpointError(
            f"{settings.where}: {settings.label('quant_method')} says that the maps are quantised, but there is no "
            f"tensor whose name ends in .{form.main}"
        )
    return result


def _form(settings: Fields) -> _Form:
    method = settings.string("quant_method", "")
    if method == "gptq":
        return _gptq(settings)
    if method == "awq":
        return _awq(settings)
    return _compressed(settings)


def _group_size(settings: Fields) -> int | None:
    """Columns that share a scale; None is all of them."""
    size = settings.take("group_size")
    if size in (None, -1):
        return None
    if type(size) is not int or not 1 <= size <= 2**16 or size % 8:
        raise settings.wrong("group_size", size, "-1 or a multiple of 8")
    return size


def _bits(settings: Fields, name: str, known: tuple[int, ...]) -> int:
    bits = settings.take(name)
    if bits not in known or type(bits) is not int:
        raise settings.unsupported(name, bits, f"supported: {', '.join(map(str, known))}")
    return bits


# ---------------------------------------------------------------- GPTQ


@dataclass(frozen=True)
class _Gptq:
    """qweight [in / per_word, out], qzeros [groups, out / per_word], scales [groups, out], and g_idx [in], the group of
    each input. The first form of the format stores zero - 1."""

    bits: int
    group_size: int | None
    zero_offset: int

    main: ClassVar[str] = "qweight"
    others: ClassVar[tuple[str, ...]] = ("qzeros", "scales", "g_idx")
    index: ClassVar[str] = "g_idx"

    @property
    def middle(self) -> int:
        return 2 ** (self.bits - 1)

    def shape(self, name: str, parts: Parts) -> tuple[int, int]:
        per_word = 32 // self.bits
        rows, out = _matrix(name, parts, "qweight", ("I32",))
        inputs = rows * per_word
        groups = math.ceil(inputs / (self.group_size or inputs)) if inputs else 0
        _expect(name, parts, "scales", _SCALE_DTYPES, (groups, out))
        _expect(name, parts, "qzeros", ("I32",), (groups, _words(out, self.bits)))
        if "g_idx" in parts:
            _expect(name, parts, "g_idx", ("I32", "I64"), (inputs,))
        return out, inputs

    def integers(self, name: str, parts: Parts) -> NDArray[np.int16]:
        _, inputs = self.shape(name, parts)
        return _unpacked(parts["qweight"].array, self.bits, axis=0)[:inputs].T

    def scales(self, name: str, parts: Parts) -> tuple[NDArray[np.float32], NDArray[np.int16]]:
        out, _ = self.shape(name, parts)
        zeros = (_unpacked(parts["qzeros"].array, self.bits, axis=1)[:, :out] + self.zero_offset) & (2**self.bits - 1)
        return parts["scales"].f32().T, zeros.T


def _gptq(settings: Fields) -> _Form:
    form = settings.string("checkpoint_format", None) or "gptq"
    if form not in ("gptq", "gptq_v2"):
        raise settings.unsupported("checkpoint_format", form, "supported: gptq, gptq_v2")
    for name in ("dynamic", "is_marlin_format"):
        if value := settings.take(name):
            raise settings.unsupported(name, value, "supported: without it")
    return _Gptq(_bits(settings, "bits", (4, 8)), _group_size(settings), 0 if form == "gptq_v2" else 1)


# ---------------------------------------------------------------- AWQ


@dataclass(frozen=True)
class _Awq:
    """qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out], all of 4 bits; the eight columns of a word
    lie in the order 0 2 4 6 1 3 5 7."""

    group_size: int | None

    main: ClassVar[str] = "qweight"
    others: ClassVar[tuple[str, ...]] = ("qzeros", "scales")
    index: ClassVar[str] = ""
    bits: ClassVar[int] = 4
    middle: ClassVar[int] = 8

    def shape(self, name: str, parts: Parts) -> tuple[int, int]:
        inputs, words = _matrix(name, parts, "qweight", ("I32",))
        out = 8 * words
        groups = math.ceil(inputs / (self.group_size or inputs)) if inputs else 0
        _expect(name, parts, "scales", _SCALE_DTYPES, (groups, out))
        _expect(name, parts, "qzeros", ("I32",), (groups, words))
        return out, inputs

    def integers(self, name: str, parts: Parts) -> NDArray[np.int16]:
        return self._columns(parts["qweight"].array).T

    def scales(self, name: str, parts: Parts) -> tuple[NDArray[np.float32], NDArray[np.int16]]:
        return parts["scales"].f32().T, self._columns(parts["qzeros"].array).T

    @staticmethod
    def _columns(words: NDArray[np.int32]) -> NDArray[np.int16]:
        stored = _unpacked(words, 4, axis=1).reshape(len(words), -1, 8)
        ordered = np.empty_like(stored)
        ordered[:, :, _AWQ_COLUMNS] = stored
        return ordered.reshape(len(words), -1)


def _awq(settings: Fields) -> _Form:
    _bits(settings, "bits", (4,))
    version = settings.string("version", None) or "gemm"
    if version.lower() != "gemm":
        raise settings.unsupported("version", version, "supported: gemm")
    if settings.boolean("zero_point", True) is False:
        raise settings.unsupported("zero_point", False, "supported: true")
    return _Awq(_group_size(settings))


# ---------------------------------------------------------------- compressed-tensors


@dataclass(frozen=True)
class _Packed:
    """weight_packed [out, in / per_word], weight_scale [out, groups], weight_shape [2]: out, in; weight_zero_point
    [out / per_word, groups] packed down the rows; weight_g_idx [in]. Both integers are stored plus 2^(bits - 1)."""

    bits: int
    group_size: int | None
    symmetric: bool

    main: ClassVar[str] = "weight_packed"
    others: ClassVar[tuple[str, ...]] = ("weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")
    index: ClassVar[str] = "weight_g_idx"

    @property
    def middle(self) -> int:
        return 2 ** (self.bits - 1)

    def shape(self, name: str, parts: Parts) -> tuple[int, int]:
        out, words = _matrix(name, parts, "weight_packed", ("I32",))
        _expect(name, parts, "weight_shape", ("I64", "I32"), (2,))
        rows, inputs = (int(size) for size in parts["weight_shape"].array)
        if rows != out or inputs < 0 or _words(inputs, self.bits) != words:
            raise CheckpointError(f"tensor {name!r}: weight_shape is {[rows, inputs]} for {words} words in {out} rows")
        groups = math.ceil(inputs / (self.group_size or inputs)) if inputs else 0
        _expect(name, parts, "weight_scale", _SCALE_DTYPES, (out, groups))
        if not self.symmetric:
            _expect(name, parts, "weight_zero_point", ("I32",), (_words(out, self.bits), groups))
        if "weight_g_idx" in parts:
            _expect(name, parts, "weight_g_idx", ("I32", "I64"), (inputs,))
        return out, inputs

    def integers(self, name: str, parts: Parts) -> NDArray[np.int16]:
        _, inputs = self.shape(name, parts)
        return _unpacked(parts["weight_packed"].array, self.bits, axis=1)[:, :inputs]

    def scales(self, name: str, parts: Parts) -> tuple[NDArray[np.float32], NDArray[np.int16]]:
        scales = parts["weight_scale"].f32()
        if self.symmetric:
            return scales, np.full(scales.shape, self.middle, np.int16)
        return scales, _unpacked(parts["weight_zero_point"].array, self.bits, axis=0)[: len(scales)]


@dataclass(frozen=True)
class _Int8:
    """weight [out, in] of int8, weight_scale and weight_zero_point [out, groups]."""

    group_size: int | None
    symmetric: bool

    main: ClassVar[str] = "weight"
    others: ClassVar[tuple[str, ...]] = ("weight_scale", "weight_zero_point")
    index: ClassVar[str] = ""
    bits: ClassVar[int] = 8
    middle: ClassVar[int] = 0

    def shape(self, name: str, parts: Parts) -> tuple[int, int]:
        out, inputs = _matrix(name, parts, "weight", ("I8",))
        groups = math.ceil(inputs / (self.group_size or inputs)) if inputs else 0
        _expect(name, parts, "weight_scale", _SCALE_DTYPES, (out, groups))
        if not self.symmetric:
            _expect(name, parts, "weight_zero_point", ("I8",), (out, groups))
        return out, inputs

    def integers(self, name: str, parts: Parts) -> NDArray[np.int16]:
        return parts["weight"].array.astype(np.int16)

    def scales(self, name: str, parts: Parts) -> tuple[NDArray[np.float32], NDArray[np.int16]]:
        scales = parts["weight_scale"].f32()
        if self.symmetric:
            return scales, np.zeros(scales.shape, np.int16)
        return scales, parts["weight_zero_point"].array.astype(np.int16)


def _compressed(settings: Fields) -> _Form:
    form = settings.string("format", "")
    if form not in ("pack-quantized", "int-quantized"):
        raise settings.unsupported("format", form, "supported: pack-quantized, int-quantized")
    for name in ("kv_cache_scheme", "sparsity_config", "transform_config"):
        if value := settings.take(name):
            raise settings.unsupported(name, value, "supported: without it")
    groups = settings.nested("config_groups")
    if groups is None or len(groups.values()) != 1:
        found = 0 if groups is None else len(groups.values())
        raise settings.unsupported("config_groups", f"{found} groups", "supported: one group for all maps")
    (group_name,) = groups.values()
    group = groups.nested(group_name)
    weights = None if group is None else group.nested("weights")
    if group is None or weights is None:
        raise settings.missing("config_groups", "a group with its weights")
    for name in ("input_activations", "output_activations"):
        if value := group.take(name):
            raise group.unsupported(name, value, "supported: without it, since activations stay as they are")
    if (kind := weights.string("type", "int")) != "int":
        raise weights.unsupported("type", kind, "supported: int")
    strategy = weights.string("strategy", "channel")
    if strategy not in ("group", "channel"):
        raise weights.unsupported("strategy", strategy, "supported: group, channel")
    size = _group_size(weights)
    if (strategy == "group") != (size is not None):
        raise weights.wrong("group_size", size, "a size for the strategy group, none for channel")
    symmetric = weights.boolean("symmetric", True)
    if form == "int-quantized":
        _bits(weights, "num_bits", (8,))
        return _Int8(size, symmetric)
    return _Packed(_bits(weights, "num_bits", (4, 8)), size, symmetric)


# ---------------------------------------------------------------- words and checks


def _words(count: int, bits: int) -> int:
    """Words that hold `count` integers."""
    return -(-count * bits // 32)


def _unpacked(words: NDArray[Any], bits: int, axis: int) -> NDArray[np.int16]:
    """The unsigned integers of int32 words [rows, columns], side by side along `axis`."""
    octets = np.ascontiguousarray(words if axis == 1 else words.T).view(np.uint8)
    if bits == 4:
        octets = np.stack([octets & 15, octets >> 4], axis=-1).reshape(len(octets), -1)
    values = octets.astype(np.int16)
    return values if axis == 1 else values.T


def _matrix(name: str, parts: Parts, part: str, dtypes: tuple[str, ...]) -> tuple[int, int]:
    tensor = parts[part]
    if tensor.dtype not in dtypes or len(tensor.shape) != 2:
        raise CheckpointError(
            f"tensor {name!r}: {part} is {tensor.dtype} {list(tensor.shape)}, expected a matrix of {dtypes[0]}"
        )
    return tensor.shape[0], tensor.shape[1]


def _expect(name: str, parts: Parts, part: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> None:
    tensor = parts.get(part)
    if tensor is None:
        raise CheckpointError(f"tensor {name!r} is quantised, but its {part} is missing")
    if tensor.dtype not in dtypes or tuple(tensor.shape) != shape:
        raise CheckpointError(
            f"tensor {name!r}: {part} is {tensor.dtype} {list(tensor.shape)}, expected {' or '.join(dtypes)} "
            f"{list(shape)}; the settings of its quantisation may be wrong"
        )
