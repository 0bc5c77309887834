"""Files with planted texts, masked by a classifier that labels those and nothing else."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastcore.pii.masking import MaskingRules
from fastcore.pii.record_masking import RecordMasker
from fastcore.pii.spans import Entity
from fastcore.pii.text_files import FieldNames, TextFile

__all__ = ["MASKED", "PIECES", "PLANTED", "classify", "decoded", "masked", "masked_parquet", "rows_of"]

PLANTED = "Zoë-Nguyễn"  # labelled wherever it stands
MASKED = "[NAME]"
PIECES = [
    *(PLANTED, "x", "1", "é", "😀", "'", "\\", '"', '""', ",", ";", " ", "\t", "\n", "\r", "\r\n"),
    "\u2028",
    "\x0b",
    "\ufeff",
]


def classify(texts: Iterable[str]) -> Iterator[Any]:
    """Labels what is planted, exactly."""
    for text in texts:
        entities = []
        at = text.find(PLANTED)
        while at >= 0:
            entities.append(Entity("name", at, at + len(PLANTED), PLANTED, 1.0))
            at = text.find(PLANTED, at + len(PLANTED))
        yield SimpleNamespace(mask=lambda rules, mapping, t=text, e=entities: rules.mask(t, e, mapping))


def masked(raw: bytes, records: Callable[..., Iterator[Any]], encoding: str = "utf-8", **options: Any) -> bytes:
    """The file masked, or MaskingError. options: `fields`, and those of the reader."""
    file, fields = TextFile(io.BytesIO(raw), encoding), FieldNames(options.pop("fields", ()))
    read = records(file, fields, **options) if fields.names else records(file)
    parts = [file.encode(part) for part in RecordMasker(MaskingRules()).masked(read, classify, lambda size: None)]
    fields.check()
    return b"".join([file.mark, *parts, file.encode("", final=True)])


def masked_parquet(source: Path, target: Path, fields: list[str]) -> None:
    """A Parquet file masked into another, or MaskingError."""
    from fastcore.pii.parquet_columns import ParquetColumns

    with ParquetColumns(source) as file:
        tables = RecordMasker(MaskingRules()).masked(file.records(FieldNames(fields)), classify, lambda size: None)
        file.write(tables, target)


def decoded(raw: bytes, encoding: str = "utf-8") -> str:
    """The text after its byte order mark, bytes that are none as surrogates."""
    text = raw.decode(encoding, "surrogateescape")
    return text.removeprefix("\ufeff") if encoding in ("utf-8", "utf-16-le", "utf-16-be") else text


def rows_of(raw: bytes, encoding: str = "utf-8", **dialect: Any) -> list[list[str]]:
    """What Python's csv sees, without blank lines."""
    text = decoded(raw, encoding)
    return [row for row in csv.reader(io.StringIO(text, newline=""), **dialect) if row]
