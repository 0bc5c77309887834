"""config.json -> frozen ModelConfig. The only place where Hugging Face spellings vary.

Every field is taken once by name and checked; null counts as absent. A field that would change the result and is not
implemented is an UnsupportedModelError; fields that change nothing are listed in _HARMLESS; of the rest, those with a
value go into `ModelConfig.unrecognised` and one UserWarning names them.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastcore.checkpoints.fields import Fields, agreed
from fastcore.checkpoints.strict_json import read_object
from fastcore.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError

MAX_LAYERS = 2**12
MAX_POSITIONS = 2**31 - 1


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions. Fields that `rope_type` does not use keep their defaults."""

    rope_type: str = "default"  # default | linear | dynamic | llama3 | yarn
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048  # dynamic: the base grows beyond this length
    factor: float = 1.0
    original_max_position_embeddings: int | None = None  # llama3, yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    attention_factor: float | None = None  # yarn; None: from factor, mscale and mscale_all_dim
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn


@dataclass(frozen=True)
class MambaConfig:
    """The Mamba-2 mixer. `mamba_d_ssm` is the inner width, already derived when the file leaves it out."""

    mamba_d_ssm: int
    mamba_n_heads: int
    mamba_d_head: int
    mamba_n_groups: int
    mamba_d_state: int
    mamba_d_conv: int
    mamba_expand: int
    mamba_chunk_size: int
    mamba_conv_bias: bool
    mamba_proj_bias: bool  # in_proj
    projectors_bias: bool  # out_proj
    mamba_rms_norm: bool
    mamba_norm_before_gate: bool
    time_step_limit: tuple[float, float]  # clamps softplus(dt + dt_bias); the upper end may be infinite

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.mamba_d_ssm + 2 * self.mamba_n_groups * self.mamba_d_state

    @property
    def in_proj_size(self) -> int:
        """Rows of in_proj: gate, then x, B and C, then dt."""
        return self.mamba_d_ssm + self.conv_dim + self.mamba_n_heads


@dataclass(frozen=True)
class FalconMultipliers:
    """The muP multipliers of Falcon-H1."""

    embedding_multiplier: float
    lm_head_multiplier: float
    key_multiplier: float
    attention_in_multiplier: float
    attention_out_multiplier: float
    ssm_in_multiplier: float
    ssm_out_multiplier: float
    ssm_multipliers: tuple[float, ...]  # 5: gate, x, B, C, dt
    mlp_multipliers: tuple[float, ...]  # 2: gate_proj, down_proj


@dataclass(frozen=True)
class PiiConfig:
    """What a token classifier needs beside its backbone."""

    num_token_labels: int
    max_seq_len: int  # window, in tokens
    viterbi_b_bias: float | None  # None: stated nowhere in the config files
    viterbi_e_bias: float | None
    sensitivity_row: (
        int | None
    )  # row of the `score` head that is the sensitivity head; None: a head of its own, or none


@dataclass(frozen=True)
class ModelConfig:
    """A model's shape and options, named as in Hugging Face's config.json."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    rope: RopeConfig
    is_causal: bool
    architectures: tuple[str, ...]
    dtype: str | None = None  # bf16 | f16 | f32; a hint only: each tensor is read as its own dtype says
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()  # of config.json, then those that generation_config.json adds
    pad_token_id: int | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)  # generation_config.json as it is
    id2label: Mapping[int, str] | None = None  # token classifiers only
    mamba: MambaConfig | None = None  # falcon_h1 only
    multipliers: FalconMultipliers | None = None  # falcon_h1 only
    pii: PiiConfig | None = None  # token classifiers only
    unrecognised: tuple[str, ...] = ()

    @property
    def context_length(self) -> int:
        """Tokens that the positions are made for: max_position_embeddings, or what rope scaling stretches it to."""
        rope, longest = self.rope, self.max_position_embeddings
        if rope.rope_type in ("linear", "dynamic"):
            return max(longest, int(longest * rope.factor))
        if rope.rope_type == "yarn":
            return max(longest, int((rope.original_max_position_embeddings or longest) * rope.factor))
        return longest

    @property
    def qkv_bias(self) -> bool:
        """Whether q_proj, k_proj and v_proj have a bias."""
        return self.attention_bias or self.model_type == "qwen2"

    @property
    def o_bias(self) -> bool:
        """Whether o_proj has a bias."""
        return self.attention_bias

    @property
    def is_token_classifier(self) -> bool:
        return self.pii is not None

    @property
    def token_labels(self) -> tuple[str, ...]:
        """The labels of a token classifier by row, without the sensitivity row; () for a language model."""
        if self.pii is None or self.id2label is None:
            return ()
        return tuple(self.id2label[i] for i in range(self.pii.num_token_labels))


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

# What each rope_type reads beside rope_theta: the numbers it cannot do without, and those that it can.
_ROPE_NUMBERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ()),
    "yarn": ((), ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")),
}

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
    "initializer_range", "is_decoder", "is_llama_config", "label2id", "length_penalty", "max_length", "min_length",
    "mlp_expansion_factor", "name_or_path", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels",
    "num_logits_to_keep", "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores",
    "prefix", "pretraining_tp", "problem_type", "remove_invalid_values", "repetition_penalty", "return_dict",
    "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "tie_encoder_decoder", "tie_last_hidden_states", "time_step_floor", "time_step_max",
    "time_step_min", "time_step_rank", "tokenizer_class", "top_k", "top_p", "torchscript", "transformers.js_config",
    "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache",
))
# fmt: on


def load_config(path: str | Path) -> ModelConfig:
    """Read config.json, generation_config.json and viterbi.json of a model folder, or of the folder that a file is in.

    A .gguf file's own metadata takes their place.

    An .fh1w file with no config.json beside it gets one of the built-in configs. Raises ModelNotFoundError,
    CheckpointError (naming field, found, expected) or UnsupportedModelError.
    """
    path = Path(path)
    if not path.exists():
        raise ModelNotFoundError(f"{path} does not exist; expected a model folder or a checkpoint file")
    if path.suffix == ".gguf":
        from fastcore.checkpoints.gguf import GgufFile

        with GgufFile(path) as file:
            return parse_config(file.config, file.generation_config)
    folder = path if path.is_dir() else path.parent
    if not (folder / "config.json").exists():
        packs = sorted(folder.glob("*.fh1w")) if path.is_dir() else [path]
        if len(packs) == 1 and packs[0].suffix == ".fh1w":
            from fastcore.checkpoints.fh1w import builtin_config
            from fastcore.checkpoints.folder import open_checkpoint

            with open_checkpoint(packs[0]) as tensors:
                return builtin_config(tensors)
        raise CheckpointError(f"{folder} has no config.json; expected a model folder in Hugging Face form")
    files = [folder / name for name in ("config.json", "generation_config.json", "viterbi.json")]
    config, generation, viterbi = (Fields(read_object(file) if file.exists() else {}, str(file)) for file in files)
    return _parse(config, generation, viterbi)


def parse_config(
    config: Mapping[str, Any], generation: Mapping[str, Any] | None = None, viterbi: Mapping[str, Any] | None = None
) -> ModelConfig:
    """The same from the contents of config.json, generation_config.json and viterbi.json."""
    return _parse(
        Fields(config, "config.json"),
        Fields(generation or {}, "generation_config.json"),
        Fields(viterbi or {}, "viterbi.json"),
    )


def _parse(fields: Fields, generation: Fields, viterbi: Fields) -> ModelConfig:
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
        special["id2label"], special["pii"] = _score_head(fields, viterbi, decoder["max_position_embeddings"])
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
    _refuse_other_layers(fields, family, num_layers, max_positions)
    head_dim = _head_dim(fields, hidden_size, heads)
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
        "rope": _rope(fields, family.rope_theta, max_positions, head_dim),
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


def _refuse_other_layers(fields: Fields, family: _Family, num_layers: int, max_positions: int) -> None:
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
    if slides and (window is None or window < max_positions):
        advice = f"supported: a window of at least max_position_embeddings ({max_positions}), or none"
        raise fields.unsupported("sliding_window", window, advice)


def _rope(fields: Fields, default_theta: float, max_positions: int, head_dim: int) -> RopeConfig:
    """rope_parameters (transformers 5) and rope_scaling with rope_theta beside it (4) say the same things."""
    tables = [table for name in ("rope_parameters", "rope_scaling") if (table := fields.nested(name)) is not None]
    for table in tables:
        for name in ("full_attention", "sliding_attention"):
            if name in table:
                raise table.unsupported(name, table.take(name), "supported: one set of parameters for all layers")
    everywhere = [fields, *tables]
    rope_type = agreed(
        fields.where,
        {table.label(name): table.string(name, None) for table in tables for name in ("rope_type", "type")},
    )
    rope_type = "default" if rope_type is None else rope_type
    if rope_type not in _ROPE_NUMBERS:
        raise UnsupportedModelError(
            f"{fields.where}: rope_type {rope_type!r:.80} is not implemented; supported: {', '.join(_ROPE_NUMBERS)}"
        )
    theta = agreed(fields.where, {each.label("rope_theta"): _theta(each) for each in everywhere})
    rotary_part = agreed(
        fields.where,
        {each.label("partial_rotary_factor"): each.number("partial_rotary_factor", None) for each in everywhere},
    )
    if rotary_part not in (None, 1.0):
        raise fields.unsupported("partial_rotary_factor", rotary_part, "supported: 1")

    given: dict[str, Any] = {}
    needed, optional = _ROPE_NUMBERS[rope_type]
    for name in (*needed, *optional):
        value = agreed(fields.where, {table.label(name): table.number(name, None) for table in tables})
        # yarn counts a 0 as not given, except for the attention factor
        if value is None or (value == 0 and name in optional and name != "attention_factor"):
            if name in needed:
                raise tables[0].missing(name, f"a number, since rope_type is {rope_type}")
            continue
        if value <= 0:
            raise tables[0].wrong(name, value, "a number above 0")
        given[name] = value
    if rope_type in ("llama3", "yarn"):
        original = agreed(
            fields.where,
            {
                each.label(name): each.integer(name, None, high=MAX_POSITIONS)
                for each in everywhere
                for name in ("original_max_position_embeddings",)
            },
        )
        given["original_max_position_embeddings"] = max_positions if original is None else original
    if rope_type == "yarn":
        given.setdefault("factor", max_positions / given["original_max_position_embeddings"])
        truncate = agreed(fields.where, {table.label("truncate"): table.boolean("truncate", None) for table in tables})
        given["truncate"] = True if truncate is None else truncate
    if rope_type == "llama3" and given["high_freq_factor"] <= given["low_freq_factor"]:
        low = given["low_freq_factor"]
        raise tables[0].wrong("high_freq_factor", given["high_freq_factor"], f"more than low_freq_factor ({low})")
    if rope_type == "dynamic" and head_dim <= 2:
        raise fields.wrong("head_dim", head_dim, "more than 2, since rope_type is dynamic")
    return RopeConfig(
        rope_type=rope_type,
        rope_theta=default_theta if theta is None else theta,
        max_position_embeddings=max_positions,
        **given,
    )


def _theta(fields: Fields) -> float | None:
    """rope_theta, which some files spell as a string ("1e6")."""
    value = fields.take("rope_theta")
    if value is None:
        return None
    try:
        theta = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        theta = math.nan
    if not 1 < theta < math.inf:
        raise fields.wrong("rope_theta", value, "a finite number above 1")
    return theta


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
        mamba_expand=expand,
        mamba_chunk_size=fields.integer("mamba_chunk_size", 256),
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
    return float(ends[0]), float(ends[1])


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


def _score_head(fields: Fields, viterbi: Fields, max_positions: int) -> tuple[dict[int, str], PiiConfig]:
    """Qwen3ForTokenClassification: one `score` head, whose last row may be the sensitivity head."""
    labels = _labels(fields)
    if labels is None:
        raise fields.missing("id2label", "a label for each row of the score head")
    last = len(labels) - 1
    has_sensitivity = labels[last] == _SENSITIVITY_LABEL
    if has_sensitivity and last == 0:
        raise fields.wrong("id2label", labels, f"token labels before {_SENSITIVITY_LABEL}")
    # The repacked layout does not state the window of the published one.
    window = min(_PII_MAX_SEQ_LEN, max_positions) if has_sensitivity else max_positions
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
