"""Spans of text: from a path of labels to entities, and what of a text belongs to one character or one word."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastcore.pii.labels import Labels

__all__ = [
    "Entity",
    "Span",
    "belongs_to_previous",
    "decode_spans",
    "divides_only",
    "sigmoid",
    "trimmed",
    "utf8_offsets",
    "utf16_offsets",
    "whole_words",
]

Span = tuple[int, int]  # start and end, end exclusive


@dataclass(frozen=True, slots=True)
class Entity:
    """A span of text: `text == whole[start:end]`, offsets in code points. `score` lies between 0 and 1."""

    label: str
    start: int
    end: int
    text: str
    score: float


def decode_spans(
    path: Sequence[int] | NDArray[np.integer],
    logits: NDArray[np.float32],
    offsets: Sequence[Span],
    text: str,
    labels: Labels,
    trim: bool = True,
) -> list[Entity]:
    """The entities along a path of labels [num_tokens], in order and disjoint.

    logits [num_tokens, num_labels] give the score: sigmoid(mean over the entity's tokens of the chosen label's logit).
    offsets are the tokens' code points in `text`. A character shared by several tokens goes whole to the first entity
    that has one of them, and so do the marks, joiners and modifiers that belong to an entity's characters. With `trim`,
    whitespace at both ends is left out, and an entity of nothing else is dropped.
    """
    entities: list[Entity] = []
    floor = 0  # the end of the entity before
    path = np.asarray(path, np.int64)
    chosen = logits[np.arange(len(path)), path].tolist()
    for label, tokens in _runs(path.tolist(), labels):
        covered = [offsets[token] for token in tokens if offsets[token][0] < offsets[token][1]]
        if not covered:
            continue
        start, end = max(min(span[0] for span in covered), floor), max(span[1] for span in covered)
        if trim:
            start, end = trimmed(text, start, end)
        if start >= end:
            continue
        while start > floor and belongs_to_previous(text, start) and not text[start - 1].isspace():
            start -= 1
        while end < len(text) and belongs_to_previous(text, end):
            end += 1
        score = sigmoid(math.fsum(chosen[tokens.start : tokens.stop]) / len(tokens))
        entities.append(Entity(label, start, end, text[start:end], score))
        floor = end
    return entities


def _runs(path: Sequence[int], labels: Labels) -> list[tuple[str, range]]:
    """(entity type, its token range) along the path; a path that is not legal is cut wherever the type changes."""
    runs: list[tuple[str, range]] = []
    is_open = False
    for token, label in enumerate(path):
        tag, kind = labels.tags[label], labels.kinds[label]
        if tag == "O":
            is_open = False
            continue
        if is_open and tag in "IE" and kind == runs[-1][0]:
            runs[-1] = (kind, range(runs[-1][1].start, token + 1))
        else:
            runs.append((kind, range(token, token + 1)))
        is_open = tag in "BI"
    return runs


def trimmed(text: str, start: int, end: int) -> Span:
    """The span without the whitespace at its ends; empty if it has nothing else."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def sigmoid(x: float) -> float:
    """From 0 to 1, of any logit."""
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


ZERO_WIDTH_JOINER = "\u200d"
_EXTENDERS = {ZERO_WIDTH_JOINER, "\u200c", "\uff9e", "\uff9f"}  # joiner, non-joiner, half-width voicing marks
_JAMO_LEADING = (("\u1100", "\u115f"), ("\ua960", "\ua97c"))
_JAMO_FOLLOWING = (("\u1160", "\u11ff"), ("\ud7b0", "\ud7fb"))  # vowels and final consonants
_HANGUL_SYLLABLES = (("\uac00", "\ud7a3"),)
_SKIN_TONES_AND_TAGS = (("\U0001f3fb", "\U0001f3ff"), ("\U000e0020", "\U000e007f"))
_REGIONAL_INDICATORS = (("\U0001f1e6", "\U0001f1ff"),)


def _within(character: str, ranges: tuple[tuple[str, str], ...]) -> bool:
    return any(first <= character <= last for first, last in ranges)


def belongs_to_previous(text: str, index: int) -> bool:
    """Whether text[index] is one character with text[index - 1] to a reader, so that a span must not end between them.

    So it is for combining marks and variation selectors, joiners, parts of a decomposed Hangul syllable, and the later
    parts of an emoji sequence (skin tone, tag, what a joiner joins, the second half of a flag).
    """
    character, previous = text[index], text[index - 1]
    if character.isascii():
        return False
    if unicodedata.category(character)[0] == "M" or character in _EXTENDERS or _within(character, _SKIN_TONES_AND_TAGS):
        return True
    if _within(character, _JAMO_FOLLOWING):
        return _within(previous, _JAMO_LEADING + _JAMO_FOLLOWING + _HANGUL_SYLLABLES)
    if previous == ZERO_WIDTH_JOINER:
        return unicodedata.category(character) == "So"
    if _within(character, _REGIONAL_INDICATORS):
        first = index
        while first > 0 and _within(text[first - 1], _REGIONAL_INDICATORS):
            first -= 1
        return (index - first) % 2 == 1
    return False


def utf8_offsets(text: str, spans: Sequence[Span]) -> list[Span]:
    """Code-point spans as byte spans of the text in UTF-8."""
    return _code_unit_offsets(text, spans, "utf-8", 1)


def utf16_offsets(text: str, spans: Sequence[Span]) -> list[Span]:
    """Code-point spans as spans of 16-bit units, which is how JavaScript, Java and .NET index strings."""
    return _code_unit_offsets(text, spans, "utf-16-le", 2)


def _code_unit_offsets(text: str, spans: Sequence[Span], encoding: str, unit_bytes: int) -> list[Span]:
    units = {0: 0}
    before = 0
    for position in sorted({position for span in spans for position in span}):
        passed = len(text[before:position].encode(encoding, "surrogatepass")) // unit_bytes
        units[position] = units[before] + passed
        before = position
    return [(units[start], units[end]) for start, end in spans]


# ---- Words

_LONGEST_WORD = 200
_APOSTROPHES = "'\u2019"
_WITHOUT_SPACES = (  # between words: Thai and Lao, Myanmar, Khmer, kana and bopomofo, Han
    ("\u0e00", "\u0eff"), ("\u1000", "\u109f"), ("\u1780", "\u17ff"), ("\u3040", "\u312f"), ("\u31a0", "\u31ff"),
    ("\u3400", "\u9fff"), ("\uf900", "\ufaff"), ("\uff66", "\uff9f"), ("\U00020000", "\U0003ffff"),
)  # fmt: skip


def whole_words(text: str, start: int, end: int) -> Span:
    """The span with the rest of the words that it begins and ends in.

    A word is a run of letters, digits and underscores, with their marks and with apostrophes between them. Where a
    script sets no spaces between words, the span stays as it is, and what goes on for more than 200 is no word.
    """
    if start == end:
        return start, end
    before, after = start, end
    while before > 0 and start - before <= _LONGEST_WORD and _in_one_word(text, before):
        before -= 1
    while after < len(text) and after - end <= _LONGEST_WORD and _in_one_word(text, after):
        after += 1
    return start if start - before > _LONGEST_WORD else before, end if after - end > _LONGEST_WORD else after


def _in_one_word(text: str, index: int) -> bool:
    """Whether text[index - 1] and text[index] stand in one word, or in one character."""
    if belongs_to_previous(text, index):
        return True
    before = _letter_before(text, index)
    if text[index] in _APOSTROPHES:
        return _in_word(before) and index + 1 < len(text) and _in_word(text[index + 1])
    if before in _APOSTROPHES:
        return _in_word(text[index]) and index > 1 and _in_word(_letter_before(text, index - 1))
    return _in_word(before) and _in_word(text[index])


def _letter_before(text: str, index: int) -> str:
    """The character before `index`, without its marks."""
    index -= 1
    while index > 0 and belongs_to_previous(text, index) and not _in_word(text[index]):
        index -= 1
    return text[index]


def _in_word(character: str) -> bool:
    return (character.isalnum() or character == "_") and not _within(character, _WITHOUT_SPACES)


def divides_only(gap: str) -> bool:
    """Whether a text has nothing but spaces, punctuation and what does not show; no line break."""
    return not any(c in "\n\r\v\f\x85\u2028\u2029" for c in gap) and all(
        c.isspace() or unicodedata.category(c)[0] in "PZ" or unicodedata.category(c) == "Cf" for c in gap
    )
