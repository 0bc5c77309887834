"""An LLM from live transformers objects: weights, config and tokenizer taken from memory, without a file in between."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fastcore.checkpoints.folder import Tensor
from fastcore.errors import UnsupportedModelError
from fastcore.llm import LLM
from fastcore.model.config import parse_config
from fastcore.model.weights import Weights
from fastcore.models import record_model
from fastcore.text.tokenizer import Tokenizer
from fastcore.threads import resolve_num_threads

__all__ = ["LiveTensors", "from_transformers"]


def from_transformers(
    model: Any,
    tokenizer: Any,
    *,
    dtype: str = "auto",
    num_threads: int | None = None,
    max_seq_len: int | None = None,
    kv_cache_bytes: int | None = None,
    kv_dtype: str = "f32",
) -> LLM:
    """An LLM that computes what a transformers causal language model in memory computes.

    model: in f32, f16 or bf16; its weights are packed one tensor at a time, and may be freed or changed afterwards.
    tokenizer: its fast tokenizer. The other arguments are those of LLM. Raises UnsupportedModelError and
    CheckpointError as for a folder.
    """
    state = model.state_dict()
    config = model.config.to_dict()
    head, embedding = state.get("lm_head.weight"), state.get("model.embed_tokens.weight")
    if head is not None and embedding is not None:
        config["tie_word_embeddings"] = head.data_ptr() == embedding.data_ptr()
    generation = model.generation_config.to_dict() if model.generation_config is not None else None
    threads = resolve_num_threads(num_threads)
    return LLM.from_model(
        record_model(parse_config(config, generation), Weights(LiveTensors(state), dtype, threads)),
        _tokenizer(tokenizer),
        num_threads=threads,
        max_seq_len=max_seq_len,
        kv_cache_bytes=kv_cache_bytes,
        kv_dtype=kv_dtype,
    )


class LiveTensors(Mapping[str, Tensor]):
    """The tensors of a torch state_dict, as those of a checkpoint: views where they are contiguous and on the CPU."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Tensor:
        value = self._state[name].detach()
        if value.is_meta:
            raise UnsupportedModelError(f"tensor {name!r} is on the meta device, without values; load the model first")
        value = value.cpu().contiguous()
        dtype = str(value.dtype)
        if dtype == "torch.bfloat16":  # NumPy has no such dtype; the bits go over as 16-bit integers
            int16 = value.new_empty(0).short().dtype
            return Tensor.from_array(name, value.view(int16).numpy().view(np.uint16), "BF16")
        if dtype not in ("torch.float32", "torch.float16"):
            raise UnsupportedModelError(
                f"tensor {name!r} has dtype {dtype}; expected torch.float32, torch.float16 or torch.bfloat16 "
                "(convert it, for example by model.float())"
            )
        return Tensor.from_array(name, value.numpy())

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def _tokenizer(tokenizer: Any) -> Tokenizer:
    import tokenizers

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TypeError(f"{type(tokenizer).__name__} has no backend_tokenizer: a fast tokenizer is needed")
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if name.endswith("_token")}
    templates = tokenizer.chat_template
    if isinstance(templates, str):
        templates = {"default": templates}
    return Tokenizer(tokenizers.Tokenizer.from_str(backend.to_str()), special, templates)
