"""The cells of CSV files: those that Python's csv module and pandas see, or none.

A row that does not fit the header, and quotes that leave open what belongs to a cell, are a MaskingError with the line:
where a cell ends decides what is masked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fastcore.errors import MaskingError
from fastcore.pii.text_files import Edit, FieldNames, Record, TextFile, edited

__all__ = ["csv_records"]

MAX_ROW = 1 << 26  # code points; what a quote that is never closed can hold of a large file


@dataclass(frozen=True, slots=True)
class _Row:
    """A row as it stands, its line end included, and where its cells are. A blank line has none."""

    line: int
    raw: str
    cells: list[tuple[int, int]]

    def value(self, column: int) -> str:
        start, end = self.cells[column]
        cell = self.raw[start:end]
        return cell[1:-1].replace('""', '"') if cell.startswith('"') else cell


def csv_records(file: TextFile, fields: FieldNames, delimiter: str = ",", header: bool = True) -> Iterator[Record[str]]:
    """The cells of some columns, by the names in the first row; without a header row by number, from 1.

    Rows end with LF, CR or CR LF, outside quotes. Cells may be quoted, with quotes inside doubled. Blank lines are no
    rows, as in pandas. Raises MaskingError for a column that is not there, for a row of another number of cells than
    the first one, for text after a closing quote, for a quote that is never closed and for NUL.
    """
    if len(delimiter) != 1 or delimiter in '"\r\n\0':
        raise ValueError(f"the delimiter is {delimiter!r}; expected one character other than a quote or a line break")
    columns: dict[int, str] = {}
    width = 0
    after_blank = ""
    for row in _rows(file.universal_lines(), delimiter):
        if after_blank == "\r" and row.raw.startswith(delimiter):
            raise MaskingError(f"line {row.line}: an empty cell after a blank line of CR, which pandas reads otherwise")
        after_blank = "" if row.cells else row.raw
        if not row.cells:
            yield Record([], partial(_rendered, row, (), delimiter), len(row.raw))
            continue
        is_header = not width and header
        if not width:
            width, columns = len(row.cells), _columns(row, fields, header)
            fields.num_records += 1
            fields.found.update(columns.values())
        if len(row.cells) != width:
            raise MaskingError(
                f"line {row.line}: a row of {len(row.cells)} cells; expected {width}, as in the "
                f"{'header' if header else 'first row'}"
            )
        wanted = () if is_header else sorted(columns)
        yield Record([row.value(i) for i in wanted], partial(_rendered, row, wanted, delimiter), len(row.raw))
    if header and not width:
        raise MaskingError("no header row: the file is empty")


def _columns(row: _Row, fields: FieldNames, header: bool) -> dict[int, str]:
    """index -> name of the wanted columns; each that has the name, where several have."""
    if not header:
        wrong = [name for name in fields.names if not (name.isascii() and name.isdecimal() and int(name) > 0)]
        if wrong:
            raise ValueError(f"column {wrong[0]!r}: without a header, columns are given by number, from 1")
        columns = {int(name) - 1: name for name in fields.names}
        beyond = [name for index, name in columns.items() if index >= len(row.cells)]
        if beyond:
            raise MaskingError(f"no record has the field {beyond[0]!r}: the first row has {len(row.cells)} cells")
        return columns
    names = [row.value(i) for i in range(len(row.cells))]
    missing = [name for name in fields.names if name not in names]
    if missing:
        raise MaskingError(f"no column {', '.join(map(repr, missing))}; the columns are {', '.join(map(repr, names))}")
    return {i: name for i, name in enumerate(names) if name in fields.names}


def _rendered(row: _Row, columns: Sequence[int], delimiter: str, edits: Sequence[Sequence[Edit]]) -> str:
    cells = []
    for column, changes in zip(columns, edits, strict=True):
        if changes:
            start, end = row.cells[column]
            new = edited(row.value(column), changes)
            quoted = row.raw.startswith('"', start) or _needs_quotes(new, delimiter, alone=len(row.cells) == 1)
            cells.append((start, end, '"' + new.replace('"', '""') + '"' if quoted else new))
    return edited(row.raw, cells)


def _needs_quotes(text: str, delimiter: str, alone: bool) -> bool:
    """Whether a cell would be read otherwise without quotes. The only one of a row must not make a blank line."""
    if alone and not text.strip(" \t"):
        return True
    return text.startswith('"') or any(character in text for character in (delimiter, "\r", "\n"))


def _rows(lines: Iterator[str], delimiter: str) -> Iterator[_Row]:
    numbered = _numbered(lines)
    for first, line in numbered:
        number, read = first, [line]  # the row's lines; `line` is the last of them
        base = 0  # where it begins in the row
        stop = len(line.rstrip("\r\n"))  # where its content ends
        cells: list[tuple[int, int]] = []
        at = 0
        while stop or base:
            start = base + at
            if line.startswith('"', at):
                opened, at = number, line.find('"', at + 1)
                while at < 0 or line.startswith('"', at + 1):
                    if at >= 0:
                        at = line.find('"', at + 2)
                        continue
                    base += len(line)
                    number, line = next(numbered, (number, ""))
                    if not line or base > MAX_ROW:
                        raise MaskingError(f"line {opened}: a quote is never closed")
                    read.append(line)
                    stop = len(line.rstrip("\r\n"))
                    at = line.find('"')
                at += 1
                if at < stop and line[at] != delimiter:
                    raise MaskingError(
                        f"line {number}: text after a closing quote; expected {delimiter!r}, or the quote doubled"
                    )
            else:
                at = line.find(delimiter, at)
                at = stop if at < 0 else at
            cells.append((start, base + at))
            if at >= stop:
                break
            at += 1
        yield _Row(first, "".join(read), cells)


def _numbered(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise MaskingError(f"line {number}: a NUL, where readers do not agree on what the cell is")
        yield number, line
