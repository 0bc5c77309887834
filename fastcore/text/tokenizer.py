"""Text to token ids and back: the `tokenizers` library and the checkpoint's chat template."""

from __future__ import annotations

import copy
import ctypes
import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
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
from fastcore.text.user_text import MarkedText, SpecialTexts

__all__ = ["IncrementalDecoder", "Tokenizer", "missing_tokenizer", "split_reasoning"]


def missing_tokenizer(path: Path | str) -> CheckpointError:
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
        aliases: Mapping[int, int] | None = None,
        num_rows: int = 0,
    ) -> None:
        """
        backend: the `tokenizers` object; truncation and padding stored in it are switched off.
        config: tokenizer_config.json (special tokens, which the backend learns, add_prefix_space, chat_template).
        chat_templates: templates by name; given, they replace those of the config.
        aliases: ids that the backend does not know -> the id that stands for the same token.
        num_rows: of the model's head, which may have more than there are tokens: their ids give no text.
        """
        config = config or {}
        backend.no_truncation()
        backend.no_padding()
        declare_added_tokens(backend, config)
        set_prefix_space(backend, config)
        self._backend = backend
        self._aliases = aliases or {}
        self._num_rows = num_rows
        self._special_tokens = named_tokens(config)
        sources = chat_templates or config_templates(config.get("chat_template"))
        self._templates = {name: ChatTemplate(source) for name, source in sources.items()}
        added = backend.get_added_tokens_decoder()
        special = {i: token.content for i, token in added.items() if token.special}
        special |= {i: special[known] for i, known in self._aliases.items() if known in special}
        self.special_tokens = special  # their texts, by id
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
        if parts is None:
            return None
        tokenizer = cls._of_parts(parts, checkpoint.config().vocab_size)
        _give_back_freed_memory()
        return tokenizer

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a folder, whatever else is in it. Raises CheckpointError where there is none."""
        parts = read_tokenizer(Path(folder))
        if parts is None:
            raise missing_tokenizer(Path(folder))
        return cls._of_parts(parts)

    @classmethod
    def _of_parts(cls, parts: TokenizerParts, num_rows: int = 0) -> Tokenizer:
        return cls(parts.backend, parts.config, parts.chat_templates, parts.aliases, num_rows)

    def _special_id(self, name: str) -> int | None:
        token = self._special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id the tokenizer knows; the model's head may have more rows."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1  # aliases come earlier

    def _token(self, token_id: int) -> str | None:
        """The token's spelling in the vocabulary."""
        return self._backend.id_to_token(self._aliases.get(token_id, token_id))

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
        """The text of token ids. Those of padded rows of the model's head give none.

        Raises ValueError for ids that neither the tokenizer nor the model has.
        """
        ids = [operator.index(i) for i in token_ids]
        size = max(self.vocab_size, self._num_rows)
        if ids and not 0 <= min(ids) <= max(ids) < size:
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise ValueError(f"token id {wrong} is outside the vocabulary of {size}")
        if self._is_byte_level:
            known = [self._aliases.get(i, i) for i in ids] if self._aliases else ids
            return self._backend.decode(known, skip_special_tokens=skip_special_tokens)
        decoder = self.decoder(skip_special_tokens)
        return "".join(map(decoder.push, ids)) + decoder.finish()

    def decoder(self, skip_special_tokens: bool = True, after: Sequence[int] = ()) -> IncrementalDecoder:
        """A fresh decoder of one stream of token ids, which follows the ids `after`."""
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        return IncrementalDecoder(self._token, self._stages, skipped, after)

    def text_offsets(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> list[int]:
        """For each token, how many code points of the text of them all stand before it."""
        return text_offsets(self.decoder(skip_special_tokens), token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for inside a text; b"" for an id the tokenizer does not know."""
        token = self._token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            return byte_level_bytes(token)
        if self._has_byte_fallback and (byte := fallback_byte(token)) is not None:
            return bytes([byte])
        piece = self._pieces.get(token_id)
        if piece is None:
            stages = copy.copy(self._stages)
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
        template = self.template_for(tools)
        return self._render(template, template.prepare(messages, tools), add_generation_prompt, template_kwargs)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        allow_special_tokens: bool = False,
    ) -> list[int]:
        """Token ids of a conversation. The template writes its own special tokens: none is added.

        The text of a special token in a message or a tool (`<|im_end|>`) is text like any other, so that what a user
        writes cannot end his turn and begin another. allow_special_tokens: there, too, it is the token.
        """
        return self.chat_prompt(messages, add_generation_prompt, tools, template_kwargs, allow_special_tokens)[1]

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        allow_special_tokens: bool = False,
    ) -> tuple[str, list[int]]:
        """The text of a conversation, as apply_chat_template gives it, and its token ids, as encode_chat does."""
        template = self.template_for(tools)
        ready, ready_tools = template.prepare(messages, tools)
        if ready_tools and "tools" not in template.variables:
            raise ChatTemplateError(
                "tools are given, and this checkpoint's chat template has no place for them: the model would not hear "
                "of them. Leave them out, or describe them in a message"
            )
        mark = ""
        if not allow_special_tokens:
            ready, ready_tools, mark = self._special_texts.mark(ready, ready_tools)
        rendered = self._render(template, (ready, ready_tools), add_generation_prompt, template_kwargs)
        prompt = MarkedText(rendered, mark)
        ids = self._encode_marked(prompt)
        if not ids:
            raise ChatTemplateError(
                "the chat template renders these messages as a text without tokens; there is no prompt"
            )
        return prompt.text, ids

    def _render(
        self,
        template: ChatTemplate,
        prepared: tuple[list[dict[str, Any]], list[Any] | None],
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any] | None,
    ) -> str:
        messages, tools = prepared
        text = template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            variables={**self._special_tokens, **(template_kwargs or {})},
        )
        if not text:
            raise ChatTemplateError(
                "the chat template renders these messages as nothing, so that there is no prompt; check the roles of "
                "the messages, or give a plain prompt"
            )
        return text

    @cached_property
    def _special_texts(self) -> SpecialTexts:
        return SpecialTexts(self.special_tokens.values())

    def _encode_marked(self, prompt: MarkedText) -> list[int]:
        """The ids of a prompt in which special tokens that came out of messages are text.

        Each stretch between two special tokens of the template that holds such a one is encoded anew, as a whole.
        """
        encoding = self._encode(prompt.text, add_special_tokens=False)
        if not prompt.marks:
            return list(encoding.ids)
        ids: list[int] = []
        stretch: list[int] = []  # since the last special token of the template
        start, is_forged = 0, False
        for token_id, (first, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self.special_ids and self._is_named(prompt.text[first:end], token_id):
                first, end = self._special_span(prompt.text, token_id, first, end)
                if first < end and not prompt.is_of_a_message(first, end):
                    ids += [*(self._encode_as_text(prompt.text[start:first]) if is_forged else stretch), token_id]
                    stretch, start, is_forged = [], end, False
                    continue
                is_forged = True
            stretch.append(token_id)
        return ids + (self._encode_as_text(prompt.text[start:]) if is_forged else stretch)

    def _special_span(self, text: str, token_id: int, first: int, end: int) -> tuple[int, int]:
        """Where a special token's text stands in what it was read from, which may have spaces around; or nowhere."""
        content = self.special_tokens[token_id]
        place = text.find(content, first, end)
        return (place, place + len(content)) if place >= 0 else (first, first)

    def _is_named(self, text: str, token_id: int) -> bool:
        """Whether a special token was read from its own text; one for what is unknown stands for any."""
        content, normalizer = self.special_tokens[token_id], self._backend.normalizer
        return content in text or (normalizer is not None and content in normalizer.normalize_str(text))

    def _encode_as_text(self, text: str) -> list[int]:
        """Ids of a text in which special tokens mean nothing."""
        ids = self._plain_ids(text)
        if ids is None:  # the vocabulary holds a special token's text as a word: it is spelled, or left out
            ids = [i for letter in text for i in self._plain_ids(letter) or ()]
        return ids

    def _plain_ids(self, text: str) -> list[int] | None:
        """Ids of a text by the model alone; None where these hold a special token of that text."""
        encoding = self._without_special.encode(text, add_special_tokens=False)
        ids = []
        for own_id, token, (first, end) in zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True):
            known = self._backend.token_to_id(token)
            token_id = own_id if known is None else known  # unknown text is a token of the model, which both share
            if token_id in self.special_ids and self._is_named(text[first:end], token_id):
                return None
            ids.append(token_id)
        return ids

    @cached_property
    def _without_special(self) -> tokenizers.Tokenizer:
        """The tokenizer without its special tokens. It shares the model; its numbers of added tokens mean nothing."""
        twin = tokenizers.Tokenizer(self._backend.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(self._backend, part) is not None:
                setattr(twin, part, getattr(self._backend, part))
        added = sorted(self._backend.get_added_tokens_decoder().items())
        twin.add_tokens([token for token_id, token in added if token_id not in self.special_ids])
        return twin

    def template_for(self, tools: Sequence[Mapping[str, Any]] | None = None) -> ChatTemplate:
        """The template of a conversation with these tools. Raises ChatTemplateError where there is none."""
        return self._template("tool_use" if tools is not None and "tool_use" in self._templates else "default")

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


def _give_back_freed_memory() -> None:
    """What reading a large vocabulary took for a moment, some 50 MB, glibc keeps in each process until it is asked."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
