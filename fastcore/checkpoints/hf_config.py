"""config.json -> frozen ModelConfig. The only place where Hugging Face spellings vary.

Every field is taken once by name and checked; null counts as absent. A field that would change the result and is not
implemented is an UnsupportedModelError; fields that change nothing are listed in _HARMLESS; of the rest, those with a
value go into `ModelConfig.unrecognised` and one UserWarning names them.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastcore.checkpoints.fields import Fields, agreed
from fastcore.checkpoints.hf_rope import parse_rope
from fastcore.model.config import (
    MAX_LAYERS,
    MAX_POSITIONS,
    FalconMultipliers,
    MambaConfig,
    ModelConfig,
    PiiConfig,
    RopeConfig,
)

__all__ = ["PII_LABELS", "parse_config", "parse_fields"]


@dataclass(frozen=True)
class _Family:
    """What transformers assumes of a model_type when its config.json does not say, and which options it has."""

    architectures: tuple[str, ...]
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    has_attention_bias: bool = True
    has_mlp_bias: bool = True
    layer_type: str = "full_attention"


_FAMILIES = {
    "llama": _Family(("LlamaForCausalLM",), 2048),
    "qwen2": _Family(("Qwen2ForCausalLM",), 32768, has_attention_bias=False, has_mlp_bias=False),
    "qwen3": _Family(("Qwen3ForCausalLM", "Qwen3ForTokenClassification"), 32768, has_mlp_bias=False),
    "falcon_h1": _Family(("FalconH1ForCausalLM",), 8192, rms_norm_eps=1e-5, layer_type="hybrid"),
}
_PII_ARCHITECTURES = ("PiiMaskingModel",)

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
_PII_MAX_SEQ_LEN = 4096
_SENSITIVITY_LABEL = "SENSITIVITY"

_DTYPES = {"bfloat16": "bf16", "float16": "f16", "half": "f16", "float32": "f32", "float": "f32", "auto": None}

# Fields that change the result when they are switched on, and are not implemented.
_MUST_BE_OFF = (
    "add_cross_attention",
    "attn_layer_indices",
    "attn_logit_softcapping",
    "compression_config",
    "cross_attention_hidden_size",
    "dual_chunk_attention_config",
    "final_logit_softcapping",
    "is_encoder_decoder",
    "per_layer_config",
    "pruned_heads",
    "quantization",
    "quantization_config",
    "rope_interleaved",
    "use_mrope",
)

# Fields that change nothing: about training, saving, other software, or defaults of sampling.
# fmt: off
_HARMLESS = frozenset((
    "attention_dropout", "attn_implementation", "auto_map", "bad_words_ids", "begin_suppress_tokens",
    "chunk_size_feed_forward", "cls_token_id", "decoder_start_token_id", "diversity_penalty", "do_sample",
    "early_stopping", "encoder_no_repeat_ngram_size", "experts_implementation", "exponential_decay_length_penalty",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "id2label",
    "initializer_range", "is_decoder", "is_llama_config", "label2id", "length_penalty", "mamba_chunk_size",
    "max_length", "min_length", "mlp_expansion_factor", "name_or_path", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_labels", "num_logits_to_keep", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_scores", "prefix", "pretraining_tp", "problem_type", "remove_invalid_values",
    "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
    "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tie_last_hidden_states",
    "time_step_floor", "time_step_max", "time_step_min", "time_step_rank", "tokenizer_class", "top_k", "top_p",
    "torchscript", "transformers.js_config", "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache",
))
# fmt: on


def parse_config(
    config: Mapping[str, Any], generation: Mapping[str, Any] | None = None, viterbi: Mapping[str, Any] | None = None
) -> ModelConfig:
    """A model's config from the contents of config.json, generation_config.json and viterbi.json."""
    return parse_fields(
        Fields(config, "config.json"),
        Fields(generation or {}, "generation_config.json"),
        Fields(viterbi or {}, "viterbi.json"),
    )


def parse_fields(fields: Fields, generation: Fields, viterbi: Fields) -> ModelConfig:
    """The same from fields that know the file they are from."""
    raw_generation = generation.values()
    model_type = _model_type(fields)
    architectures = _architectures(fields, model_type)
    objects = [fields]
    special: dict[str, Any] = {}  # what only some families have
    if model_type == "pii_masking":
        backbone = fields.nested("backbone")
        if backbone is None:
            raise fields.missing("backbone", "the config of a qwen3 model")
        objects.append(backbone)
        decoder = _decoder(backbone, _FAMILIES["qwen3"])
        _check_backbone(fields, backbone, decoder["hidden_size"])
        special["id2label"], special["pii"] = _pii_heads(fields)
    else:
        decoder = _decoder(fields, _FAMILIES[model_type])
    if model_type == "falcon_h1":
        special["mamba"] = _mamba(fields, decoder["hidden_size"])
        special["multipliers"] = _multipliers(fields)
    if "Qwen3ForTokenClassification" in architectures:
        special["id2label"], special["pii"] = _score_head(fields, viterbi, decoder["rope"].context_length)
    special["is_causal"] = _is_causal(objects, must_say="pii" in special)
    special["dtype"] = _dtype(objects)
    special |= _special_tokens(fields, generation, decoder["vocab_size"])
    for each in objects:
        _refuse_switched_on(each)

    unrecognised = tuple(
        sorted(fields.leftovers(_HARMLESS) + (viterbi.leftovers(_HARMLESS) if "pii" in special else []))
    )
    if unrecognised:
        message = f"{fields.where}: fields unknown to fastcore are ignored: {', '.join(unrecognised)}"
        warnings.warn(message, UserWarning, stacklevel=3)
    return ModelConfig(
        model_type=model_type,
        architectures=architectures,
        generation=raw_generation,
        unrecognised=unrecognised,
        **decoder,
        **special,
    )


def _model_type(fields: Fields) -> str:
    supported = (*_FAMILIES, "pii_masking")
    model_type = fields.string("model_type", None)
    if model_type is None:
        raise fields.missing("model_type", f"one of {', '.join(supported)}")
    if model_type not in supported:
        raise fields.unsupported("model_type", model_type, f"supported: {', '.join(supported)}")
    return model_type


def _architectures(fields: Fields, model_type: str) -> tuple[str, ...]:
    supported = _PII_ARCHITECTURES if model_type == "pii_masking" else _FAMILIES[model_type].architectures
    names = fields.take("architectures") or []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise fields.wrong("architectures", names, "a list of names")
    if names and not set(names) & set(supported):
        raise fields.unsupported("architectures", names, f"supported for {model_type}: {', '.join(supported)}")
    return tuple(names)


def _check_backbone(fields: Fields, backbone: Fields, hidden_size: int) -> None:
    model_type = backbone.string("model_type", "qwen3")
    if model_type != "qwen3":
        raise backbone.unsupported("model_type", model_type, "supported: qwen3")
    backbone.take("architectures")  # the backbone's own class: the heads are those of the outer model
    stated = fields.integer("hidden_size", None)
    agreed(fields.where, {"hidden_size": stated, "backbone.hidden_size": hidden_size})


# ---------------------------------------------------------------- the decoder, alike in all families


def _decoder(fields: Fields, family: _Family) -> dict[str, Any]:
    """The fields of ModelConfig that describe a stack of decoder layers."""
    hidden_size = fields.needed_integer("hidden_size")
    num_layers = fields.needed_integer("num_hidden_layers", MAX_LAYERS)
    heads = fields.needed_integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads ({heads})")
    max_positions = fields.integer("max_position_embeddings", family.max_position_embeddings, high=MAX_POSITIONS)
    activation = fields.string("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise fields.unsupported("hidden_act", activation, "supported: silu")
    head_dim = _head_dim(fields, hidden_size, heads)
    rope = parse_rope(fields, family.rope_theta, max_positions, head_dim)
    _refuse_other_layers(fields, family, num_layers, rope)
    return {
        "vocab_size": fields.needed_integer("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": fields.needed_integer("intermediate_size"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": fields.number("rms_norm_eps", family.rms_norm_eps, above=0.0),
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": fields.boolean("tie_word_embeddings", False),
        "attention_bias": _bias(fields, "attention_bias", family.has_attention_bias),
        "mlp_bias": _bias(fields, "mlp_bias", family.has_mlp_bias),
        "rope": rope,
    }


def _head_dim(fields: Fields, hidden_size: int, heads: int) -> int:
    head_dim = fields.integer("head_dim", None)
    if head_dim is None:
        if hidden_size % heads:
            raise fields.wrong(
                "hidden_size", hidden_size, f"a multiple of num_attention_heads ({heads}), or a head_dim"
            )
        head_dim = hidden_size // heads
    if head_dim % 2:
        raise fields.wrong("head_dim", head_dim, "an even number, since RoPE turns pairs")
    return head_dim


def _bias(fields: Fields, name: str, has_option: bool) -> bool:
    value = fields.boolean(name, False)
    if value and not has_option:
        raise fields.unsupported(name, value, "this model_type has no such option")
    return value


def _refuse_other_layers(fields: Fields, family: _Family, num_layers: int, rope: RopeConfig) -> None:
    """Every layer must attend to the whole context: a sliding window may be named, but not be in use."""
    layer_types = fields.take("layer_types")
    if layer_types is None:
        layer_types = fields.take("layers_block_type")
    window = fields.integer("sliding_window", None if "sliding_window" in fields else 4096, high=MAX_POSITIONS)
    use_window = fields.boolean("use_sliding_window", False)
    full_layers = fields.integer("max_window_layers", 28, low=0)
    if layer_types is not None:
        if not isinstance(layer_types, list | tuple) or len(layer_types) != num_layers:
            raise fields.wrong("layer_types", layer_types, f"a list of num_hidden_layers ({num_layers}) names")
        for layer_type in layer_types:
            if layer_type not in (family.layer_type, "sliding_attention"):
                raise fields.unsupported("layer_types", layer_type, f"supported: {family.layer_type}")
        slides = "sliding_attention" in layer_types
        window = window if use_window else None
    else:
        slides = use_window and window is not None and full_layers < num_layers
    if slides and (window is None or window < rope.context_length):
        stretched = "" if rope.context_length == rope.max_position_embeddings else ", as rope scaling stretches it"
        advice = f"supported: a window of at least the context length ({rope.context_length}{stretched}), or none"
        raise fields.unsupported("sliding_window", window, advice)


# ---------------------------------------------------------------- what only some families have


def _mamba(fields: Fields, hidden_size: int) -> MambaConfig:
    heads = fields.needed_integer("mamba_n_heads")
    groups = fields.integer("mamba_n_groups", 1)
    expand = fields.integer("mamba_expand", 2)
    d_ssm = fields.integer("mamba_d_ssm", expand * hidden_size)
    d_head = fields.take("mamba_d_head")
    if d_ssm % heads:
        raise fields.wrong("mamba_d_ssm", d_ssm, f"a multiple of mamba_n_heads ({heads})")
    if d_head not in (None, "auto", d_ssm // heads) or isinstance(d_head, bool):
        raise fields.wrong("mamba_d_head", d_head, f"mamba_d_ssm / mamba_n_heads ({d_ssm} / {heads})")
    if heads % groups:
        raise fields.wrong("mamba_n_groups", groups, f"a divisor of mamba_n_heads ({heads})")
    return MambaConfig(
        mamba_d_ssm=d_ssm,
        mamba_n_heads=heads,
        mamba_d_head=d_ssm // heads,
        mamba_n_groups=groups,
        mamba_d_state=fields.needed_integer("mamba_d_state"),
        mamba_d_conv=fields.integer("mamba_d_conv", 4),
        mamba_conv_bias=fields.boolean("mamba_conv_bias", True),
        mamba_proj_bias=fields.boolean("mamba_proj_bias", False),
        projectors_bias=fields.boolean("projectors_bias", False),
        mamba_rms_norm=fields.boolean("mamba_rms_norm", False),
        mamba_norm_before_gate=fields.boolean("mamba_norm_before_gate", True),
        time_step_limit=_time_step_limit(fields),
    )


def _time_step_limit(fields: Fields) -> tuple[float, float]:
    """[low, high]; an infinite high is written Infinity, or {"__float__": "Infinity"} by transformers 5."""
    value = fields.take("time_step_limit")
    if value is None:
        return 0.0, math.inf
    ends = (
        [math.inf if end == {"__float__": "Infinity"} else end for end in value]
        if isinstance(value, list | tuple)
        else []
    )
    if len(ends) != 2 or not all(type(end) in (int, float) for end in ends) or not 0 <= ends[0] < ends[1]:
        raise fields.wrong("time_step_limit", value, "[low, high] with 0 <= low < high")
    low, high = (
        end if end in (0, math.inf) else fields.finite(f"time_step_limit[{i}]", end) for i, end in enumerate(ends)
    )
    return float(low), float(high)


def _multipliers(fields: Fields) -> FalconMultipliers:
    return FalconMultipliers(
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        lm_head_multiplier=fields.number("lm_head_multiplier", 1.0),
        key_multiplier=fields.number("key_multiplier", 1.0),
        attention_in_multiplier=fields.number("attention_in_multiplier", 1.0),
        attention_out_multiplier=fields.number("attention_out_multiplier", 1.0),
        ssm_in_multiplier=fields.number("ssm_in_multiplier", 1.0),
        ssm_out_multiplier=fields.number("ssm_out_multiplier", 1.0),
        ssm_multipliers=fields.numbers("ssm_multipliers", 5),
        mlp_multipliers=fields.numbers("mlp_multipliers", 2),
    )


def _pii_heads(fields: Fields) -> tuple[dict[int, str], PiiConfig]:
    """The published PII layout: a token head, a sensitivity head, and labels that the file may leave out."""
    labels = _labels(fields)
    num_token_labels = fields.integer("num_token_labels", len(labels or PII_LABELS))
    if labels is None:
        labels = dict(enumerate(PII_LABELS))
    if num_token_labels != len(labels):
        raise fields.wrong("num_token_labels", num_token_labels, f"the number of labels ({len(labels)})")
    return labels, PiiConfig(
        num_token_labels=num_token_labels,
        max_seq_len=fields.integer("max_seq_len", _PII_MAX_SEQ_LEN, high=MAX_POSITIONS),
        viterbi_b_bias=fields.number("viterbi_b_bias", None),
        viterbi_e_bias=fields.number("viterbi_e_bias", None),
        sensitivity_row=None,
    )


def _score_head(fields: Fields, viterbi: Fields, context_length: int) -> tuple[dict[int, str], PiiConfig]:
    """Qwen3ForTokenClassification: one `score` head, whose last row may be the sensitivity head."""
    labels = _labels(fields)
    if labels is None:
        raise fields.missing("id2label", "a label for each row of the score head")
    last = len(labels) - 1
    has_sensitivity = labels[last] == _SENSITIVITY_LABEL
    if has_sensitivity and last == 0:
        raise fields.wrong("id2label", labels, f"token labels before {_SENSITIVITY_LABEL}")
    # The repacked layout does not state the window of the published one.
    window = min(_PII_MAX_SEQ_LEN, context_length) if has_sensitivity else context_length
    return labels, PiiConfig(
        num_token_labels=last if has_sensitivity else last + 1,
        max_seq_len=fields.integer("max_seq_len", window, high=MAX_POSITIONS),
        viterbi_b_bias=viterbi.number("b_bias", None),
        viterbi_e_bias=viterbi.number("e_bias", None),
        sensitivity_row=last if has_sensitivity else None,
    )


def _labels(fields: Fields) -> dict[int, str] | None:
    """id2label with the keys as integers: 0 to n - 1, each with a name of its own."""
    table = fields.take("id2label")
    if not table:
        return None
    expected = "an object of row (0 to n - 1): label, each label once"
    if not isinstance(table, Mapping) or not all(isinstance(label, str) and label for label in table.values()):
        raise fields.wrong("id2label", table, expected)
    by_key = {str(key): label for key, label in table.items()}
    labels = {i: by_key[str(i)] for i in range(len(table)) if str(i) in by_key}
    if len(labels) != len(table) or len(set(labels.values())) != len(labels):
        raise fields.wrong("id2label", table, expected)
    return labels


def _is_causal(objects: list[Fields], must_say: bool) -> bool:
    says: dict[str, bool | None] = {}
    for fields in objects:
        bidirectional = fields.boolean("use_bidirectional_attention", None)
        says[fields.label("is_causal")] = fields.boolean("is_causal", None)
        says[f"not {fields.label('use_bidirectional_attention')}"] = (
            None if bidirectional is None else not bidirectional
        )
    is_causal = agreed(objects[0].where, says)
    if is_causal is None and must_say:
        raise objects[0].missing(
            "is_causal",
            "true or false, or use_bidirectional_attention: a token classifier has to say which way it attends",
        )
    return True if is_causal is None else is_causal


def _dtype(objects: list[Fields]) -> str | None:
    """The first of dtype (transformers 5) and torch_dtype (4) that is given, the outer object's first."""
    dtype = None
    for fields in objects:
        for name in ("dtype", "torch_dtype"):
            value = fields.string(name, None)
            if value is None:
                continue
            short = value.removeprefix("torch.")
            if short not in _DTYPES:
                raise fields.unsupported(name, value, "supported: bfloat16, float16, float32")
            dtype = dtype or _DTYPES[short]
    return dtype


def _special_tokens(fields: Fields, generation: Fields, vocab_size: int) -> dict[str, Any]:
    """bos, pad: config.json's, else generation_config.json's. eos: all of both."""
    found = {
        name: [_token_ids(each, name, vocab_size) for each in (fields, generation)]
        for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    bos, pad = (next(iter(ids[0] + ids[1]), None) for ids in (found["bos_token_id"], found["pad_token_id"]))
    eos = tuple(dict.fromkeys(found["eos_token_id"][0] + found["eos_token_id"][1]))
    return {"bos_token_id": bos, "eos_token_ids": eos, "pad_token_id": pad}


def _token_ids(fields: Fields, name: str, vocab_size: int) -> list[int]:
    """The ids in a field that holds one or a list. Ids beyond the vocabulary can never occur and are left out."""
    value = fields.take(name)
    ids = value if isinstance(value, list | tuple) else [] if value is None else [value]
    if not all(type(item) is int and -1 <= item < 2**31 for item in ids):
        raise fields.wrong(name, value, "a token id or a list of them")
    return [item for item in ids if 0 <= item < vocab_size]


# ---------------------------------------------------------------- checks of any field


def _refuse_switched_on(fields: Fields) -> None:
    for name in _MUST_BE_OFF:
        if value := fields.take(name):
            raise fields.unsupported(name, value, "supported: without it")
    if fields.boolean("mamba_use_mlp", True) is False:
        raise fields.unsupported("mamba_use_mlp", False, "supported: true")
