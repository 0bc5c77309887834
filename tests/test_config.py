"""config.json in every spelling, and errors that name the field, what was found and what was expected."""

import dataclasses
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import MODEL_TYPES, tiny_checkpoint

from fastcore.checkpoints.folder import read_config as load_config
from fastcore.checkpoints.hf_config import PII_LABELS, parse_config
from fastcore.checkpoints.open import open_checkpoint
from fastcore.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from fastcore.model.config import ModelConfig, RopeConfig
from fastcore.model.rope import rope_tables
from fastcore.models.footprint import plan_model

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 16,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FALCON: dict[str, Any] = SIZES | {"model_type": "falcon_h1", "head_dim": 8, "mamba_n_heads": 6, "mamba_d_state": 8}
FALCON |= {"mamba_d_ssm": 24, "mamba_d_head": 4, "mamba_n_groups": 1}
BIO = {"0": "O", "1": "B-name", "2": "I-name"}
CLASSIFIER: dict[str, Any] = SIZES | {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForTokenClassification"],
    "is_causal": False,
    "id2label": BIO,
}
PII: dict[str, Any] = {
    "model_type": "pii_masking",
    "architectures": ["PiiMaskingModel"],
    "backbone": SIZES | {"model_type": "qwen3", "use_bidirectional_attention": True},
}


def parse(model_type: str = "llama", /, **fields: Any) -> ModelConfig:
    return parse_config(SIZES | {"model_type": model_type} | fields)


def without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


# ---------------------------------------------------------------- whole files


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_family_is_read_without_a_warning(tmp_path: Path, model_type: str) -> None:
    folder = tiny_checkpoint(tmp_path, model_type, tokenizer=False)
    config = load_config(folder)
    written = json.loads((folder / "config.json").read_text())
    written |= written.get("backbone", {}) | {"model_type": written["model_type"]}
    for field in dataclasses.fields(config):
        if field.name in written and field.name not in ("architectures", "dtype", "id2label"):
            assert getattr(config, field.name) == written[field.name], field.name
    assert config.architectures == tuple(written["architectures"])
    assert config.dtype == "bf16"
    assert config.unrecognised == ()
    with open_checkpoint(folder / "model.safetensors") as checkpoint:
        assert checkpoint.config() == config
        assert checkpoint.config() is checkpoint.config()


def test_a_published_config_with_everything_transformers_writes() -> None:
    config = parse_config(
        {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "output_hidden_states": False,
            "return_dict": True,
            "chunk_size_feed_forward": 0,
            "is_encoder_decoder": False,
            "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
            "label2id": {"LABEL_0": 0, "LABEL_1": 1},
            "problem_type": None,
            "vocab_size": 256,
            "hidden_size": 64,
            "intermediate_size": 176,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "max_position_embeddings": 32768,
            "initializer_range": 0.02,
            "rms_norm_eps": 1e-06,
            "use_cache": True,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": 28,
            "layer_types": ["full_attention"] * 3,
            "attention_dropout": 0.0,
            "pad_token_id": None,
            "bos_token_id": None,
            "eos_token_id": None,
            "output_attentions": False,
            "torch_dtype": "bfloat16",
            "rope_theta": 1000000.0,
            "rope_scaling": None,
            "_name_or_path": "somewhere",
            "transformers_version": "4.57.0",
        }
    )
    assert config == ModelConfig(
        model_type="qwen2",
        architectures=("Qwen2ForCausalLM",),
        vocab_size=256,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-6,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        rope=RopeConfig(rope_theta=1e6, max_position_embeddings=32768),
        is_causal=True,
        dtype="bf16",
    )


def test_what_a_file_leaves_out_is_what_transformers_assumes() -> None:
    found = {
        model_type: (config.rms_norm_eps, config.max_position_embeddings, config.rope.rope_theta)
        for model_type in ("llama", "qwen2", "qwen3")
        if (config := parse(model_type))
    }
    assert found == {
        "llama": (1e-6, 2048, 10000.0),
        "qwen2": (1e-6, 32768, 10000.0),
        "qwen3": (1e-6, 32768, 10000.0),
    }
    assert parse_config(FALCON).rms_norm_eps == 1e-5
    assert parse_config(FALCON).max_position_embeddings == 8192
    config = parse_config(without(SIZES, "num_key_value_heads") | {"model_type": "llama"})
    assert config.num_key_value_heads == 4
    assert (config.tie_word_embeddings, config.is_causal, config.dtype) == (False, True, None)


def test_a_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse().vocab_size = 3  # type: ignore[misc]


def test_files_that_are_not_there_or_not_a_config(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"has no config.json"):
        load_config(tmp_path)
    for text, message in [
        ("{", "not valid JSON"),
        ("[]", "JSON list"),
        ('{"a": 1, "a": 1}', "duplicate key 'a'"),
        ('{"x": {"b": 1, "b": 2}}', "duplicate key 'b'"),
        ("[" * 100_000, "not valid JSON"),
    ]:
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=message):
            load_config(tmp_path)


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SIZES | {"model_type": "llama"}))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "two"}')
    with pytest.raises(CheckpointError, match=r'generation_config.json: eos_token_id is "two", expected a token id'):
        load_config(tmp_path)


# ---------------------------------------------------------------- numbers

SIZE_FIELDS = (*SIZES, "head_dim", "max_position_embeddings")


@pytest.mark.parametrize("name", SIZE_FIELDS)
@pytest.mark.parametrize("value", [0, -2, True, 16.0, "16", [16], {}, 2**70, math.nan])
def test_a_size_must_be_a_sane_integer(name: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=rf"{name} is .*, expected an integer from 1 to \d+"):
        parse(**{name: value})


@pytest.mark.parametrize("name", without(SIZES, "num_key_value_heads"))
@pytest.mark.parametrize("null", [False, True])
def test_a_missing_mandatory_field_is_named(name: str, null: bool) -> None:
    values = SIZES | {name: None} if null else without(SIZES, name)
    with pytest.raises(CheckpointError, match=rf"config.json: {name} is missing or null, expected an integer"):
        parse_config(values | {"model_type": "llama"})


@pytest.mark.parametrize("value", [0, -1e-6, math.nan, math.inf, "1e-6", True, [1e-6], 10**400])
def test_rms_norm_eps_must_be_a_positive_number(value: object) -> None:
    with pytest.raises(CheckpointError, match=r"rms_norm_eps is .*expected a finite number"):
        parse(rms_norm_eps=value)


@pytest.mark.parametrize("name", ["tie_word_embeddings", "attention_bias", "mlp_bias", "is_causal"])
def test_a_switch_must_be_a_boolean(name: str) -> None:
    values: list[Any] = [0, 1, "true", []]
    for value in values:
        with pytest.raises(CheckpointError, match=rf"{name} is .*expected true or false"):
            parse(**{name: value})


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(CheckpointError) as caught:
        parse(vocab_size="9" * 10_000)
    assert len(str(caught.value)) < 200


def test_heads_must_be_shared_evenly() -> None:
    with pytest.raises(
        CheckpointError, match=r"num_key_value_heads is 3, expected a divisor of num_attention_heads \(4\)"
    ):
        parse(num_key_value_heads=3)


@pytest.mark.case("C05")
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_head_dim_is_taken_or_derived(model_type: str) -> None:
    assert parse(model_type, head_dim=8).head_dim == 8
    assert parse(model_type, head_dim=None).head_dim == 4
    assert parse(model_type).head_dim == 4
    assert parse(model_type, hidden_size=18, head_dim=8).head_dim == 8
    with pytest.raises(CheckpointError, match="head_dim is 5, expected an even number"):
        parse(model_type, head_dim=5)
    with pytest.raises(CheckpointError, match="head_dim is 3, expected an even number"):
        parse(model_type, hidden_size=12)
    with pytest.raises(CheckpointError, match=r"hidden_size is 18, expected a multiple of num_attention_heads \(4\)"):
        parse(model_type, hidden_size=18)


# ---------------------------------------------------------------- model types


@pytest.mark.parametrize("model_type", ["gpt2", "mistral", "LLAMA", ""])
def test_an_unknown_model_type_is_unsupported(model_type: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf'model_type is "{model_type}".*supported: llama, qwen2, qwen3'):
        parse(model_type)


def test_model_type_must_be_there() -> None:
    with pytest.raises(CheckpointError, match="model_type is missing"):
        parse_config(SIZES)
    with pytest.raises(CheckpointError, match="model_type is 3, expected a string"):
        parse_config(SIZES | {"model_type": 3})


def test_another_head_of_a_known_family_is_unsupported() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"architectures is .*Qwen2ForSequenceClassification.*Qwen2ForCausalLM"
    ):
        parse("qwen2", architectures=["Qwen2ForSequenceClassification"])
    with pytest.raises(CheckpointError, match="architectures is"):
        parse("qwen2", architectures="Qwen2ForCausalLM")
    assert parse("qwen2", architectures=None).architectures == ()


def test_biases_by_family() -> None:
    def biases(config: ModelConfig) -> tuple[bool, bool]:
        return config.attention_bias, config.mlp_bias

    assert biases(parse("qwen2")) == (False, False)
    assert biases(parse("llama")) == (False, False)
    assert biases(parse("llama", attention_bias=True, mlp_bias=True)) == (True, True)
    assert biases(parse("qwen3", attention_bias=True)) == (True, False)
    assert biases(parse_config(FALCON | {"attention_bias": True, "mlp_bias": True})) == (True, True)
    for model_type, name in [("qwen2", "attention_bias"), ("qwen2", "mlp_bias"), ("qwen3", "mlp_bias")]:
        assert parse(model_type, **{name: False}).unrecognised == ()
        with pytest.raises(UnsupportedModelError, match=f"{name} is true"):
            parse(model_type, **{name: True})


# ---------------------------------------------------------------- rope


@pytest.mark.case("C01")
@pytest.mark.parametrize("theta", [1_000_000, 1e6, "1e6", "1000000"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_rope_theta_is_found_in_both_places(model_type: str, theta: object) -> None:
    table = {"rope_type": "default", "rope_theta": theta}
    top = parse(model_type, rope_theta=theta)
    assert top.rope.rope_theta == 1e6
    assert type(top.rope.rope_theta) is float
    assert parse(model_type, rope_parameters=table) == top
    assert parse(model_type, rope_parameters=table, rope_theta=1e6) == top
    assert parse(model_type, rope_parameters=table, rope_theta=None, rope_scaling=None) == top


@pytest.mark.case("C01")
def test_two_values_of_rope_theta_are_refused() -> None:
    with pytest.raises(
        CheckpointError, match=r"rope_theta is 1000000.0 but rope_parameters.rope_theta is 500000.0; make them equal"
    ):
        parse(rope_theta=1e6, rope_parameters={"rope_theta": 5e5})


@pytest.mark.parametrize("theta", [0, 1, -1e4, math.nan, math.inf, "many", "nan", True, [1e4], 10**400])
def test_rope_theta_must_be_a_number_above_1(theta: object) -> None:
    with pytest.raises(CheckpointError, match=r"rope_parameters.rope_theta is .*, expected a finite number above 1"):
        parse(rope_parameters={"rope_theta": theta})
    with pytest.raises(CheckpointError, match=r"json: rope_theta is .*, expected a finite number above 1"):
        parse(rope_theta=theta)


@pytest.mark.parametrize("spelling", ["rope_type", "type"])
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_rope_type_in_every_spelling(spelling: str, place: str) -> None:
    def rope(rope_type: str, **given: object) -> RopeConfig:
        return parse(rope_theta=5e5, max_position_embeddings=4096, **{place: {spelling: rope_type} | given}).rope

    plain = RopeConfig(rope_theta=5e5, max_position_embeddings=4096)
    assert rope("default") == plain
    assert rope("linear", factor=4) == dataclasses.replace(plain, rope_type="linear", factor=4.0)
    assert rope("dynamic", factor=2.0) == dataclasses.replace(plain, rope_type="dynamic", factor=2.0)
    bands = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 8.0}
    llama3 = dataclasses.replace(plain, rope_type="llama3", **bands)  # type: ignore[arg-type]
    assert rope("llama3", **bands, original_max_position_embeddings=64) == dataclasses.replace(
        llama3, original_max_position_embeddings=64
    )
    assert rope("llama3", **bands).original_max_position_embeddings == 4096
    assert rope("yarn", factor=4.0, original_max_position_embeddings=1024) == dataclasses.replace(
        plain, rope_type="yarn", factor=4.0, original_max_position_embeddings=1024
    )


def test_options_of_yarn() -> None:
    options = {"attention_factor": 1.2, "beta_fast": 16, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 0.9}
    table = {"rope_type": "yarn", "factor": 8, "truncate": False} | options
    rope = parse(rope_parameters=table, max_position_embeddings=512).rope
    assert {name: getattr(rope, name) for name in options} == options
    assert (rope.factor, rope.truncate, rope.original_max_position_embeddings) == (8.0, False, 512)
    # without a factor, the stretch is that of the lengths; a zero counts as not given
    rope = parse(
        rope_scaling={"type": "yarn", "original_max_position_embeddings": 256, "mscale": 0, "beta_fast": 0},
        max_position_embeddings=1024,
    ).rope
    assert (rope.factor, rope.mscale, rope.beta_fast, rope.truncate) == (4.0, None, 32.0, True)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rope_type": "linear"}, "rope_scaling.factor is missing or null"),
        ({"rope_type": "linear", "factor": "4"}, 'rope_scaling.factor is "4", expected a finite number'),
        ({"rope_type": "linear", "factor": 0}, "rope_scaling.factor is 0.0, expected a number above 0"),
        ({"rope_type": "dynamic", "factor": -2}, "rope_scaling.factor is -2.0"),
        ({"rope_type": "dynamic", "factor": math.nan}, "rope_scaling.factor is NaN"),
        ({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1}, "rope_scaling.high_freq_factor is missing"),
        (
            {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4},
            r"high_freq_factor is 4.0, expected more than low_freq_factor \(4.0\)",
        ),
        ({"rope_type": "yarn", "original_max_position_embeddings": 0}, "original_max_position_embeddings is 0"),
        ({"rope_type": "yarn", "truncate": 1}, "rope_scaling.truncate is 1, expected true or false"),
        ({"rope_type": "linear", "type": "dynamic", "factor": 2}, 'rope_type is "linear" but rope_scaling.type is'),
        ({"rope_type": 3}, "rope_scaling.rope_type is 3, expected a string"),
        ("linear", 'rope_scaling is "linear", expected an object'),
    ],
)
def test_a_wrong_rope_field_is_named(table: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse(rope_scaling=table)


def test_two_rope_tables_must_agree() -> None:
    table = {"rope_type": "linear", "factor": 4.0}
    assert parse(rope_scaling=table, rope_parameters=table) == parse(rope_scaling=table)
    with pytest.raises(CheckpointError, match=r"rope_parameters.factor is 2.0 but rope_scaling.factor is 4.0"):
        parse(rope_scaling=table, rope_parameters=table | {"factor": 2.0})


@pytest.mark.parametrize("rope_type", ["foo", "longrope", "su", "mrope", "Linear", ""])
def test_an_unknown_rope_type_is_named(rope_type: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"rope_type '{rope_type}' is not implemented; supported: default"):
        parse(rope_scaling={"type": rope_type, "factor": 2})


def test_rope_that_changes_the_result_otherwise_is_unsupported() -> None:
    assert parse(partial_rotary_factor=1.0).unrecognised == ()
    for fields in ({"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}):
        with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor is 0.5"):
            parse(**fields)
    with pytest.raises(UnsupportedModelError, match=r"rope_parameters.full_attention"):
        parse(rope_parameters={"full_attention": {"rope_type": "default"}})
    with pytest.raises(CheckpointError, match=r"head_dim is 2, expected more than 2"):
        parse(head_dim=2, rope_scaling={"type": "dynamic", "factor": 2.0})


def test_a_rope_field_that_its_type_does_not_read_is_reported() -> None:
    with pytest.warns(UserWarning, match=r"rope_scaling.alpha, rope_scaling.low_freq_factor"):
        config = parse(rope_scaling={"type": "linear", "factor": 2, "low_freq_factor": 1.0, "alpha": 1000})
    assert config.unrecognised == ("rope_scaling.alpha", "rope_scaling.low_freq_factor")


# ---------------------------------------------------------------- features that are not implemented


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama"])
def test_a_sliding_window_in_use_is_unsupported(model_type: str) -> None:
    def window(**fields: Any) -> ModelConfig:
        return parse(model_type, max_position_embeddings=1000, **fields)

    # named, but not in use
    window(use_sliding_window=False, sliding_window=500, max_window_layers=0)
    window(use_sliding_window=True, sliding_window=None, max_window_layers=0)
    window(use_sliding_window=True, sliding_window=1000, max_window_layers=0)
    window(use_sliding_window=True, sliding_window=500, max_window_layers=2)
    window(use_sliding_window=True, sliding_window=500, layer_types=["full_attention"] * 2)
    in_use: list[dict[str, Any]] = [
        {"use_sliding_window": True, "sliding_window": 999, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 999, "layer_types": ["full_attention", "sliding_attention"]},
        {"use_sliding_window": False, "layer_types": ["full_attention", "sliding_attention"]},
    ]
    for fields in in_use:
        with pytest.raises(UnsupportedModelError, match=r"sliding_window is .*the context length \(1000\)"):
            window(**fields)
    # a file that switches it on and leaves the width out means 4096
    with pytest.raises(UnsupportedModelError, match="sliding_window is 4096"):
        parse(model_type, use_sliding_window=True, max_window_layers=0, max_position_embeddings=8192)


def test_layer_types_must_fit() -> None:
    with pytest.raises(CheckpointError, match=r"layer_types is .*expected a list of num_hidden_layers \(2\)"):
        parse(layer_types=["full_attention"])
    with pytest.raises(UnsupportedModelError, match='layer_types is "chunked_attention"'):
        parse(layer_types=["full_attention", "chunked_attention"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_act", "gelu"),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}),
        ("quantization", {"group_size": 64}),
        ("compression_config", {"format": "int"}),
        ("is_encoder_decoder", True),
        ("add_cross_attention", True),
        ("dual_chunk_attention_config", {"chunk_size": 8}),
        ("rope_interleaved", True),
        ("pruned_heads", {"0": [1]}),
        ("attn_logit_softcapping", 50.0),
        ("dtype", "float8_e4m3fn"),
    ],
)
def test_a_field_that_would_change_the_result_is_unsupported(name: str, value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=f"json: {name} is .*not implemented"):
        parse(**{name: value})


def test_the_same_fields_switched_off_are_fine() -> None:
    config = parse(
        hidden_act="swish",
        quantization_config=None,
        is_encoder_decoder=False,
        pruned_heads={},
        rope_interleaved=False,
        is_llama_config=True,
        pretraining_tp=1,
        temperature=0.6,
    )
    assert config == parse()


def test_unknown_fields_are_reported_once() -> None:
    fields: dict[str, Any] = {
        "logits_scaling": 8.0,
        "a_zero": 0,
        "switch": True,
        "no": False,
        "none": None,
        "list": [],
        "_x": 1,
    }
    with pytest.warns(UserWarning, match="unknown to fastcore") as caught:
        config = parse(**fields)
    assert config.unrecognised == ("a_zero", "logits_scaling", "switch")
    assert [str(w.message) for w in caught] == [
        "config.json: fields unknown to fastcore are ignored: a_zero, logits_scaling, switch"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse(**without(fields, "logits_scaling", "a_zero", "switch")).unrecognised == ()


# ---------------------------------------------------------------- dtype, tokens


@pytest.mark.case("C09")
def test_dtype_in_both_spellings() -> None:
    names = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "torch.bfloat16": "bf16", "auto": None}
    for name, short in names.items():
        assert parse(dtype=name).dtype == parse(torch_dtype=name).dtype == short
    assert parse(dtype="float32", torch_dtype="bfloat16").dtype == "f32"
    assert parse(dtype=None, torch_dtype="bfloat16").dtype == "bf16"
    assert parse().dtype is None


def test_eos_of_both_files() -> None:
    def eos(config: object, generation: object) -> tuple[int, ...]:
        return parse_config(
            SIZES | {"model_type": "llama", "eos_token_id": config}, {"eos_token_id": generation}
        ).eos_token_ids

    assert eos(2, None) == (2,)
    assert eos([3, 2], None) == (3, 2)
    assert eos(None, [5, 6]) == (5, 6)
    assert eos(2, [7, 2, 1]) == (2, 7, 1)
    assert eos(None, None) == ()
    assert parse().eos_token_ids == ()
    for value in (True, "2", 2.0, [[2]], -2, 2**31):
        with pytest.raises(CheckpointError, match="eos_token_id is"):
            eos(value, None)


def test_bos_and_pad_come_from_either_file() -> None:
    config = parse_config(
        SIZES | {"model_type": "llama", "bos_token_id": 1}, {"bos_token_id": 9, "pad_token_id": 0, "temperature": 0.5}
    )
    assert (config.bos_token_id, config.pad_token_id) == (1, 0)
    assert config.generation == {"bos_token_id": 9, "pad_token_id": 0, "temperature": 0.5}
    # -1 stands for none, and an id beyond the vocabulary can never occur
    config = parse(bos_token_id=100, pad_token_id=-1, eos_token_id=[99, 100])
    assert (config.bos_token_id, config.pad_token_id, config.eos_token_ids) == (None, None, (99,))


# ---------------------------------------------------------------- Falcon-H1


@pytest.mark.case("C13")
def test_the_sizes_of_the_mixer() -> None:
    config = parse_config(FALCON)
    assert config.mamba is not None
    assert config.head_dim == 8
    assert (config.mamba.mamba_d_head, config.mamba.mamba_d_ssm) == (4, 24)
    assert config.mamba.conv_dim == 24 + 2 * 8
    assert config.mamba.in_proj_size == 24 + 24 + 2 * 8 + 6 == 70


@pytest.mark.case("C13")
@pytest.mark.parametrize("absent", [False, True])
def test_the_mixer_falls_back_on_expand(absent: bool) -> None:
    values = FALCON | {"mamba_n_heads": 8, "mamba_d_ssm": None, "mamba_expand": 2}
    mamba = parse_config(without(values, "mamba_d_ssm") if absent else values).mamba
    assert mamba is not None
    assert (mamba.mamba_d_ssm, mamba.mamba_d_head, mamba.in_proj_size) == (32, 4, 32 + 32 + 2 * 8 + 8)


@pytest.mark.parametrize("d_head", ["auto", None, 4])
def test_mamba_d_head_may_be_left_to_be_derived(d_head: object) -> None:
    mamba = parse_config(FALCON | {"mamba_d_head": d_head}).mamba
    assert mamba is not None
    assert mamba.mamba_d_head == 4


def test_options_of_the_mixer() -> None:
    options = {
        "mamba_n_groups": 3,
        "mamba_d_conv": 2,
        "mamba_conv_bias": False,
        "mamba_proj_bias": True,
        "projectors_bias": True,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
    }
    mamba = parse_config(FALCON | options | {"mamba_expand": 3, "mamba_chunk_size": 16}).mamba
    assert {name: getattr(mamba, name) for name in options} == options
    mamba = parse_config(FALCON).mamba
    assert mamba is not None
    assert (mamba.mamba_conv_bias, mamba.mamba_norm_before_gate, mamba.mamba_rms_norm) == (True, True, False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mamba_d_ssm": 25}, r"mamba_d_ssm is 25, expected a multiple of mamba_n_heads \(6\)"),
        ({"mamba_d_head": 8}, r"mamba_d_head is 8, expected mamba_d_ssm / mamba_n_heads \(24 / 6\)"),
        ({"mamba_d_head": "wide"}, 'mamba_d_head is "wide"'),
        ({"mamba_n_groups": 4}, r"mamba_n_groups is 4, expected a divisor of mamba_n_heads \(6\)"),
        ({"mamba_n_heads": None}, "mamba_n_heads is missing"),
        ({"mamba_d_state": None}, "mamba_d_state is missing"),
        ({"mamba_d_conv": 0}, "mamba_d_conv is 0"),
        ({"mamba_rms_norm": 1}, "mamba_rms_norm is 1"),
        ({"ssm_multipliers": [1.0] * 4}, "ssm_multipliers is .*expected a list of 5 numbers"),
        ({"mlp_multipliers": 1.0}, "mlp_multipliers is 1.0, expected a list of 2 numbers"),
        ({"mlp_multipliers": [1.0, math.nan]}, r"mlp_multipliers\[1\] is NaN"),
        ({"key_multiplier": math.inf}, "key_multiplier is Infinity"),
        ({"key_multiplier": "1"}, 'key_multiplier is "1"'),
        ({"time_step_limit": [1.0, 0.5]}, "time_step_limit is"),
        ({"time_step_limit": [0.0]}, "time_step_limit is"),
        ({"time_step_limit": [math.nan, 1.0]}, "time_step_limit is"),
        ({"time_step_limit": [0.0, "inf"]}, "time_step_limit is"),
        ({"mamba_use_mlp": False}, "mamba_use_mlp is false"),
        ({"attn_layer_indices": [0]}, "attn_layer_indices is"),
    ],
)
def test_a_wrong_field_of_falcon_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        parse_config(FALCON | fields)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[0.0, Infinity]", (0.0, math.inf)),
        ('[0.0, {"__float__": "Infinity"}]', (0.0, math.inf)),
        ("[0.001, 0.1]", (0.001, 0.1)),
        ("[0, 1]", (0.0, 1.0)),
        ("null", (0.0, math.inf)),
    ],
)
def test_time_step_limit(text: str, expected: tuple[float, float]) -> None:
    mamba = parse_config(FALCON | {"time_step_limit": json.loads(text), "time_step_min": 0.1, "time_step_max": 1}).mamba
    assert mamba is not None
    assert mamba.time_step_limit == expected


def test_every_multiplier_is_read() -> None:
    singles = ("embedding", "lm_head", "key", "attention_in", "attention_out", "ssm_in", "ssm_out")
    written: dict[str, Any] = {f"{name}_multiplier": 0.5 + i for i, name in enumerate(singles)}
    written |= {"ssm_multipliers": [0.1, 0.2, 0.3, 0.4, 0.5], "mlp_multipliers": [2, 3]}
    read = parse_config(FALCON | written).multipliers
    assert read is not None
    assert dataclasses.asdict(read) == written | {
        "ssm_multipliers": (0.1, 0.2, 0.3, 0.4, 0.5),
        "mlp_multipliers": (2, 3),
    }
    default = parse_config(FALCON).multipliers
    assert default is not None
    assert set(dataclasses.astuple(default)) == {1.0, (1.0,) * 5, (1.0, 1.0)}


def test_other_families_have_no_mixer() -> None:
    assert parse("llama").mamba is None
    assert parse("llama").multipliers is None
    with pytest.warns(UserWarning, match="key_multiplier"):
        parse("llama", key_multiplier=0.5)


# ---------------------------------------------------------------- token classifiers


def test_the_published_pii_layout() -> None:
    config = parse_config(PII | {"max_seq_len": 512, "viterbi_b_bias": -0.5, "viterbi_e_bias": 0.25, "hidden_size": 16})
    assert config.pii is not None
    assert dataclasses.asdict(config.pii) == {
        "num_token_labels": 37,
        "max_seq_len": 512,
        "viterbi_b_bias": -0.5,
        "viterbi_e_bias": 0.25,
        "sensitivity_row": None,
    }
    assert (config.model_type, config.hidden_size, config.is_causal) == ("pii_masking", 16, False)
    assert config.is_token_classifier
    assert config.token_labels == PII_LABELS
    assert len(PII_LABELS) == 37
    assert PII_LABELS[:6] == (
        "O",
        "B-private_person",
        "I-private_person",
        "E-private_person",
        "S-private_person",
        "B-private_email",
    )
    assert PII_LABELS[-1] == "S-other_pii"
    plain = parse_config(PII).pii
    assert plain is not None
    assert (plain.max_seq_len, plain.viterbi_b_bias, plain.viterbi_e_bias) == (4096, None, None)


def test_a_pii_config_with_labels_of_its_own() -> None:
    config = parse_config(PII | {"id2label": BIO, "num_token_labels": 3})
    assert config.token_labels == ("O", "B-name", "I-name")
    with pytest.raises(CheckpointError, match=r"num_token_labels is 37, expected the number of labels \(3\)"):
        parse_config(PII | {"id2label": BIO, "num_token_labels": 37})
    with pytest.raises(CheckpointError, match=r"num_token_labels is 5, expected the number of labels \(37\)"):
        parse_config(PII | {"num_token_labels": 5})


def test_a_pii_config_must_have_a_backbone_that_fits() -> None:
    with pytest.raises(CheckpointError, match="backbone is missing"):
        parse_config(without(PII, "backbone"))
    with pytest.raises(CheckpointError, match=r"hidden_size is 32 but backbone.hidden_size is 16"):
        parse_config(PII | {"hidden_size": 32})
    with pytest.raises(CheckpointError, match=r"backbone.vocab_size is missing"):
        parse_config(PII | {"backbone": without(PII["backbone"], "vocab_size")})
    with pytest.raises(UnsupportedModelError, match=r'backbone.model_type is "bert"'):
        parse_config(PII | {"backbone": PII["backbone"] | {"model_type": "bert"}})
    with pytest.raises(UnsupportedModelError, match=r"backbone.quantization_config"):
        parse_config(PII | {"backbone": PII["backbone"] | {"quantization_config": {"bits": 4}}})
    with pytest.warns(UserWarning, match=r"backbone.odd"):
        assert parse_config(PII | {"backbone": PII["backbone"] | {"odd": 1}}).unrecognised == ("backbone.odd",)


def test_the_repacked_pii_layout() -> None:
    labels = {str(i): label for i, label in enumerate((*PII_LABELS, "SENSITIVITY"))}
    config = parse_config(CLASSIFIER | {"id2label": labels}, viterbi={"b_bias": -0.5, "e_bias": 0.25})
    assert config.pii is not None
    assert dataclasses.asdict(config.pii) == {
        "num_token_labels": 37,
        "max_seq_len": 4096,
        "viterbi_b_bias": -0.5,
        "viterbi_e_bias": 0.25,
        "sensitivity_row": 37,
    }
    assert config.token_labels == PII_LABELS
    assert config.is_causal is False


def test_a_plain_token_classifier() -> None:
    config = parse_config(CLASSIFIER | {"max_position_embeddings": 512})
    assert config.pii is not None
    assert (config.pii.num_token_labels, config.pii.sensitivity_row, config.pii.max_seq_len) == (3, None, 512)
    assert config.token_labels == ("O", "B-name", "I-name")
    assert config.id2label == {0: "O", 1: "B-name", 2: "I-name"}
    assert parse_config(CLASSIFIER | {"id2label": {0: "O", 1: "B-name", 2: "I-name"}}).id2label == config.id2label
    assert parse("qwen3", id2label=BIO).id2label is None  # a language model


@pytest.mark.parametrize(
    "labels",
    [{"0": "O", "2": "B-x"}, {"0": "O", "1": "O"}, {"0": "O", "1": 3}, {"a": "O"}, {"0": ""}, ["O", "B-x"]],
)
def test_labels_must_be_one_for_each_row(labels: object) -> None:
    with pytest.raises(CheckpointError, match="id2label is"):
        parse_config(CLASSIFIER | {"id2label": labels})


def test_a_classifier_without_labels_is_refused() -> None:
    with pytest.raises(CheckpointError, match="id2label is missing"):
        parse_config(without(CLASSIFIER, "id2label"))


def test_attention_is_bidirectional_only_where_the_config_says_so() -> None:
    silent_pii = PII | {"backbone": without(PII["backbone"], "use_bidirectional_attention")}
    for silent in (without(CLASSIFIER, "is_causal"), silent_pii):
        with pytest.raises(
            CheckpointError, match=r"is_causal is missing.*use_bidirectional_attention.*token classifier"
        ):
            parse_config(silent)
        assert parse_config(silent | {"is_causal": True}).is_causal is True
        assert parse_config(silent | {"is_causal": False}).is_causal is False
        assert parse_config(silent | {"use_bidirectional_attention": True}).is_causal is False
        assert parse_config(silent | {"use_bidirectional_attention": False}).is_causal is True
        with pytest.raises(CheckpointError, match="is_causal is true but not use_bidirectional_attention is false"):
            parse_config(silent | {"is_causal": True, "use_bidirectional_attention": True})
    with pytest.raises(
        CheckpointError, match=r"is_causal is true but not backbone.use_bidirectional_attention is false"
    ):
        parse_config(PII | {"is_causal": True})
    assert parse("qwen3", is_causal=False).is_causal is False


# ---------------------------------------------------------------- lengths: of the positions as scaling stretches them

STRETCHED = [
    ({"rope_type": "default"}, 64),
    ({"rope_type": "linear", "factor": 4.0}, 256),
    ({"rope_type": "dynamic", "factor": 2.0}, 128),
    ({"rope_type": "yarn", "factor": 4.0}, 256),
    ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}, 256),
    ({"rope_type": "yarn", "original_max_position_embeddings": 32}, 64),
    ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, 64),
    ({"rope_type": "linear", "factor": 0.5}, 64),
]


@pytest.mark.fault("A2")
@pytest.mark.parametrize(("rope", "context"), STRETCHED)
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_a_window_shorter_than_the_stretched_context_is_in_use(rope: dict[str, Any], context: int, place: str) -> None:
    def config(window: int, **fields: Any) -> ModelConfig:
        return parse("qwen2", max_position_embeddings=64, sliding_window=window, **{place: rope}, **fields)

    in_use = {"use_sliding_window": True, "max_window_layers": 0}
    assert config(context, **in_use).context_length == context
    with pytest.raises(UnsupportedModelError, match=rf"sliding_window is {context - 1}.*context length \({context}"):
        config(context - 1, **in_use)
    layers = {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}
    assert config(context, **layers).context_length == context
    with pytest.raises(UnsupportedModelError, match="sliding_window"):
        config(context - 1, **layers)
    assert config(8, use_sliding_window=False).context_length == context


@pytest.mark.fault("A2")
@pytest.mark.parametrize(("rope", "context"), STRETCHED)
def test_a_classifier_reads_windows_of_the_stretched_context(rope: dict[str, Any], context: int) -> None:
    fields = CLASSIFIER | {"max_position_embeddings": 64, "rope_scaling": rope}
    pii = parse_config(fields).pii
    assert pii is not None
    assert pii.max_seq_len == context


@pytest.mark.fault("A2")
@pytest.mark.parametrize("model_type", ["llama", "falcon_h1"])
def test_memory_is_planned_for_the_stretched_context(tmp_path: Path, model_type: str) -> None:
    stretched = {"max_position_embeddings": 512, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    plans = [
        plan_model(tiny_checkpoint(tmp_path / f"{i}", model_type, **fields), 512, 1)
        for i, fields in enumerate((stretched, {"max_position_embeddings": 2048}, {"max_position_embeddings": 512}))
    ]
    assert plans[0].workspace_bytes == plans[1].workspace_bytes >= plans[2].workspace_bytes
    assert plans[0].config.context_length == 2048


# ---------------------------------------------------------------- numbers that no f32 holds

NOT_F32 = [10**400, -(10**400), 1e39, -1e39, 1e308, 10**39, 1e-45, 5e-324, math.inf, math.nan]


@pytest.mark.fault("C9")
@pytest.mark.parametrize("value", NOT_F32)
@pytest.mark.parametrize(
    ("config", "name"),
    [
        (SIZES | {"model_type": "llama"}, "rms_norm_eps"),
        (SIZES | {"model_type": "llama"}, "partial_rotary_factor"),
        *((FALCON, name) for name in ("key_multiplier", "lm_head_multiplier", "embedding_multiplier")),
        (PII, "viterbi_b_bias"),
        (PII, "viterbi_e_bias"),
    ],
)
def test_a_number_that_f32_does_not_hold_is_refused(config: dict[str, Any], name: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=f"{name} is"):
        parse_config(config | {name: value})


@pytest.mark.fault("C9")
@pytest.mark.parametrize("value", NOT_F32)
def test_a_list_and_a_table_hold_f32_numbers_too(value: Any) -> None:
    for fields, name in [
        ({"ssm_multipliers": [1.0, value, 1.0, 1.0, 1.0]}, r"ssm_multipliers\[1\]"),
        ({"mlp_multipliers": [value, 1.0]}, r"mlp_multipliers\[0\]"),
        ({"time_step_limit": [value, 1e39]}, r"time_step_limit(\[0\])?"),
        ({"rope_scaling": {"rope_type": "linear", "factor": value}}, "factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": value}}, "beta_fast"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": value}}, "attention_factor"),
    ]:
        with pytest.raises(CheckpointError, match=f"{name} is"):
            parse_config(FALCON | fields)
    with pytest.raises(CheckpointError, match="b_bias is"):
        parse_config(CLASSIFIER, viterbi={"b_bias": value})


@pytest.mark.fault("C9")
@pytest.mark.parametrize("value", [10**30, 10**400, -(10**30), 1e39, 2**31])
def test_a_token_id_that_is_too_large_is_refused(value: object) -> None:
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        for ids in (value, [1, value]):
            with pytest.raises(CheckpointError, match=f"{name} is"):
                parse(**{name: ids})
            with pytest.raises(CheckpointError, match=f"generation_config.json: {name} is"):
                parse_config(SIZES | {"model_type": "llama"}, {name: ids})


@pytest.mark.fault("C9")
def test_a_factor_beyond_all_positions_is_refused_and_the_context_stays_a_number_of_positions() -> None:
    for rope_type in ("linear", "dynamic", "yarn"):
        table = {"rope_type": rope_type, "factor": 2.0**32}
        with pytest.raises(CheckpointError, match="factor is"):
            parse(rope_scaling=table)
        rope = parse(rope_scaling=table | {"factor": 2.0**31 - 1}).rope
        assert rope.context_length == 2**31 - 1
        cos, sin = rope_tables(rope, 4, 3, seq_len=rope.context_length)
        assert np.isfinite(cos).all()
        assert np.isfinite(sin).all()
    with pytest.raises(CheckpointError, match="factor is"):
        parse(rope_scaling={"rope_type": "dynamic", "factor": 2.0**63})  # 1 * factor - (factor - 1) would be 0


# ---------------------------------------------------------------- files that are large, deep or not Unicode


@pytest.mark.fault("C8")
def test_many_repeated_keys_are_reported_in_linear_time(tmp_path: Path) -> None:
    """A hundred thousand of them, twice each; comparing each with each would take an hour."""
    text = ",".join(f'"{i % 100_000}":0' for i in range(200_000))
    (tmp_path / "config.json").write_text(f"{{{text}}}")
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match=r"duplicate key '0', '1', .* and 99992 more"):
        load_config(tmp_path)
    assert time.perf_counter() - start < 10


@pytest.mark.fault("C8")
def test_a_file_of_too_many_values_or_too_deep_is_refused_before_it_is_built(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b'{"a":[' + b"[]," * 4_000_000 + b"0]}")
    with pytest.raises(CheckpointError, match=r"config.json holds about 8\d+ JSON values, expected at most 4000000"):
        load_config(tmp_path)
    for depth in (65, 500, 900, 100_000):
        file.write_bytes(b'{"model_type":' + b"[" * depth + b"]" * depth + b"}")
        with pytest.raises(CheckpointError, match=r"nested more than 64 deep|not valid JSON"):
            load_config(tmp_path)
    file.write_bytes(b'{"model_type":' + b"[" * 60 + b"]" * 60 + b"}")
    with pytest.raises(CheckpointError, match=r"model_type is \[\["):
        load_config(tmp_path)


@pytest.mark.fault("C9")
@pytest.mark.parametrize("text", [r'{"model_type": "\ud800"}', r'{"\uDFFF": 1}', r'{"a": ["\ud83d"]}'])
def test_half_a_character_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config.json is not Unicode: a string holds the lone surrogate U\+D"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text(r'{"model_type": "\ud83d\ude00"}')  # both halves are one character
    with pytest.raises(UnsupportedModelError, match="model_type"):
        load_config(tmp_path)
