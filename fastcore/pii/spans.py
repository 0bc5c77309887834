"""From label logits to entities: the label scheme, the best legal path, spans of text, and windows over a long text."""

import math
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import MAX_LABELS, viterbi
from fastcore.errors import UnsupportedModelError
from fastcore.locks import cached_property

__all__ = [
    "OPERATING_POINTS",
    "Entity",
    "Labels",
    "OperatingPoint",
    "Window",
    "decode_spans",
    "merge_windows",
    "operating_point",
    "plan_windows",
    "utf8_offsets",
    "utf16_offsets",
    "viterbi",
    "window_owners",
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


# ---- Labels


@dataclass(frozen=True)
class Labels:
    """Token labels in the order of the head's rows, in BIES (BIOES) or BIO: `O`, or tag and entity type, `B-person`.

    B begins an entity, I is inside, E ends it, S is one of a single token. A type without E labels may end at any B or
    I (that is BIO), and a type without B labels may begin with I.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        for index, name in enumerate(self.names):
            tag, _, kind = name.partition("-")
            if name != "O" and (tag not in {"B", "I", "E", "S"} or not kind):
                raise UnsupportedModelError(
                    f"label {index} is {name!r}; expected 'O', or B-, I-, E- or S- followed by an entity type"
                )
        if len(self.names) > MAX_LABELS:
            raise UnsupportedModelError(f"{len(self.names)} labels; supported: up to {MAX_LABELS}")
        if "O" not in self.names:
            raise UnsupportedModelError(f"none of the {len(self.names)} labels is 'O', for tokens outside entities")
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise UnsupportedModelError(f"labels occur twice: {', '.join(twice)}")

    @classmethod
    def from_id2label(cls, id2label: Mapping[int, str]) -> "Labels":
        """The labels of a config, whose keys must be 0, 1, 2, ..."""
        if sorted(id2label) != list(range(len(id2label))):
            raise UnsupportedModelError(f"id2label has the ids {sorted(id2label)}; expected 0 to {len(id2label) - 1}")
        return cls(tuple(id2label[index] for index in range(len(id2label))))

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """O, B, I, E or S, one for each label."""
        return tuple(name[0] for name in self.names)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The entity type of each label; empty for O."""
        return tuple(name[2:] for name in self.names)

    @cached_property
    def entity_types(self) -> tuple[str, ...]:
        """Each type once, in the order of the labels."""
        return tuple(dict.fromkeys(kind for kind in self.kinds if kind))

    @cached_property
    def may_start(self) -> NDArray[np.bool_]:
        """Labels that can follow the end of an entity, [num_labels]: O, B, S."""
        return np.array([tag in "OBS" or (tag == "I" and f"B-{k}" not in self.names) for tag, k in self._pairs])

    @cached_property
    def may_end(self) -> NDArray[np.bool_]:
        """Labels after which an entity is complete, [num_labels]: O, E, S; in BIO all."""
        return np.array([tag in "OES" or f"E-{k}" not in self.names for tag, k in self._pairs])

    @cached_property
    def legal_transitions(self) -> NDArray[np.bool_]:
        """[from, to]: B and I go on to I or E of their type; what ends an entity is followed by what can start one."""
        tags, kinds = np.array(self.tags), np.array(self.kinds)
        same_kind = kinds[:, None] == kinds[None, :]
        legal: NDArray[np.bool_] = np.isin(tags, ["B", "I"])[:, None] & np.isin(tags, ["I", "E"])[None, :] & same_kind
        return legal | (self.may_end[:, None] & self.may_start[None, :])

    def transition_scores(
        self, b_bias: float = 0.0, e_bias: float = 0.0, legal: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float32]:
        """f32 [from, to]: -inf where not legal, plus b_bias into every B label, plus e_bias out of every E label.

        `legal` replaces `legal_transitions`, for a checkpoint that brings its own.
        """
        legal = self.legal_transitions if legal is None else legal
        tags = np.array(self.tags)
        into_b = np.where(tags == "B", np.float32(b_bias), np.float32(0))
        out_of_e = np.where(tags == "E", np.float32(e_bias), np.float32(0))
        return np.where(legal, into_b[None, :] + out_of_e[:, None], np.float32(-np.inf)).astype(np.float32)

    @cached_property
    def start_scores(self) -> NDArray[np.float32]:
        """f32 [num_labels]: 0 where a text may start, else -inf."""
        return np.where(self.may_start, np.float32(0), np.float32(-np.inf))

    @cached_property
    def end_scores(self) -> NDArray[np.float32]:
        """f32 [num_labels]: 0 where a text may end, else -inf."""
        return np.where(self.may_end, np.float32(0), np.float32(-np.inf))

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        return list(zip(self.tags, self.kinds, strict=True))


class OperatingPoint(NamedTuple):
    """Biases of the path: b_bias on every transition into a B label, e_bias on every transition out of an E label.

    Higher biases find more entities of several tokens (recall), lower ones fewer (precision).
    """

    b_bias: float
    e_bias: float


OPERATING_POINTS = {  # added to the checkpoint's own biases, in logits
    "default": OperatingPoint(0.0, 0.0),
    "recall": OperatingPoint(1.0, 1.0),
    "precision": OperatingPoint(-1.0, -1.0),
}


def operating_point(choice: str | tuple[float, float] | None, shipped: OperatingPoint) -> OperatingPoint:
    """A preset by name, relative to the `shipped` biases, or the two biases themselves; None is shipped."""
    if choice is None:
        return shipped
    if isinstance(choice, str):
        if choice not in OPERATING_POINTS:
            presets = ", ".join(OPERATING_POINTS)
            raise ValueError(f"operating_point is {choice!r}; expected (b_bias, e_bias) or one of {presets}")
        added = OPERATING_POINTS[choice]
        return OperatingPoint(shipped.b_bias + added.b_bias, shipped.e_bias + added.e_bias)
    if len(choice) != 2 or not all(math.isfinite(bias) for bias in choice):
        raise ValueError(f"operating_point is {choice!r}; expected two finite biases (b_bias, e_bias)")
    return OperatingPoint(float(choice[0]), float(choice[1]))


# ---- Spans


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
        score = _sigmoid(math.fsum(chosen[tokens.start : tokens.stop]) / len(tokens))
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


def _sigmoid(x: float) -> float:
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


# ---- Windows


class Window(NamedTuple):
    """A range of tokens, end exclusive."""

    start: int
    end: int


def plan_windows(
    offsets: Sequence[Span], text: str, max_tokens: int, overlap: int = 128, boundaries: Sequence[int] = ()
) -> list[Window]:
    """Windows of at most `max_tokens` that cover all tokens; neighbours share at least `overlap` of them.

    A window starts and ends at one of `boundaries` (code points where a message begins) if one is near, else where a
    word begins, else where it must. Tokens that fit go into one window; no tokens, no window.
    """
    if max_tokens < 1 or not 0 <= overlap < max_tokens:
        raise ValueError(f"max_tokens is {max_tokens} and overlap {overlap}; expected 0 <= overlap < max_tokens")
    num_tokens = len(offsets)
    if num_tokens <= max_tokens:
        return [Window(0, num_tokens)] if num_tokens else []
    strengths = _cut_strengths(offsets, text, boundaries)
    # Moving both ends of a window back by up to this much still leaves every window one token of progress.
    reach = (max_tokens - overlap - 1) // 2

    def cut(latest: int) -> int:
        """The strongest place to cut within reach, of equals the latest."""
        return max(range(latest, latest - reach - 1, -1), key=strengths.__getitem__)

    windows: list[Window] = []
    start = 0
    while start + max_tokens < num_tokens:
        end = cut(start + max_tokens)
        windows.append(Window(start, end))
        start = cut(end - overlap) if overlap else end
    windows.append(Window(start, num_tokens))
    return windows


def _cut_strengths(offsets: Sequence[Span], text: str, boundaries: Sequence[int]) -> list[int]:
    """How well a text is cut before each token: 2 where a message begins, 1 where a word does, 0 elsewhere."""
    ordered = sorted(boundaries)
    strengths = []
    previous = -1  # where the token before starts
    messages_before = 0
    for start, end in offsets:
        if start == end or start <= previous:  # no text of its own, or the rest of a split character
            strengths.append(0)
            continue
        begins_word = text[start].isspace() or start == 0 or text[start - 1].isspace()
        messages = bisect_right(ordered, trimmed(text, start, end)[0])
        strengths.append(2 if messages > messages_before else int(begins_word))
        previous, messages_before = start, messages
    return strengths


def window_owners(windows: Sequence[Window]) -> NDArray[np.int32]:
    """For each token, the index of the window that sees most around it: the one whose nearer edge is farthest away.

    The ends of the text are no edges. Of equals, the earlier window. int32 [num_tokens].
    """
    num_tokens = windows[-1].end if windows else 0
    owners = np.zeros(num_tokens, np.int32)
    context = np.full(num_tokens, -1, np.int64)
    for index, (start, end) in enumerate(windows):
        tokens = np.arange(start, end)
        before = tokens - start if start > 0 else np.full(end - start, num_tokens)
        after = end - 1 - tokens if end < num_tokens else np.full(end - start, num_tokens)
        seen = np.minimum(before, after)
        better = tokens[seen > context[start:end]]
        owners[better] = index
        context[better] = seen[better - start]
    return owners


def merge_windows(windows: Sequence[Window], logits: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """One array [num_tokens, num_labels] from those of the windows, each token from its owner (`window_owners`)."""
    if len(windows) != len(logits) or not windows:
        raise ValueError(f"{len(logits)} arrays of logits for {len(windows)} windows; expected one for each window")
    if len(windows) == 1:
        return logits[0]
    owners = window_owners(windows)
    merged = np.empty((len(owners), logits[0].shape[1]), np.float32)
    for index, (start, end) in enumerate(windows):
        owned = np.flatnonzero(owners[start:end] == index)
        merged[start + owned] = logits[index][owned]
    return merged
