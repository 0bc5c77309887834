"""Files as texts: their encoding, their lines, and records of texts that can be written back with some of them changed.

Whatever is not changed stays as it stands, byte for byte: a byte order mark, line ends, bytes that are no text. What
cannot be kept or cannot be told is a MaskingError.
"""

import codecs
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from fastcore.errors import MaskingError

__all__ = ["Edit", "FieldNames", "Record", "TextFile", "document", "edited", "line_records"]

T = TypeVar("T")
Edit = tuple[int, int, str]  # start and end, in code points of a text, and what replaces them; in order, disjoint


@dataclass(frozen=True)
class Record(Generic[T]):
    """A part of a file, and the texts in it. `render` gives the part with the edits of each text made.

    size: how much of the file it is, in code points (of Parquet: in rows).
    """

    texts: list[str]
    render: Callable[[Sequence[Sequence[Edit]]], T]
    size: int


def edited(text: str, edits: Sequence[Edit]) -> str:
    """The text with each edit's range replaced."""
    parts, position = [], 0
    for start, end, replacement in edits:
        parts += [text[position:start], replacement]
        position = end
    return "".join(parts) + text[position:]


@dataclass
class FieldNames:
    """The names of the fields whose texts are wanted, and how many records had each."""

    names: Sequence[str]
    found: Counter[str] = field(default_factory=Counter)
    num_records: int = 0

    @property
    def missing(self) -> list[str]:
        """Those that no record had, unless there were no records."""
        return [name for name in self.names if not self.found[name]] if self.num_records else []

    def check(self) -> None:
        """Raise for a field that no record of the file had: what was meant to be masked is not where it was sought."""
        if missing := self.missing:
            raise MaskingError(f"no record has the field {' or '.join(map(repr, missing))}; nothing is written")


# ---- Encoding

_MARKS = {  # the longer ones first: UTF-32's begins with UTF-16's
    b"\xff\xfe\0\0": "utf-32-le", b"\0\0\xfe\xff": "utf-32-be", b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le",
    b"\xfe\xff": "utf-16-be",
}  # fmt: skip
_CHUNK_BYTES = 1 << 16
_LINE_FEED = re.compile("\n")
_LINE_END = re.compile("\r\n|\r|\n")
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1f]")


class TextFile:
    """The text of an open binary file, after its byte order mark; bytes that are no text become lone surrogates.

    `encode` gives back the very bytes that were read, mark included: an encoding that does not (some have two codes for
    a character) is refused when that happens.
    """

    def __init__(self, file: io.BufferedIOBase, encoding: str = "utf-8") -> None:
        try:
            "".encode(encoding)
            self.encoding = codecs.lookup(encoding).name.replace("utf-8-sig", "utf-8")
        except LookupError:
            raise ValueError(f"--encoding {encoding}: no such encoding") from None
        self._file = file
        start = file.read1(_CHUNK_BYTES)
        while start and any(len(start) < len(mark) and mark.startswith(start) for mark in _MARKS):
            more = file.read1(_CHUNK_BYTES)
            if not more:
                break
            start += more
        self.mark = self._take_mark(start)
        self._start = start[len(self.mark) :]
        self._encoder = codecs.getincrementalencoder(self.encoding)("surrogateescape")

    def _take_mark(self, start: bytes) -> bytes:
        """The byte order mark, which also settles the byte order of `utf-16` and `utf-32`."""
        asked = self.encoding
        family = {name for name in _MARKS.values() if name.startswith(asked)}
        marks = [mark for mark in _MARKS if start.startswith(mark)]
        for mark in marks:
            if _MARKS[mark] in family:
                self.encoding = _MARKS[mark]
                return mark
        if marks:
            name = _MARKS[marks[0]]
            raise MaskingError(
                f"is {name[:6].upper()} by its byte order mark, and as {asked} would be read as nonsense; "
                f"give --encoding {name}"
            )
        if len(family) > 1 and start:
            raise MaskingError(f"has no byte order mark; give --encoding {asked}-le or {asked}-be")
        if not family & {"utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"} and _is_wide(start):
            raise MaskingError(
                f"is UTF-16 without a byte order mark, as it seems, and as {asked} would be read as nonsense; "
                "give --encoding utf-16-le or utf-16-be"
            )
        return b""

    def encode(self, text: str, final: bool = False) -> bytes:
        """The bytes of the next piece of the text that is written; `final` with the last one."""
        try:
            return self._encoder.encode(text, final)
        except UnicodeEncodeError as error:
            unwritable = text[error.start : error.end]
            raise MaskingError(f"the replacement has {unwritable!r}, which is not in {self.encoding}") from None

    def read(self) -> str:
        """All of the text."""
        return "".join(self._chunks())

    def lines(self, line_end: re.Pattern[str] = _LINE_FEED) -> Iterator[str]:
        """The lines, each with its end: a line feed."""
        parts: list[str] = []
        held = ""  # a carriage return, which may be the first half of CR LF
        for chunk in self._chunks():
            chunk, held = held + chunk, ""
            if chunk.endswith("\r"):
                chunk, held = chunk[:-1], "\r"
            position = 0
            for end in line_end.finditer(chunk):
                yield "".join([*parts, chunk[position : end.end()]])
                parts, position = [], end.end()
            parts.append(chunk[position:])
        if last := "".join([*parts, held]):
            yield last

    def universal_lines(self) -> Iterator[str]:
        """The lines as Python's open(newline="") gives them: each with its end, CR LF, CR or LF."""
        return self.lines(_LINE_END)

    def _chunks(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(self.encoding)("surrogateescape")
        encoder = codecs.getincrementalencoder(self.encoding)("surrogateescape")
        unwritten, offset = bytearray(), len(self.mark)
        chunk = self._start
        while True:
            is_last = not chunk
            try:
                unwritten += chunk
                text = decoder.decode(chunk, is_last)
                again = encoder.encode(text, is_last)
            except UnicodeError as error:
                raise MaskingError(f"after byte {offset} are bytes that are no {self.encoding}: {error}") from None
            if not unwritten.startswith(again) or (is_last and len(again) != len(unwritten)):
                raise MaskingError(
                    f"after byte {offset} are bytes that are not what {self.encoding} has for their text, so that they "
                    "could not be left as they are"
                )
            del unwritten[: len(again)]
            offset += len(chunk)
            if text:
                yield text
            if is_last:
                return
            chunk = self._file.read1(_CHUNK_BYTES)


def _is_wide(start: bytes) -> bool:
    """Whether every other byte is mostly a control character, as in UTF-16 of most scripts."""
    halves = [half for half in (start[:4096:2], start[1:4096:2]) if len(half) > 1]
    return any(2 * len(_CONTROL.findall(half)) > len(half) for half in halves)


# ---- Plain text


def line_records(file: TextFile) -> Iterator[Record[str]]:
    """Each line is a text, up to its line feed."""
    for line in file.lines():
        text, ending = (line[:-1], "\n") if line.endswith("\n") else (line, "")
        yield Record([text], partial(_rendered, text, ending), len(line))


def document(file: TextFile) -> Iterator[Record[str]]:
    """The whole file is one text."""
    text = file.read()
    yield Record([text], partial(_rendered, text, ""), len(text))


def _rendered(text: str, ending: str, edits: Sequence[Sequence[Edit]]) -> str:
    return edited(text, edits[0]) + ending
