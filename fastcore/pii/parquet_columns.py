"""Columns of strings in Parquet files, rewritten; the file's schema, row groups and codecs stay. Needs pyarrow."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcore.errors import Error, MaskingError, MissingPackageError
from fastcore.pii.text_files import Edit, FieldNames, Record, edited

if TYPE_CHECKING:
    import pyarrow.parquet

__all__ = ["ParquetColumns"]


class ParquetColumns:
    """A Parquet file whose columns of strings can be masked: `records` of one row group each, `write` for the result.

    Raises MaskingError for a file that is damaged or holds what would not be written as it was read, and
    MissingPackageError without pyarrow.
    """

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise MissingPackageError("Parquet files need pyarrow: pip install 'fastcore-engine[data]'") from error
        self._path = path
        with _one_line_errors("is not a Parquet file that can be read"):
            self._file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
            self._file.scan_contents()  # before the model starts; and where this fails, metadata may abort
            self._columns = _leaves(self._file)
            self._schema = self._file.schema_arrow

    def __enter__(self) -> "ParquetColumns":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def num_rows(self) -> int:
        rows: int = self._file.metadata.num_rows
        return rows

    def records(self, fields: FieldNames) -> Iterator[Record["pyarrow.Table"]]:
        """The values of some columns of strings; a row group is a record. Null values stay null."""
        for name in fields.names:
            self._check(name)
        fields.num_records += 1
        fields.found.update(fields.names)
        for group in range(self._file.num_row_groups):
            with _one_line_errors(f"row group {group} cannot be read"):
                table = self._file.read_row_group(group)
                self._check_timestamps(group, table)
                values = {name: table.column(name).to_pylist() for name in fields.names}
            texts = [value for column in values.values() for value in column if value is not None]
            yield Record(texts, _renderer(table, values), table.num_rows)

    def write(self, tables: Iterator["pyarrow.Table"], path: Path) -> None:
        """A new file of the masked row groups. Raises MaskingError where it would not be of the same schema."""
        import pyarrow.parquet

        with (
            _one_line_errors("cannot be written"),
            pyarrow.parquet.ParquetWriter(path, self._schema, **self._writer_options()) as writer,
        ):
            for table in tables:
                writer.write_table(table, row_group_size=max(1, table.num_rows))
        with pyarrow.parquet.ParquetFile(path) as written:
            for before, after in zip(self._columns, _leaves(written), strict=True):
                if before != after:
                    raise MaskingError(
                        f"column {before[0]!r} is {' '.join(map(str, before[1:4]))} and would be written as "
                        f"{' '.join(map(str, after[1:4]))}; convert it first"
                    )

    def _check(self, name: str) -> None:
        """Raise unless there is one column of the name, of strings."""
        import pyarrow

        names = self._schema.names
        if name not in names:
            raise MaskingError(f"no column {name!r}; the columns are {', '.join(map(repr, names))}")
        if names.count(name) > 1:
            raise MaskingError(f"{names.count(name)} columns have the name {name!r}; give them names of their own")
        kind = self._schema.field(name).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if not any(is_kind(kind) for is_kind in _string_kinds()):
            raise MaskingError(f"column {name!r} holds {kind}; expected strings")

    def _writer_options(self) -> dict[str, Any]:
        metadata = self._file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        codecs: dict[str, str] = {}
        dictionaries: list[str] = []
        for index, column in enumerate(self._columns):
            name, chunks = column[0], [group.column(index) for group in groups]
            used = {"NONE" if chunk.compression == "UNCOMPRESSED" else chunk.compression for chunk in chunks}
            if len(used) > 1:
                raise MaskingError(f"column {name!r} has another codec in each row group: {', '.join(sorted(used))}")
            codec = used.pop() if used else "SNAPPY"
            if codecs.setdefault(name, codec) != codec:
                raise MaskingError(f"two columns have the name {name!r} and different codecs; rename one")
            if any(chunk.has_dictionary_page or "DICTIONARY" in str(chunk.encodings) for chunk in chunks):
                dictionaries.append(name)
        options: dict[str, Any] = {
            "compression": codecs or "SNAPPY",
            "use_dictionary": dictionaries or False,
            "version": metadata.format_version,
            "store_schema": b"ARROW:schema" in (metadata.metadata or {}),
            "use_deprecated_int96_timestamps": any(column[1] == "INT96" for column in self._columns),
            "use_compliant_nested_type": not any(".list.item" in column[0] for column in self._columns),
        }
        if any(column[1] in ("INT32", "INT64") and "Decimal" in column[2] for column in self._columns):
            options["store_decimal_as_integer"] = True
        return options

    def _check_timestamps(self, group: int, table: "pyarrow.Table") -> None:
        """INT96 holds years that nanoseconds in 64 bits do not; those would come out as others."""
        import pyarrow.parquet

        if not any(column[1] == "INT96" for column in self._columns):
            return
        with pyarrow.parquet.ParquetFile(self._path, coerce_int96_timestamp_unit="s") as file:
            seconds = file.read_row_group(group)
        if not table.cast(seconds.schema, safe=False).equals(seconds):
            raise MaskingError(f"row group {group} has INT96 times before 1678 or after 2261, which would change")


def _leaves(file: "pyarrow.parquet.ParquetFile") -> list[tuple[Any, ...]]:
    """(path, physical type, logical type, length, definition level, repetition level) of each column of the file."""
    columns = [file.schema.column(i) for i in range(len(file.schema))]
    return [
        (
            column.path, column.physical_type, str(column.logical_type), column.length,
            column.max_definition_level, column.max_repetition_level,
        )
        for column in columns
    ]  # fmt: skip


def _string_kinds() -> list[Callable[[Any], bool]]:
    import pyarrow

    kinds = [pyarrow.types.is_string, pyarrow.types.is_large_string]
    if hasattr(pyarrow.types, "is_string_view"):
        kinds.append(pyarrow.types.is_string_view)
    return kinds


@contextmanager
def _one_line_errors(what: str) -> Iterator[None]:
    """What pyarrow raises, as a MaskingError of one line."""
    import pyarrow

    try:
        yield
    except (Error, MemoryError):
        raise
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, KeyError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise MaskingError(f"{what}: {reason}") from None


def _renderer(
    table: "pyarrow.Table", values: dict[str, list[str | None]]
) -> Callable[[Sequence[Sequence[Edit]]], "pyarrow.Table"]:
    import pyarrow

    def render(edits: Sequence[Sequence[Edit]]) -> "pyarrow.Table":
        of_next, result = iter(edits), table
        for name, column in values.items():
            index = table.schema.get_field_index(name)
            field = table.schema.field(index)
            replaced = [None if value is None else edited(value, next(of_next)) for value in column]
            result = result.set_column(index, field, pyarrow.array(replaced, type=field.type))
        return result

    return render
