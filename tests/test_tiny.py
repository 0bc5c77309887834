"""The checkpoints that other tests are built on."""

import json
from pathlib import Path

import numpy as np
import pytest
from oracle.checkpoint import Weights
from tiny import MODEL_TYPES, TOKENIZER_SIZE, from_bf16, tiny_checkpoint, to_bf16, write_tokenizer


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_dtype_holds_the_same_numbers(tiny_folder, model_type: str) -> None:
    expected = Weights(tiny_folder(model_type, dtype="f32"))
    for dtype in ("bf16", "f16", "mixed"):
        stored = Weights(tiny_folder(model_type, dtype=dtype))
        assert stored.names == expected.names
        for name in expected.names:
            assert np.array_equal(stored[name], expected[name]), name


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_files_are_deterministic_and_follow_the_seed(tmp_path: Path, model_type: str) -> None:
    first, again, other = (
        tiny_checkpoint(tmp_path / str(i), model_type, seed=seed) for i, seed in enumerate((3, 3, 4))
    )
    for path in first.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_the_safetensors_package_reads_the_same_numbers(tiny_folder) -> None:
    from safetensors.numpy import load_file

    folder = tiny_folder("pii_masking", dtype="f16")
    expected = Weights(folder)
    found = load_file(folder / "model.safetensors")
    assert found.keys() == expected.names
    assert {str(value.dtype) for value in found.values()} == {"float16", "float32", "bool"}
    for name, value in found.items():
        assert np.array_equal(value, expected[name]), name


def test_shards_hold_every_tensor_once(tiny_folder) -> None:
    folder = tiny_folder("llama", shards=3)
    whole, sharded = Weights(tiny_folder("llama")), Weights(folder)
    assert whole.names == sharded.names
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == whole.names
    assert len(set(index["weight_map"].values())) == len(list(folder.glob("*.safetensors"))) == 3


def test_tied_leaves_out_the_head(tiny_folder) -> None:
    untied, tied = Weights(tiny_folder("qwen2", tie=False)), Weights(tiny_folder("qwen2"))
    assert untied.names - tied.names == {"lm_head.weight"}
    assert tied.names < untied.names


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_an_unknown_field_is_refused(tmp_path: Path, model_type: str) -> None:
    with pytest.raises(TypeError, match="hiden_size"):
        tiny_checkpoint(tmp_path, model_type, hiden_size=8)


def test_pii_overrides_reach_the_level_where_the_field_lives(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "pii_masking", hidden_size=24, max_seq_len=64)
    config = json.loads((folder / "config.json").read_text())
    assert config["hidden_size"] == config["backbone"]["hidden_size"] == 24
    assert config["max_seq_len"] == 64
    assert "max_seq_len" not in config["backbone"]


def test_bf16_rounds_to_nearest_even() -> None:
    step = 2.0**-7  # between neighbours of 1.0 in bf16
    values = np.array([1, 1 + step / 2, 1 + 1.5 * step, 1 + 0.51 * step, -1 - step / 2, 0.0, -0.0, 3e38], np.float32)
    expected = np.array([1, 1, 1 + 2 * step, 1 + step, -1, 0.0, -0.0, 3e38], np.float32)
    rounded = from_bf16(to_bf16(values))
    assert np.array_equal(rounded[:-1], expected[:-1])
    assert np.array_equal(np.signbit(rounded), np.signbit(expected))
    assert rounded[-1] == pytest.approx(3e38, rel=2**-9)


def test_the_tokenizer_round_trips_bytes_and_keeps_special_tokens(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == TOKENIZER_SIZE
    text = "the name of Alice, café 📷\x00<|im_end|>\n"
    token_ids = tokenizer.encode(text).ids
    assert token_ids.count(2) == 1
    assert len(token_ids) < len(text.encode()) - len("<|im_end|>")
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == text


def test_the_tokenizer_can_put_bos_first(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    write_tokenizer(tmp_path, add_bos=True)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("hi").ids == [0, *tokenizer.encode("hi", add_special_tokens=False).ids]
