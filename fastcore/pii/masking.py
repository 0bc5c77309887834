"""Replacing entities in a text, and undoing it.

Entities may overlap; the text is then divided into disjoint pieces: every character that any entity covers goes to the
one with the highest score, of equals to the longest, then to the one that starts first. What a losing entity covers
alone is masked too, as a piece of its own under its own label, so no covered character ever shows; only whitespace at
the ends of such a piece stays. All pieces are replaced in one pass by their offsets; nothing else in the text changes.
"""

import hashlib
import heapq
import hmac
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypedDict

from typing_extensions import Unpack

from fastcore.pii.spans import Entity, belongs_to_previous, divides_only, trimmed, whole_words

__all__ = ["OPERATORS", "MaskedItem", "MaskedText", "MaskingOptions", "MaskingRules", "Operator", "mask_text", "unmask"]

OPERATORS = ("replace", "placeholder", "mask", "hash", "redact")
Operator = str | Callable[[Entity], str]


@dataclass(frozen=True)
class MaskedItem:
    """One replaced piece: where it stood in the original text, and where its replacement stands in the masked one."""

    label: str
    start: int
    end: int
    text: str = field(repr=False)
    score: float
    replacement: str
    masked_start: int
    masked_end: int


@dataclass(frozen=True)
class MaskedText:
    """The masked `text`, its `items` in order, and `mapping`, placeholder -> original. Its repr shows no original."""

    text: str
    items: tuple[MaskedItem, ...]
    mapping: dict[str, str] = field(repr=False)

    def unmask(self) -> str:
        """The text with its placeholders undone: the original, where "placeholder" was the only operator."""
        return unmask(self.text, self.mapping)


class MaskingOptions(TypedDict, total=False):
    """The fields of MaskingRules but the operator, as keywords of a call. None leaves a field as it is."""

    per_label: Mapping[str, Operator | None] | None
    allow_list: Collection[str]
    threshold: float
    keep: int
    keep_from: str
    mask_char: str
    key: bytes | str | None
    join: int | None
    whole_words: bool


@dataclass(frozen=True)
class MaskingRules:
    """What is masked, and how; checked once, for any number of texts.

    operator is one of
        "replace"       the label: `[PRIVATE_EMAIL]`
        "placeholder"   the label and a number for each distinct value, `[PRIVATE_PERSON_1]`; `unmask` undoes it
        "mask"          `mask_char` for every code point but the last `keep` (or the first, with keep_from="start"); a
                        value of no more than `keep` characters, or a piece that an overlap left over, shows none
        "hash"          the label and the HMAC-SHA256 of the value's UTF-8 under `key`: `[PRIVATE_EMAIL:9f86...]`
        "redact"        nothing
        a callable      what it returns for the entity, or for the piece of it that is masked
    per_label chooses another for some labels; None leaves them as they are. Entities that score below `threshold`, and
    those whose text is in `allow_list` (exactly), are left as they are too, except where another entity overlaps them.

    Of what is not left, with `whole_words`, words that are found in part are masked whole; then, with `join`, what has
    one label and at most `join` code points of spaces and punctuation between, on one line, is masked as one, which has
    the lowest score of its parts.
    """

    operator: Operator = "replace"
    per_label: Mapping[str, Operator | None] = field(default_factory=dict)
    allow_list: Collection[str] = ()
    threshold: float = 0.0
    keep: int = 0
    keep_from: str = "end"
    mask_char: str = "*"
    key: bytes | str | None = field(default=None, repr=False)
    join: int | None = None
    whole_words: bool = False

    def __post_init__(self) -> None:
        operators = (self.operator, *(operator for operator in self.per_label.values() if operator is not None))
        for operator in operators:
            if operator not in OPERATORS and not callable(operator):
                raise ValueError(f"operator is {operator!r}; expected a callable or one of {', '.join(OPERATORS)}")
        if "hash" in operators and not self.key:
            raise ValueError("the operator 'hash' needs key=, a secret of your own: without one, values can be guessed")
        if isinstance(self.allow_list, str):
            raise ValueError(f"allow_list is the string {self.allow_list!r}; expected a list or set of strings")
        if not 0.0 <= self.threshold <= 1.0:
            raise ValueError(f"threshold is {self.threshold!r}; expected a score from 0 to 1")
        if not isinstance(self.keep, int) or self.keep < 0:
            raise ValueError(f"keep is {self.keep!r}; expected a number of characters from 0")
        if self.keep_from not in {"start", "end"}:
            raise ValueError(f"keep_from is {self.keep_from!r}; expected 'start' or 'end'")
        if len(self.mask_char) != 1:
            raise ValueError(f"mask_char is {self.mask_char!r}; expected one character")
        if self.join is not None and (isinstance(self.join, bool) or not isinstance(self.join, int) or self.join < 0):
            raise ValueError(f"join is {self.join!r}; expected a number of characters from 0, or None")
        if not isinstance(self.whole_words, bool):
            raise ValueError(f"whole_words is {self.whole_words!r}; expected true or false")

    def mask(self, text: str, entities: Iterable[Entity], mapping: Mapping[str, str] | None = None) -> MaskedText:
        """Replace the entities of a text.

        A placeholder never takes a number that the text itself writes out. `mapping` is that of earlier texts: their
        values keep their placeholders, and numbers go on from there; where this text writes out one of those
        placeholders, `unmask` takes it for the value.
        """
        chosen = []
        for entity in entities:
            _check_entity(entity, text)
            allowed = entity.text in self.allow_list or entity.score < self.threshold
            if entity.text and not allowed and self._operator(entity) is not None:
                chosen.append(entity)
        pieces = _disjoint_pieces(self._widened(chosen, text), text)
        placeholders = _Placeholders(text, mapping or {})
        while True:
            items: list[MaskedItem] = []
            parts: list[str] = []
            position = masked_length = 0
            for piece, is_whole in pieces:
                replacement = self._replacement(piece, is_whole, text, placeholders)
                start = masked_length + piece.start - position
                items.append(
                    MaskedItem(
                        label=piece.label,
                        start=piece.start,
                        end=piece.end,
                        text=piece.text,
                        score=piece.score,
                        replacement=replacement,
                        masked_start=start,
                        masked_end=start + len(replacement),
                    )
                )
                parts += [text[position : piece.start], replacement]
                position, masked_length = piece.end, start + len(replacement)
            masked = "".join(parts) + text[position:]
            if placeholders.occur_only_where_put(masked):
                return MaskedText(masked, tuple(items), placeholders.mapping)

    def _widened(self, entities: list[Entity], text: str) -> list[Entity]:
        if self.whole_words:
            spans = [(entity, *whole_words(text, entity.start, entity.end)) for entity in entities]
            entities = [replace(entity, start=start, end=end, text=text[start:end]) for entity, start, end in spans]
        return entities if self.join is None else _joined(entities, text, self.join)

    def _operator(self, entity: Entity) -> Operator | None:
        return self.per_label.get(entity.label, self.operator)

    def _replacement(self, piece: Entity, is_whole: bool, text: str, placeholders: "_Placeholders") -> str:
        operator = self._operator(piece)
        if operator == "replace":
            return f"[{_tag(piece.label)}]"
        if operator == "placeholder":
            return placeholders.put(piece)
        if operator == "mask":
            return self._keep_some(piece, text) if is_whole else self.mask_char * len(piece.text)
        if operator == "hash":
            key = self.key.encode() if isinstance(self.key, str) else self.key or b""
            digest = hmac.new(key, piece.text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
            return f"[{_tag(piece.label)}:{digest}]"
        if operator == "redact":
            return ""
        assert callable(operator)
        replacement = operator(piece)
        if not isinstance(replacement, str):
            raise TypeError(f"the operator returned {replacement!r} for a {piece.label}; expected a string")
        return replacement

    def _keep_some(self, entity: Entity, text: str) -> str:
        """`mask_char` for each code point not kept; a character of several code points is kept whole or not at all."""
        start, end = entity.start, entity.end
        if self.keep == 0 or len(entity.text) <= self.keep:
            return self.mask_char * len(entity.text)
        if self.keep_from == "start":
            cut = start + self.keep
            while cut > start and belongs_to_previous(text, cut):
                cut -= 1
            return text[start:cut] + self.mask_char * (end - cut)
        cut = end - self.keep
        while cut < end and belongs_to_previous(text, cut):
            cut += 1
        return self.mask_char * (cut - start) + text[cut:end]


def mask_text(
    text: str,
    entities: Iterable[Entity],
    operator: Operator = "replace",
    *,
    mapping: Mapping[str, str] | None = None,
    **options: Unpack[MaskingOptions],
) -> MaskedText:
    """Replace the entities of one text: `MaskingRules(operator, ...).mask(text, entities, mapping)`, which see."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return MaskingRules(operator, **given).mask(text, entities, mapping)


def unmask(text: str, mapping: Mapping[str, str]) -> str:
    """Put the originals back for the placeholders of `mapping`, in a masked text or in a model's answer to it."""
    if not mapping:
        return text
    longest_first = sorted(mapping, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), lambda match: mapping[match.group()], text)


def _tag(label: str) -> str:
    return re.sub(r"\W", "_", label).upper()


def _check_entity(entity: Entity, text: str) -> None:
    if not 0 <= entity.start <= entity.end <= len(text):
        raise ValueError(f"entity {entity.start}-{entity.end} lies outside the text of {len(text)} characters")
    if text[entity.start : entity.end] != entity.text:
        raise ValueError(f"the text at {entity.start}-{entity.end} is not that of the entity: is it from another text?")


def _joined(entities: Iterable[Entity], text: str, longest: int) -> list[Entity]:
    """Neighbours of one label as one, across a gap of at most `longest` code points that only divides."""
    joined: list[list[Entity]] = []
    ends: list[int] = []  # of each of `joined`
    last: dict[str, int] = {}  # where in `joined` the last one of each label is
    for entity in sorted(entities, key=lambda entity: (entity.start, entity.end)):
        index = last.get(entity.label)
        if index is not None:
            gap = entity.start - ends[index]
            if gap <= longest and divides_only(text[ends[index] : entity.start]):
                joined[index].append(entity)
                ends[index] = max(ends[index], entity.end)
                continue
        last[entity.label] = len(joined)
        joined.append([entity])
        ends.append(entity.end)
    return [
        Entity(parts[0].label, parts[0].start, end, text[parts[0].start : end], min(part.score for part in parts))
        for parts, end in zip(joined, ends, strict=True)
    ]


def _disjoint_pieces(entities: Sequence[Entity], text: str) -> list[tuple[Entity, bool]]:
    """The pieces that overlapping entities divide a text into, in order, and whether each is a whole entity."""

    def rank(entity: Entity) -> tuple[float, int, int, str]:
        return -entity.score, entity.start - entity.end, entity.start, entity.label

    by_start = sorted(entities, key=lambda entity: entity.start)
    borders = sorted({border for entity in entities for border in (entity.start, entity.end)})
    owned: list[tuple[Entity, int, int]] = []
    open_entities: list[tuple[tuple[float, int, int, str], int]] = []  # a heap, winner first: rank, index in by_start
    num_open = 0
    for start, end in pairwise(borders):
        while num_open < len(by_start) and by_start[num_open].start == start:
            heapq.heappush(open_entities, (rank(by_start[num_open]), num_open))
            num_open += 1
        while open_entities and by_start[open_entities[0][1]].end <= start:
            heapq.heappop(open_entities)
        if not open_entities:
            continue
        owner = by_start[open_entities[0][1]]
        if owned and owned[-1][0] is owner and owned[-1][2] == start:
            owned[-1] = (owner, owned[-1][1], end)
        else:
            owned.append((owner, start, end))
    pieces = []
    for owner, start, end in owned:
        if (start, end) == (owner.start, owner.end):
            pieces.append((owner, True))
            continue
        start, end = trimmed(text, start, end)
        if start < end:
            pieces.append((Entity(owner.label, start, end, text[start:end], owner.score), False))
    return pieces


class _Placeholders:
    """Placeholders given out for one text: one for each distinct value, none that the text would contain without it."""

    def __init__(self, text: str, known: Mapping[str, str]) -> None:
        self.mapping = dict(known)
        self._known = frozenset(known)
        self._reserved = {*known, *self._written_out(text)}
        self._numbers: Counter[str] = Counter()
        self._of_value: dict[tuple[str, str], str] = {}
        self._put: Counter[str] = Counter()
        for placeholder, value in known.items():
            tag = placeholder[1:-1].rpartition("_")[0]
            self._of_value.setdefault((tag, value), placeholder)

    def put(self, piece: Entity) -> str:
        """The placeholder that replaces a piece."""
        tag = _tag(piece.label)
        placeholder = self._of_value.get((tag, piece.text))
        while placeholder is None:
            self._numbers[tag] += 1
            candidate = f"[{tag}_{self._numbers[tag]}]"
            if candidate not in self._reserved:
                placeholder = self._of_value[tag, piece.text] = candidate
                self.mapping[placeholder] = piece.text
        self._put[placeholder] += 1
        return placeholder

    def occur_only_where_put(self, masked: str) -> bool:
        """Whether every placeholder in the masked text was put there; others are forgotten, to start again.

        What other operators leave can read like a placeholder: a redacted word between `[PERSON` and `_1]`.
        """
        written = self._written_out(masked)
        strays = {p for p in self.mapping if p not in self._known and written[p] != self._put[p]}
        self._reserved |= strays
        for placeholder in strays:
            del self.mapping[placeholder]
        self._of_value = {value: p for value, p in self._of_value.items() if p not in strays}
        self._put.clear()
        return not strays

    @staticmethod
    def _written_out(text: str) -> Counter[str]:
        return Counter(re.findall(r"\[\w+\]", text))
