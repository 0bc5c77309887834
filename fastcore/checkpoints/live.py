"""A transformers model in memory as a checkpoint."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastcore.checkpoints.checkpoint import Checkpoint, TokenizerParts
from fastcore.checkpoints.dense import DenseTensor
from fastcore.checkpoints.hf_config import parse_config
from fastcore.errors import UnsupportedModelError
from fastcore.model.config import ModelConfig

__all__ = ["LiveCheckpoint", "LiveTensors"]


class LiveCheckpoint(Checkpoint):
    """Weights, config and tokenizer of live objects, without a file in between.

    model: a transformers model in f32, f16 or bf16. tokenizer: its fast tokenizer; None is none.
    """

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        self._model_config = model.config.to_dict()
        generation = model.generation_config
        self._generation_config = None if generation is None else generation.to_dict()
        self._tokenizer = tokenizer
        state = model.state_dict()
        head, embedding = state.get("lm_head.weight"), state.get("model.embed_tokens.weight")
        if head is not None and embedding is not None:
            self._model_config["tie_word_embeddings"] = head.data_ptr() == embedding.data_ptr()
        super().__init__(Path(type(model).__name__), LiveTensors(state))

    def _parse(self) -> ModelConfig:
        return parse_config(self._model_config, self._generation_config)

    def tokenizer(self) -> TokenizerParts | None:
        if self._tokenizer is None:
            return None
        import tokenizers

        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TypeError(f"{type(self._tokenizer).__name__} has no backend_tokenizer: a fast tokenizer is needed")
        named = self._tokenizer.special_tokens_map.items()
        special = {name: str(token) for name, token in named if name.endswith("_token")}
        templates = self._tokenizer.chat_template
        if isinstance(templates, str):
            templates = {"default": templates}
        return TokenizerParts(tokenizers.Tokenizer.from_str(backend.to_str()), special, templates)


class LiveTensors(Mapping[str, DenseTensor]):
    """The tensors of a torch state_dict: views where they are contiguous and on the CPU."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def __getitem__(self, name: str) -> DenseTensor:
        value = self._state[name].detach()
        if value.is_meta:
            raise UnsupportedModelError(f"tensor {name!r} is on the meta device, without values; load the model first")
        value = value.cpu().contiguous()
        dtype = str(value.dtype)
        if dtype == "torch.bfloat16":  # NumPy has no such dtype; the bits go over as 16-bit integers
            int16 = value.new_empty(0).short().dtype
            return DenseTensor.from_array(name, value.view(int16).numpy().view(np.uint16), "BF16")
        if dtype not in ("torch.float32", "torch.float16"):
            raise UnsupportedModelError(
                f"tensor {name!r} has dtype {dtype}; expected torch.float32, torch.float16 or torch.bfloat16 "
                "(convert it, for example by model.float())"
            )
        return DenseTensor.from_array(name, value.numpy())

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)
