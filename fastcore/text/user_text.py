"""Which special tokens of a prompt are the template's own, and which stand in text that a message brought.

A message may hold the text of a special token, such as `<|im_end|>`, and would end its own turn with it. Before a
template renders the messages, a mark is put inside each such text; it is a code point that is not a character and that
nothing else holds. The template carries it along with the text around it, and where it comes out, text of a message is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fastcore.errors import ChatTemplateError
from fastcore.locks import cached_property
from fastcore.text.messages import Arguments

__all__ = ["MarkedText", "SpecialTexts"]

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # noncharacters


class MarkedText:
    """A rendered prompt without its marks, and the positions where they stood: text, marks."""

    def __init__(self, rendered: str, mark: str) -> None:
        # `tojson` may have spelled the mark in ASCII
        parts = re.split(f"{mark}|\\\\\\\\u{ord(mark):04x}", rendered) if mark else [rendered]
        self.text = "".join(parts)
        self.marks: set[int] = set()
        position = 0
        for part in parts[:-1]:
            position += len(part)
            self.marks.add(position)

    def is_of_a_message(self, start: int, end: int) -> bool:
        """Whether a special token's text, which stands at [start, end), came out of a message, or in part."""
        inside = range(start + 1, end) if end - start > 1 else (start, end)
        found = [position in self.marks for position in inside]
        return any(found) if end - start > 1 else all(found)


class SpecialTexts:
    """The texts of a tokenizer's special tokens, to be found in messages."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted({text for text in texts if text}, key=len, reverse=True)

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        return re.compile("|".join(map(re.escape, self._texts))) if self._texts else None

    @cached_property
    def _parts(self) -> tuple[frozenset[str], frozenset[str], int]:
        """What a special text may begin with and end with, short of all of it; the longest of these."""
        beginnings = {text[:n] for text in self._texts for n in range(1, len(text))}
        ends = {text[n:] for text in self._texts for n in range(1, len(text))}
        return frozenset(beginnings), frozenset(ends), max(map(len, beginnings), default=0)

    def mark(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None
    ) -> tuple[list[dict[str, Any]], list[Any] | None, str]:
        """Messages and tools with marks in their texts, and the mark; "" where there is nothing to mark."""
        if self._pattern is None or not any(map(self._is_suspect, _texts([messages, tools]))):
            return list(map(dict, messages)), None if tools is None else list(tools), ""
        mark = next((mark for mark in _MARKS if not any(mark in text for text in _texts([messages, tools]))), None)
        if mark is None:
            raise ChatTemplateError(
                "the messages hold every noncharacter from U+FDD0 to U+FDEF, and special tokens; remove one"
            )
        marked = [
            {
                key: value if key == "role" and not self._holds(value) else self._marked(value, mark)
                for key, value in m.items()
            }
            for m in messages
        ]
        return marked, None if tools is None else [self._marked(tool, mark) for tool in tools], mark

    def _holds(self, text: str) -> bool:
        return self._pattern is not None and self._pattern.search(text) is not None

    def _is_suspect(self, text: str) -> bool:
        return self._holds(text) or self._begins_inside(text) or self._ends_inside(text)

    def _begins_inside(self, text: str) -> bool:
        """Whether the text may be the end of a special one that what stands before it begins."""
        _, ends, longest = self._parts
        return any(text[:n] in ends for n in range(1, min(longest, len(text)) + 1))

    def _ends_inside(self, text: str) -> bool:
        beginnings, _, longest = self._parts
        return any(text[-n:] in beginnings for n in range(1, min(longest, len(text)) + 1))

    def _marked(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            return self._marked_text(value, mark)
        if isinstance(value, Mapping):
            marked = {self._marked(key, mark): self._marked(item, mark) for key, item in value.items()}
            return value.like(marked, self._marked(str(value), mark)) if isinstance(value, Arguments) else marked
        if isinstance(value, list | tuple):
            return [self._marked(item, mark) for item in value]
        return value

    def _marked_text(self, text: str, mark: str) -> str:
        assert self._pattern is not None
        places = {0} if self._begins_inside(text) else set()
        if self._ends_inside(text):
            places.add(len(text))
        found = self._pattern.search(text)
        while found:
            # behind its first character; one that has no other is held between two
            places.update([found.start() + 1] if len(found[0]) > 1 else [found.start(), found.end()])
            found = self._pattern.search(text, found.start() + 1)  # one may begin inside another
        cuts = [0, *sorted(places), len(text)]
        return mark.join(text[start:end] for start, end in pairwise(cuts))


def _texts(value: Any) -> Iterator[str]:
    """Every string in a value of JSON types, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        if isinstance(value, Arguments):
            yield str(value)
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
