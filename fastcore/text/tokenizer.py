"""Text to token ids and back: the `tokenizers` library, the checkpoint's chat template, and incremental decoding."""

from __future__ import annotations

import codecs
import json
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import tokenizers

from fastcore.checkpoints.strict_json import read_object
from fastcore.errors import ChatTemplateError, CheckpointError
from fastcore.text.chat_template import ChatTemplate, split_reasoning

__all__ = ["IncrementalDecoder", "Tokenizer", "split_reasoning"]


class Tokenizer:
    """The tokenizer of one checkpoint. Immutable and safe to share between threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: Mapping[str, Any] | None = None,
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        """
        backend: the `tokenizers` object; truncation and padding stored in it are switched off.
        config: tokenizer_config.json (special tokens, chat_template).
        chat_templates: templates by name; given, they replace those of the config.
        """
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        config = config or {}
        self._special_tokens = _special_tokens(config)
        sources = chat_templates or _config_templates(config.get("chat_template"))
        self._templates = {name: ChatTemplate(source) for name, source in sources.items()}
        self.special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        self.bos_token_id: int | None = self._special_id("bos_token")
        self.pad_token_id: int | None = self._special_id("pad_token")
        eos = self._special_id("eos_token")
        self.eos_token_ids: tuple[int, ...] = () if eos is None else (eos,)
        self._pieces: dict[int, str] = {}

    @classmethod
    def open(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a model: of a folder, of the folder that a file is in, or of a .gguf file itself."""
        path = Path(path)
        if path.suffix == ".gguf":
            from fastcore.checkpoints.gguf import GgufFile

            with GgufFile(path) as file:
                return cls(file.tokenizer(), file.tokenizer_config())
        return cls.from_folder(path if path.is_dir() else path.parent)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read tokenizer.json (required), tokenizer_config.json, special_tokens_map.json and chat_template.jinja."""
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(
                f"{path} is missing: the tokenizer is read from it. Save the checkpoint's fast tokenizer into {folder}"
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        # the library raises bare Exception for a malformed file
        except Exception as error:
            raise CheckpointError(f"{path} is not a tokenizer that the tokenizers library can read: {error}") from error
        config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
        return cls(backend, config, _template_files(folder))

    def _special_id(self, name: str) -> int | None:
        token = self._special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id the tokenizer knows; the model's head may have more rows."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    # ------------------------------------------------------------------ encoding

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. With add_special_tokens the tokenizer's own rule adds BOS and the like, or nothing.

        Raises ValueError for text that is not valid Unicode (a lone surrogate).
        """
        return list(self._encode(text, add_special_tokens).ids)

    def encode_with_offsets(
        self, text: str, add_special_tokens: bool = True
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids, and for each the half-open range of code points of `text` it stands for ((0, 0) if added)."""
        encoding = self._encode(text, add_special_tokens)
        return list(encoding.ids), list(encoding.offsets)

    def _encode(self, text: str, add_special_tokens: bool) -> tokenizers.Encoding:
        if not isinstance(text, str):
            raise TypeError(f"text must be a str; got {type(text).__name__}")
        try:
            return self._backend.encode(text, add_special_tokens=add_special_tokens)
        except TypeError:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"the text is not valid Unicode: a lone surrogate, U+{ord(text[error.start]):04X}, at index "
                    f"{error.start}. Decode its source with errors='replace', or remove it"
                ) from None
            raise

    # ------------------------------------------------------------------ decoding

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Ids the tokenizer does not know (padded rows of the head) give no text."""
        ids = [operator.index(i) for i in token_ids]
        if ids and not 0 <= min(ids) <= max(ids) < 2**32:
            raise ValueError(f"token ids must be from 0 to 2**32 - 1; got {min(ids)} to {max(ids)}")
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def decoder(self, skip_special_tokens: bool = True) -> IncrementalDecoder:
        """A fresh decoder of one stream of token ids."""
        if self._is_byte_level:
            return _ByteDecoder(self, skip_special_tokens)
        if self._anchor is not None:
            return _PieceDecoder(self, skip_special_tokens)
        return _WholeDecoder(self, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for inside a text; b"" for an id the tokenizer does not know."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            table = _byte_level_table()
            try:
                return bytes([table[c] for c in token])
            # an added token with characters outside the byte alphabet stands for itself
            except KeyError:
                return token.encode()
        if self._has_byte_fallback and (byte := _fallback_byte(token)) is not None:
            return bytes([byte])
        return self._piece(token_id).encode()

    @cached_property
    def _decoder_steps(self) -> list[dict[str, Any]]:
        """The parts of the library's decoder, flattened."""

        def flatten(step: dict[str, Any]) -> list[dict[str, Any]]:
            return [leaf for s in step["decoders"] for leaf in flatten(s)] if step["type"] == "Sequence" else [step]

        decoder = self._backend.decoder
        return [] if decoder is None else flatten(json.loads(decoder.__getstate__()))

    @cached_property
    def _is_byte_level(self) -> bool:
        return [step["type"] for step in self._decoder_steps if step["type"] != "Fuse"] == ["ByteLevel"]

    @cached_property
    def _has_byte_fallback(self) -> bool:
        return any(step["type"] == "ByteFallback" for step in self._decoder_steps)

    @cached_property
    def _anchor(self) -> int | None:
        """A token to put before another, so that the other is decoded as it is inside a text.

        None when the decoder has a part whose result depends on more than a token and whether it is the first.
        """
        kinds = [step["type"] for step in self._decoder_steps]
        split = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
        if (
            not set(kinds[:split]) <= {"Metaspace", "Replace", "ByteFallback", "WordPiece"}
            or not set(kinds[split:]) <= {"Fuse", "Strip"}
            or any(step["stop"] > 0 for step in self._decoder_steps if step["type"] == "Strip")
        ):
            return None
        for token, token_id in sorted(self._backend.get_vocab().items(), key=operator.itemgetter(1)):
            if token_id not in self.special_ids and token.isascii() and token.isalnum():
                return token_id
        return None

    def _piece(self, token_id: int) -> str:
        """The text of a token that is not the first one."""
        piece = self._pieces.get(token_id)
        if piece is None:
            anchor = [] if self._anchor is None else [self._anchor]
            before = self._backend.decode(anchor, skip_special_tokens=False)
            piece = self._backend.decode([*anchor, token_id], skip_special_tokens=False)[len(before) :]
            self._pieces[token_id] = piece
        return piece

    # ------------------------------------------------------------------ chat

    @property
    def chat_templates(self) -> dict[str, str]:
        """Source of each chat template by name; the usual one is "default"."""
        return {name: template.source for name, template in self._templates.items()}

    @property
    def has_chat_template(self) -> bool:
        return bool(self._templates)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation, byte for byte what the checkpoint's template yields.

        template_kwargs: variables for the template, such as {"enable_thinking": False}.
        Raises ChatTemplateError when there is no template, or when it refuses the messages.
        """
        template = self._template("tool_use" if tools is not None and "tool_use" in self._templates else "default")
        return template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            variables={**self._special_tokens, **(template_kwargs or {})},
        )

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation. The template writes its own special tokens: none is added."""
        text = self.apply_chat_template(messages, add_generation_prompt, tools, template_kwargs)
        return self.encode(text, add_special_tokens=False)

    def _template(self, name: str) -> ChatTemplate:
        if not self._templates:
            raise ChatTemplateError(
                "this checkpoint has no chat template (neither chat_template.jinja nor chat_template in "
                "tokenizer_config.json): give a plain prompt, or add its template as chat_template.jinja"
            )
        if name not in self._templates:
            raise ChatTemplateError(
                f"this checkpoint has no chat template named {name!r}; it has {sorted(self._templates)}"
            )
        return self._templates[name]


class IncrementalDecoder(ABC):
    """Turns a stream of token ids into text as early as it is certain.

    The pushed texts and finish(), joined, equal `Tokenizer.decode` of all ids. A character that is not complete is
    held back. The cost of a push does not grow with the text so far.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()

    def push(self, token_id: int) -> str:
        """The text that this token makes certain, often its own, "" while a character is incomplete."""
        return "" if token_id in self._skipped else self._push(token_id)

    @abstractmethod
    def _push(self, token_id: int) -> str: ...

    @abstractmethod
    def finish(self) -> str:
        """What was held back; incomplete characters come out as U+FFFD. No push may follow."""


class _ByteDecoder(IncrementalDecoder):
    """Byte-level tokenizers: a text is the UTF-8 reading of its tokens' bytes."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        super().__init__(tokenizer, skip_special_tokens)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def _push(self, token_id: int) -> str:
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        return self._utf8.decode(b"", True)


class _PieceDecoder(IncrementalDecoder):
    """Tokenizers that mark spaces: every token has a fixed text, but for the first one (its space is dropped) and for
    runs of byte tokens, which are one valid UTF-8 text or all U+FFFD and so wait for the run's end."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        super().__init__(tokenizer, skip_special_tokens)
        self._start: list[int] | None = []  # all ids so far, until they give a text
        self._run: list[int] = []  # byte tokens

    def _push(self, token_id: int) -> str:
        token = self._tokenizer._backend.id_to_token(token_id)
        if token is None:
            return ""
        if self._tokenizer._has_byte_fallback and _fallback_byte(token) is not None:
            self._run.append(token_id)
            return ""
        return self._flush() + self._text([token_id])

    def finish(self) -> str:
        return self._flush()

    def _flush(self) -> str:
        run, self._run = self._run, []
        return self._text(run) if run else ""

    def _text(self, ids: list[int]) -> str:
        if self._start is not None:
            self._start += ids
            text = self._tokenizer.decode(self._start, skip_special_tokens=False)
            if text:
                self._start = None
            return text
        if len(ids) == 1:
            return self._tokenizer._piece(ids[0])
        anchor = self._tokenizer._anchor
        assert anchor is not None
        before = self._tokenizer._backend.decode([anchor])
        return self._tokenizer._backend.decode([anchor, *ids])[len(before) :]


class _WholeDecoder(IncrementalDecoder):
    """A decoder of another kind: nothing is certain before the end."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        super().__init__(tokenizer, skip_special_tokens)
        self._ids: list[int] = []

    def _push(self, token_id: int) -> str:
        self._ids.append(token_id)
        return ""

    def finish(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special_tokens=False)


@cache
def _byte_level_table() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for: printable Latin-1 characters stand for their own
    code, the other bytes, in order, for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def _fallback_byte(token: str) -> int | None:
    """65 for "<0x41>", the spelling of a byte in tokenizers with byte fallback; None for other tokens."""
    if len(token) != 6 or not token.startswith("<0x") or token[5] != ">":
        return None
    try:
        return int(token[3:5], 16)
    except ValueError:
        return None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, pad_token ...: each a string, or a dict with its content."""
    tokens = {
        name: value.get("content") if isinstance(value, Mapping) else value
        for name, value in config.items()
        if name.endswith("_token")
    }
    return {name: value for name, value in tokens.items() if isinstance(value, str)}


def _config_templates(value: object) -> dict[str, str]:
    """tokenizer_config.json's chat_template: one string, or a list of {"name", "template"}."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in value}  # type: ignore[attr-defined]
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            "chat_template in tokenizer_config.json must be a string or a list of {'name', 'template'} dicts"
        ) from error


def _template_files(folder: Path) -> dict[str, str]:
    """chat_template.jinja, with any named ones beside it."""
    default = folder / "chat_template.jinja"
    if not default.is_file():
        return {}
    named = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    files = {"default": default} | {path.stem: path for path in named}
    return {name: path.read_text(encoding="utf-8") for name, path in files.items()}


def _read_json(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}
