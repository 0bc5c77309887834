"""Grammars that a text is held to: compiled by llguidance, and followed token by token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastcore.errors import GrammarError, MissingPackageError
from fastcore.locks import cached_property

if TYPE_CHECKING:
    import llguidance

    from fastcore.text.tokenizer import Tokenizer

__all__ = ["Constraint", "Grammars", "json_rule"]

KEPT = 32  # compiled grammars
VALUES = ("const", "enum", "default", "examples")  # of a schema, which are no schemas
MAX_MESSAGE = 500  # characters of what the compiler says
# Between the tokens of a JSON text; bounded, so that a model that likes spaces does not write them for ever.
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,40}"


def json_rule(schema: Mapping[str, Any]) -> str:
    """What stands for a JSON text of this schema in a Lark grammar."""
    return f"%json {json.dumps({'x-guidance': {'whitespace_pattern': WHITESPACE}, **_told_apart(schema)})}"


def _told_apart(schema: Any) -> Any:
    """The schema with `anyOf` for each `oneOf` whose discriminator tells its parts apart: one fits at most."""
    if isinstance(schema, list):
        return [_told_apart(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    walked = {key: part if key in VALUES else _told_apart(part) for key, part in schema.items()}
    discriminator = walked.get("discriminator")
    if (
        "oneOf" in walked
        and "anyOf" not in walked
        and isinstance(discriminator, dict)
        and "propertyName" in discriminator
    ):
        walked["anyOf"] = walked.pop("oneOf")
    return walked


class Grammars:
    """The grammars of one model's tokens.

    vocab_size: of the logits. eos_token_ids: those that a grammar lets follow where its text may end.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = [token_id for token_id in eos_token_ids if token_id < vocab_size]
        self._compiled = lru_cache(KEPT)(self._compile)

    def constraint(self, kind: str, source: str) -> Constraint:
        """A walk from a grammar's beginning. Raises GrammarError for one that is malformed or not supported.

        kind: json_schema (source is JSON) | regex | grammar (Lark) | choice (a JSON list of texts).
        """
        return Constraint(kind, self._compiled(kind, source).deep_copy(), self._vocab_size)

    def _compile(self, kind: str, source: str) -> llguidance.LLMatcher:
        vocabulary = self._vocabulary  # says so where the package is absent
        from llguidance import LLMatcher

        if kind == "json_schema":
            schema = _told_apart(json.loads(source))
            grammar = LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": WHITESPACE})
        elif kind == "regex":
            grammar = LLMatcher.grammar_from_regex(source)
        elif kind == "choice":
            texts = [json.dumps(text, ensure_ascii=False) for text in json.loads(source)]
            grammar = LLMatcher.grammar_from_lark(f"start: {' | '.join(texts)}")
        else:
            grammar = LLMatcher.grammar_from_lark(source)
        matcher = LLMatcher(vocabulary, grammar, log_level=0)
        _check(kind, matcher)
        return matcher

    @cached_property
    def _vocabulary(self) -> llguidance.LLTokenizer:
        try:
            import llguidance
        except ImportError:
            raise MissingPackageError(
                "holding answers to a schema or grammar needs llguidance: pip install 'fastcore-engine[structured]'"
            ) from None
        if not self._eos_token_ids:
            raise GrammarError("this model has no end-of-sequence token, by which a text held to a grammar could end")
        return llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(self._tokenizer, self._vocab_size, self._eos_token_ids[0])),
            eos_token=self._eos_token_ids,
            slices=llguidance.LLTokenizer.json_slices(),
        )


class _Tokens:
    """A tokenizer as llguidance asks for it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        self.special_token_ids = sorted(token_id for token_id in tokenizer.special_ids if token_id < vocab_size)
        self._encode = tokenizer.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode(errors="replace") if isinstance(text, bytes) else text, False)


class Constraint:
    """One text's way through a grammar."""

    def __init__(self, kind: str, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._kind = kind
        self._matcher = matcher
        self._allowed = np.zeros(-(-vocab_size // 32), np.uint32)

    def allowed(self) -> NDArray[np.uint32]:
        """The tokens that may come next, bit i % 32 of word i // 32 for token i; overwritten by the next call."""
        self._matcher.unsafe_compute_mask_ptr(self._allowed.ctypes.data, self._allowed.nbytes)
        _check(self._kind, self._matcher)
        return self._allowed

    def accept(self, token_id: int) -> None:
        if not self._matcher.consume_token(token_id):
            _check(self._kind, self._matcher)

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow."""
        return self._matcher.is_stopped()


def _check(kind: str, matcher: llguidance.LLMatcher) -> None:
    if matcher.is_error():
        message = " ".join(matcher.get_error().split())
        raise GrammarError(f"{kind} cannot be followed: {message[:MAX_MESSAGE]}")
