"""A GGUF file gives the tensors, the config and the token ids of the folder it was made from."""

import json
import math

import gguf
import numpy as np
import pytest
import tokenizers
from gguf_files import CHATML, default_backend, write_gguf
from safetensors.numpy import load_file, save_file
from test_tokenizer import AWKWARD_TEXTS, CORPUS, byte_level, llama3, sentencepiece
from tiny import from_bf16, make_prompt, tiny_checkpoint, to_bf16
from tokenizers import pre_tokenizers

from fastcore import LLM
from fastcore.checkpoints import gguf as gguf_module
from fastcore.checkpoints.bf16_folder import write_folder
from fastcore.checkpoints.fields import Fields
from fastcore.checkpoints.open import open_checkpoint
from fastcore.errors import CheckpointError, UnsupportedModelError
from fastcore.text.tokenizer import Tokenizer

FAMILIES = ("llama", "qwen2", "qwen3")
IGNORED = {"use_sliding_window", "sliding_window", "max_window_layers", "torch_dtype"}


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_and_config_survive_conversion(tmp_path, family, tie):
    """Grouped heads: the query rows are interleaved by 4 heads, the key rows by 2, in llama files only."""
    folder = tiny_checkpoint(tmp_path / "m", family, dtype="f32", tie=tie)
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf", folder))
    expected = load_file(folder / "model.safetensors")
    assert sorted(file) == sorted(expected)
    for name, value in expected.items():
        assert file[name].shape == value.shape
        assert np.array_equal(file[name].f32(), value), name
    config = json.loads((folder / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    ids = {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": None}
    expected_config = {"head_dim": hidden // heads, "rope_scaling": None} | config | ids
    for key in expected_config.keys() - IGNORED:
        assert file.hf_config.get(key) == expected_config[key], key
    assert file.generation_config == {"bos_token_id": 256, "eos_token_id": 258}


@pytest.mark.case("L12")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_computes_what_its_folder_computes(tmp_path, family):
    """Twenty positions in, a wrong order of q or k rows would show; the text goes through the file's own tokenizer."""
    folder = tiny_checkpoint(tmp_path / "m", family, dtype="f32")
    from_folder, from_file = LLM(folder), LLM(write_gguf(tmp_path / "m.gguf", folder))
    ids = make_prompt(24, vocab_size=256, seed=1)
    assert np.array_equal(from_folder.logits(ids), from_file.logits(ids))
    assert (
        from_folder.generate([ids], max_tokens=8)[0].token_ids == from_file.generate([ids], max_tokens=8)[0].token_ids
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_q8_0_is_what_its_values_are_in_int8(tmp_path, family, monkeypatch):
    """Each of ggml's groups has a 127, so that quantising its values gives the same integers and scales back."""
    monkeypatch.setattr("fastcore.model.recipes.RECIPE", ())  # of so small a model it keeps some maps as bf16
    folder = tiny_checkpoint(tmp_path / "m", family, dtype="f32", hidden_size=64, intermediate_size=96, head_dim=16)
    path = write_gguf(tmp_path / "m.gguf", folder, quantize="Q8_0")
    with open_checkpoint(path) as file:
        values = {name: tensor.f32() for name, tensor in file.items()}
    save_file(values, folder / "model.safetensors")
    ids = make_prompt(9, vocab_size=256)
    found = LLM(path, num_threads=2).logits(ids)
    assert np.array_equal(found, LLM(folder, dtype="int8", num_threads=1).logits(ids))
    assert not np.array_equal(found, LLM(folder, num_threads=1).logits(ids))
    assert np.array_equal(LLM(path, dtype="f32").logits(ids), LLM(folder).logits(ids))


def test_maps_that_no_format_holds_are_packed_as_bf16(tmp_path):
    folder = tiny_checkpoint(tmp_path / "m", "llama", dtype="f32", hidden_size=64, intermediate_size=64)
    path = write_gguf(tmp_path / "m.gguf", folder, quantize="Q5_1")
    (converted := tmp_path / "converted").mkdir()
    with open_checkpoint(path) as file:
        write_folder(file, converted, lambda size: None)
    ids = make_prompt(9, vocab_size=256)
    assert np.array_equal(LLM(path).logits(ids), LLM(converted).logits(ids))
    assert not np.array_equal(LLM(path, dtype="f32").logits(ids), LLM(path).logits(ids))


@pytest.mark.case("L12")
def test_query_rows_are_interleaved_by_their_own_head_count(tmp_path):
    """Spelled out: file rows 0 1 2 3 of a head of four are rows 0 2 1 3 of the checkpoint."""
    folder = tiny_checkpoint(tmp_path / "m", "llama", dtype="f32", num_hidden_layers=1, head_dim=4)
    path = write_gguf(tmp_path / "m.gguf", folder)
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    tensors = open_checkpoint(path)
    for kind, heads in (("q", 4), ("k", 2)):
        rows = stored[f"blk.0.attn_{kind}.weight"].reshape(heads, 4, -1)
        expected = np.stack([rows[:, 0], rows[:, 2], rows[:, 1], rows[:, 3]], axis=1).reshape(4 * heads, -1)
        assert np.array_equal(tensors[f"model.layers.0.self_attn.{kind}_proj.weight"].f32(), expected)
    assert np.array_equal(tensors["model.layers.0.self_attn.v_proj.weight"].f32(), stored["blk.0.attn_v.weight"])


@pytest.mark.case("L12")
def test_biases_of_llama_are_reordered_with_their_rows(tmp_path):
    folder = tiny_checkpoint(tmp_path / "m", "llama", dtype="f32", attention_bias=True, mlp_bias=True)
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf", folder))
    assert file.hf_config["attention_bias"] is file.hf_config["mlp_bias"] is True
    for name, value in load_file(folder / "model.safetensors").items():
        assert np.array_equal(file[name].f32(), value), name


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_tensors_equal_the_packages_dequantisation(tmp_path, kind):
    folder = tiny_checkpoint(tmp_path / "m", "qwen2", dtype="f32", hidden_size=64)
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf", folder, quantize=kind))
    type_ = gguf.GGMLQuantizationType[kind]
    name = "model.layers.1.self_attn.q_proj.weight"
    value = load_file(folder / "model.safetensors")[name]
    assert np.array_equal(file[name].f32(), gguf.quants.dequantize(gguf.quants.quantize(value, type_), type_))


def test_written_folder_is_the_files_values_rounded_to_bf16(tmp_path):
    folder = tiny_checkpoint(tmp_path / "m", "llama", dtype="f32", hidden_size=64)
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf", folder, quantize="Q8_0"))
    written = []
    write_folder(file, tmp_path / "out", written.append)
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert list(checkpoint) == sorted(file)
        for name, tensor in checkpoint.items():
            assert tensor.dtype == "BF16"
            assert np.array_equal(tensor.array, to_bf16(file[name].f32())), name
        assert written == [tensor.nbytes for tensor in checkpoint.values()]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == file.hf_config | {"torch_dtype": "bfloat16"}
    tokenizer = Tokenizer.from_folder(tmp_path / "out")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (256, (258,))
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}]) == "<|im_start|>user\nx<|im_end|>\n"

    write_folder(file, tmp_path / "again")
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_bf16_rounding_ties_and_specials():
    from fastcore.checkpoints.dense import bf16_bits

    bits = [0x3F80_8000, 0x3F81_8000, 0x3F80_8001, 0x3F80_7FFF, 0x7F7F_FFFF, 0x8000_0000, 0x0000_0001, 0x0000_8001]
    rounded = [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0x8000, 0x0000, 0x0001]
    assert bf16_bits(np.array(bits, np.uint32).view(np.float32)).tolist() == rounded
    specials = from_bf16(
        bf16_bits(np.array([0x7FFF_FFFF, 0x7F80_0001, 0x7F80_0000, 0xFF80_0000], np.uint32).view("f4"))
    )
    assert np.isnan(specials[:2]).all()
    assert specials[2:].tolist() == [np.inf, -np.inf]


# ---------------------------------------------------------------------- config


def llama_with(tmp_path, adjust, **options):
    folder = tiny_checkpoint(tmp_path / "m", "llama", dtype="f32", num_hidden_layers=1, head_dim=16, **options)
    return open_checkpoint(write_gguf(tmp_path / "m.gguf", folder, adjust=adjust))


def llama3_factors(head_dim=16, theta=500000.0, factor=32.0):
    """Slowing of each frequency, one at a time: long waves by the factor, short ones not, a blend between."""
    factors = []
    for i in range(head_dim // 2):
        wavelength = 2 * np.pi * theta ** (2 * i / head_dim)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def test_rope_scaling_comes_from_metadata_or_factors(tmp_path):
    def linear(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    def yarn(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(2.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    assert llama_with(tmp_path / "1", linear).hf_config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert llama_with(tmp_path / "2", yarn).hf_config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 64,
    }
    file = llama_with(
        tmp_path / "3", lambda w: w.add_tensor("rope_freqs.weight", llama3_factors()), rope_theta=500000.0
    )
    assert file.hf_config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "rope_freqs.weight" not in file
    odd = llama3_factors() * np.float32(1.5)
    with pytest.raises(UnsupportedModelError, match="rope_freqs"):
        llama_with(tmp_path / "4", lambda w: w.add_tensor("rope_freqs.weight", odd), rope_theta=500000.0)


@pytest.mark.parametrize(
    ("adjust", "text"),
    [
        (lambda w: w.add_expert_count(8), r"llama\.expert_count is 8"),
        (lambda w: w.add_sliding_window(128), "sliding_window"),
        (lambda w: w.add_causal_attention(False), "causal"),
        (lambda w: w.add_rope_dimension_count(8), "rope.dimension_count"),
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "longrope"),
        (lambda w: w.add_tensor("blk.0.attn_sinks.weight", np.zeros(4, np.float32)), "attn_sinks"),
        (lambda w: w.add_tensor("blk.x.attn_q.weight", np.zeros(4, np.float32)), "blk.x"),
        (lambda w: w.add_uint16("split.count", 2), "2 parts"),
        (lambda w: w.add_head_count_kv([2, 1]), r"head_count_kv is \[2, 1\]"),
    ],
)
def test_what_changes_the_result_and_is_unknown_is_refused(tmp_path, adjust, text):
    with pytest.raises(UnsupportedModelError, match=text):
        llama_with(tmp_path, adjust)


def test_harmless_metadata_is_accepted(tmp_path):
    def adjust(writer):
        writer.add_vocab_size(320)
        writer.add_expert_count(0)
        writer.add_rope_dimension_count(16)
        writer.add_name("tiny")

    assert llama_with(tmp_path, adjust).hf_config["head_dim"] == 16


def test_unknown_architecture(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match=r"'mamba'.*llama, qwen2, qwen3"):
        open_checkpoint(tmp_path / "m.gguf")


# ---------------------------------------------------------------------- damaged files


def test_a_truncated_file_is_an_error_wherever_it_is_cut(tmp_path):
    folder = tiny_checkpoint(tmp_path / "m", "qwen2", dtype="f32", num_hidden_layers=1)
    data = write_gguf(tmp_path / "m.gguf", folder).read_bytes()
    for size in [0, 3, 4, 8, 23, 24, *range(30, len(data), len(data) // 50), len(data) - 1]:
        (tmp_path / "cut.gguf").write_bytes(data[:size])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            open_checkpoint(tmp_path / "cut.gguf")


def number(value, size=8):
    return value.to_bytes(size, "little")


def text(value):
    return number(len(value)) + value.encode()


HEAD = b"GGUF" + number(3, 4)
ARCH = text("general.architecture") + number(8, 4) + text("llama")
FIELD = HEAD + number(0) + number(1) + text("k")


def with_tensor(dims, kind, offset):
    entry = text("t") + number(len(dims), 4) + b"".join(map(number, dims)) + number(kind, 4) + number(offset)
    return HEAD + number(1) + number(1) + ARCH + entry


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"GGML" + bytes(40), "does not begin"),
        (b"GGUF" + number(9, 4) + bytes(16), "version 9"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(16), "version"),
        (HEAD + number(2**60) + number(0), "truncated"),
        (HEAD + number(0) + number(2**60), "truncated"),
        (HEAD + number(0) + number(1) + number(2**63) + b"x", "truncated"),
        (HEAD + number(0) + number(2) + ARCH + ARCH, "twice"),
        (FIELD + number(77, 4), "unknown type 77"),
        (FIELD + number(9, 4) + number(6, 4) + number(2**60), "truncated"),
        (FIELD + number(9, 4) + (number(9, 4) + number(1)) * 8, "unknown type 9"),
        (with_tensor([1] * 9, 0, 0), "9 dimensions"),
        (with_tensor([2**62], 0, 0), "ends at byte"),
        (with_tensor([1], 0, 2**62), "ends at byte"),
        (with_tensor([1], 99, 0), "type 99"),
        (with_tensor([7], 8, 0), "multiple of 32"),
    ],
)
def test_hostile_headers_are_typed_errors(tmp_path, data, match):
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=match):
        open_checkpoint(tmp_path / "m.gguf")


# ---------------------------------------------------------------------- tokenizers


def smollm() -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return backend


def llama3_digits() -> tokenizers.Tokenizer:
    backend = llama3()
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return backend


@pytest.mark.parametrize(("build", "pre"), [(byte_level, "qwen2"), (llama3_digits, "llama-bpe"), (smollm, "smollm")])
def test_token_ids_equal_those_of_the_original_tokenizer(tmp_path, build, pre):
    original = build()
    folder = tiny_checkpoint(tmp_path / "m", "qwen2", dtype="f32", num_hidden_layers=1)
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf", folder, backend=original, pre=pre))
    tokenizer = Tokenizer.of(file)
    for sample in [*CORPUS, *AWKWARD_TEXTS.values(), "<tool_call>1234 567"]:
        for special in (True, False):
            expected = original.encode(sample, add_special_tokens=special).ids
            assert tokenizer.encode(sample, special) == expected
            assert tokenizer.decode(expected) == original.decode(expected)
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.vocab_size == original.get_vocab_size()
    assert file.tokenizer_config()["chat_template"] == CHATML


def test_sentencepiece_vocabulary(tmp_path):
    """Pieces with scores and byte tokens, as llama-2 files have them; merges follow the scores."""
    original = sentencepiece()
    vocab = sorted(original.get_vocab().items(), key=lambda item: item[1])
    merged = {"▁t": -0.0, "▁▁": -1.0, "is": -2.0, "▁is": -3.0}
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_scores([merged.get(token, -100.0) for token, _ in vocab])
    kinds = {"<unk>": 2, "<|bos|>": 3, "<|im_start|>": 3, "<|im_end|>": 3}
    writer.add_token_types([6 if t.startswith("<0x") else kinds.get(t, 1) for t, _ in vocab])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(3)
    fields = {key: value.value for key, value in writer.kv_data[0].items()}

    from fastcore.checkpoints.gguf_tokenizer import build_tokenizer

    prefix = "tokenizer.ggml."
    fields = {key.removeprefix(prefix): value for key, value in fields.items() if key.startswith(prefix)}
    backend, aliases = build_tokenizer(Fields(fields, "m.gguf", prefix))
    assert aliases == {}
    tokenizer = Tokenizer(backend)
    for sample in [*CORPUS, *AWKWARD_TEXTS.values(), "this is  it"]:
        if "<|" in sample or not sample:
            continue
        expected = original.encode(sample).ids
        assert tokenizer.encode(sample) == [1, *expected]
        assert tokenizer.decode(expected) == original.decode(expected)
    assert tokenizer.encode("<|im_start|>", add_special_tokens=False) == [2]


def test_unknown_tokenizers_are_refused(tmp_path):
    folder = tiny_checkpoint(tmp_path / "m", "qwen2", dtype="f32", num_hidden_layers=1)
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf", folder, backend=default_backend(), pre="tekken"))
    with pytest.raises(UnsupportedModelError, match=r'"tekken".*qwen2'):
        file.tokenizer()


def test_named_chat_templates(tmp_path):
    def adjust(writer):
        writer.add_array("tokenizer.chat_templates", ["tool_use"])
        writer.add_string("tokenizer.chat_template.tool_use", "tools")

    assert llama_with(tmp_path, adjust).tokenizer_config()["chat_template"] == [
        {"name": "default", "template": CHATML},
        {"name": "tool_use", "template": "tools"},
    ]


# ---------------------------------------------------------------------- one checkpoint, opened once


@pytest.mark.parametrize("named", ["file", "folder"])
def test_a_file_is_parsed_once(tmp_path, monkeypatch, named):
    """Tensors, config and tokenizer come from one reading of the header; a folder may hold just the file."""
    folder = tiny_checkpoint(tmp_path / "m", "llama", dtype="f32", num_hidden_layers=1)
    (home := tmp_path / "home").mkdir()
    path = write_gguf(home / "m.gguf", folder)
    parsed = []
    read = gguf_module.read_header
    monkeypatch.setattr(gguf_module, "read_header", lambda file: parsed.append(file.path) or read(file))
    llm = LLM(path if named == "file" else home)
    assert llm.generate("ab", max_tokens=2).usage.completion_tokens == 2
    assert parsed == [path]


# ---------------------------------------------------------------------- vocabularies and metadata as files have them


def tokens_of(tmp_path, tokens, types, merges=(), kind="gpt2", **fields):
    """A file with just this vocabulary. fields: of tokenizer.ggml."""
    folder = tiny_checkpoint(tmp_path / "m", "llama", dtype="f32", num_hidden_layers=1)

    def adjust(writer):
        for data in writer.kv_data:
            for key in [key for key in data if key.startswith("tokenizer.")]:
                del data[key]
        writer.add_tokenizer_model(kind)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        if merges:
            writer.add_token_merges(list(merges))
        for key, value in fields.items():
            add = writer.add_array if isinstance(value, list) else writer.add_uint32
            add(f"tokenizer.ggml.{key}", value)

    return open_checkpoint(write_gguf(tmp_path / "m.gguf", folder, adjust=adjust))


@pytest.mark.fault("A8")
def test_every_id_of_a_repeated_token_has_its_text(tmp_path):
    """Ids index the list: 1, 4 and 6 are spelled alike, 3 and 5 are one special token; text becomes the last."""
    tokens, types = ["a", "b", "Ġ", "<s>", "b", "<s>", "b", "c"], [1, 1, 1, 3, 1, 3, 1, 1]
    tokenizer = Tokenizer.of(tokens_of(tmp_path, tokens, types, eos_token_id=3))
    assert tokenizer.encode("a b") == [0, 2, 6]
    for token in (1, 4, 6):
        assert tokenizer.decode([0, token]) == "ab"
        assert tokenizer.token_bytes(token) == b"b"
        decoder = tokenizer.decoder()
        assert "".join(map(decoder.push, [0, token, 7])) + decoder.finish() == "abc"
    assert tokenizer.special_ids == {3, 5}
    assert tokenizer.decode([0, 3, 5]) == "a"
    assert tokenizer.decode([0, 3, 5], skip_special_tokens=False) == "a<s><s>"
    assert tokenizer.vocab_size == 8


@pytest.mark.fault("A8")
def test_repeated_pieces_of_a_scored_vocabulary(tmp_path):
    tokens = ["<unk>", "▁a", "b", "▁a", "<0x0A>", "b", "▁", "a"]
    scores = [0.0, -1.0, -2.0, -1.0, 0.0, -2.0, -3.0, -4.0]
    tokenizer = Tokenizer.of(tokens_of(tmp_path, tokens, [2, 1, 1, 1, 6, 1, 1, 1], kind="llama", scores=scores))
    assert tokenizer.encode("ab", add_special_tokens=False) == [3, 5]
    for first, second in ((1, 2), (3, 2), (1, 5), (3, 5)):
        assert tokenizer.decode([first, second]) == "ab"
        assert tokenizer.decode([4, first, second]) == "\n ab"


@pytest.mark.fault("A8")
def test_an_unused_entry_that_repeats_a_token_gives_no_text(tmp_path):
    tokenizer = Tokenizer.of(tokens_of(tmp_path, ["a", "b", "a"], [1, 1, 5]))
    assert tokenizer.encode("ab") == [0, 1]
    assert tokenizer.decode([2]) == ""


@pytest.mark.fault("A8")
def test_a_repeated_token_is_not_written_to_a_file_that_cannot_hold_it(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"repeats a token, which tokenizer\.json cannot hold"):
        write_folder(tokens_of(tmp_path, ["a", "b", "a"], [1, 1, 1]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


WRONG_TYPES = [
    ("general.architecture", 3, "expected a string"),
    ("general.alignment", "32", "expected 1 to"),
    ("split.count", "2", "expected an integer"),
    ("split.count", -1, "expected an integer"),
    ("llama.embedding_length", "8", "expected an integer"),
    ("llama.embedding_length", 0, "expected an integer from 1"),
    ("llama.embedding_length", 40.0, "expected an integer"),
    ("llama.embedding_length", 2**63, "expected an integer"),
    ("llama.block_count", True, "expected an integer"),
    ("llama.context_length", [], "supported: one number for all layers"),
    ("llama.feed_forward_length", ["72"], "expected an integer"),
    ("llama.attention.head_count", [4, 2], "supported: one number for all layers"),
    ("llama.attention.head_count", 3, "expected rows for as many heads"),
    ("llama.attention.head_count_kv", 3, r"llama\.attention\.head_count_kv is 3"),
    ("llama.attention.layer_norm_rms_epsilon", "1e-5", "expected a finite number"),
    ("llama.attention.layer_norm_rms_epsilon", math.nan, "expected a finite number"),
    ("llama.attention.layer_norm_rms_epsilon", 0.0, r"layer_norm_rms_epsilon is 0.0, expected a finite number above 0"),
    ("llama.attention.causal", 1, "expected true or false"),
    ("llama.rope.freq_base", 0.5, r"llama\.rope\.freq_base is 0.5"),
    ("llama.rope.freq_base", [1.0], "expected a finite number"),
    ("llama.rope.scaling.type", 1, "expected a string"),
    ("llama.rope.scaling.factor", "2", "expected a finite number"),
    ("llama.rope.scaling.original_context_length", 1.5, "expected an integer"),
    ("llama.vocab_size", "x", None),
    ("tokenizer.ggml.bos_token_id", "1", "expected a token id"),
    ("tokenizer.ggml.eos_token_id", [2], "expected a token id"),
    ("tokenizer.ggml.eot_token_id", 2**40, "expected a token id"),
    ("tokenizer.ggml.padding_token_id", -2, "expected a token id"),
    ("tokenizer.ggml.model", 1, "expected a string"),
    ("tokenizer.ggml.pre", 1, "expected a string"),
    ("tokenizer.ggml.tokens", "abc", "expected a list of strings"),
    ("tokenizer.ggml.tokens", [1, 2], "expected a list of strings"),
    ("tokenizer.ggml.token_type", [1], "one number for each of the"),
    ("tokenizer.ggml.token_type", "x", "one number for each of the"),
    ("tokenizer.ggml.token_type", [1.5] * 259, "one number for each of the"),
    ("tokenizer.ggml.merges", 5, "expected a list of strings"),
    ("tokenizer.ggml.merges", ["ab"], "two tokens with a space between"),
    ("tokenizer.ggml.merges", ["a zz"], "do not fit tokenizer.ggml.tokens"),
    ("tokenizer.ggml.add_bos_token", 1, "expected true or false"),
    ("tokenizer.ggml.bos_token_id", 100_000, "the id of one of the 259 tokens"),
    ("tokenizer.chat_template", 1, "expected a string"),
    ("tokenizer.chat_templates", "x", "expected a list of strings"),
    ("tokenizer.chat_templates", [3], "expected a list of strings"),
    ("tokenizer.chat_template.x", 3, None),
]


def set_value(writer, key, value):
    for data in writer.kv_data:
        data.pop(key, None)
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        (writer.add_int32 if value < 0 else writer.add_uint64 if value >= 2**32 else writer.add_uint32)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value:
        writer.add_array(key, value)
    else:
        writer.kv_data[0][key] = gguf.gguf_writer.GGUFValue([0], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32)
        writer.kv_data[0][key].value.clear()


@pytest.mark.fault("E3")
@pytest.mark.parametrize(("key", "value", "expected"), WRONG_TYPES)
def test_metadata_of_a_wrong_type_is_named_by_its_key(tmp_path, key, value, expected):
    """Never by the name that config.json has for it, and never by another exception."""

    def adjust(writer):
        writer.add_bool("tokenizer.ggml.add_bos_token", True)
        set_value(writer, key, value)

    folder = tiny_checkpoint(tmp_path / "m", "llama", dtype="f32", num_hidden_layers=1)
    path = tmp_path / "m.gguf"
    if value == []:
        pytest.skip("the package does not write an empty array")
    write_gguf(path, folder, adjust=adjust)

    def read():
        with open_checkpoint(path) as file:
            file.config()
            Tokenizer.of(file)
        return LLM(path)

    if expected is None:
        read()
        return
    with pytest.raises((CheckpointError, UnsupportedModelError), match=expected) as caught:
        read()
    assert str(path) in str(caught.value)
    assert key in str(caught.value) or key == "general.architecture"
    for name in ("config.json", "hidden_size", "num_hidden_layers", "rms_norm_eps", "max_position_embeddings"):
        assert name not in str(caught.value)


@pytest.mark.fault("E3")
@pytest.mark.parametrize("name", ["bos", "eos", "eot", "padding", "unknown"])
@pytest.mark.parametrize("value", [2**32 - 1, -1])
def test_a_token_id_of_all_ones_means_none(tmp_path, name, value):
    folder = tiny_checkpoint(tmp_path / "m", "llama", dtype="f32", num_hidden_layers=1)
    key = f"tokenizer.ggml.{name}_token_id"
    path = write_gguf(tmp_path / "m.gguf", folder, adjust=lambda writer: set_value(writer, key, value))
    with open_checkpoint(path) as file:
        config, tokenizer = file.config(), Tokenizer.of(file)
    expected = {"bos": (None, (258,)), "eos": (256, ())}.get(name, (256, (258,)))
    assert (config.bos_token_id, config.eos_token_ids) == expected
    assert config.pad_token_id is None
    assert tokenizer.eos_token_ids == expected[1]
    assert LLM(path).generate("ab", max_tokens=2).usage.completion_tokens <= 2


@pytest.mark.fault("E3")
@pytest.mark.parametrize(
    "key", ["embedding_length", "block_count", "context_length", "attention.layer_norm_rms_epsilon"]
)
def test_metadata_that_is_not_there_is_named_by_its_key(tmp_path, key):
    def adjust(writer):
        for data in writer.kv_data:
            data.pop(f"llama.{key}", None)

    with pytest.raises(CheckpointError, match=rf"llama\.{key} is missing"):
        llama_with(tmp_path, adjust)


@pytest.mark.fault("E1")
def test_a_file_without_tokens_takes_token_ids(tmp_path):
    def adjust(writer):
        for data in writer.kv_data:
            for key in [key for key in data if key.startswith("tokenizer.ggml.")]:
                del data[key]
        writer.add_tokenizer_model("none")

    folder = tiny_checkpoint(tmp_path / "m", "qwen2", dtype="f32")
    llm = LLM(write_gguf(tmp_path / "m.gguf", folder, adjust=adjust))
    ids = make_prompt(6)
    assert np.array_equal(llm.logits(ids), LLM(folder).logits(ids))
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        llm.generate("text")
