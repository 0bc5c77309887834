"""Tiny random checkpoints of every model family, in the folder layout of the published ones.

    from tiny import tiny_checkpoint
    folder = tiny_checkpoint(tmp_path / "m", "llama", dtype="bf16", num_hidden_layers=1)

All random values are exactly representable in bf16, f16 and f32, so the same seed gives the same numbers in every
dtype: a bf16 checkpoint and its f32 twin must give the same logits. Only the PII heads, always f32, use the full
mantissa.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

MODEL_TYPES = ("qwen2", "llama", "qwen3", "falcon_h1", "pii_masking", "qwen3_token_classification")
TOKENIZER_SIZE = 320

PII_TYPES = (
    "private_person",
    "private_email",
    "private_phone",
    "private_address",
    "private_url",
    "private_date",
    "account_number",
    "secret",
    "other_pii",
)
PII_LABELS = ("O", *(f"{tag}-{kind}" for kind in PII_TYPES for tag in "BIES"))
PII_B_BIAS, PII_E_BIAS = -0.5, 0.25

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    ' as <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Sizes are small and mostly not multiples of 16, so that every kernel meets its tails.
_DECODER = {
    "hidden_size": 40,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "vocab_size": TOKENIZER_SIZE,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen2": _DECODER
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 512,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 2,
    },
    "llama": _DECODER
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "head_dim": 10,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 512,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "qwen3": _DECODER
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "max_position_embeddings": 512,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 2,
    },
    "falcon_h1": _DECODER
    | {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e11,
        "rope_scaling": None,
        "max_position_embeddings": 512,
        "attention_bias": False,
        "mlp_bias": False,
        "projectors_bias": False,
        "mamba_d_ssm": 48,
        "mamba_n_heads": 6,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 12,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 16,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "mamba_norm_before_gate": False,
        "mamba_rms_norm": False,
        "embedding_multiplier": 2.3,
        "lm_head_multiplier": 0.7,
        "key_multiplier": 0.39,
        "attention_in_multiplier": 1.1,
        "attention_out_multiplier": 0.9375,
        "ssm_in_multiplier": 1.25,
        "ssm_out_multiplier": 0.6,
        "ssm_multipliers": [0.35, 0.8, 1.3, 0.5, 0.9],
        "mlp_multipliers": [0.88, 0.58],
    },
}
_PII_BACKBONE = {
    "hidden_size": 40,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "vocab_size": TOKENIZER_SIZE,
    "max_position_embeddings": 4096,
    "attention_bias": False,
    "hidden_act": "silu",
}
_PII_TOP = {
    "architectures": ["PiiMaskingModel"],
    "model_type": "pii_masking",
    "num_token_labels": len(PII_LABELS),
    "max_seq_len": 4096,
    "viterbi_b_bias": PII_B_BIAS,
    "viterbi_e_bias": PII_E_BIAS,
}
_PII_REPACKED = {
    "architectures": ["Qwen3ForTokenClassification"],
    "model_type": "qwen3",
    "is_causal": False,
    "id2label": {str(i): label for i, label in enumerate((*PII_LABELS, "SENSITIVITY"))},
    "label2id": {label: i for i, label in enumerate((*PII_LABELS, "SENSITIVITY"))},
}
# Fields a test may set that the defaults above leave out. `None` is written as null.
_OPTIONAL = {
    "head_dim",
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "dtype",
    "torch_dtype",
    "layer_types",
    "time_step_limit",
    "time_step_min",
    "time_step_max",
    "use_bidirectional_attention",
}

_TORCH_DTYPE = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "mixed": "bfloat16"}


def tiny_checkpoint(
    folder: str | Path,
    model_type: str = "qwen2",
    *,
    seed: int = 0,
    dtype: str = "bf16",
    tie: bool = True,
    tokenizer: bool = True,
    shards: int = 1,
    **config_overrides: Any,
) -> Path:
    """Write a random checkpoint folder and return its path.

    model_type: one of MODEL_TYPES. "pii_masking" is the published layout; "qwen3_token_classification" is the repacked
    one, holding the same numbers for the same seed.
    dtype: "bf16", "f16", "f32" or "mixed" (f32 vectors, f16 embedding, bf16 matrices).
    tie: leave out lm_head.weight and say so in the config (no meaning for the two classifiers).
    shards: more than one writes model-0000i-of-0000n.safetensors and the index.
    config_overrides: fields of config.json; an unknown one is a TypeError. For "pii_masking" they reach the backbone or
    the top level, wherever the field lives.
    """
    if model_type not in MODEL_TYPES:
        raise ValueError(f"model_type {model_type!r} is not one of {MODEL_TYPES}")
    if dtype not in _TORCH_DTYPE:
        raise ValueError(f"dtype {dtype!r} is not one of {tuple(_TORCH_DTYPE)}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(model_type, dtype, tie, config_overrides)
    rng = np.random.default_rng(seed)
    if model_type in ("pii_masking", "qwen3_token_classification"):
        tensors = _pii_tensors(config, model_type, dtype, rng)
    else:
        shapes = _falcon_h1_shapes(config) if model_type == "falcon_h1" else _decoder_shapes(config, "model.")
        if not tie:
            shapes["lm_head.weight"] = (config["vocab_size"], config["hidden_size"])
        tensors = _random_tensors(shapes, dtype, rng)

    write_json(folder / "config.json", config)
    write_weights(folder, tensors, shards)
    if model_type == "qwen3_token_classification":
        write_json(folder / "viterbi.json", {"b_bias": PII_B_BIAS, "e_bias": PII_E_BIAS})
    elif model_type != "pii_masking":
        special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        write_json(folder / "generation_config.json", special)
    if tokenizer:
        write_tokenizer(folder)
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def make_prompt(num_tokens: int, vocab_size: int = TOKENIZER_SIZE, seed: int = 0) -> list[int]:
    """Random token ids without the special ones."""
    return np.random.default_rng([seed, num_tokens]).integers(len(_SPECIAL), vocab_size, num_tokens).tolist()


# ---------------------------------------------------------------- config


def _config(model_type: str, dtype: str, tie: bool, overrides: Mapping[str, Any]) -> dict[str, Any]:
    if model_type == "pii_masking":
        backbone = _PII_BACKBONE | {"model_type": "qwen3", "use_bidirectional_attention": True}
        known_backbone = (backbone.keys() | _OPTIONAL) - _PII_TOP.keys() - {"dtype", "torch_dtype"}
        _refuse_unknown(model_type, overrides, known_backbone | _PII_TOP.keys() | {"dtype", "torch_dtype"})
        backbone |= {key: value for key, value in overrides.items() if key in known_backbone}
        top = {key: value for key, value in overrides.items() if key not in known_backbone}
        hidden = {"hidden_size": backbone["hidden_size"]}
        return _PII_TOP | hidden | {"backbone": backbone, "dtype": _TORCH_DTYPE[dtype]} | top
    if model_type == "qwen3_token_classification":
        defaults = _PII_BACKBONE | _PII_REPACKED | {"dtype": _TORCH_DTYPE[dtype]}
    else:
        defaults = _DEFAULTS[model_type] | {"tie_word_embeddings": tie, "torch_dtype": _TORCH_DTYPE[dtype]}
    _refuse_unknown(model_type, overrides, (defaults.keys() | _OPTIONAL) - {"tie_word_embeddings"})
    if "rope_parameters" in overrides:  # the newer spelling replaces the older one
        defaults = {key: value for key, value in defaults.items() if key not in ("rope_theta", "rope_scaling")}
    return defaults | dict(overrides)


def _refuse_unknown(model_type: str, overrides: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(overrides.keys() - known):
        raise TypeError(f"tiny_checkpoint({model_type!r}) has no config field {', '.join(unknown)}")


# ---------------------------------------------------------------- tensors

Shapes = dict[str, tuple[int, ...]]


def _decoder_shapes(config: Mapping[str, Any], prefix: str) -> Shapes:
    hidden, ff, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes: Shapes = {f"{prefix}embed_tokens.weight": (vocab, hidden)}
    for i in range(config["num_hidden_layers"]):
        p = f"{prefix}layers.{i}."
        shapes |= {f"{p}input_layernorm.weight": (hidden,), f"{p}post_attention_layernorm.weight": (hidden,)}
        shapes |= _attention_shapes(config, f"{p}self_attn.")
        shapes |= _mlp_shapes(hidden, ff, f"{p}mlp.", config.get("mlp_bias", False))
    shapes[f"{prefix}norm.weight"] = (hidden,)
    return shapes


def _attention_shapes(config: Mapping[str, Any], p: str) -> Shapes:
    hidden, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    rows = {"q_proj": heads * head_dim, "k_proj": kv_heads * head_dim, "v_proj": kv_heads * head_dim}
    shapes: Shapes = {f"{p}{name}.weight": (n, hidden) for name, n in rows.items()}
    shapes[f"{p}o_proj.weight"] = (hidden, heads * head_dim)
    if config["model_type"] == "qwen2" or config.get("attention_bias"):
        shapes |= {f"{p}{name}.bias": (n,) for name, n in rows.items()}
    if config.get("attention_bias"):
        shapes[f"{p}o_proj.bias"] = (hidden,)
    if config["model_type"] == "qwen3":
        shapes |= {f"{p}q_norm.weight": (head_dim,), f"{p}k_norm.weight": (head_dim,)}
    return shapes


def _mlp_shapes(hidden: int, ff: int, p: str, bias: bool) -> Shapes:
    shapes: Shapes = {
        f"{p}gate_proj.weight": (ff, hidden),
        f"{p}up_proj.weight": (ff, hidden),
        f"{p}down_proj.weight": (hidden, ff),
    }
    if bias:
        shapes |= {f"{p}gate_proj.bias": (ff,), f"{p}up_proj.bias": (ff,), f"{p}down_proj.bias": (hidden,)}
    return shapes


def _falcon_h1_shapes(config: Mapping[str, Any]) -> Shapes:
    hidden, heads = config["hidden_size"], config["mamba_n_heads"]
    d_ssm = config["mamba_expand"] * hidden if config["mamba_d_ssm"] is None else config["mamba_d_ssm"]
    conv_dim = d_ssm + 2 * config["mamba_n_groups"] * config["mamba_d_state"]
    in_rows = d_ssm + conv_dim + heads  # gate, then x, B and C, then dt
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes |= {f"{p}input_layernorm.weight": (hidden,), f"{p}pre_ff_layernorm.weight": (hidden,)}
        shapes |= _attention_shapes(config, f"{p}self_attn.")
        shapes |= _mlp_shapes(hidden, config["intermediate_size"], f"{p}feed_forward.", config["mlp_bias"])
        m = f"{p}mamba."
        shapes |= {f"{m}in_proj.weight": (in_rows, hidden), f"{m}out_proj.weight": (hidden, d_ssm)}
        shapes |= {f"{m}conv1d.weight": (conv_dim, 1, config["mamba_d_conv"])}
        shapes |= {f"{m}dt_bias": (heads,), f"{m}A_log": (heads,), f"{m}D": (heads,)}
        optional = {
            "in_proj.bias": (in_rows, config["mamba_proj_bias"]),
            "out_proj.bias": (hidden, config["projectors_bias"]),
            "conv1d.bias": (conv_dim, config["mamba_conv_bias"]),
            "norm.weight": (d_ssm, config["mamba_rms_norm"]),
        }
        shapes |= {f"{m}{name}": (n,) for name, (n, present) in optional.items() if present}
    shapes["model.final_layernorm.weight"] = (hidden,)
    return shapes


def _pii_tensors(
    config: Mapping[str, Any], model_type: str, dtype: str, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    published = model_type == "pii_masking"
    backbone = config["backbone"] if published else config
    num_labels = config["num_token_labels"] if published else len(PII_LABELS)
    tensors = _random_tensors(_decoder_shapes(backbone, "backbone." if published else "model."), dtype, rng)
    hidden = backbone["hidden_size"]
    token_w, token_b, score_w, score_b = (
        (0.3 * rng.standard_normal(shape)).astype(np.float32)
        for shape in ((num_labels, hidden), (num_labels,), (1, hidden), (1,))
    )
    if not published:
        return tensors | {
            "score.weight": np.concatenate([token_w, score_w]),
            "score.bias": np.concatenate([token_b, score_b]),
        }
    tensors |= {"token_cls_head.weight": token_w, "token_cls_head.bias": token_b}
    tensors |= {"sensitivity_head.weight": score_w, "sensitivity_head.bias": score_b}
    tensors |= {"viterbi.b_bias": np.array([config["viterbi_b_bias"]], np.float32)}
    tensors |= {"viterbi.e_bias": np.array([config["viterbi_e_bias"]], np.float32)}
    return tensors | {"viterbi.transition_mask": legal_transitions(PII_LABELS)}


def legal_transitions(labels: tuple[str, ...]) -> np.ndarray:
    """Bool [from, to]: B and I go to I or E of their own type; O, E and S go to O or to any B or S."""

    def legal(a: str, b: str) -> bool:
        if a[:2] in ("B-", "I-"):
            return b[:2] in ("I-", "E-") and b[2:] == a[2:]
        return b == "O" or b[:2] in ("B-", "S-")

    return np.array([[legal(a, b) for b in labels] for a in labels])


def _random_tensors(shapes: Shapes, dtype: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    tensors = {}
    for name, shape in shapes.items():
        if name.endswith("A_log"):
            value = np.log(np.arange(1, shape[0] + 1))
        elif name.endswith("dt_bias"):
            value = rng.uniform(-4, 0, shape)
        elif "norm" in name or name.endswith("mamba.D"):
            value = 1 + 0.2 * rng.standard_normal(shape)
        elif len(shape) == 1:
            value = 0.2 * rng.standard_normal(shape)
        else:
            value = rng.standard_normal(shape) / np.sqrt(shape[-1])
        tensors[name] = store(_in_every_dtype(value), _stored_dtype(dtype, name, shape))
    return tensors


def _stored_dtype(dtype: str, name: str, shape: tuple[int, ...]) -> str:
    if dtype != "mixed":
        return dtype
    if len(shape) == 1:
        return "f32"
    return "f16" if name.endswith("embed_tokens.weight") else "bf16"


def _in_every_dtype(value: np.ndarray) -> np.ndarray:
    """Round to f32 values that bf16 and f16 both hold: f16 keeps bf16 values from 2^-17 up, below it has fewer bits."""
    return from_bf16(to_bf16(value.astype(np.float32))).astype(np.float16).astype(np.float32)


def store(value: np.ndarray, dtype: str) -> np.ndarray:
    """An f32 array in its stored form: "f32", "f16", or "bf16" as uint16."""
    return {"f32": np.float32, "f16": np.float16}[dtype](value) if dtype != "bf16" else to_bf16(value)


def to_bf16(value: np.ndarray) -> np.ndarray:
    """Finite f32 -> the upper half of its bits, rounded to nearest even, as uint16."""
    bits = np.ascontiguousarray(value, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


# ---------------------------------------------------------------- files

_SAFETENSORS_DTYPE = {
    "uint16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "bool": "BOOL",
    "int64": "I64",
    "float64": "F64",
}


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file; a uint16 array is BF16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, value in tensors.items():
        begin, end = end, end + value.nbytes
        header[name] = {
            "dtype": _SAFETENSORS_DTYPE[value.dtype.name],
            "shape": list(value.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            file.write(np.ascontiguousarray(value).tobytes())


def write_weights(folder: Path, tensors: Mapping[str, np.ndarray], shards: int = 1) -> None:
    """Write model.safetensors, or `shards` files with tensors dealt out in order and their index."""
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for i in range(shards):
        file_name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[i * len(names) // shards : (i + 1) * len(names) // shards]
        write_safetensors(folder / file_name, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file_name)
    total = sum(value.nbytes for value in tensors.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


# ---------------------------------------------------------------- tokenizer

_WORDS = (
    " the",
    " and",
    " of",
    " is",
    " in",
    " my",
    " name",
    " call",
    " hello",
    " world",
    " Alice",
    "er",
    "ing",
    "on",
    "at",
    "re",
    "th",
    "é",
    "\n\n",
    " capital",
    " France",
    " user",
    "ou",
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def _byte_alphabet() -> list[str]:
    """The 256 printable characters that byte-level BPE writes for bytes 0..255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (chr(0x100 + i) for i in range(256))
    return [chr(byte) if byte in printable else next(others) for byte in range(256)]


def write_tokenizer(folder: Path, *, add_bos: bool = False, chat_template: str | None = CHATML) -> None:
    """Write tokenizer.json and tokenizer_config.json: byte-level BPE of TOKENIZER_SIZE ids.

    Ids: 0 <|endoftext|> (BOS), 1 <|im_start|>, 2 <|im_end|> (EOS), then bytes 0..255 from id 3 on, then merges that
    grow the words above letter by letter. add_bos: the post-processor puts BOS first, as Llama's does.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = _byte_alphabet()
    vocab = {token: i for i, token in enumerate([*_SPECIAL, *alphabet])}
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        spelled = [alphabet[byte] for byte in word.encode()]
        for n in range(1, len(spelled)):
            left, right = "".join(spelled[:n]), spelled[n]
            if left + right not in vocab and len(vocab) < TOKENIZER_SIZE:
                vocab[left + right] = len(vocab)
                merges.append((left, right))
    assert len(vocab) == TOKENIZER_SIZE, len(vocab)

    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{_SPECIAL[0]} $A", pair=f"{_SPECIAL[0]} $A {_SPECIAL[0]} $B", special_tokens=[(_SPECIAL[0], 0)]
        )
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[2],
        "pad_token": _SPECIAL[0],
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    }
    if chat_template is not None:
        settings["chat_template"] = chat_template
    write_json(folder / "tokenizer_config.json", settings)
