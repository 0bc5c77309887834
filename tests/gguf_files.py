"""GGUF files made from tiny Hugging Face folders, with the names and the row order that converters give them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from safetensors.numpy import load_file

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def write_gguf(
    path: Path,
    folder: Path,
    *,
    quantize: str | None = None,
    backend: tokenizers.Tokenizer | None = None,
    pre: str = "gpt-2",
    adjust: Callable[[gguf.GGUFWriter], Any] | None = None,
) -> Path:
    """Convert an f32 folder. quantize: the type of matrices with whole blocks; None is F32. adjust: adds metadata."""
    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    arch = config["model_type"]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    _add_tokenizer(writer, backend or default_backend(), pre)
    if adjust is not None:
        adjust(writer)

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config["num_hidden_layers"])
    for name, value in load_file(folder / "model.safetensors").items():
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")):
            value = _interleaved(value, heads if ".q_proj." in name else kv_heads)
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        kind = gguf.GGMLQuantizationType[quantize or "F32"]
        if quantize and value.ndim == 2 and value.shape[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            writer.add_tensor(stored, gguf.quants.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def default_backend() -> tokenizers.Tokenizer:
    """The byte alphabet and three special tokens."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.add_special_tokens(["<|bos|>", "<|im_start|>", "<|im_end|>"])
    return backend


def _interleaved(value: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from halves (0 ... h - 1, h ... 2h - 1) to pairs (0, h, 1, h + 1, ...)."""
    rows = value.reshape(heads, -1, *value.shape[1:])
    half = rows.shape[1] // 2
    order = [half * side + i for i in range(half) for side in (0, 1)]
    return rows[:, order].reshape(value.shape)


def _add_tokenizer(writer: gguf.GGUFWriter, backend: tokenizers.Tokenizer, pre: str) -> None:
    described = json.loads(backend.to_str())
    added = {token["id"]: token["special"] for token in described["added_tokens"]}
    vocab = {i: token for token, i in backend.get_vocab().items()}
    tokens = [vocab.get(i, f"[PAD{i}]") for i in range(max(vocab) + 1)]
    kinds = [5 if i not in vocab else {None: 1, True: 3, False: 4}[added.get(i)] for i in range(len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = [" ".join(merge) for merge in described["model"]["merges"]]
    if merges:
        writer.add_token_merges(merges)
    writer.add_bos_token_id(backend.token_to_id("<|bos|>"))
    writer.add_eos_token_id(backend.token_to_id("<|im_end|>"))
    writer.add_chat_template(CHATML)
