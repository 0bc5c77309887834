"""Models taken from memory: stand-ins of torch tensors always, transformers itself where it is installed."""

import json
from pathlib import Path

import numpy as np
import pytest
import tolerances
from safetensors.numpy import load_file
from tiny import make_prompt, tiny_checkpoint

from fastcore import LLM, CheckpointError, UnsupportedModelError, from_transformers


class StandInTensor:
    """What from_transformers asks of a torch tensor, over a NumPy array; bf16 as uint16 bits."""

    is_meta = False

    def __init__(self, array: np.ndarray, dtype: str) -> None:
        self.array, self.dtype = array, dtype

    def detach(self) -> "StandInTensor":
        return self

    cpu = contiguous = detach

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def new_empty(self, size: int) -> "StandInTensor":
        return StandInTensor(np.empty(size, np.float32), "torch.float32")

    def short(self) -> "StandInTensor":
        return StandInTensor(self.array.astype(np.int16), "torch.int16")

    def view(self, dtype: str) -> "StandInTensor":
        assert dtype == "torch.int16"
        return StandInTensor(self.array.view(np.int16), dtype)

    def numpy(self) -> np.ndarray:
        return self.array


class StandInConfig:
    def __init__(self, values: dict) -> None:
        self.values = values

    def to_dict(self) -> dict:
        return dict(self.values)


class StandInModel:
    generation_config = None

    def __init__(self, folder: Path, dtype: str) -> None:
        self.config = StandInConfig(json.loads((folder / "config.json").read_text()))
        self.tensors = {}
        for name, value in load_file(folder / "model.safetensors").items():
            stored = value if dtype != "torch.bfloat16" else (value.view(np.uint32) >> 16).astype(np.uint16)
            self.tensors[name] = StandInTensor(stored, dtype)
        if self.config.values["tie_word_embeddings"]:
            self.tensors["lm_head.weight"] = self.tensors["model.embed_tokens.weight"]

    def state_dict(self) -> dict:
        return self.tensors


class StandInTokenizer:
    chat_template = "{{ messages[0].content }}"

    def __init__(self, folder: Path) -> None:
        import tokenizers

        self.backend_tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.special_tokens_map = {"eos_token": "<|im_end|>"}


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_weights_from_memory_equal_those_from_the_folder(tmp_path: Path, dtype: str, tie: bool) -> None:
    """A tiny f32 folder holds numbers that are exact in bf16."""
    folder = tiny_checkpoint(tmp_path / "m", "qwen2", dtype="f32", tie=tie)
    live = from_transformers(StandInModel(folder, dtype), StandInTokenizer(folder))
    ids = make_prompt(17)
    expected = LLM(folder)
    assert np.array_equal(live.logits(ids), expected.logits(ids))
    assert live.config.tie_word_embeddings == tie
    assert live.tokenizer.encode("abc def") == expected.tokenizer.encode("abc def")
    assert live.eos_token_ids[0] == expected.eos_token_ids[0]
    assert live.chat([{"role": "user", "content": "abc"}], max_tokens=2).usage.prompt_tokens == len(
        live.tokenizer.encode("abc", add_special_tokens=False)
    )


def test_what_cannot_be_taken_is_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "qwen2", dtype="f32")
    model = StandInModel(folder, "torch.float32")
    name = "model.norm.weight"
    model.tensors[name].dtype = "torch.float64"
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight' has dtype torch\.float64"):
        from_transformers(model, StandInTokenizer(folder))
    model.tensors[name].is_meta = True
    with pytest.raises(UnsupportedModelError, match="meta device"):
        from_transformers(model, StandInTokenizer(folder))
    del model.tensors[name]
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight' is missing"):
        from_transformers(model, StandInTokenizer(folder))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_logits_equal_those_of_transformers(tmp_path: Path, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = tiny_checkpoint(tmp_path / "m", "llama", dtype="f32")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>"
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    ids = make_prompt(30)
    live = from_transformers(model, tokenizer)
    with torch.no_grad():
        expected = model.float()(torch.tensor([ids])).logits[0].numpy()
    assert np.abs(live.logits(ids) - expected).max() <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()
