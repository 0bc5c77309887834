"""The strings of JSON lines that belong to some fields, read and rewritten in place."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from fastcore.errors import MaskingError
from fastcore.pii.text_files import Edit, FieldNames, Record, TextFile, edited

__all__ = ["json_records"]

_BETWEEN = re.compile(r"[ \t\r\n,:]*")
_CONSTANT = re.compile(r"[^ \t\r\n,\]}]+")  # a number, true, false, null, NaN, Infinity
_ESCAPE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.")
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class _Literal(NamedTuple):
    """A string of the line, quotes included, and what it says."""

    start: int
    end: int
    text: str
    is_key: bool


def json_records(file: TextFile, fields: FieldNames) -> Iterator[Record[str]]:
    """The strings of some fields of each line's JSON value; blank lines have none.

    A field is a key, or keys joined by dots; lists on the way are gone through, and of an object or a list in the field
    itself, all strings are taken, keys too. Of a key that an object has twice, every value is taken, where readers see
    the last. Raises MaskingError for a line that is not JSON, and for a number in a field: it may well be a phone
    number, and cannot be masked.
    """
    for number, line in enumerate(file.lines(), start=1):
        if not line.strip(" \t\r\n"):
            yield Record([], partial(_unchanged, line), len(line))
            continue
        try:
            json.loads(line)
        except RecursionError:
            raise MaskingError(f"line {number} is not JSON that can be read: nested too deeply") from None
        except ValueError as error:
            raise MaskingError(f"line {number} is not JSON: {_reason(error)}") from None
        fields.num_records += 1
        literals = _wanted(line, number, fields)
        yield Record([literal.text for literal in literals], partial(_rendered, line, number, literals), len(line))


def _reason(error: ValueError) -> str:
    """What json says, without what int() says of a long number, which is the number."""
    return str(error) if isinstance(error, json.JSONDecodeError) else "a number of too many digits"


def _wanted(line: str, number: int, fields: FieldNames) -> list[_Literal]:
    """The strings of a line of valid JSON that belong to a wanted field."""
    names = frozenset(fields.names)
    literals: list[_Literal] = []
    # For each open object or list: the keys that lead to it, and whether it is in a field; then the same of its value.
    opened: list[tuple[tuple[str, ...], bool]] = []
    path: tuple[str, ...] = ()
    inside = False
    at = _skip(line, 0)
    while at < len(line):
        character = line[at]
        if character == '"':
            text, end = scanstring(line, at + 1, True)
            if line.startswith(":", after := _skip_space(line, end)):
                path, inside = opened[-1]
                if inside:
                    literals.append(_Literal(at, end, text, is_key=True))
                path = (*path, text)
                if ".".join(path) in names:
                    fields.found[".".join(path)] += 1
                    inside = True
                at = _skip(line, after)
                continue
            if inside:
                literals.append(_Literal(at, end, text, is_key=False))
            at = end
        elif character in "{[":
            opened.append((path, inside))
            at += 1
        elif character in "}]":
            path, inside = opened.pop()
            at += 1
        else:
            match = _CONSTANT.match(line, at)
            assert match is not None
            if inside and match.group() not in ("null", "true", "false"):
                field = next(name for name in (".".join(path[:i]) for i in range(1, len(path) + 1)) if name in names)
                raise MaskingError(
                    f"line {number}: field {field!r} holds a number; expected a string, since a number cannot be masked"
                )
            at = match.end()
        at = _skip(line, at)
    return literals


def _skip(line: str, at: int) -> int:
    """Where the next key or value begins."""
    match = _BETWEEN.match(line, at)
    assert match is not None
    return match.end()


def _skip_space(line: str, at: int) -> int:
    while line[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at


# ---- Writing


def _unchanged(line: str, edits: Sequence[Sequence[Edit]]) -> str:
    return line


def _rendered(line: str, number: int, literals: Sequence[_Literal], edits: Sequence[Sequence[Edit]]) -> str:
    changes: list[Edit] = []
    for literal, of_text in zip(literals, edits, strict=True):
        if of_text:
            raw = line[literal.start : literal.end]
            changes += [
                (literal.start + start, literal.start + end, _escaped(replacement, raw))
                for (start, end), (_, _, replacement) in zip(_raw_spans(raw, of_text), of_text, strict=True)
            ]
    new = edited(line, changes)
    if any(literal.is_key and of_text for literal, of_text in zip(literals, edits, strict=True)):
        json.loads(new, object_pairs_hook=partial(_check_keys, number))
    return new


def _check_keys(number: int, pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        raise MaskingError(
            f"line {number}: two keys of an object would be the same when masked; name the fields in it instead"
        )


def _escaped(text: str, raw: str) -> str:
    """Text for the inside of a JSON string: in ASCII if that is, or if a surrogate stands for no byte of the file."""
    ascii_only = raw.isascii() or not set(_LONE_SURROGATES.findall(text)) <= set(raw)
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]


def _raw_spans(raw: str, edits: Sequence[Edit]) -> list[tuple[int, int]]:
    """Where in a JSON string, quotes included, the edits of its text are."""
    positions = [position for start, end, _ in edits for position in (start, end)]
    found: list[int] = []
    before, raw_before = 0, 1  # in the text, and in the string: up to here they have been walked through
    escapes = _ESCAPE.finditer(raw)
    escape = next(escapes, None)
    for position in positions:
        while escape is not None and before + (escape.start() - raw_before) < position:
            before += escape.start() - raw_before + 1
            raw_before = escape.end()
            escape = next(escapes, None)
        raw_before += position - before
        before = position
        found.append(raw_before)
    return list(zip(found[::2], found[1::2], strict=True))
