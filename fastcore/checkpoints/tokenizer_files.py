"""The tokenizer files of a model folder, read together as transformers reads them.

tokenizer.json is the tokenizer. tokenizer_config.json and special_tokens_map.json name its special tokens. Where the
two name different tokens the map is right, a null in it too; but beside a config that lists added_tokens_decoder, the
map only fills what the config does not mention.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fastcore.checkpoints.checkpoint import TokenizerParts
from fastcore.checkpoints.mapped import read_bytes
from fastcore.checkpoints.strict_json import MAX_BYTES, read_object
from fastcore.errors import CheckpointError

__all__ = ["EXTRA_TOKENS", "TEMPLATES_FOLDER", "TOKENIZER_FILES", "TOKENIZER_NAME", "read_tokenizer", "typed_errors"]

TOKENIZER_NAME = "tokenizer.json"
_CONFIG_NAME, _SPECIAL_NAME, _TEMPLATE_NAME = "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"
TOKENIZER_FILES = (TOKENIZER_NAME, _CONFIG_NAME, _SPECIAL_NAME, _TEMPLATE_NAME)
TEMPLATES_FOLDER = "additional_chat_templates"
T = TypeVar("T")

EXTRA_TOKENS = ("extra_special_tokens", "additional_special_tokens")


def read_tokenizer(folder: Path) -> TokenizerParts | None:
    """Read tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja.

    None without a tokenizer.json.
    """
    path = folder / TOKENIZER_NAME
    if not path.is_file():
        return None
    text = read_bytes(path, MAX_BYTES)
    import tokenizers

    backend = typed_errors(
        lambda: tokenizers.Tokenizer.from_buffer(text),
        f"{path} is not a tokenizer that the tokenizers library can read",
    )
    config, special = (_object(folder / name) for name in (_CONFIG_NAME, _SPECIAL_NAME))
    merged = special | config if config.get("added_tokens_decoder") is not None else config | special
    for name in EXTRA_TOKENS:
        if isinstance(config.get(name), list) and isinstance(special.get(name), list):
            merged[name] = [*config[name], *special[name]]
    return TokenizerParts(backend, merged, _template_files(folder))


def typed_errors(call: Callable[[], T], what: str) -> T:
    """What the tokenizers library answers. It raises bare Exception for bad input, BaseException where it panics."""
    try:
        return call()
    except BaseException as error:
        if type(error) is Exception or type(error).__name__ == "PanicException" or isinstance(error, ValueError):
            raise CheckpointError(f"{what}: {error}") from None
        raise


def _template_files(folder: Path) -> dict[str, str] | None:
    """chat_template.jinja, with any named ones beside it."""
    default = folder / _TEMPLATE_NAME
    if not default.is_file():
        return None
    named = sorted((folder / TEMPLATES_FOLDER).glob("*.jinja"))
    templates = {}
    for name, path in {"default": default, **{path.stem: path for path in named}}.items():
        try:
            templates[name] = read_bytes(path, MAX_BYTES).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path} is not UTF-8: {error}") from None
    return templates


def _object(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}
