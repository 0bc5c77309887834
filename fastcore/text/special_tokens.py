"""Special tokens and settings that a checkpoint's tokenizer config adds to what tokenizer.json says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, normalizers

from fastcore.checkpoints.tokenizer_files import EXTRA_TOKENS as EXTRA
from fastcore.errors import CheckpointError

__all__ = ["config_templates", "declare_added_tokens", "named_tokens", "set_prefix_space"]

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


def named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, pad_token ... and those of a model's own that are named: name -> text."""
    extra: Mapping[str, Any] = next((config[name] for name in EXTRA if isinstance(config.get(name), Mapping)), {})
    named = {name: value for name, value in config.items() if name in NAMES or name.endswith("_token")}
    tokens = {name: _token(name, value) for name, value in [*named.items(), *extra.items()]}
    return {name: token.content for name, token in tokens.items() if token is not None}


def declare_added_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Let the tokenizer know the tokens that the config adds and those that it calls special.

    A special token that the vocabulary lacks is left out: the model has no row for it. One that is only listed, without
    a name such as eos_token, stays what tokenizer.json says it is.
    """
    added = {token.content: repr(token) for token in backend.get_added_tokens_decoder().values()}
    for token_id, token in _listed(config):
        known = backend.token_to_id(token.content)
        if repr(token) != added.get(token.content) and (known is not None or token_id == backend.get_vocab_size()):
            backend.add_tokens([token])
    added = {token.content: repr(token) for token in backend.get_added_tokens_decoder().values()}
    special = [token for token, is_named in _special(config) if is_named or token.content not in added]
    backend.add_special_tokens([token for token in special if backend.token_to_id(token.content) is not None])


def set_prefix_space(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Follow add_prefix_space where the tokenizer is byte-level: whether a text begins as if after a space."""
    wanted, steps = config.get("add_prefix_space"), backend.pre_tokenizer
    if not isinstance(wanted, bool) or steps is None:
        return
    state = json.loads(steps.__getstate__())
    if state["type"] == "ByteLevel" and state["add_prefix_space"] != wanted:
        steps.__setstate__(json.dumps(state | {"add_prefix_space": wanted}).encode())
        backend.pre_tokenizer = steps
    elif wanted and _lacks_prefix(state):
        # inside a sequence ByteLevel would put a space before each of the parts that it is given
        before = [] if backend.normalizer is None else [backend.normalizer]
        once = normalizers.Replace(Regex(r"\A  "), " ")
        backend.normalizer = normalizers.Sequence([*before, normalizers.Prepend(" "), once])


def _lacks_prefix(state: Mapping[str, Any]) -> bool:
    parts = state.get("pretokenizers", [])
    return any(part["type"] == "ByteLevel" for part in parts) and not any(
        part.get("add_prefix_space") or part["type"] == "Metaspace" for part in parts
    )


def _special(config: Mapping[str, Any]) -> Iterator[tuple[AddedToken, bool]]:
    """Every token that the config calls special, and whether it does so by a name."""
    for name, value in config.items():
        values: Any = [value] if name in NAMES or name.endswith("_token") else []
        if name in EXTRA and value is not None:
            if not isinstance(value, list | tuple | Mapping):
                raise _wrong(name, value, "a list of tokens, or an object of them")
            values = value.values() if isinstance(value, Mapping) else value
        for item in values:
            token = _token(name, item)
            if token is not None:
                yield token, name not in EXTRA or isinstance(value, Mapping)


def _listed(config: Mapping[str, Any]) -> list[tuple[int, AddedToken]]:
    """The tokens of added_tokens_decoder, by id."""
    table = config.get("added_tokens_decoder")
    if table is None:
        return []
    if not isinstance(table, Mapping):
        raise _wrong("added_tokens_decoder", table, "an object of token id: token")
    listed = []
    for key, value in table.items():
        name = f"added_tokens_decoder[{key!r}]"
        token = _token(name, value, isinstance(value, Mapping) and value.get("special") is True)
        if not str(key).isdecimal() or len(str(key)) > 10 or token is None or not isinstance(value, Mapping):
            raise _wrong(name, value, "a token id with an object that has its content")
        listed.append((int(key), token))
    return sorted(listed, key=lambda entry: entry[0])


def _token(name: str, value: Any, special: bool = True) -> AddedToken | None:
    """A token written as its text or as an object with its content; None for null, and for a switch (add_bos_token)."""
    if isinstance(value, Mapping):
        content = value.get("content")
        flags = {flag: value[flag] for flag in FLAGS if isinstance(value.get(flag), bool)}
    else:
        content, flags = value, {}
    if isinstance(content, str) and content:
        return AddedToken(content, special=special, **{"normalized": not special, **flags})
    if content == "" or (not isinstance(value, Mapping) and (value is None or name not in (*NAMES, *EXTRA))):
        return None
    raise _wrong(name, value, "a token's text, or an object with its content")


def _wrong(name: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(
        f"tokenizer_config.json or special_tokens_map.json: {name} is {value!r:.80}, expected {expected}"
    )


def config_templates(value: object) -> dict[str, str]:
    """The value of chat_template by name: one text, an object of texts, or a list of {"name", "template"}."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        named = value.items() if isinstance(value, Mapping) else [(e["name"], e["template"]) for e in value]  # type: ignore[attr-defined]
        templates = dict(named)
    except (TypeError, KeyError):
        templates = {"": None}
    if not all(isinstance(text, str) for pair in templates.items() for text in pair):
        raise CheckpointError(
            "chat_template in tokenizer_config.json must be a string, or a list of {'name', 'template'} of strings"
        )
    return templates
