"""Token ids equal the tokenizers library's; streamed text, joined, equals one-shot decoding."""

import json
import random

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from fastcore.errors import CheckpointError
from fastcore.text.tokenizer import Tokenizer

CORPUS = [
    "The capital of France is Paris, and the river is the Seine.",
    "Việt Nam, e\u0301té, naïve café — “quotes” 1234567 don't won't they'll",
    "日本語のテキスト 한국어 👩‍👩‍👧 emoji 😀😀 ✅",
    "def f(x):\n\treturn x  # two  spaces\n\n\n  indented",
] * 3
AWKWARD_TEXTS = {
    "accents": " Việt",
    "digits": "1234567",
    "contraction": "don't",
    "newlines": "\n\n  x",
    "tabs": "\t\ta\t",
    "combining mark": "e\u0301",
    "hangul jamo": "\u1112\u1161\u11ab",
    "zwj emoji": "👩‍👩‍👧",
    "paragraph separator": "a\u2029b",
    "10k spaces": " " * 10_000,
    "nul": "a\x00b",
    "special token": "a<|im_end|>b",
    "whitespace only": " \n ",
    "empty": "",
}
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = ["<|bos|>", "<|im_start|>", "<|im_end|>"]


def byte_level() -> tokenizers.Tokenizer:
    """Qwen-like: NFC, its split, bytes."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=SPECIALS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    # tokens that are neither special nor made of the byte alphabet
    backend.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("\uff5cunk▁x\uff5c", normalized=False)])
    return backend


def llama3() -> tokenizers.Tokenizer:
    """Byte-level with ignore_merges and a post-processor that puts BOS in front."""
    backend = byte_level()
    backend.normalizer = None
    backend.model.ignore_merges = True
    bos = backend.token_to_id("<|bos|>")
    backend.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", pair="<|bos|> $A <|bos|>:1 $B:1", special_tokens=[("<|bos|>", bos)]
    )
    return backend


def metaspace() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", *SPECIALS], show_progress=False)
    )
    return backend


def sentencepiece() -> tokenizers.Tokenizer:
    """Llama-2-like: spaces as U+2581, one in front of the text, unknown characters as byte tokens."""
    letters = sorted(set("".join(CORPUS[:1]).replace(" ", "")) - {"S"})
    tokens = ["<unk>", *SPECIALS, *(f"<0x{b:02X}>" for b in range(256)), "▁", *letters, "▁t", "▁▁", "is", "▁is"]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[("▁", "t"), ("▁", "▁"), ("i", "s"), ("▁", "is")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(SPECIALS)
    return backend


def no_decoder() -> tokenizers.Tokenizer:
    """Without a decoder the library puts a space between tokens."""
    backend = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "bc": 2, "": 3}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(SPECIALS)
    return backend


def suffixes() -> tokenizers.Tokenizer:
    """A decoder whose last token differs: nothing may be shown before the end."""
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a</w>": 0, "b": 1, "c</w>": 2}, merges=[]))
    backend.decoder = decoders.BPEDecoder()
    backend.add_special_tokens(SPECIALS)
    return backend


BACKENDS = {f.__name__: f for f in (byte_level, llama3, metaspace, sentencepiece, no_decoder, suffixes)}
CONFIG = {"bos_token": "<|bos|>", "eos_token": {"content": "<|im_end|>", "lstrip": False}, "pad_token": None}


@pytest.fixture(params=BACKENDS)
def tokenizer(request) -> Tokenizer:
    return Tokenizer(BACKENDS[request.param](), CONFIG, num_rows=2**31 + 1)  # a head of more rows than tokens


def stream(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool = True) -> list[str]:
    decoder = tokenizer.decoder(skip_special_tokens)
    return [decoder.push(i) for i in ids] + [decoder.finish()]


# ---------------------------------------------------------------------- ids


@pytest.mark.case("T10")
@pytest.mark.parametrize("text", AWKWARD_TEXTS)
@pytest.mark.parametrize("name", ["byte_level", "llama3", "metaspace", "sentencepiece"])
def test_ids_and_offsets_equal_the_library(name, text):
    text = AWKWARD_TEXTS[text]
    library = BACKENDS[name]()
    tokenizer = Tokenizer(BACKENDS[name](), CONFIG)
    for add_special_tokens in (True, False):
        expected = library.encode(text, add_special_tokens=add_special_tokens)
        assert tokenizer.encode(text, add_special_tokens) == expected.ids
        ids, offsets = tokenizer.encode_with_offsets(text, add_special_tokens)
        assert ids == expected.ids
        assert offsets == expected.offsets
        assert tokenizer.decode(ids) == library.decode(expected.ids)
        assert all(0 <= start <= end <= len(text) for start, end in offsets)


def test_byte_level_text_survives_a_round_trip():
    tokenizer = Tokenizer(llama3(), CONFIG)
    for text in AWKWARD_TEXTS.values():
        if "<|" not in text:
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_truncation_and_padding_stored_in_the_file_are_switched_off(tmp_path):
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    backend.save(str(tmp_path / "tokenizer.json"))
    ids = Tokenizer.from_folder(tmp_path).encode("The capital of France is Paris" * 5)
    assert ids == byte_level().encode("The capital of France is Paris" * 5).ids
    assert len(ids) > 16


@pytest.mark.case("T10")
def test_lone_surrogates_and_other_types_are_clear_errors(tokenizer):
    with pytest.raises(ValueError, match=r"lone surrogate, U\+D800, at index 1"):
        tokenizer.encode("a\ud800b")
    with pytest.raises(TypeError, match="text must be a str; got int"):
        tokenizer.encode(5)
    with pytest.raises(TypeError, match="got bytes"):
        tokenizer.encode_with_offsets(b"x")


# ---------------------------------------------------------------------- BOS

CHATML = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.mark.case("T01")
def test_bos_is_written_once():
    plain = Tokenizer(llama3(), {**CONFIG, "chat_template": CHATML})
    with_bos = Tokenizer(llama3(), {**CONFIG, "chat_template": "{{ bos_token }}" + CHATML})
    bos = plain.bos_token_id
    assert bos == plain.encode("hi")[0]
    assert plain.encode("hi").count(bos) == 1
    assert plain.encode("hi", add_special_tokens=False).count(bos) == 0
    assert plain.encode_chat(HELLO).count(bos) == 0
    assert with_bos.encode_chat(HELLO).count(bos) == 1
    assert with_bos.encode_chat(HELLO) == [bos, *plain.encode_chat(HELLO)]
    assert plain.encode_chat(HELLO) == plain.encode("<|im_start|>hi<|im_end|>", add_special_tokens=False)


@pytest.mark.case("T11")
def test_an_empty_prompt_is_bos_or_nothing():
    assert Tokenizer(llama3(), CONFIG).encode("") == [0]
    assert Tokenizer(byte_level(), CONFIG).encode("") == []


# ---------------------------------------------------------------------- special tokens


def test_special_tokens_and_vocabulary():
    tokenizer = Tokenizer(byte_level(), CONFIG)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.pad_token_id) == (0, (2,), None)
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.vocab_size == 402
    assert Tokenizer(byte_level()).eos_token_ids == ()
    assert Tokenizer(byte_level(), {"eos_token": "absent"}).eos_token_ids == ()


def folder_of(tmp_path, config=None, special=None, backend=None):
    folder = tmp_path / f"m{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    (backend or byte_level()).save(str(folder / "tokenizer.json"))
    for name, value in (("tokenizer_config.json", config), ("special_tokens_map.json", special)):
        if value is not None:
            (folder / name).write_text(json.dumps(value))
    return folder


LISTED = {"2": {"content": "<|im_end|>", "special": True}}
TOOL = 400  # <tool_call>, which tokenizer.json holds as a plain added token


@pytest.mark.fault("A4")
@pytest.mark.parametrize(
    ("config", "special", "eos"),
    [
        ({"eos_token": "<|im_end|>"}, None, "<|im_end|>"),
        ({"eos_token": "<|im_end|>"}, {}, "<|im_end|>"),
        ({"eos_token": "<|bos|>"}, {"eos_token": "<|im_end|>"}, "<|im_end|>"),
        ({"eos_token": None}, {"eos_token": "<|im_end|>"}, "<|im_end|>"),
        ({"eos_token": None}, {"eos_token": {"content": "<|im_end|>", "lstrip": False}}, "<|im_end|>"),
        ({"eos_token": {"content": "<|bos|>"}}, {"eos_token": "<|im_end|>"}, "<|im_end|>"),
        ({"eos_token": "<|im_end|>"}, {"eos_token": None}, None),
        ({}, {"eos_token": "<|im_end|>"}, "<|im_end|>"),
        (None, {"eos_token": "<|im_end|>"}, "<|im_end|>"),
        # a config that lists its added tokens is newer than the map
        ({"eos_token": "<|bos|>", "added_tokens_decoder": LISTED}, {"eos_token": "<|im_end|>"}, "<|bos|>"),
        ({"eos_token": None, "added_tokens_decoder": LISTED}, {"eos_token": "<|im_end|>"}, None),
        ({"added_tokens_decoder": LISTED}, {"eos_token": "<|im_end|>"}, "<|im_end|>"),
        ({"eos_token": "absent"}, None, None),
    ],
)
def test_which_file_names_the_end_token(tmp_path, config, special, eos):
    tokenizer = Tokenizer.from_folder(folder_of(tmp_path, config, special))
    expected = () if eos is None else (tokenizer._backend.token_to_id(eos),)
    assert tokenizer.eos_token_ids == expected


@pytest.mark.fault("A4")
@pytest.mark.parametrize(
    ("config", "special"),
    [
        ({"eos_token": "<tool_call>"}, None),
        ({"eos_token": {"content": "<tool_call>", "special": False}}, None),
        (None, {"eos_token": "<tool_call>"}),
        ({"pad_token": None}, {"pad_token": {"content": "<tool_call>"}}),
        ({"extra_special_tokens": {"tool_token": "<tool_call>"}}, None),
        ({"tool_token": "<tool_call>"}, None),
        ({"added_tokens_decoder": {str(TOOL): {"content": "<tool_call>", "special": True}}}, None),
    ],
)
def test_a_token_that_any_file_calls_special_has_no_text(tmp_path, config, special):
    tokenizer = Tokenizer.from_folder(folder_of(tmp_path, config, special))
    assert TOOL in tokenizer.special_ids
    ids = tokenizer.encode("a<tool_call>b")
    assert TOOL in ids
    assert tokenizer.decode(ids) == "".join(stream(tokenizer, ids)) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<tool_call>b"


@pytest.mark.fault("A4")
def test_plain_tokens_stay_plain_where_no_file_calls_them_special(tmp_path):
    for config in (
        None,
        {"added_tokens_decoder": {str(TOOL): {"content": "<tool_call>", "special": False}}},
        {"additional_special_tokens": ["<tool_call>", {"content": "<tool_call>"}, "absent"]},  # listed, not named
    ):
        tokenizer = Tokenizer.from_folder(folder_of(tmp_path, config))
        assert tokenizer.special_ids == {0, 1, 2}
        assert tokenizer.decode(tokenizer.encode("a<tool_call>b")) == "a<tool_call>b"


@pytest.mark.fault("A4")
def test_words_of_the_vocabulary_that_the_config_lists_are_special(tmp_path):
    for config, special in [
        ({"additional_special_tokens": ["he"]}, None),
        ({"extra_special_tokens": [{"content": "he"}]}, None),
        ({"extra_special_tokens": []}, {"additional_special_tokens": ["he"]}),
        ({"additional_special_tokens": ["<|bos|>"]}, {"additional_special_tokens": ["he"]}),
        ({"mask_token": "he"}, None),
    ]:
        tokenizer = Tokenizer.from_folder(folder_of(tmp_path, config, special))
        ids = tokenizer.encode("a the")
        assert tokenizer._backend.token_to_id("he") in ids
        assert tokenizer.decode(ids) == "a t"


@pytest.mark.fault("A4")
def test_tokens_that_the_config_adds(tmp_path):
    """At the next free id, as their number says; others have no row in the model."""
    listed = {"402": {"content": "<new>", "special": True}, "900": {"content": "<far>", "special": True}}
    tokenizer = Tokenizer.from_folder(folder_of(tmp_path, {"added_tokens_decoder": listed}))
    assert tokenizer.encode("<new>") == [402]
    assert 402 in tokenizer.special_ids
    assert len(tokenizer.encode("<far>")) > 1
    named = Tokenizer.from_folder(folder_of(tmp_path, {"extra_special_tokens": {"tool_token": "<tool_call>"}}))
    assert named._special_tokens == {"tool_token": "<tool_call>"}


@pytest.mark.fault("A4")
@pytest.mark.parametrize(
    "config",
    [
        {"eos_token": 5},
        {"eos_token": {"text": "x"}},
        {"eos_token": ["<|im_end|>"]},
        {"additional_special_tokens": "x"},
        {"additional_special_tokens": [5]},
        {"added_tokens_decoder": []},
        {"added_tokens_decoder": {"x": {"content": "a"}}},
        {"added_tokens_decoder": {"9" * 30: {"content": "a"}}},
        {"added_tokens_decoder": {"5": "a"}},
        {"chat_template": 5},
        {"chat_template": [5]},
        {"chat_template": [{"name": "a", "template": None}]},
    ],
    ids=str,
)
def test_malformed_tokens_are_named(tmp_path, config):
    with pytest.raises(CheckpointError, match=next(iter(config))):
        Tokenizer.from_folder(folder_of(tmp_path, config))


@pytest.mark.fault("A4")
def test_a_space_in_front_is_the_configs_word(tmp_path):
    def level(prefix):
        backend = byte_level()
        backend.normalizer = None
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        return backend

    texts = ["hi .", " hi", "", "\nx", "<|im_end|>hi", "hi<|bos|> x"]
    plain, spaced = level(False), level(True)
    for config, backend, expected in [
        ({"add_prefix_space": True}, level(False), spaced),
        ({"add_prefix_space": False}, level(True), plain),
        ({"add_prefix_space": None}, level(True), spaced),
        ({}, level(True), spaced),
        ({"add_prefix_space": "true"}, level(False), plain),
    ]:
        tokenizer = Tokenizer.from_folder(folder_of(tmp_path, config, backend=backend))
        for text in texts:
            assert tokenizer.encode(text) == expected.encode(text).ids
    assert plain.encode("hi .").ids != spaced.encode("hi .").ids


@pytest.mark.fault("A4")
def test_a_space_in_front_of_a_tokenizer_with_several_steps(tmp_path):
    """Once, in front of the text, and not of every digit."""
    tokenizer = Tokenizer.from_folder(folder_of(tmp_path, {"add_prefix_space": True}))
    plain = Tokenizer.from_folder(folder_of(tmp_path))
    for text in ["hi 12.", "é1", "\nx"]:
        assert tokenizer.encode(text) == plain.encode(" " + text)
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert offsets[-1][1] == len(text)
        assert offsets[0][0] == 0
        assert len(ids) == len(offsets)
    assert tokenizer.encode(" x") == plain.encode(" x")
    assert tokenizer.encode("") == []


@pytest.mark.fault("A4")
def test_special_tokens_are_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="compares with transformers where it is installed")
    configs = [
        ({"eos_token": "<tool_call>"}, None),
        ({"eos_token": None}, {"eos_token": "<|im_end|>"}),
        ({"eos_token": "<|bos|>"}, {"eos_token": {"content": "<tool_call>"}}),
        ({"eos_token": "<|bos|>", "added_tokens_decoder": LISTED}, {"eos_token": "<tool_call>"}),
        ({"additional_special_tokens": ["<tool_call>"]}, None),
        ({"extra_special_tokens": {"tool_token": "<tool_call>"}}, None),
        ({"added_tokens_decoder": {str(TOOL): {"content": "<tool_call>", "special": True}}}, None),
        ({"eos_token": "t"}, None),
        ({"additional_special_tokens": ["he"]}, None),
    ]
    for config, special in configs:
        folder = folder_of(tmp_path, {"tokenizer_class": "PreTrainedTokenizerFast", **(config or {})}, special)
        ours, theirs = Tokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)
        eos = () if theirs.eos_token_id is None else (theirs.eos_token_id,)
        assert ours.eos_token_ids == eos, config
        for text in [*AWKWARD_TEXTS.values(), "a<tool_call>b<|im_end|> the t"]:
            ids = theirs(text)["input_ids"]
            assert ours.encode(text) == ids
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no tokenizer.*tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer.from_folder(tmp_path)
    byte_level().save(str(tmp_path / "tokenizer.json"))
    for text in ("{", "[]"):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
            Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": [{"template": "x"}]}')
    with pytest.raises(CheckpointError, match="chat_template"):
        Tokenizer.from_folder(tmp_path)


# ---------------------------------------------------------------------- decoding


@pytest.mark.case("T07")
def test_streamed_text_equals_one_shot_decoding(tokenizer):
    rng = random.Random(7)
    ids = [*range(tokenizer.vocab_size), tokenizer.vocab_size + 5, 2**31]
    spaced = [i for i in ids if tokenizer.token_bytes(i).startswith(b" ")] or ids
    special = sorted(tokenizer.special_ids)
    for case in range(200):
        tokens = [rng.choice(rng.choice((ids, ids, spaced, special))) for _ in range(rng.randint(0, 40))]
        if case % 3 == 0:
            tokens = [rng.choice(spaced), *tokens]
        for skip in (True, False):
            assert "".join(stream(tokenizer, tokens, skip)) == tokenizer.decode(tokens, skip)


@pytest.mark.parametrize("name", ["byte_level", "llama3", "metaspace", "sentencepiece"])
def test_streamed_sentences_equal_one_shot_decoding(name):
    tokenizer = Tokenizer(BACKENDS[name](), CONFIG)
    for text in [*CORPUS[:4], *AWKWARD_TEXTS.values()]:
        ids = tokenizer.encode(text)
        assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


def test_text_is_shown_as_soon_as_it_is_certain():
    tokenizer = Tokenizer(byte_level(), CONFIG)
    ids = tokenizer.encode("The river 😀!")
    parts = stream(tokenizer, ids)
    assert "".join(parts) == "The river 😀!"
    assert parts[0] == tokenizer.decode(ids[:1]) != ""
    assert [part for part in parts if part][-2:] == [" 😀", "!"]
    tokenizer = Tokenizer(metaspace(), CONFIG)
    ids = tokenizer.encode("The capital of France")
    parts = stream(tokenizer, ids)
    assert all(parts[:-1])
    assert parts[-1] == ""


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_half_a_character_is_held_back_until_it_is_resolved(name):
    tokenizer = Tokenizer(BACKENDS[name](), CONFIG)
    by_byte = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    euro = [by_byte[bytes([b])] for b in "€".encode()]
    letter = tokenizer._backend.token_to_id("a")
    decoder = tokenizer.decoder()
    shown = [decoder.push(i) for i in [letter, *euro, letter]]
    assert "".join(shown) == "a€a"
    assert shown[:3] == ["a", "", ""]
    assert decoder.finish() == ""
    for cut in (1, 2):
        parts = stream(tokenizer, [letter, *euro[:cut]])
        assert parts[:-1] == ["a", *[""] * cut]
        assert set(parts[-1]) == {"\ufffd"}
        assert "".join(parts) == tokenizer.decode([letter, *euro[:cut]])


def test_a_byte_level_decoder_survives_any_bytes():
    tokenizer = Tokenizer(byte_level(), CONFIG)
    by_byte = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    awkward = [0x41, 0x80, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xED, 0xA0, 0xF0, 0x9F, 0x98, 0xF4, 0x90, 0xC0, 0xFF]
    rng = random.Random(1)
    for _ in range(300):
        data = bytes(rng.choice(awkward) for _ in range(rng.randint(1, 12)))
        ids = [by_byte[bytes([b])] for b in data]
        assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids) == data.decode(errors="replace")


@pytest.mark.case("C10")
@pytest.mark.parametrize("name", BACKENDS)
def test_ids_of_padded_rows_give_no_text_and_those_beyond_are_refused(name):
    size = Tokenizer(BACKENDS[name](), CONFIG).vocab_size
    tokenizer = Tokenizer(BACKENDS[name](), CONFIG, num_rows=size + 3)
    padded = [size, size + 2]
    assert tokenizer.decode(padded) == ""
    assert tokenizer.token_bytes(size) == b""
    assert "".join(stream(tokenizer, [size, 1, size + 2])) == tokenizer.decode([1])
    for wrong in (-1, size + 3, 2**32):
        with pytest.raises(ValueError, match=f"token id {wrong} is outside the vocabulary of {size + 3}"):
            tokenizer.decode([1, wrong, 2])
    with pytest.raises(ValueError, match=f"token id {size} is outside the vocabulary of {size}"):
        Tokenizer(BACKENDS[name](), CONFIG).decode([size])


def test_token_bytes():
    tokenizer = Tokenizer(byte_level(), CONFIG)
    text = "Việt 😀 <tool_call>\uff5cunk▁x\uff5c<|im_end|>"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()
    tokenizer = Tokenizer(sentencepiece(), CONFIG)
    ids = tokenizer.encode("This is €")
    assert b"".join(map(tokenizer.token_bytes, ids)) == " This is €".encode()


def test_token_ids_as_numpy_integers():
    np = pytest.importorskip("numpy")
    tokenizer = Tokenizer(byte_level(), CONFIG)
    ids = tokenizer.encode("the river")
    assert tokenizer.decode(np.array(ids)) == "the river"
    decoder = tokenizer.decoder()
    assert "".join(decoder.push(i) for i in np.array(ids)) == "the river"
