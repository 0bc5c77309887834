"""Readers of files to be masked: what is accepted agrees with Python's csv and json and with pyarrow."""

import csv
import io
import json
import os
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from planted import MASKED, PIECES, PLANTED, decoded, masked, masked_parquet, rows_of

from fastcore.pii.csv_cells import csv_records
from fastcore.pii.json_lines import json_records
from fastcore.pii.text_files import document, line_records
from fuzz.mutate import json_bytes, mutate_bytes, mutate_json
from fuzz.reader import READERS, Reader

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    pyarrow = None

ENCODINGS = (
    "utf-8",
    "utf-8",
    "utf-8",
    "utf-8-sig",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "utf-32",
    "latin-1",
    "cp1252",
    "cp932",
)
DELIMITERS = ",,,;\t|"
WORDS = [*PIECES, PLANTED, PLANTED, "\0", "\ud83d", "\udce9", "[", "]", "{", "}", ":", "null", "a", "b"]


def text_of(rng: random.Random, longest: int) -> str:
    return "".join(rng.choices(WORDS, k=rng.randint(0, longest)))


def encoded(text: str, encoding: str, rng: random.Random) -> bytes:
    raw = text.encode(encoding, "replace" if encoding in ("latin-1", "cp1252", "cp932") else "surrogatepass")
    return mutate_bytes(raw, rng) if rng.random() < 0.3 else raw


def change(text: str) -> str:
    return text.replace(PLANTED, MASKED)


# ---------------------------------------------------------------- text


def make_text(rng: random.Random) -> bytes:
    choice = rng.randrange(len(ENCODINGS))
    return bytes([choice]) + encoded(text_of(rng, 12), ENCODINGS[choice], rng)


def read_text(case: bytes) -> None:
    encoding, raw = ENCODINGS[case[0] % len(ENCODINGS)], case[1:]
    for records in (document, line_records):
        out = masked(raw, records, encoding)
        assert decoded(out, encoding) == change(decoded(raw, encoding))


# ---------------------------------------------------------------- CSV


def make_csv(rng: random.Random) -> bytes:
    """(encoding, delimiter, whether with a header), then a table: as the csv module writes it, or a text like one."""
    choice, which, header = rng.randrange(len(ENCODINGS)), rng.randrange(len(DELIMITERS)), rng.random() < 0.7
    delimiter = DELIMITERS[which]
    if rng.random() < 0.5:
        width = rng.randint(1, 4)
        rows = [[text_of(rng, 4) for _ in range(width)] for _ in range(rng.randint(0, 5))]
        buffer = io.StringIO(newline="")
        writer = csv.writer(
            buffer,
            delimiter=delimiter,
            quoting=rng.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]),
            doublequote=(double := rng.random() < 0.9),
            escapechar=None if double else "\\",
            lineterminator=rng.choice(["\n", "\r\n", "\r"]),
        )
        writer.writerows([["b", *"acd"[: width - 1]], *rows] if header else rows)
        text = buffer.getvalue()
    else:
        text = (f"a{delimiter}b\n" if header else "") + "".join(
            rng.choices([*WORDS, *2 * ["\n", "\r", delimiter, delimiter]], k=rng.randint(0, 16))
        )
    return bytes([choice, which, header]) + encoded(text, ENCODINGS[choice], rng)


def read_csv(case: bytes) -> None:
    encoding, delimiter, header, raw = ENCODINGS[case[0]], DELIMITERS[case[1]], bool(case[2]), case[3:]
    field = "b" if header else "1"
    out = masked(raw, csv_records, encoding, fields=[field], delimiter=delimiter, header=header)
    before, after = rows_of(raw, encoding, delimiter=delimiter), rows_of(out, encoding, delimiter=delimiter)
    first = before[0] if before else []
    wanted = {i for i, name in enumerate(first) if name == field} if header else {0}
    expected = [[change(cell) if i in wanted else cell for i, cell in enumerate(row)] for row in before]
    assert after == ([first, *expected[1:]] if header else expected)
    assert len({len(row) for row in before}) <= 1


# ---------------------------------------------------------------- JSON lines


def make_jsonl(rng: random.Random) -> bytes:
    lines = []
    for _ in range(rng.randint(0, 4)):
        if rng.random() < 0.8:
            value: Any = {
                "a": text_of(rng, 4),
                "b": [{"a": PLANTED, PLANTED: 1}],
                "c": {"a.b": [text_of(rng, 3)], "n": 1.5},
            }
            lines.append(json_bytes(mutate_json(value, rng, names=("a", "b", "c", "a.b", PLANTED)), rng))
        else:
            lines.append(text_of(rng, 6).encode("utf-8", "surrogatepass"))
    raw = rng.choice([b"\n", b"\n", b"\r\n", b"\r", b"\n\n"]).join(lines)
    return rng.choice([b"", b"", b"\xef\xbb\xbf"]) + (mutate_bytes(raw, rng) if rng.random() < 0.1 else raw)


def read_jsonl(case: bytes) -> None:
    try:
        out = masked(case, json_records, fields=["a"])
    except RecursionError:
        raise AssertionError("nesting") from None
    before, after = ([line for line in decoded(raw, "utf-8").split("\n") if line.strip()] for raw in (case, out))
    assert len(before) == len(after)
    for one, two in zip(before, after, strict=True):
        expected = json.loads(one, object_pairs_hook=lambda pairs: pairs)
        assert repr(json.loads(two, object_pairs_hook=lambda pairs: pairs)) == repr(masked_json(expected, ()))


def masked_json(value: Any, path: tuple[str, ...]) -> Any:
    """A value, whose objects are lists of pairs, as it should come out: masked in the field `a`."""
    inside = path[:1] == ("a",)
    if isinstance(value, str):
        return change(value) if inside else value
    if isinstance(value, list):
        return [masked_json(item, path) for item in value]
    if isinstance(value, tuple):
        key, item = value
        return (change(key) if inside else key, masked_json(item, (*path, key)))
    return value


# ---------------------------------------------------------------- Parquet


@cache
def parquet_files() -> list[bytes]:
    texts = [PLANTED, None, "x", f"{PLANTED} é"]
    files = []
    for kind, options in (
        (pyarrow.string(), {}), (pyarrow.large_string(), {"compression": "GZIP", "data_page_version": "2.0"}),
        (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), {"compression": "NONE"}),
        (pyarrow.string(), {"use_dictionary": False, "row_group_size": 3, "compression": "ZSTD"}),
    ):  # fmt: skip
        table = pyarrow.table({"t": pyarrow.array(texts, kind), "n": [1, 2, None, 4], "l": [["a"], None, [], ["b"]]})
        sink = io.BytesIO()
        pyarrow.parquet.write_table(table, sink, **options)
        files.append(sink.getvalue())
    return files


@cache
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fastcore-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))


def make_parquet(rng: random.Random) -> bytes:
    files = parquet_files()
    return mutate_bytes(rng.choice(files), rng, others=files) if rng.random() < 0.98 else rng.choice(files)


def read_parquet(case: bytes) -> None:
    source, target = folder() / "in.parquet", folder() / "out.parquet"
    source.write_bytes(case)
    masked_parquet(source, target, ["t"])
    before, after = (pyarrow.parquet.ParquetFile(path) for path in (source, target))
    assert before.schema.equals(after.schema)
    for group in range(before.num_row_groups):
        one, two = before.read_row_group(group), after.read_row_group(group)
        assert [value and change(value) for value in one.column("t").to_pylist()] == two.column("t").to_pylist()
        assert one.drop_columns("t").equals(two.drop_columns("t"))


READERS["mask_text"] = Reader(make_text, read_text)
READERS["mask_csv"] = Reader(make_csv, read_csv)
READERS["mask_jsonl"] = Reader(make_jsonl, read_jsonl)
if pyarrow is not None:
    READERS["mask_parquet"] = Reader(make_parquet, read_parquet)
