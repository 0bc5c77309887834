"""Text to token ids and back: the `tokenizers` library and the checkpoint's chat template."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from fastcore.checkpoints.checkpoint import Checkpoint, TokenizerParts
from fastcore.checkpoints.tokenizer_files import TOKENIZER_NAME, read_tokenizer, typed_errors
from fastcore.errors import ChatTemplateError, CheckpointError
from fastcore.locks import cached_property
from fastcore.text.chat_template import ChatTemplate, split_reasoning
from fastcore.text.decoding import (
    IncrementalDecoder,
    Stages,
    byte_level_bytes,
    decoder_kinds,
    decoder_stages,
    fallback_byte,
    text_offsets,
)
from fastcore.text.special_tokens import (
    config_templates,
    declare_added_tokens,
    named_tokens,
    set_prefix_space,
)

__all__ = ["IncrementalDecoder", "Tokenizer", "missing_tokenizer", "split_reasoning"]


def missing_tokenizer(path: Path) -> CheckpointError:
    """What to raise where text is asked of a checkpoint without a tokenizer."""
    return CheckpointError(
        f"{path} has no tokenizer, so it takes token ids only; for text, save the checkpoint's fast tokenizer "
        f"({TOKENIZER_NAME}) beside its weights"
    )


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
        config: tokenizer_config.json (special tokens, which the backend learns, add_prefix_space, chat_template).
        chat_templates: templates by name; given, they replace those of the config.
        """
        config = config or {}
        backend.no_truncation()
        backend.no_padding()
        declare_added_tokens(backend, config)
        set_prefix_space(backend, config)
        self._backend = backend
        self._special_tokens = named_tokens(config)
        sources = chat_templates or config_templates(config.get("chat_template"))
        self._templates = {name: ChatTemplate(source) for name, source in sources.items()}
        added = backend.get_added_tokens_decoder()
        self.special_tokens = {i: token.content for i, token in added.items() if token.special}  # their texts, by id
        self.special_ids = frozenset(self.special_tokens)
        self.bos_token_id: int | None = self._special_id("bos_token")
        self.pad_token_id: int | None = self._special_id("pad_token")
        eos = self._special_id("eos_token")
        self.eos_token_ids: tuple[int, ...] = () if eos is None else (eos,)
        self._pieces: dict[int, bytes] = {}

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Tokenizer | None:
        """The tokenizer of a checkpoint; None where it has none (`missing_tokenizer` says so)."""
        parts = checkpoint.tokenizer()
        return None if parts is None else cls._of_parts(parts)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a folder, whatever else is in it. Raises CheckpointError where there is none."""
        parts = read_tokenizer(Path(folder))
        if parts is None:
            raise missing_tokenizer(Path(folder))
        return cls._of_parts(parts)

    @classmethod
    def _of_parts(cls, parts: TokenizerParts) -> Tokenizer:
        return cls(parts.backend, parts.config, parts.chat_templates)

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
            return typed_errors(
                lambda: self._backend.encode(text, add_special_tokens=add_special_tokens),
                "this checkpoint's tokenizer cannot encode the text",
            )
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
        if self._is_byte_level:
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        decoder = self.decoder(skip_special_tokens)
        return "".join(map(decoder.push, ids)) + decoder.finish()

    def decoder(self, skip_special_tokens: bool = True, after: Sequence[int] = ()) -> IncrementalDecoder:
        """A fresh decoder of one stream of token ids, which follows the ids `after`."""
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        return IncrementalDecoder(self._backend.id_to_token, self._stages, skipped, after)

    def text_offsets(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> list[int]:
        """For each token, how many code points of the text of them all stand before it."""
        return text_offsets(self.decoder(skip_special_tokens), token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for inside a text; b"" for an id the tokenizer does not know."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            return byte_level_bytes(token)
        if self._has_byte_fallback and (byte := fallback_byte(token)) is not None:
            return bytes([byte])
        piece = self._pieces.get(token_id)
        if piece is None:
            stages = copy.deepcopy(self._stages)
            before = stages.push("x")
            text = before + stages.push(token) + stages.finish()
            piece = self._pieces[token_id] = text.removeprefix("x").encode()
        return piece

    @cached_property
    def _stages(self) -> Stages:
        return decoder_stages(self._backend.decoder)

    @cached_property
    def _decoder_kinds(self) -> list[str]:
        return decoder_kinds(self._backend.decoder)

    @property
    def _is_byte_level(self) -> bool:
        return self._decoder_kinds == ["ByteLevel"]

    @property
    def _has_byte_fallback(self) -> bool:
        return "ByteFallback" in self._decoder_kinds

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
