"""Readers of checkpoint files: headers, indexes, configs, vocabularies."""

import copy
import json
import math
import mmap
import os
import random
import struct
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fastcore.checkpoints.dense import DTYPES, DenseTensor
from fastcore.checkpoints.fh1w import read_fh1w
from fastcore.checkpoints.fields import Fields
from fastcore.checkpoints.gguf import GgufFile
from fastcore.checkpoints.hf_config import parse_config
from fastcore.checkpoints.mapped import Cursor, MappedFile
from fastcore.checkpoints.open import open_checkpoint
from fastcore.checkpoints.packed import layout_checksum, read_maps
from fastcore.checkpoints.quantized import dequantized
from fastcore.checkpoints.safetensors import read_header, read_safetensors
from fastcore.checkpoints.strict_json import parse_object
from fastcore.model.config import ModelConfig
from fastcore.model.rope import rope_tables
from fastcore.text.tokenizer import Tokenizer
from fuzz.mutate import INTEGERS, json_bytes, mutate_bytes, mutate_fields, mutate_json
from fuzz.reader import READERS, Reader

LARGEST = 1 << 20  # elements of a tensor whose values a reader touches


class BytesFile(MappedFile):
    """A case in memory, with the face of a mapped file."""

    def __init__(self, data: bytes, name: str = "case") -> None:
        self.path = Path(name)
        self.size = len(data)
        self._map: Any = data
        self._closed = False

    def release(self, begin: int, end: int) -> None:
        pass

    def close(self) -> None:
        self._closed = True


class AlignedFile(BytesFile):
    """The same in memory that begins with a page."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        if data:
            self._map = mmap.mmap(-1, len(data))
            self._map[:] = data


def touch(tensors: Any) -> None:
    """Read the values of each tensor; an offset that leads astray would show."""
    for tensor in tensors.values():
        if math.prod(tensor.shape) <= LARGEST and tensor.dtype in ("F32", "F16", "BF16"):
            tensor.f32()
        elif math.prod(tensor.shape) <= LARGEST:
            _ = tensor.array


@cache
def folder() -> Path:
    """A folder in memory where the system has one."""
    root = "/dev/shm" if os.path.isdir("/dev/shm") else None
    return Path(tempfile.mkdtemp(prefix="fastcore-fuzz-", dir=root))


# ---------------------------------------------------------------- safetensors and its index

ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
HEADER = {
    "__metadata__": {"format": "pt"},
    "model.embed_tokens.weight": ENTRY,
    "a": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "b": {"dtype": "BOOL", "shape": [1, 3], "data_offsets": [32, 35]},
    "c": {"dtype": "F16", "shape": [0, 7], "data_offsets": [35, 35]},
    "d": {"dtype": "I64", "shape": [], "data_offsets": [35, 43]},
}
HEADER_TEXT = json.dumps(HEADER)
HEADER_NAMES = ("a", "__metadata__", "dtype", "shape", "data_offsets", "embed_tokens.weight")
DATA = bytes(43)


def make_safetensors(rng: random.Random) -> bytes:
    header = mutate_json(json.loads(HEADER_TEXT), rng, names=HEADER_NAMES)
    text = json_bytes(header, rng) if rng.random() < 0.9 else HEADER_TEXT.encode()
    length = len(text) if rng.random() < 0.9 else rng.choice(INTEGERS) % 2**64
    data = DATA if rng.random() < 0.9 else DATA[: rng.randrange(60)] + bytes(rng.randrange(9))
    case = length.to_bytes(8, "little") + text + data
    return mutate_bytes(case, rng) if rng.random() < 0.1 else case


def read_safetensors_case(case: bytes) -> None:
    touch(read_safetensors(BytesFile(case)))


INDEX = {"metadata": {"total_size": 24}, "weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}}
INDEX_NAMES = ("weight_map", "metadata", "z", "x")


def make_index(rng: random.Random) -> bytes:
    return json_bytes(mutate_json(json.loads(json.dumps(INDEX)), rng, names=INDEX_NAMES), rng)


@cache
def sharded() -> Path:
    home = folder() / "sharded"
    home.mkdir()
    for i, name in ((1, "x"), (2, "y")):
        text = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        (home / f"model-{i}.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    return home / "model.safetensors.index.json"


def read_index(case: bytes) -> None:
    sharded().write_bytes(case)
    with open_checkpoint(sharded()) as checkpoint:
        touch(checkpoint)


# ---------------------------------------------------------------- packed files

MAPS = {
    "a.panels": {"dtype": "int8", "in_features": 40, "in_turns": False, "rows": {"q.weight": 16, "k.weight": 8}},
    "b.panels": {"dtype": "bf16", "in_features": 3, "in_turns": True, "rows": {"g.weight": 5, "u.weight": 5}},
}
SIZES_OF_PANELS = {"a.panels": 2 * 2 * 544, "b.panels": 2 * 3 * 32}
PACKED_METADATA = {"format": "fastcore-packed", "version": "1", "dtype": "int8", "source": "{}"}
LAYOUTS = {dtype: layout_checksum(dtype) for dtype in ("int8", "bf16")}
PACKED_NAMES = ("a.panels", "b.panels", "q.weight", "norm.weight", "dtype", "rows", "in_turns", "in_features")


def packed_file(rng: random.Random | None) -> bytes:
    """A packed file, with other values in its header where there is a generator."""
    maps, layouts, metadata = json.loads(json.dumps([MAPS, LAYOUTS, PACKED_METADATA]))
    sizes = dict(SIZES_OF_PANELS)
    if rng is not None:
        maps = mutate_json(maps, rng, names=PACKED_NAMES) if rng.random() < 0.8 else maps
        layouts = mutate_json(layouts, rng, rounds=1) if rng.random() < 0.1 else layouts
        metadata = mutate_json(metadata, rng, rounds=1) if rng.random() < 0.1 else metadata
        if rng.random() < 0.2:
            sizes[rng.choice(list(sizes))] += rng.choice((-64, 64, 544, -1))
    if isinstance(metadata, dict):
        metadata |= {"maps": json.dumps(maps), "layouts": json.dumps(layouts)}
    header, end = {"__metadata__": metadata}, 0
    for name, size in sizes.items():
        begin, end = end, end + -(-size // 64) * 64
        header[name] = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
    header["norm.weight"] = {"dtype": "F32", "shape": [3], "data_offsets": [end, end + 12]}
    if rng is not None and rng.random() < 0.2:
        header = mutate_json(header, rng, rounds=1, names=PACKED_NAMES)
    text = json_bytes(header, rng) if rng is not None and rng.random() < 0.1 else json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text + bytes(range(64)) * (end // 64) + bytes(12)


def make_packed(rng: random.Random) -> bytes:
    case = packed_file(rng)
    return mutate_bytes(case, rng, [packed_file(None)]) if rng.random() < 0.1 else case


def read_packed(case: bytes) -> None:
    tensors, maps = read_maps(*read_header(AlignedFile(case)), "case")
    touch(tensors)
    for linear in maps.values():
        linear.row(linear.out_features - 1)


READERS["packed"] = Reader(make_packed, read_packed)
READERS["safetensors"] = Reader(make_safetensors, read_safetensors_case)
READERS["index"] = Reader(make_index, read_index)

# ---------------------------------------------------------------- config.json

SIZES = {
    "vocab_size": 100,
    "hidden_size": 16,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "torch_dtype": "bfloat16",
}
ROPES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32, "mscale": 1.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
]
FALCON = SIZES | {
    "model_type": "falcon_h1",
    "head_dim": 8,
    "mamba_n_heads": 6,
    "mamba_d_head": 4,
    "mamba_d_state": 8,
    "mamba_d_ssm": 24,
    "mamba_n_groups": 1,
    "time_step_limit": [0.0, math.inf],
    "ssm_multipliers": [1.0] * 5,
    "mlp_multipliers": [1.0, 0.5],
    "key_multiplier": 0.4,
}
LABELS = {"id2label": {"0": "O", "1": "B-x", "2": "I-x"}, "is_causal": False}
CONFIGS: list[dict[str, Any]] = [
    *(SIZES | {"model_type": family, "rope_scaling": rope} for family in ("llama", "qwen3") for rope in ROPES),
    SIZES | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 512, "max_window_layers": 0},
    SIZES | {"model_type": "qwen2", "layer_types": ["full_attention"] * 2, "rope_parameters": ROPES[2]},
    SIZES | {"model_type": "qwen3", "architectures": ["Qwen3ForTokenClassification"]} | LABELS,
    {
        "model_type": "pii_masking",
        "architectures": ["PiiMaskingModel"],
        "backbone": SIZES | {"model_type": "qwen3", "use_bidirectional_attention": True},
        "viterbi_b_bias": -0.5,
        "max_seq_len": 512,
    },
    FALCON,
]
CONFIG_TEXTS = [json.dumps(config) for config in CONFIGS]
CONFIG_NAMES = sorted({name for config in CONFIGS for name in config} | {"type", "head_dim", "quantization_config"})


def make_config(rng: random.Random) -> bytes:
    config = mutate_json(json.loads(rng.choice(CONFIG_TEXTS)), rng, names=CONFIG_NAMES)
    return json_bytes(config, rng)


def read_config(case: bytes) -> None:
    use_config(parse_config(parse_object(case, "config.json")))


def use_config(config: ModelConfig) -> None:
    """What loading derives from a config before it meets a tensor."""
    assert 1 <= config.max_position_embeddings <= config.context_length < 2**31
    assert all(0 <= token < config.vocab_size for token in config.eos_token_ids)
    assert config.pii is None or len(config.token_labels) == config.pii.num_token_labels
    if config.head_dim <= 512:
        for length in (3, config.context_length):
            for table in rope_tables(config.rope, config.head_dim, 3, seq_len=length):
                assert (abs(table) < 1e38).all()


READERS["config"] = Reader(make_config, read_config)

# ---------------------------------------------------------------- FH1W


def fields_of(data: bytes, read: Callable[[MappedFile], Any]) -> list[tuple[int, int]]:
    """(position, size) of everything that the reader takes from a valid file."""
    found: list[tuple[int, int]] = []
    skip = Cursor.skip

    def noted(self: Cursor, size: int, what: str) -> int:
        begin = skip(self, size, what)
        if size:
            found.append((begin, size))
        return begin

    Cursor.skip = noted  # type: ignore[method-assign]
    try:
        read(BytesFile(data))
    finally:
        Cursor.skip = skip  # type: ignore[method-assign]
    return found


def fh1w_file() -> bytes:
    def tensor(name: bytes, *shape: int) -> bytes:
        head = struct.pack(f"<H{len(name)}sB{len(shape)}I", len(name), name, len(shape), *shape)
        return head + bytes(4 * math.prod(shape))

    return (
        b"FH1W" + struct.pack("<I", 3) + tensor(b"model.embed_tokens.weight", 3, 2) + tensor(b"x", 0) + tensor(b"y", 2)
    )


FH1W = fh1w_file()
FH1W_FIELDS = fields_of(FH1W, read_fh1w)


def make_fh1w(rng: random.Random) -> bytes:
    case = mutate_fields(FH1W, FH1W_FIELDS, rng) if rng.random() < 0.8 else FH1W
    return mutate_bytes(case, rng, [FH1W]) if rng.random() < 0.4 else case


READERS["fh1w"] = Reader(make_fh1w, lambda case: touch(read_fh1w(BytesFile(case))))

# ---------------------------------------------------------------- GGUF

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.alignment": 32,
    "llama.context_length": 512,
    "llama.embedding_length": 8,
    "llama.block_count": 1,
    "llama.feed_forward_length": 12,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 4,
    "llama.rope.scaling.type": "linear",
    "llama.rope.scaling.factor": 2.0,
    "llama.vocab_size": 6,
    "split.count": 1,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "llama-bpe",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "▁a", "b", "▁", "a", "<0x41>"],
    "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, 0.0],
    "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 6],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2**32 - 1,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.add_space_prefix": True,
    "tokenizer.chat_template": "{{ messages[0].content }}",
}
BYTE_LEVEL = METADATA | {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [*"abcdefgh", "Ġ", "ab", "Ġa", "<s>", "</s>"],
    "tokenizer.ggml.merges": ["a b", "Ġ a"],
    "tokenizer.ggml.token_type": [1] * 11 + [3, 3],
    "tokenizer.ggml.bos_token_id": 11,
    "tokenizer.ggml.eos_token_id": 12,
}
del BYTE_LEVEL["tokenizer.ggml.scores"]
TENSORS: dict[str, Any] = {
    "token_embd.weight": [8, 6],
    "output_norm.weight": [8],
    "blk.0.attn_q.weight": [8, 8],
    "blk.0.attn_k.weight": [8, 4],
    "blk.0.ffn_up.weight": [8, 12],
}
SEEDS = (METADATA, BYTE_LEVEL)
TENSOR_NAMES = (
    *("output.weight", "rope_freqs.weight", "blk.0.attn_q.bias", "blk.1.attn_v.weight", "blk.00.attn_q.weight", "x"),
)
KEYS = (
    *METADATA,
    *("llama.attention.causal", "llama.expert_count", "tokenizer.chat_templates", "tokenizer.ggml.eot_token_id"),
)


def text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(encoded)) + encoded


def value_kind(value: Any, rng: random.Random) -> int:
    """The type that suits a value, now and then another one."""
    if isinstance(value, bool) or value is None:
        return BOOL
    if isinstance(value, str):
        return STRING
    if isinstance(value, (list, dict)):
        return ARRAY
    if isinstance(value, float):
        return F32 if rng.random() < 0.8 else F64
    return U32 if rng.random() < 0.7 else rng.choice((I32, U64, I64, U16, U8))


def encoded(value: Any, kind: int, rng: random.Random) -> bytes:
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        items = list(value)
        item = value_kind(items[0], rng) if items else U32
        kept = [i for i in items if type(i) is type(items[0])]
        return struct.pack("<IQ", item, len(kept)) + b"".join(encoded(i, item, rng) for i in kept)
    if kind in (F32, F64, BOOL):
        try:
            return struct.pack(f"<{FORMATS[kind]}", value or 0)
        except OverflowError:
            return struct.pack(f"<{FORMATS[kind]}", math.inf)
    size = struct.calcsize(FORMATS[kind])
    return (int(value) % 2 ** (8 * size)).to_bytes(size, "little")


def metadata_entry(key: str, value: Any, rng: random.Random) -> bytes:
    kind = value_kind(value, rng)
    return text(key) + struct.pack("<I", kind) + encoded(value, kind, rng)


def gguf_file(entries: Sequence[bytes], tensors: dict[str, Any], rng: random.Random, kinds: Sequence[int]) -> bytes:
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries)
    offset = 0
    for name, shape in tensors.items():
        sides = [n % 2**64 if isinstance(n, int) else 1 for n in shape][:5] if isinstance(shape, list) else [1]
        out += text(name) + struct.pack(f"<I{len(sides)}QIQ", len(sides), *sides, rng.choice(kinds), offset)
        offset += -(-4 * math.prod(sides) // 32) * 32 if math.prod(sides) < 4096 else 32
    return out + bytes(-len(out) % 32) + bytes(min(offset, 4096))


PLAIN_RNG = random.Random(0)
PLAIN_RNG.random = lambda: 0.0  # type: ignore[method-assign]  the suitable type of each value
ENTRIES = [{key: metadata_entry(key, value, PLAIN_RNG) for key, value in seed.items()} for seed in SEEDS]
PLAIN = [gguf_file(list(entries.values()), TENSORS, random.Random(0), (0,)) for entries in ENTRIES]
PLAIN_FIELDS = [fields_of(data, lambda file: GgufFile(file.path, file)) for data in PLAIN]


def changed_file(which: int, keys: Sequence[str], rng: random.Random) -> bytes:
    """A seed with other values, and other tensors now and then."""
    entries = dict(ENTRIES[which])
    for _ in range(1 + int(rng.random() ** 2 * 3)):
        key, what = rng.choice(keys), rng.random()
        if what < 0.1:
            entries.pop(key, None)
        elif what < 0.13:
            entries[f"{key} again"] = entries.get(key, b"")
        else:
            values = mutate_json([copy.deepcopy(SEEDS[which].get(key))], rng, rounds=2)
            value = values[0] if isinstance(values, list) and values else values
            entries[key] = metadata_entry(key, value, rng)
    tensors: Any = TENSORS
    if rng.random() < 0.3:
        tensors = mutate_json(copy.deepcopy(TENSORS), rng, rounds=1, names=TENSOR_NAMES)
    kinds = (0,) if rng.random() < 0.7 else (0, 1, 2, 8, 12, 99)
    return gguf_file(list(entries.values()), tensors if isinstance(tensors, dict) else {}, rng, kinds)


def make_gguf(rng: random.Random) -> bytes:
    """Either the values are others, or the bytes."""
    which = rng.randrange(2)
    if rng.random() < 0.5:
        return changed_file(which, KEYS, rng)
    case = mutate_fields(PLAIN[which], PLAIN_FIELDS[which], rng)
    return mutate_bytes(case, rng, PLAIN) if rng.random() < 0.3 else case


def open_gguf(case: bytes) -> GgufFile:
    return GgufFile(Path("case.gguf"), BytesFile(case))


def read_gguf(case: bytes) -> None:
    file = open_gguf(case)
    touch(file)
    use_config(file.config())


TOKENIZER_KEYS = [key for key in KEYS if key.startswith("tokenizer.")]


def make_gguf_tokenizer(rng: random.Random) -> bytes:
    return changed_file(rng.randrange(2), TOKENIZER_KEYS, rng)


def read_gguf_tokenizer(case: bytes) -> None:
    tokenizer = Tokenizer.of(open_gguf(case))
    if tokenizer is not None:
        ids = [token_id for token_id in tokenizer.encode("a b ab") if token_id < tokenizer.vocab_size]
        decoder = tokenizer.decoder()
        assert "".join(map(decoder.push, ids)) + decoder.finish() == tokenizer.decode(ids)


READERS["gguf"] = Reader(make_gguf, read_gguf)
READERS["gguf_tokenizer"] = Reader(make_gguf_tokenizer, read_gguf_tokenizer)

# ---------------------------------------------------------------- tokenizer files

TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": i,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, content in ((5, "<s>"), (6, "</s>"))
    ],
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    "pre_tokenizer": None,
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}},
    },
    "decoder": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "▁": 4, "<s>": 5, "</s>": 6, "<0x41>": 7},
        "merges": [["a", "b"]],
    },
}
LEVEL = TOKENIZER | {
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
}
TOKENIZER_TEXTS = [json.dumps(TOKENIZER), json.dumps(LEVEL)]
TOKENIZER_CONFIG = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "special": True},
    "add_prefix_space": True,
    "additional_special_tokens": ["ab"],
    "added_tokens_decoder": {"6": {"content": "</s>", "special": True}},
    "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}],
}
SPECIAL_TOKENS = {"eos_token": "</s>", "pad_token": {"content": "<unk>"}}
COMPANIONS = {"tokenizer_config.json": TOKENIZER_CONFIG, "special_tokens_map.json": SPECIAL_TOKENS}
COMPANION_TEXTS = {name: json.dumps(value) for name, value in COMPANIONS.items()}
TOKENIZER_NAMES = ("type", "id", "content", "eos_token", "extra_special_tokens", "pad_token", "decoders", "pattern")


def make_tokenizer(rng: random.Random) -> bytes:
    """All three files as one case, as a JSON object of their texts."""
    files = {"tokenizer.json": rng.choice(TOKENIZER_TEXTS), **COMPANION_TEXTS}
    for name in rng.sample(list(files), rng.choice((1, 1, 1, 2))):
        value = mutate_json(json.loads(files[name]), rng, names=TOKENIZER_NAMES)
        files[name] = json_bytes(value, rng).decode("latin-1")
    return json.dumps(files).encode()


@cache
def tokenizer_folder() -> Path:
    home = folder() / "tokenizer"
    home.mkdir()
    return home


def read_tokenizer_files(case: bytes) -> None:
    home = tokenizer_folder()
    for name, content in json.loads(case).items():
        (home / name).write_bytes(content.encode("latin-1"))
    tokenizer = Tokenizer.from_folder(home)
    # a file may put ids in front that no token has
    ids = [token_id for token_id in tokenizer.encode("a b ab") if token_id < tokenizer.vocab_size]
    assert isinstance(tokenizer.decode(ids), str)


READERS["tokenizer"] = Reader(make_tokenizer, read_tokenizer_files)

# ---------------------------------------------------------------- quantised maps

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 8, "checkpoint_format": "gptq"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm", "zero_point": True}
WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 8, "symmetric": False}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"g": {"weights": WEIGHTS, "input_activations": None}},
}
INT8 = PACKED | {"format": "int-quantized", "config_groups": {"g": {"weights": WEIGHTS | {"num_bits": 8}}}}
# name: dtype, shape, values of the parts of a map [16, 16]
QUANTISED: list[tuple[dict[str, Any], dict[str, list[Any]]]] = [
    (
        GPTQ,
        {
            "qweight": ["I32", [2, 16], 7],
            "qzeros": ["I32", [2, 2], 1],
            "scales": ["F16", [2, 16], 1],
            "g_idx": ["I32", [16], 1],
        },
    ),
    (AWQ, {"qweight": ["I32", [16, 2], 7], "qzeros": ["I32", [2, 2], 1], "scales": ["F16", [2, 16], 1]}),
    (
        PACKED,
        {
            "weight_packed": ["I32", [16, 2], 7],
            "weight_scale": ["BF16", [16, 2], 1],
            "weight_shape": ["I64", [2], 16],
            "weight_zero_point": ["I32", [2, 2], 1],
        },
    ),
    (
        INT8,
        {"weight": ["I8", [16, 16], 7], "weight_scale": ["F32", [16, 2], 1], "weight_zero_point": ["I8", [16, 2], 1]},
    ),
]
QUANTISED_TEXTS = [json.dumps(pair) for pair in QUANTISED]
PART_NAMES = sorted({name for _, parts in QUANTISED for name in parts} | {"bias"})


def make_quantised(rng: random.Random) -> bytes:
    settings, parts = json.loads(rng.choice(QUANTISED_TEXTS))
    if rng.random() < 0.6:
        settings = mutate_json(settings, rng, names=("bits", "dynamic", "symmetric", "num_bits", "format"))
    if rng.random() < 0.6:
        parts = mutate_json(parts, rng, rounds=2, names=PART_NAMES)
    return json.dumps([settings, parts]).encode()


def read_quantised(case: bytes) -> None:
    settings, parts = json.loads(case)
    tensors = {}
    for name, part in (parts if isinstance(parts, dict) else {}).items():
        dtype, shape, value = part if isinstance(part, list) and len(part) == 3 else ("F32", [1], 0)
        kind = DTYPES.get(dtype if isinstance(dtype, str) else "F32", np.dtype("f4"))
        sides = [n for n in shape if type(n) is int and 0 <= n <= 64][:3] if isinstance(shape, list) else []
        array = np.full(sides, value if type(value) is int and 0 <= value < 100 else 0, kind)
        tensors[f"x.{name}"] = DenseTensor.from_array(
            name, array, dtype if kind == DTYPES["BF16"] and dtype == "BF16" else None
        )
    fields = Fields(settings if isinstance(settings, dict) else {}, "config.json", "quantization_config.")
    touch(dequantized(tensors, fields, lambda stem: False))


READERS["quantised"] = Reader(make_quantised, read_quantised)
