"""Texts inside files: lines, JSON lines, CSV and Parquet. Whatever else a file holds stays as it stands, byte for byte.

Each reader yields Records in order, as it reads. A wanted field that no record has is an error, since it would leave
unmasked what was meant to be masked.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from fastcore.errors import MissingPackageError

if TYPE_CHECKING:
    import pyarrow.parquet

__all__ = [
    "FieldNames",
    "Record",
    "csv_records",
    "document",
    "json_records",
    "line_records",
    "open_parquet",
    "parquet_records",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Record(Generic[T]):
    """A part of a file, and the texts in it. `render` gives the part with other texts in place of its own.

    size: how much of the file it is, in code points (of Parquet: in rows).
    """

    texts: list[str]
    render: Callable[[Sequence[str]], T]
    size: int


@dataclass
class FieldNames:
    """The names of the fields whose texts are wanted, and how many records had each."""

    names: Sequence[str]
    found: Counter[str] = field(default_factory=Counter)

    def check(self, where: str) -> None:
        """Every field must have been in some record of the file."""
        missing = [name for name in self.names if not self.found[name]]
        if missing:
            raise ValueError(
                f"{where}: no record has the field {' or '.join(map(repr, missing))}; nothing of it was masked"
            )


# ---- Plain text


def line_records(file: IO[str]) -> Iterator[Record[str]]:
    """Each line is a text, up to its line feed. `file` must not translate newlines."""
    for line in file:
        text, ending = (line[:-1], "\n") if line.endswith("\n") else (line, "")
        yield Record([text], partial(_line, ending), len(line))


def _line(ending: str, texts: Sequence[str]) -> str:
    return texts[0] + ending


def document(file: IO[str]) -> Iterator[Record[str]]:
    """The whole file is one text."""
    text = file.read()
    yield Record([text], lambda texts: texts[0], len(text))


def _replaced(raw: str, spans: Sequence[tuple[int, int]], values: Sequence[str]) -> str:
    parts, position = [], 0
    for (start, end), value in zip(spans, values, strict=True):
        parts += [raw[position:start], value]
        position = end
    return "".join(parts) + raw[position:]


# ---- JSON lines

_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_JSON_OTHER = re.compile(r"[^\s,\]}]+")
_JSON_SPACE = re.compile(r"[ \t\r\n]*")
_UNWRITABLE = re.compile("[\ud800-\udbff\udd00-\udfff]")  # lone surrogates but for those that stand for bytes


def json_records(file: IO[str], fields: FieldNames) -> Iterator[Record[str]]:
    """The strings of some fields of each line's JSON value; blank lines have none.

    A field is a key, or keys joined by dots; lists on the way are gone through, and of an object or a list in the field
    itself, all strings are taken. Raises ValueError for a line that is not JSON, and for a number in a field: it may
    well be a phone number, and cannot be masked.
    """
    paths = {name: (tuple(name.split(".")), (name,)) for name in fields.names}
    for number, line in enumerate(file, start=1):
        spans: list[tuple[int, int]] = []
        texts: list[str] = []
        for path, start, end in _json_scalars(line, number):
            names = {name for name, ways in paths.items() if any(path[: len(way)] == way for way in ways)}
            fields.found.update(names)
            if not names or line[start:end] in ("null", "true", "false"):
                continue
            if line[start] != '"':
                raise ValueError(
                    f"line {number}: field {min(names)!r} holds the number {line[start:end]}; expected a string, since "
                    "a number cannot be masked"
                )
            spans.append((start, end))
            texts.append(json.loads(line[start:end]))
        yield Record(texts, _json_renderer(line, spans, texts), len(line))


def _json_renderer(line: str, spans: list[tuple[int, int]], texts: list[str]) -> Callable[[Sequence[str]], str]:
    def literal(span: tuple[int, int], old: str, new: str) -> str:
        before = line[slice(*span)]
        if new == old:
            return before
        return json.dumps(new, ensure_ascii=before.isascii() or _UNWRITABLE.search(new) is not None)

    return lambda new: _replaced(line, spans, list(map(literal, spans, texts, new)))


def _json_scalars(line: str, number: int) -> list[tuple[tuple[str, ...], int, int]]:
    """(keys that lead to it, start, end) of everything in a line of JSON that is no object or list."""
    if not line.strip():
        return []
    try:
        json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number} is not JSON: {error}") from None
    found: list[tuple[tuple[str, ...], int, int]] = []

    def skip_space(at: int) -> int:
        match = _JSON_SPACE.match(line, at)
        assert match is not None
        return match.end()

    def scan(at: int, path: tuple[str, ...]) -> int:
        if line[at] in "{[":
            is_object = line[at] == "{"
            at = skip_space(at + 1)
            while line[at] not in "}]":
                key = path
                if is_object:
                    match = _JSON_STRING.match(line, at)
                    assert match is not None
                    key = (*path, json.loads(match.group()))
                    at = skip_space(skip_space(match.end()) + 1)
                at = skip_space(scan(at, key))
                if line[at] == ",":
                    at = skip_space(at + 1)
            return at + 1
        match = (_JSON_STRING if line[at] == '"' else _JSON_OTHER).match(line, at)
        assert match is not None
        found.append((path, at, match.end()))
        return match.end()

    scan(skip_space(0), ())
    return found


# ---- CSV

_TO_CLOSING_QUOTE = re.compile(r'[^"]*(?:""[^"]*)*"(?!")')


def csv_records(file: IO[str], fields: FieldNames, delimiter: str = ",", header: bool = True) -> Iterator[Record[str]]:
    """The cells of some columns, by the names in the first row; without a header row by number, from 1.

    Cells may be quoted, with quotes inside doubled, and quoted ones may have line breaks. `file` must not translate
    newlines. Raises ValueError for a column that the header does not have and for a quote that is never closed.
    """
    rows = _csv_rows(file, delimiter)
    if header:
        raw, cells = next(rows, ("", []))
        names = [_csv_value(raw[start:end]).removeprefix("\ufeff") for start, end in cells]
        missing = [name for name in fields.names if name not in names]
        if missing:
            raise ValueError(
                f"no column {', '.join(map(repr, missing))}; the columns are {', '.join(map(repr, names))}"
            )
        columns = {i: name for i, name in enumerate(names) if name in fields.names}
        yield Record([], partial(_replaced, raw, ()), len(raw))
    else:
        wrong = [name for name in fields.names if not name.isdecimal() or int(name) < 1]
        if wrong:
            raise ValueError(f"column {wrong[0]!r}: without a header, columns are given by number, from 1")
        columns = {int(name) - 1: name for name in fields.names}
    for raw, cells in rows:
        here = [i for i in sorted(columns) if i < len(cells)]
        fields.found.update({columns[i] for i in here})
        spans = [cells[i] for i in here]
        texts = [_csv_value(raw[start:end]) for start, end in spans]
        yield Record(texts, _csv_renderer(raw, spans, texts, delimiter), len(raw))


def _csv_renderer(
    raw: str, spans: list[tuple[int, int]], texts: list[str], delimiter: str
) -> Callable[[Sequence[str]], str]:
    def cell(span: tuple[int, int], old: str, new: str) -> str:
        before = raw[slice(*span)]
        if new == old:
            return before
        if before.startswith('"') or any(character in new for character in (delimiter, '"', "\r", "\n")):
            return '"' + new.replace('"', '""') + '"'
        return new

    return lambda new: _replaced(raw, spans, list(map(cell, spans, texts, new)))


def _csv_rows(file: IO[str], delimiter: str) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Each row as it stands, its line break included, and where its cells are."""
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ValueError(f"the delimiter is {delimiter!r}; expected one character other than a quote or a line break")
    plain = re.compile(f"[^{re.escape(delimiter)}\n]*")
    raw, cells, start, in_quotes = "", [], 0, False
    for line in file:
        at = len(raw)
        raw += line
        while True:
            if not in_quotes and at == start and raw.startswith('"', at):
                in_quotes, at = True, at + 1
            if in_quotes:
                closing = _TO_CLOSING_QUOTE.match(raw, at)
                if closing is None:
                    break  # it goes on in the next line
                in_quotes, at = False, closing.end()
            rest = plain.match(raw, at)
            assert rest is not None
            at = rest.end()
            if raw.startswith(delimiter, at):
                cells.append((start, at))
                start = at = at + 1
                continue
            cells.append((start, at - 1 if raw.endswith("\r\n") and at > start else at))
            yield raw, cells
            raw, cells, start = "", [], 0
            break
    if raw:
        raise ValueError(f"a quote is never closed; it opens the cell {raw[start : start + 40]!r}")


def _csv_value(cell: str) -> str:
    if not cell.startswith('"'):
        return cell
    closing = _TO_CLOSING_QUOTE.match(cell, 1)
    assert closing is not None
    return cell[1 : closing.end() - 1].replace('""', '"') + cell[closing.end() :]


# ---- Parquet


def open_parquet(path: Path) -> "pyarrow.parquet.ParquetFile":
    """A Parquet file, to be closed by the caller. Raises MissingPackageError without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackageError("Parquet files need pyarrow: pip install 'fastcore-engine[data]'") from error
    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from None


def parquet_records(file: "pyarrow.parquet.ParquetFile", fields: FieldNames) -> Iterator[Record["pyarrow.Table"]]:
    """The values of some columns of strings; a row group is a record. Null values stay null."""
    import pyarrow

    schema = file.schema_arrow
    for name in fields.names:
        if name not in schema.names:
            raise ValueError(f"no column {name!r}; the columns are {', '.join(map(repr, schema.names))}")
        kind = schema.field(name).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
            raise ValueError(f"column {name!r} holds {kind}; expected strings")
        fields.found[name] += 1
    for group in range(file.num_row_groups):
        table = file.read_row_group(group)
        values = {name: table.column(name).to_pylist() for name in fields.names}
        texts = [value for column in values.values() for value in column if value is not None]
        yield Record(texts, _parquet_renderer(table, values), table.num_rows)


def _parquet_renderer(table: Any, values: dict[str, list[str | None]]) -> Callable[[Sequence[str]], Any]:
    import pyarrow

    def render(texts: Sequence[str]) -> Any:
        new, result = iter(texts), table
        for name, column in values.items():
            index = table.schema.get_field_index(name)
            replaced = [None if value is None else next(new) for value in column]
            array = pyarrow.array(replaced, type=table.schema.field(index).type)
            result = result.set_column(index, table.schema.field(index), array)
        return result

    return render
