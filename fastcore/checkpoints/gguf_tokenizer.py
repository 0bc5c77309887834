"""The tokenizer that GGUF metadata describes, rebuilt as a `tokenizers` object with the same ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastcore.checkpoints.fields import MAX_SIZE, Fields
from fastcore.checkpoints.tokenizer_files import typed_errors
from fastcore.errors import UnsupportedModelError

if TYPE_CHECKING:
    import tokenizers

__all__ = ["build_tokenizer", "special_id", "strings"]

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # tokenizer.ggml.token_type
_NO_TOKEN = (-1, 2**32 - 1)  # ids that say there is none
_MAX_PIECE = 512  # characters: the ways to cut a piece in two are tried one by one

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# tokenizer.ggml.pre -> how many digits a piece of _SPLIT may hold, where texts are split by it
_PRE = {"gpt-2": "", "smollm": "", "qwen2": r"\p{N}", "llama-bpe": r"\p{N}{1,3}"}


@dataclass(frozen=True)
class _Vocabulary:
    """tokens, types: by id. ids: of each token that can occur; of a repeated one, the last."""

    tokens: list[str]
    types: list[int]
    ids: dict[str, int]


def build_tokenizer(fields: Fields) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
    """(backend, aliases) of the metadata under tokenizer.ggml. aliases: as in TokenizerParts.

    Raises CheckpointError naming the key, and UnsupportedModelError for a kind of tokenizer that is not known here.
    """
    from tokenizers import AddedToken

    kind = fields.string("model", "")
    vocabulary = _vocabulary(fields)
    tokens, types, ids = vocabulary.tokens, vocabulary.types, vocabulary.ids
    aliases = {i: ids[token] for i, token in enumerate(tokens) if ids.get(token, i) != i and types[i] != _UNUSED}
    pre = fields.string("pre", "gpt-2" if kind == "gpt2" else "")
    if kind == "gpt2":
        backend = _byte_level(fields, vocabulary, pre)
    elif kind == "llama":
        backend = _sentencepiece(fields, vocabulary)
    else:
        raise fields.unsupported("model", kind, "supported: gpt2, llama")

    def add() -> tokenizers.Tokenizer:
        kinds = [(token, types[i]) for token, i in ids.items()]
        backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in kinds if k == _CONTROL])
        backend.add_tokens([AddedToken(t, normalized=False) for t, k in kinds if k == _USER_DEFINED])
        _add_ends(fields, backend, tokens, kind == "llama" or pre == "llama-bpe")
        return backend

    return typed_errors(add, f"{fields.where}: the tokens of its metadata make no tokenizer"), aliases


def special_id(fields: Fields, name: str) -> int | None:
    """The id tokenizer.ggml.<name>_token_id, None where it is absent or says that there is none."""
    key = f"{name}_token_id"
    value = fields.take(key)
    if value is None or (type(value) is int and value in _NO_TOKEN):
        return None
    if type(value) is not int or not 0 <= value < 2**31:
        raise fields.wrong(key, value, "a token id")
    return value


def strings(fields: Fields, name: str) -> list[str]:
    """A list of strings; [] where there is none."""
    value = fields.take(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise fields.wrong(name, value, "a list of strings")
    return value


def _vocabulary(fields: Fields) -> _Vocabulary:
    tokens = strings(fields, "tokens")
    if not 0 < len(tokens) <= MAX_SIZE:
        raise fields.wrong("tokens", len(tokens), f"1 to {MAX_SIZE} tokens")
    types = _numbers(fields, "token_type", len(tokens), int) or [1] * len(tokens)
    ids = {token: i for i, (token, type_) in enumerate(zip(tokens, types, strict=True)) if type_ != _UNUSED}
    return _Vocabulary(tokens, types, ids)


def _numbers(fields: Fields, name: str, count: int, kind: type) -> list[Any]:
    """One number for each token; [] where there are none."""
    value = fields.take(name)
    if value is None:
        return []
    if not isinstance(value, list) or len(value) != count or not all(type(item) is kind for item in value):
        raise fields.wrong(name, value, f"one number for each of the {count} tokens")
    return value


def _add_ends(fields: Fields, backend: tokenizers.Tokenizer, tokens: list[str], adds_bos: bool) -> None:
    """BOS before and EOS behind every text, where the file says so."""
    from tokenizers import processors

    def ends(name: str, default: bool) -> list[tuple[str, int]]:
        token = special_id(fields, name)
        if not fields.boolean(f"add_{name}_token", default) or token is None:
            return []
        if token >= len(tokens):
            raise fields.wrong(f"{name}_token_id", token, f"the id of one of the {len(tokens)} tokens")
        return [(tokens[token], token)]

    bos, eos = ends("bos", adds_bos), ends("eos", False)
    if bos or eos:
        before, after = [[token for token, _ in side] for side in (bos, eos)]
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *before, "$B", *after],
            special_tokens=bos + eos,
        )


def _byte_level(fields: Fields, vocabulary: _Vocabulary, pre: str) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    merges = []
    for merge in strings(fields, "merges"):
        left, space, right = merge.partition(" ")
        if not space or " " in right:
            raise fields.wrong("merges", merge, "two tokens with a space between")
        merges.append((left, right))
    if pre not in _PRE:
        raise fields.unsupported("pre", pre, f"supported: {', '.join(_PRE)}")
    splits: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    if digits := _PRE[pre]:
        splits.append(pre_tokenizers.Split(tokenizers.Regex(_SPLIT.format(digits=digits)), "isolated"))
    ignore = pre == "llama-bpe"
    backend = typed_errors(
        lambda: tokenizers.Tokenizer(models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=ignore)),
        f"{fields.where}: tokenizer.ggml.merges do not fit tokenizer.ggml.tokens",
    )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre in ("gpt-2", "smollm"))
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece(fields: Fields, vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import decoders, models, normalizers

    tokens, types, ids = vocabulary.tokens, vocabulary.types, vocabulary.ids
    scores = _numbers(fields, "scores", len(tokens), float)
    if not scores:
        raise fields.missing("scores", f"one number for each of the {len(tokens)} tokens")
    if (longest := max(map(len, tokens))) > _MAX_PIECE:
        raise UnsupportedModelError(
            f"{fields.where}: tokenizer.ggml.tokens has a token of {longest} characters, supported: {_MAX_PIECE}"
        )
    # a piece is reached by every pair of pieces that spells it, the best-scored piece first
    merges = [
        (scores[i], len(left), len(piece) - len(left), (left, piece[len(left) :]))
        for piece, i in ids.items()
        if types[i] not in (_UNKNOWN, _CONTROL)
        for left in (piece[:n] for n in range(1, len(piece)))
        if left in ids and piece[len(left) :] in ids
    ]
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    unknown = next((token for token, type_ in zip(tokens, types, strict=True) if type_ == _UNKNOWN), None)
    pairs = [merge[3] for merge in merges]
    backend = typed_errors(
        lambda: tokenizers.Tokenizer(
            models.BPE(vocab=ids, merges=pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        ),
        f"{fields.where}: tokenizer.ggml.tokens make no vocabulary",
    )
    prefix = fields.boolean("add_space_prefix", True)
    replace = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend
