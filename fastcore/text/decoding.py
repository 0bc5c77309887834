"""Token ids to text, as they come.

The decoder of the `tokenizers` library is a list of steps over all tokens of a text. Here each step is a stage that is
fed one token at a time and lets go of text as soon as no later token can change it: what all pushes and finish() give,
joined, is what the library gives for all tokens at once, with one exception. Where byte tokens (<0xE2>) are not valid
UTF-8 the library turns the whole run of them into U+FFFD, also the characters in it that have been complete for long;
here these stay, and each byte that belongs to none becomes U+FFFD.
"""

from __future__ import annotations

import codecs
import copy
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import tokenizers
from tokenizers import decoders

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "IncrementalDecoder",
    "Stages",
    "byte_level_bytes",
    "decoder_kinds",
    "decoder_stages",
    "fallback_byte",
    "text_offsets",
]

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 128  # of a prompt's beginning and of its end: what comes before new text decides how it begins


class Stage(Protocol):
    """One step of a decoder. push: what a piece of text makes certain. finish: the rest; no push may follow."""

    def push(self, piece: str) -> str: ...

    def finish(self) -> str: ...

    @property
    def holds(self) -> bool:
        """Whether text that was pushed may still come."""


class Stages:
    """Stages in a row, themselves a stage. needs_all: nothing is certain before the end."""

    def __init__(self, stages: Sequence[Stage], needs_all: bool = False) -> None:
        self._stages = list(stages)
        self.needs_all = needs_all

    def __copy__(self) -> Stages:
        return Stages([copy.copy(stage) for stage in self._stages], self.needs_all)

    def push(self, piece: str) -> str:
        for stage in self._stages:
            piece = stage.push(piece)
        return piece

    def finish(self) -> str:
        rest = ""
        for stage in self._stages:
            rest = (stage.push(rest) if rest else "") + stage.finish()
        return rest

    @property
    def holds(self) -> bool:
        return any(stage.holds for stage in self._stages)


class IncrementalDecoder:
    """Turns a stream of token ids into text as early as it is certain, at a cost that does not grow with the text.

    after: the ids that precede the stream. The text is then what decoding both has more than decoding these alone; it
    begins with a space, say, where the same tokens would begin a text without one.
    offset: how many code points of the stream's text stand before the token that was pushed last; before a part of a
    character, those before the character.
    """

    def __init__(
        self,
        token: Callable[[int], str | None],
        stages: Stages,
        skipped: Collection[int] = (),
        after: Sequence[int] = (),
    ) -> None:
        self._token = token
        self._stages = copy.copy(stages)
        self._skipped = skipped
        if len(after) > 2 * CONTEXT_TOKENS and not stages.needs_all:
            after = [*after[:CONTEXT_TOKENS], *after[-CONTEXT_TOKENS:]]
        for token_id in after:
            self._push(token_id)
        # the end of `after` that is text only while nothing follows: half a character
        self._shown = copy.copy(self._stages).finish() if after else ""
        self._length = self.offset = 0

    def push(self, token_id: int) -> str:
        """The text that this token makes certain, often its own, "" while a character is incomplete."""
        rest = self._rest() if self._stages.holds and not self._stages.needs_all else ""
        text = self._push(token_id)
        if self._shown:
            text = self._beyond_shown(text)
        self.offset = self._length + (common_prefix_length(rest, text) if rest else 0)
        self._length += len(text)
        return text

    def finish(self) -> str:
        """What was held back; incomplete characters come out as U+FFFD. No push may follow."""
        return self._beyond_shown(self._stages.finish())

    def _push(self, token_id: int) -> str:
        token = None if token_id in self._skipped else self._token(token_id)
        return "" if token is None else self._stages.push(token)

    def _rest(self) -> str:
        """What would be text if the stream ended here."""
        text = copy.copy(self._stages).finish()
        return text[common_prefix_length(text, self._shown) :]

    def _beyond_shown(self, text: str) -> str:
        if not text:
            return ""
        same = common_prefix_length(text, self._shown)
        self._shown = self._shown[same:] if same == len(text) else ""
        return text[same:]


def common_prefix_length(one: str, two: str) -> int:
    """How many code points two texts begin with in common."""
    for i, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return i
    return min(len(one), len(two))


class _Plain:
    """A stage whose state is in values that do not change, so that a copy is made quickly."""

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin


# ---------------------------------------------------------------------- stages over tokens


class _Each(_Plain):
    """A step that treats every token alike, by the library's own function."""

    def __init__(self, decode: Callable[[list[str]], str]) -> None:
        self._decode = decode
        self._known: dict[str, str] = {}

    def push(self, piece: str) -> str:
        found = self._known.get(piece)
        if found is None:
            found = self._known[piece] = self._decode([piece])
        return found

    def finish(self) -> str:
        return ""

    @property
    def holds(self) -> bool:
        return False


class _FirstDiffers(_Each):
    """A step that treats the first token of a text in another way than the others."""

    def __init__(self, decode: Callable[[list[str]], str], before: str) -> None:
        """before: a token that decodes to itself, to put before the others."""
        super().__init__(lambda pieces: decode([before, *pieces])[len(before) :])
        self._decode_first = decode
        self._is_first = True

    def push(self, piece: str) -> str:
        if self._is_first:
            self._is_first = False
            return self._decode_first([piece])
        return super().push(piece)


class _LastDiffers(_Plain):
    """BPEDecoder: a word's suffix is a space, and nothing at the end of the text."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._inside = self._last = ""  # what is still to come of the piece before, in either case

    def push(self, piece: str) -> str:
        before = self._inside
        inside, last = (piece.replace(self._suffix, to) for to in (" ", ""))
        same = common_prefix_length(inside, last)
        self._inside, self._last = inside[same:], last[same:]
        return before + inside[:same]

    def finish(self) -> str:
        return self._last

    @property
    def holds(self) -> bool:
        return bool(self._inside)


class _Distinct(_Each):
    """CTC: a token that repeats the one before is dropped."""

    _before: str | None = None

    def push(self, piece: str) -> str:
        repeats, self._before = piece == self._before, piece
        return "" if repeats else super().push(piece)


class _Utf8(_Plain):
    """The characters that bytes make up. Bytes of none: U+FFFD, one for each byte, or one where a character breaks."""

    def __init__(self, each: bool) -> None:
        self._each = each
        self._bytes = b""  # of a character that is not complete

    @property
    def holds(self) -> bool:
        return bool(self._bytes)

    def read(self, data: bytes) -> str:
        text, used = self._decode(self._bytes + data, False)
        self._bytes = (self._bytes + data)[used:]
        return text

    def finish(self) -> str:
        text, _ = self._decode(self._bytes, True)
        self._bytes = b""
        return text

    def _decode(self, data: bytes, final: bool) -> tuple[str, int]:
        return codecs.utf_8_decode(data, "fastcore-each-byte" if self._each else "replace", final)


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return REPLACEMENT * (error.end - error.start), error.end


codecs.register_error("fastcore-each-byte", _replace_each_byte)


class _ByteLevel(_Utf8):
    """A text is the UTF-8 reading of its tokens' bytes."""

    def __init__(self) -> None:
        super().__init__(each=False)

    def push(self, piece: str) -> str:
        return self.read(byte_level_bytes(piece))


class _ByteFallback(_Utf8):
    """Byte tokens are bytes; others end a run of them."""

    def __init__(self) -> None:
        super().__init__(each=True)

    def push(self, piece: str) -> str:
        byte = fallback_byte(piece)
        return self.finish() + piece if byte is None else self.read(bytes([byte]))


class _All:
    """A decoder of another kind: nothing is certain before the end."""

    def __init__(self, decode: Callable[[list[str]], str]) -> None:
        self._decode = decode
        self._pieces: list[str] = []

    def push(self, piece: str) -> str:
        self._pieces.append(piece)
        return ""

    def finish(self) -> str:
        return self._decode(self._pieces)

    @property
    def holds(self) -> bool:
        return bool(self._pieces)

    def __copy__(self) -> _All:
        twin = _All(self._decode)
        twin._pieces = list(self._pieces)
        return twin


# ---------------------------------------------------------------------- stages over the text


class _Strip(_Plain):
    """Up to `start` of a character dropped at the text's beginning, and up to `stop` at its end."""

    def __init__(self, character: str, start: int, stop: int) -> None:
        self._character = character
        self._start = start
        self._stop = stop
        self._held = ""

    def push(self, piece: str) -> str:
        while self._start and piece:
            if piece[0] != self._character:
                self._start = 0
            else:
                self._start -= 1
                piece = piece[1:]
        if not self._stop:
            return piece
        text = self._held + piece
        held = min(len(text) - len(text.rstrip(self._character)), self._stop)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        return ""

    @property
    def holds(self) -> bool:
        return bool(self._held)


class _ReplaceInText(_Plain):
    """A string replaced wherever it comes up, also across tokens."""

    def __init__(self, pattern: str, content: str) -> None:
        self._pattern = pattern
        self._content = content
        self._held = ""

    def push(self, piece: str) -> str:
        *parts, rest = (self._held + piece).split(self._pattern)
        keep = next(
            (n for n in range(min(len(rest), len(self._pattern) - 1), 0, -1) if rest.endswith(self._pattern[:n])), 0
        )
        self._held = rest[len(rest) - keep :]
        return "".join(part + self._content for part in parts) + rest[: len(rest) - keep]

    def finish(self) -> str:
        return self._held

    @property
    def holds(self) -> bool:
        return bool(self._held)


# ---------------------------------------------------------------------- from the library's decoder to stages


def decoder_stages(decoder: decoders.Decoder | None) -> Stages:
    """The stages of a decoder of the library; of None, which puts a space between tokens."""
    if decoder is None:
        return Stages([_FirstDiffers(" ".join, "x")])
    steps = _flat(json.loads(decoder.__getstate__()))
    kinds = [step["type"] for step in steps]
    for i in range(len(kinds) - 1):
        if kinds[i : i + 2] == ["ByteFallback", "Metaspace"]:  # either order gives the same text
            steps[i : i + 2], kinds[i : i + 2] = steps[i : i + 2][::-1], kinds[i : i + 2][::-1]
    fused = next((i for i, kind in enumerate(kinds) if kind in ("Fuse", "ByteLevel")), len(kinds))
    stages = [_token_stage(step, kinds[i + 1 : fused + 1]) for i, step in enumerate(steps[: fused + 1])]
    stages += [_text_stage(step) for step in steps[fused + 1 :]]
    if None in stages:
        return Stages([_All(decoder.decode)], needs_all=True)
    return Stages([stage for stage in stages if stage is not None])


def decoder_kinds(decoder: decoders.Decoder | None) -> list[str]:
    """The kinds of a decoder's steps, without those that only join tokens."""
    steps = [] if decoder is None else _flat(json.loads(decoder.__getstate__()))
    return [step["type"] for step in steps if step["type"] != "Fuse"]


def _flat(step: dict[str, Any]) -> list[dict[str, Any]]:
    return [leaf for inner in step["decoders"] for leaf in _flat(inner)] if step["type"] == "Sequence" else [step]


def _token_stage(step: dict[str, Any], later: Sequence[str]) -> Stage | None:
    """The stage of a step that is given tokens; later: the kinds of those after it. None where there is none."""
    kind = step["type"]
    looks_at_tokens = bool({*later} - {"Fuse"})
    match kind:
        case "Fuse":
            return Stages([])
        case "ByteLevel":
            return _ByteLevel()
        case "Replace":
            return _Each(decoders.Replace(_pattern(step), step["content"]).decode)
        case "Metaspace":
            options = {name: step[name] for name in ("replacement", "prepend_scheme", "split") if name in step}
            return _FirstDiffers(decoders.Metaspace(**options).decode, "x" if step["replacement"] != "x" else "y")
        case "WordPiece":
            return _FirstDiffers(decoders.WordPiece(step["prefix"], step["cleanup"]).decode, "x")
        case "CTC":
            return _Distinct(decoders.CTC(step["pad_token"], step["word_delimiter_token"], step["cleanup"]).decode)
        case "Strip":
            return _Each(lambda pieces: _stripped(pieces[0], step["content"], step["start"], step["stop"]))
        # these two give parts of tokens
        case "ByteFallback" if not looks_at_tokens:
            return _ByteFallback()
        case "BPEDecoder" if not looks_at_tokens:
            return _LastDiffers(step["suffix"])
    return None


def _text_stage(step: dict[str, Any]) -> Stage | None:
    """The stage of a step that is given the text as a whole."""
    match step:
        case {"type": "Fuse"}:
            return Stages([])
        case {"type": "Strip"}:
            return _Strip(step["content"], step["start"], step["stop"])
        case {"type": "Replace", "pattern": {"String": str(pattern)}} if pattern:
            return _ReplaceInText(pattern, step["content"])
    return None


def _pattern(step: dict[str, Any]) -> Any:
    (kind, pattern), *_ = step["pattern"].items()
    return tokenizers.Regex(pattern) if kind == "Regex" else pattern


def _stripped(text: str, character: str, start: int, stop: int) -> str:
    strip = _Strip(character, start, stop)
    return strip.push(text) + strip.finish()


# ---------------------------------------------------------------------- bytes of tokens


def byte_level_bytes(token: str) -> bytes:
    """What a token of a byte-level tokenizer stands for; one with a character outside its alphabet, for itself."""
    table = _byte_level_table()
    try:
        return bytes([table[character] for character in token])
    except KeyError:
        return token.encode()


@cache
def _byte_level_table() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for: printable Latin-1 characters stand for their own
    code, the other bytes, in order, for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def fallback_byte(token: str) -> int | None:
    """65 for "<0x41>", the spelling of a byte in tokenizers with byte fallback; None for other tokens."""
    found = _BYTE_TOKEN.fullmatch(token)
    return None if found is None else int(found[1], 16)


_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2}|[+][0-9A-Fa-f])>")


def text_offsets(decoder: IncrementalDecoder, token_ids: Iterable[int]) -> list[int]:
    """How many code points of text stand before each token."""
    offsets = []
    for token_id in token_ids:
        decoder.push(token_id)
        offsets.append(decoder.offset)
    return offsets
