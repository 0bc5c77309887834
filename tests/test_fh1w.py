"""The FH1W pack: written and read back exactly, every limit a named error, the built-in models known by shape."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import from_bf16, tiny_checkpoint, to_bf16

from fastcore.checkpoints.dense import DenseTensor
from fastcore.checkpoints.fh1w import MAX_TENSORS, write_fh1w
from fastcore.checkpoints.open import load_config, open_checkpoint
from fastcore.errors import CheckpointError, UnsupportedModelError
from fastcore.model.config import ModelConfig


def tensor(name: bytes, dims: tuple[int, ...], values: bytes | None = None, rank: int | None = None) -> bytes:
    """One tensor as stored; zeros where no values are given."""
    if values is None:
        values = bytes(4 * int(np.prod(dims)))
    head = struct.pack("<H", len(name)) + name + struct.pack("<B", len(dims) if rank is None else rank)
    return head + struct.pack(f"<{len(dims)}I", *dims) + values


def pack(*tensors: bytes, count: int | None = None, magic: bytes = b"FH1W") -> bytes:
    return magic + struct.pack("<I", len(tensors) if count is None else count) + b"".join(tensors)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.fh1w"


# ---------------------------------------------------------------- reading


def test_values_names_and_shapes(path: Path) -> None:
    values = np.arange(24, dtype=np.float32) / 7
    path.write_bytes(
        pack(
            tensor(b"a", (24,), values.tobytes()),
            tensor("é.weight".encode(), (2, 3, 4), values.tobytes()),
            tensor(b"x" * 1024, (2, 3, 2, 2), values.tobytes()),
            tensor(b"none", (0, 3)),
        )
    )
    with open_checkpoint(path) as tensors:
        assert {name: t.shape for name, t in tensors.items()} == {
            "a": (24,),
            "é.weight": (2, 3, 4),
            "x" * 1024: (2, 3, 2, 2),
            "none": (0, 3),
        }
        for t in tensors.values():
            assert t.dtype == "F32"
            assert t.array.flags.aligned
            assert np.array_equal(t.array.ravel(), values[: t.array.size])
            assert np.array_equal(t.f32(), t.array)


def test_every_bit_pattern_survives(path: Path) -> None:
    bits = np.array([0, 0x80000000, 1, 0x7F800000, 0x7FC00001, 0xFF7FFFFF], np.uint32)
    path.write_bytes(pack(tensor(b"odd", (6,), bits.tobytes())))
    with open_checkpoint(path) as tensors:
        assert np.array_equal(tensors["odd"].f32().view(np.uint32), bits)


def test_the_magic_decides_whatever_the_file_name(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(pack(tensor(b"a", (1,))))
    with open_checkpoint(tmp_path / "weights.bin") as tensors:
        assert list(tensors) == ["a"]


def test_an_empty_pack_is_empty(path: Path) -> None:
    path.write_bytes(pack())
    with open_checkpoint(path) as tensors:
        assert dict(tensors) == {}


FAULTS: dict[str, tuple[bytes, str]] = {
    "another magic": (pack(magic=b"FH2W"), "does not begin with b'FH1W'"),
    "nothing": (b"", "truncated: the magic"),
    "no count": (b"FH1W\1\0", "truncated: the tensor count needs bytes 4 to 8, the file has 6"),
    "too many tensors": (pack(count=MAX_TENSORS + 1), "tensor count 50001, expected at most 50000"),
    "fewer tensors than promised": (pack(tensor(b"a", (1,)), count=2), "truncated: the name length of tensor 2 of 2"),
    "empty name": (pack(tensor(b"", (1,))), "tensor 1 of 1 has a name of 0 bytes, expected 1 to 1024"),
    "long name": (pack(tensor(b"x" * 1025, (1,))), "name of 1025 bytes"),
    "name that is not UTF-8": (pack(tensor(b"\xff\xfe", (1,))), "the name of tensor 1 of 1 is not UTF-8"),
    "name cut": (pack(b"\x09\0abc"), "truncated: the name of tensor 1"),
    "rank 0": (pack(tensor(b"a", (), bytes(4))), "tensor 'a' has rank 0, expected 1 to 4"),
    "rank 5": (pack(tensor(b"a", (1, 1, 1, 1, 1))), "tensor 'a' has rank 5"),
    "shape cut": (pack(b"\1\0a\2\1\0\0\0"), "truncated: the shape of tensor 'a'"),
    "too many elements": (
        pack(tensor(b"a", (1_000_000_001,), b"")),
        r"shape \[1000000001\], expected at most 1000000000",
    ),
    "overflow": (pack(tensor(b"a", (2**32 - 1,) * 4, b"")), "expected at most 1000000000 elements"),
    "overflow beside a 0": (pack(tensor(b"a", (2**32 - 1, 2**32 - 1, 2**32 - 1, 0), b"")), "expected at most"),
    "duplicate": (pack(tensor(b"a", (1,)), tensor(b"a", (1,))), "duplicate tensor 'a'"),
    "values cut": (pack(tensor(b"a", (3,), bytes(11))), "truncated: the values of tensor 'a' needs bytes 16 to 28"),
    "bytes after the end": (pack(tensor(b"a", (1,))) + b"\0", "1 bytes follow the last tensor"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_pack_is_refused(path: Path, fault: str) -> None:
    content, message = FAULTS[fault]
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


def test_the_largest_sizes_are_accepted(path: Path) -> None:
    """A billion elements on paper need 4 GB: a sparse file has them without the disk."""
    with open(path, "wb") as file:
        file.write(pack(tensor(b"a", (1_000_000_000,), b"")))
        file.truncate(file.tell() + 4_000_000_000)
    with open_checkpoint(path) as tensors:
        assert tensors["a"].nbytes == 4_000_000_000


def test_count_50000_is_accepted(path: Path) -> None:
    path.write_bytes(pack(*(tensor(b"%d" % i, (0,)) for i in range(MAX_TENSORS))))
    with open_checkpoint(path) as tensors:
        assert len(tensors) == MAX_TENSORS


# ---------------------------------------------------------------- writing


def test_the_bytes_of_a_pack(path: Path) -> None:
    write_fh1w(path, {"ab": DenseTensor.from_array("ab", np.array([[1.0, -2.0]], np.float32))})
    assert path.read_bytes() == (
        b"FH1W\1\0\0\0" + b"\2\0ab" + b"\2" + b"\1\0\0\0\2\0\0\0" + b"\0\0\x80\x3f" + b"\0\0\0\xc0"
    )


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "mixed"])
def test_a_folder_and_its_pack_hold_the_same_bits(tmp_path: Path, dtype: str) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "falcon_h1", dtype=dtype, tokenizer=False)
    with open_checkpoint(folder) as stored:
        write_fh1w(tmp_path / "m.fh1w", stored)
        with open_checkpoint(tmp_path / "m.fh1w") as packed:
            assert list(packed) == list(stored)
            for name, t in stored.items():
                assert packed[name].shape == t.shape
                assert np.array_equal(packed[name].f32().view(np.uint32), t.f32().view(np.uint32))
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["m.fh1w"]


def test_bf16_is_widened(path: Path) -> None:
    bits = to_bf16(np.array([1.0, 3.1415927, -0.0], np.float32))
    write_fh1w(path, {"x": DenseTensor.from_array("x", bits, "BF16")})
    with open_checkpoint(path) as tensors:
        assert np.array_equal(tensors["x"].array.view(np.uint32), from_bf16(bits).view(np.uint32))


class Failing:
    """A tensor whose values cannot be had."""

    shape = (2,)

    def f32(self) -> np.ndarray:
        raise RuntimeError("no values")

    def release(self) -> None:
        pass


def test_a_pack_appears_whole_or_not_at_all(path: Path) -> None:
    path.write_bytes(b"what was there before")
    good = DenseTensor.from_array("good", np.zeros(3, np.float32))
    with pytest.raises(RuntimeError, match="no values"):
        write_fh1w(path, {"good": good, "bad": Failing()})
    assert path.read_bytes() == b"what was there before"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("", (1,), "name of 0 bytes"),
        ("é" * 513, (1,), "name of 1026 bytes"),
        ("a", (), r"'a' has shape \[\]"),
        ("a", (1, 1, 1, 1, 1), "rank 1 to 4"),
    ],
)
def test_what_a_pack_cannot_hold_is_refused_before_writing(
    path: Path, name: str, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        write_fh1w(path, {"good": Failing(), name: DenseTensor.from_array(name, np.zeros(shape, np.float32))})
    assert list(path.parent.iterdir()) == []


# ---------------------------------------------------------------- configs


def falcon_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the reference program, by its own formulas."""
    mamba = config.mamba
    assert mamba is not None
    hidden, ff, d_ssm = config.hidden_size, config.intermediate_size, mamba.mamba_d_ssm
    conv = d_ssm + 2 * mamba.mamba_n_groups * mamba.mamba_d_state
    q, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "pre_ff_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "feed_forward.gate_proj.weight": (ff, hidden),
        "feed_forward.up_proj.weight": (ff, hidden),
        "feed_forward.down_proj.weight": (hidden, ff),
        "mamba.in_proj.weight": (d_ssm + conv + mamba.mamba_n_heads, hidden),
        "mamba.out_proj.weight": (hidden, d_ssm),
        "mamba.dt_bias": (mamba.mamba_n_heads,),
        "mamba.A_log": (mamba.mamba_n_heads,),
        "mamba.D": (mamba.mamba_n_heads,),
        "mamba.conv1d.weight": (conv, 1, mamba.mamba_d_conv),
        "mamba.conv1d.bias": (conv,),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.final_layernorm.weight": (hidden,),
        "lm_head.weight": (config.vocab_size, hidden),
    }
    for i in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def embedding_only(path: Path, shape: tuple[int, int]) -> Path:
    """A pack of one embedding, sparse on disk."""
    with open(path, "wb") as file:
        file.write(pack(tensor(b"model.embed_tokens.weight", shape, b"")))
        file.truncate(file.tell() + 4 * shape[0] * shape[1])
    return path


def test_the_demo_model_is_known_by_its_shape(path: Path) -> None:
    config = load_config(embedding_only(path, (64, 32)))
    mamba, multipliers = config.mamba, config.multipliers
    assert mamba is not None
    assert multipliers is not None
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    assert [getattr(config, name) for name in sizes] == [32, 2, 4, 2, 8]
    assert (config.intermediate_size, config.rms_norm_eps, config.rope.rope_theta) == (64, 1e-5, 1e11)
    assert (mamba.mamba_n_heads, mamba.mamba_d_ssm, mamba.mamba_d_state, mamba.mamba_d_conv) == (4, 32, 8, 4)
    assert (mamba.mamba_rms_norm, mamba.mamba_conv_bias, mamba.mamba_proj_bias) == (False, True, False)
    assert multipliers.ssm_multipliers == (1.0,) * 5
    assert multipliers.lm_head_multiplier == multipliers.embedding_multiplier == 1.0
    assert falcon_shapes(config)["model.layers.1.mamba.in_proj.weight"] == (mamba.in_proj_size, 32) == (84, 32)
    assert load_config(path.parent) == config


def test_the_half_billion_model_is_known_by_its_shape(path: Path) -> None:
    config = load_config(embedding_only(path, (32784, 1024)))
    mamba, multipliers = config.mamba, config.multipliers
    assert mamba is not None
    assert multipliers is not None
    assert (config.vocab_size, config.num_hidden_layers, config.intermediate_size) == (32784, 36, 2048)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (8, 2, 64)
    assert (mamba.mamba_n_heads, mamba.mamba_d_ssm, mamba.mamba_d_state, mamba.in_proj_size) == (24, 1536, 128, 3352)
    assert config.max_position_embeddings == 16384
    assert config.tie_word_embeddings is False
    assert multipliers.embedding_multiplier == 5.656854249492381
    assert multipliers.ssm_multipliers == (0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738)
    assert multipliers.mlp_multipliers == (0.8838834764831844, 0.5859375)
    assert (multipliers.lm_head_multiplier, multipliers.key_multiplier) == (0.0390625, 0.390625)
    assert (multipliers.attention_in_multiplier, multipliers.attention_out_multiplier) == (1.0, 0.9375)
    assert (multipliers.ssm_in_multiplier, multipliers.ssm_out_multiplier) == (1.25, 0.23570226039551587)


def test_a_config_beside_the_pack_comes_first(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "falcon_h1", tokenizer=False)
    with open_checkpoint(folder) as stored:
        write_fh1w(tmp_path / "m.fh1w", stored)
    assert load_config(tmp_path / "m.fh1w") == load_config(folder)


def test_an_unknown_pack_needs_a_config(path: Path) -> None:
    embedding_only(path, (64, 33))
    with pytest.raises(UnsupportedModelError, match=r"demo \(embedding \[64, 32\]\); found embedding \[64, 33\]"):
        load_config(path)
    path.write_bytes(pack(tensor(b"other", (1,))))
    with pytest.raises(UnsupportedModelError, match="found embedding none; put the model's config"):
        load_config(path)


def test_a_folder_with_a_pack_only(path: Path) -> None:
    embedding_only(path, (64, 32))
    with open_checkpoint(path.parent) as tensors:
        assert list(tensors) == ["model.embed_tokens.weight"]
    embedding_only(path.with_name("second.fh1w"), (64, 32))
    with pytest.raises(CheckpointError, match=r"not exactly one .fh1w or .gguf file; found: model.fh1w, second.fh1w"):
        open_checkpoint(path.parent)


def test_a_whole_demo_pack(path: Path) -> None:
    """All tensors of the built-in demo, found under the names and shapes the config implies."""
    config = load_config(embedding_only(path, (64, 32)))
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in falcon_shapes(config).items()
    }
    write_fh1w(path, {name: DenseTensor.from_array(name, value) for name, value in values.items()})
    assert load_config(path) == config
    with open_checkpoint(path) as tensors:
        assert len(tensors) == 3 + 2 * 16
        assert all(np.array_equal(tensors[name].array, value) for name, value in values.items())
