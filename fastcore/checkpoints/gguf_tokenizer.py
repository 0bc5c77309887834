"""The tokenizer that GGUF metadata describes, rebuilt as a `tokenizers` object with the same ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from fastcore.errors import CheckpointError, UnsupportedModelError

__all__ = ["build_tokenizer"]

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # tokenizer.ggml.token_type

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer(field: Callable[..., Any], where: str) -> tokenizers.Tokenizer:
    """field(key, default=None): the metadata tokenizer.ggml.<key>. where: the file's name, for errors.

    Raises UnsupportedModelError for a kind of tokenizer that is not known here.
    """
    kind, tokens = field("model", ""), field("tokens")
    if not tokens:
        raise CheckpointError(f"{where}: metadata lacks tokenizer.ggml.tokens")
    types = field("token_type") or [1] * len(tokens)
    vocab = {token: i for i, (token, type_) in enumerate(zip(tokens, types, strict=True)) if type_ != _UNUSED}
    if kind == "gpt2":
        backend = _byte_level(field, where, vocab)
    elif kind == "llama":
        backend = _sentencepiece(field, where, vocab, tokens, types)
    else:
        raise UnsupportedModelError(f"{where}: tokenizer.ggml.model {kind!r} is not supported; known: gpt2, llama")

    special = [
        AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types, strict=True) if k == _CONTROL
    ]
    added = [AddedToken(t, normalized=False) for t, k in zip(tokens, types, strict=True) if k == _USER_DEFINED]
    backend.add_special_tokens(special)
    backend.add_tokens(added)

    adds_bos = field("add_bos_token", kind == "llama" or field("pre") == "llama-bpe")
    bos = [field("bos_token_id")] if adds_bos else []
    eos = [field("eos_token_id")] if field("add_eos_token", False) else []
    ends = [(tokens[i], i) for i in bos + eos if i is not None]
    if ends:
        before = [f"{tokens[i]}" for i in bos if i is not None]
        after = [f"{tokens[i]}" for i in eos if i is not None]
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after], pair=[*before, "$A", *after, *before, "$B", *after], special_tokens=ends
        )
    return backend


def _byte_level(field: Callable[..., Any], where: str, vocab: dict[str, int]) -> tokenizers.Tokenizer:
    merges = [tuple(merge.split(" ")) for merge in field("merges", [])]
    pre = field("pre", "gpt-2")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre in ("gpt-2", "smollm"))
    splits: dict[str, list[Any]] = {
        "gpt-2": [],
        "smollm": [pre_tokenizers.Digits(individual_digits=True)],
        "qwen2": [pre_tokenizers.Split(tokenizers.Regex(_SPLIT.format(digits=r"\p{N}")), "isolated")],
        "llama-bpe": [pre_tokenizers.Split(tokenizers.Regex(_SPLIT.format(digits=r"\p{N}{1,3}")), "isolated")],
    }
    if pre not in splits:
        raise UnsupportedModelError(f"{where}: tokenizer.ggml.pre {pre!r} is not supported; known: {', '.join(splits)}")
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits[pre], byte_level])
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece(
    field: Callable[..., Any], where: str, vocab: dict[str, int], tokens: list[str], types: list[int]
) -> tokenizers.Tokenizer:
    scores = field("scores")
    if not scores or len(scores) != len(tokens):
        raise CheckpointError(f"{where}: tokenizer.ggml.scores must give one number for each of {len(tokens)} tokens")
    # a piece is reached by every pair of pieces that spells it, the best-scored piece first
    merges = [
        (scores[i], len(left), len(piece) - len(left), (left, piece[len(left) :]))
        for piece, i in vocab.items()
        if types[i] not in (_UNKNOWN, _CONTROL)
        for left in (piece[:n] for n in range(1, len(piece)))
        if left in vocab and piece[len(left) :] in vocab
    ]
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    unknown = next((token for token, type_ in zip(tokens, types, strict=True) if type_ == _UNKNOWN), None)
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[m[3] for m in merges], unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = field("add_space_prefix", True)
    replace = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend
