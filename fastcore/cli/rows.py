"""Rows of JSON lines and Parquet files, batch by batch, and the same rows with columns added."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastcore.batches import BATCH_ROWS, Task, arrow_types, check_columns, chunked
from fastcore.errors import MissingPackageError
from fastcore.pii.text_files import TextFile

__all__ = ["FORMATS", "Rows", "RowsFile", "open_rows"]

ROW_GROUP = 1 << 16  # rows of a Parquet file that are written together


@dataclass(frozen=True)
class Rows:
    """A batch: `values` of the task's column, and the rows as they stand in the file."""

    values: list[Any]
    rows: Any


class RowsFile:
    """A file that is read and one that is written, whole where a `with` ends without an error.

    Raises ValueError for what is no row, and for rows that have a column already that would be added.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._open = ExitStack()

    def __enter__(self) -> "RowsFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._open:
            if kind is None:
                self._finish()

    def batches(self) -> Iterator[Rows]:
        raise NotImplementedError

    def write(self, rows: Any, columns: dict[str, list[Any]]) -> None:
        """The rows of a batch, in the order of the file, and what is added to each."""
        raise NotImplementedError

    def _finish(self) -> None: ...


class JsonLines(RowsFile):
    """Objects, one a line; blank lines are no rows. What is added stands at the end of a line, which else stays."""

    def __init__(self, source: Path, target: Path, task: Task) -> None:
        super().__init__(task)
        self._has_column = self._has_rows = False
        with self._open:
            self._file = TextFile(self._open.enter_context(open(source, "rb")))  # noqa: SIM115
            self._target = self._open.enter_context(open(target, "wb"))  # noqa: SIM115
            self._target.write(self._file.mark)
            self._open = self._open.pop_all()

    def batches(self) -> Iterator[Rows]:
        for chunk in chunked(self._rows(), lambda row: len(row[0])):
            yield Rows([value for _, value in chunk], [line for line, _ in chunk])

    def _rows(self) -> Iterator[tuple[str, Any]]:
        for number, line in enumerate(self._file.lines(), start=1):
            if not line.strip(" \t\r\n"):
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"is a {type(row).__name__}; expected an object")
                check_columns(self._task, [*row, self._task.column])
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} is not JSON: {error}") from None
            except RecursionError:
                raise ValueError(f"line {number} is nested too deeply") from None
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            self._has_rows = True
            self._has_column |= self._task.column in row
            yield line, row.get(self._task.column)

    def write(self, rows: Sequence[str], columns: dict[str, list[Any]]) -> None:
        for line, *values in zip(rows, *columns.values(), strict=True):
            body = line.rstrip(" \t\r\n")
            head = body[:-1].rstrip(" \t\r\n")
            comma = "" if head.endswith("{") else ", "
            added = json.dumps(dict(zip(columns, values, strict=True)), ensure_ascii=line.isascii())
            self._target.write(self._file.encode(f"{head}{comma}{added[1:]}{line[len(body) :]}"))

    def _finish(self) -> None:
        self._target.write(self._file.encode("", final=True))
        if self._has_rows and not self._has_column:
            raise ValueError(f"no row has the field {self._task.column!r}")


class Parquet(RowsFile):
    """Rows of any schema, which gets the new columns at its end."""

    def __init__(self, source: Path, target: Path, task: Task) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise MissingPackageError("Parquet files need pyarrow: pip install 'fastcore-engine[data]'") from error
        super().__init__(task)
        self._batches: list[Any] = []
        with self._open:
            try:
                self._file = self._open.enter_context(pyarrow.parquet.ParquetFile(source))
                self._schema = self._file.schema_arrow
            except pyarrow.ArrowException as error:
                raise ValueError(f"is not a Parquet file that can be read: {error}") from None
            check_columns(task, self._schema.names)
            for name, kind in arrow_types(task).items():
                self._schema = self._schema.append(pyarrow.field(name, kind))
            self._writer = self._open.enter_context(pyarrow.parquet.ParquetWriter(target, self._schema))
            self._open = self._open.pop_all()

    def batches(self) -> Iterator[Rows]:
        for batch in self._file.iter_batches(BATCH_ROWS):
            yield Rows(batch.column(self._task.column).to_pylist(), batch)

    def write(self, rows: Any, columns: dict[str, list[Any]]) -> None:
        import pyarrow

        added = [pyarrow.array(columns[name], kind) for name, kind in arrow_types(self._task).items()]
        self._batches.append(pyarrow.RecordBatch.from_arrays([*rows.columns, *added], schema=self._schema))
        if sum(batch.num_rows for batch in self._batches) >= ROW_GROUP:
            self._finish()

    def _finish(self) -> None:
        import pyarrow

        if self._batches:
            self._writer.write_table(pyarrow.Table.from_batches(self._batches), row_group_size=ROW_GROUP)
            self._batches.clear()


FORMATS: dict[str, type[RowsFile]] = {".jsonl": JsonLines, ".ndjson": JsonLines, ".parquet": Parquet}


def open_rows(source: Path, target: Path, task: Task) -> RowsFile:
    """A reader and writer by the file's name. Raises ValueError for other names, and what opening raises."""
    kind: Any = FORMATS.get(source.suffix.lower())
    if kind is None:
        raise ValueError(f"what format has it? Known by their names: {', '.join(FORMATS)}")
    return kind(source, target, task)  # type: ignore[no-any-return, unused-ignore]
