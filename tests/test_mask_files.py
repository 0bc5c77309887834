"""What `fastcore mask` reads of a file is what Python's csv and json read; else nothing is written."""

import codecs
import csv
import datetime
import io
import json
import random
import re
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest
from planted import MASKED, PIECES, PLANTED, classify, masked, masked_parquet, rows_of

from fastcore.errors import MaskingError
from fastcore.pii.csv_cells import csv_records
from fastcore.pii.json_lines import json_records
from fastcore.pii.masking import MaskingRules
from fastcore.pii.record_masking import RecordMasker
from fastcore.pii.text_files import FieldNames, TextFile, document, line_records

# ---------------------------------------------------------------- CSV


@pytest.mark.fault("B1")
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("header", [b'"name",notes', b'"na""me","no,tes"', b'name,"notes"', b'"name","notes"'])
def test_a_mark_goes_before_quoting_is_read(mark: bytes, header: bytes) -> None:
    raw = mark + header + b'\r\n"Zo\xc3\xab-Nguy\xe1\xbb\x85n",x\r\n'
    first = rows_of(raw)[0][0]
    out = masked(raw, csv_records, fields=[first])
    assert out == raw.replace(PLANTED.encode(), MASKED.encode())
    assert masked(raw, csv_records, fields=[rows_of(raw)[0][1]]) == raw


@pytest.mark.fault("B1")
def test_without_a_header_the_first_row_is_masked_after_a_mark() -> None:
    for quote in ("", '"'):
        raw = (
            f"\ufeff{quote}{PLANTED}{quote},{quote}a, b{quote}\n".encode() if quote else f"\ufeff{PLANTED},a\n".encode()
        )
        out = masked(raw, csv_records, fields=["1"], header=False)
        assert out == raw.replace(PLANTED.encode(), MASKED.encode())


@pytest.mark.fault("B2")
@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("id,notes\n1,Call Anna, Berlin 555\n", "line 2: a row of 3 cells; expected 2, as in the header"),
        ("id,notes\n1,x\n\n2,Call Anna,\n", "line 4: a row of 3 cells; expected 2"),
        ("id,notes\n1,Call Anna\nBerlin 555\n", "line 3: a row of 1 cells; expected 2"),
        ('id,notes\n1,"a\nb"\n2\n', "line 4: a row of 1 cells; expected 2"),
        ("id,notes\r1,Anna\rBerlin\r", "line 3: a row of 1 cells; expected 2"),
        ("id,notes\n1,x\n  \n", "line 3: a row of 1 cells; expected 2"),
        ('id,notes\n1,"call Anna\n2,x\n', "line 2: a quote is never closed"),
        ('id,notes\n1,"call" Anna\n', "line 2: text after a closing quote; expected ',', or the quote doubled"),
        ('id,notes\n1,"call \\"Anna\\" now"\n', "line 2: text after a closing quote"),
        ('id,notes\n1,"call Anna" \n', "line 2: text after a closing quote"),
        ('id,notes\n1, "call, Anna"\n', "line 2: a row of 3 cells"),
        ("id,notes\n1,call\0 Anna\n", "line 2: a NUL"),
        ("", "no header row"),
        ("\n\n", "no header row"),
        ("id;notes\n1;Anna\n", "no column 'notes'; the columns are 'id;notes'"),
    ],
)
def test_rows_that_do_not_fit_are_refused(table: str, message: str) -> None:
    with pytest.raises(MaskingError, match=message):
        masked(table.encode(), csv_records, fields=["notes"])


@pytest.mark.fault("B2")
def test_without_a_header_rows_must_be_as_the_first() -> None:
    with pytest.raises(MaskingError, match="line 2: a row of 1 cells; expected 2, as in the first row"):
        masked(b"a,b\nc\n", csv_records, fields=["1"], header=False)
    with pytest.raises(MaskingError, match="no record has the field '3': the first row has 2 cells"):
        masked(b"a,b\n", csv_records, fields=["3"], header=False)


@pytest.mark.fault("B2")
@pytest.mark.parametrize(
    "table",
    [
        "name,notes\nBOB,555\rANN,{0}\rDAN,888\n",
        "name,notes\r\nBOB,{0}\r\rANN,x\n\r\nDAN,\n",
        'name,notes\r"a\rb","{0}\r"\r',
        "name,notes\nx\x0b,{0}\u2028y\x85\nx,\x1c{0}\n",
        'name,notes\nx"y,{0} "q", no\n'.replace(", no", " no"),
        "\n\nname,notes\n\n1,{0}",
        "notes,notes\n{0},{0}\n",
        'notes,\n"",{0}\n"{0}",\n',
    ],
)
def test_rows_are_those_of_the_csv_module(table: str) -> None:
    raw = table.format(PLANTED).encode()
    before, after = rows_of(raw), rows_of(masked(raw, csv_records, fields=["notes"]))
    wanted = [i for i, name in enumerate(before[0]) if name == "notes"]
    assert after == [[c.replace(PLANTED, MASKED) if i in wanted else c for i, c in enumerate(row)] for row in before]


@pytest.mark.fault("B2")
def test_a_masked_cell_stays_a_cell() -> None:
    """A redacted cell must make no blank line of a row, and a replacement no quote or delimiter."""
    for text, operator, expected in (
        (f"{PLANTED}\nx\n", "", '""\nx\n'),
        (f"{PLANTED} \nx\n", "", '" "\nx\n'),
        (f"{PLANTED}\nx\n", '"', '""""\nx\n'),
        (f'{PLANTED}"\nx\n', "", '""""\nx\n'),
        (f"{PLANTED}\nx\n", "a,b", '"a,b"\nx\n'),
        (f"{PLANTED}\nx\n", "a\rb", '"a\rb"\nx\n'),
    ):
        file, fields = TextFile(io.BytesIO(text.encode())), FieldNames(["1"])
        masker = RecordMasker(MaskingRules(lambda entity, new=operator: new))
        out = "".join(masker.masked(csv_records(file, fields, header=False), classify, lambda size: None))
        assert out == expected
        assert len(rows_of(out.encode())) == 2


def test_a_quote_that_is_never_closed_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastcore.pii.csv_cells.MAX_ROW", 1000)
    lines = iter(["a,b\n", '1,"x\n', *["y" * 99 + "\n"] * 100])
    file = SimpleNamespace(universal_lines=lambda: lines)
    with pytest.raises(MaskingError, match="line 2: a quote is never closed"):
        list(csv_records(file, FieldNames(["a"])))  # type: ignore[arg-type]
    assert len(list(lines)) > 80


@pytest.mark.fault("B1")
@pytest.mark.fault("B2")
@pytest.mark.parametrize("seed", range(8))
def test_random_tables_as_written_by_the_csv_module(seed: int) -> None:
    """No planted text of a wanted column is left, and nothing else changes, byte for byte."""
    rng = random.Random(seed)
    num_tables = 0
    for _ in range(150):
        width = rng.randint(1, 4)
        header = [f"c{i}" + rng.choice(["", " ", ",", '"', "\n"]) for i in range(width)]
        table = [header] + [
            ["".join(rng.choices(PIECES, k=rng.randint(0, 5))) for _ in range(width)] for _ in range(rng.randint(0, 5))
        ]
        wanted = set(rng.sample(range(width), rng.randint(1, width)))
        dialect = {
            "delimiter": rng.choice(",;\t|"),
            "quoting": rng.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]),
            "lineterminator": rng.choice(["\n", "\r\n", "\r"]),
        }
        encoding = rng.choice(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])

        def written(rows: list[list[str]], dialect=dialect, encoding=encoding) -> bytes:
            buffer = io.StringIO(newline="")
            csv.writer(buffer, **dialect).writerows(rows)
            return buffer.getvalue().encode(encoding)

        raw = written(table)
        if rows_of(raw, encoding, delimiter=dialect["delimiter"]) != table:
            continue  # Python's writer leaves a line break without quotes that is not its own
        num_tables += 1
        out = masked(raw, csv_records, encoding, fields=[header[i] for i in wanted], delimiter=dialect["delimiter"])
        expected = [header] + [
            [cell.replace(PLANTED, MASKED) if i in wanted else cell for i, cell in enumerate(row)] for row in table[1:]
        ]
        assert out == written(expected)
    assert num_tables > 100


@pytest.mark.fault("B2")
@pytest.mark.parametrize("seed", range(8))
def test_random_text_as_csv(seed: int) -> None:
    """Of text that no writer made, the csv module sees the same rows, but for what is masked; or it is refused."""
    rng = random.Random(100 + seed)
    num_masked = 0
    for _ in range(1500):
        body = "".join(rng.choices([*PIECES, ",", ",", "\n", "\n", PLANTED], k=rng.randint(0, 14)))
        raw = ("a,b\n" + body).encode()
        try:
            out = masked(raw, csv_records, fields=["b"])
        except MaskingError:
            continue
        num_masked += out != raw
        before = rows_of(raw)
        assert rows_of(out) == [[row[0], row[1].replace(PLANTED, MASKED)] for row in before]
    assert num_masked > 20


# ---------------------------------------------------------------- JSON lines


def test_strings_are_changed_in_place() -> None:
    """Escapes, surrogate pairs and lone surrogates of what is not masked stay as they were written."""
    for before, after in (
        (rf'"\u0058 {PLANTED}\/\"\\ "', rf'"\u0058 {MASKED}\/\"\\ "'),
        (r'"Zo\u00eb-Nguy\u1ec5n\t\ud83d\ude00"', rf'"{MASKED}\t\ud83d\ude00"'),
        (rf'"\ud83d\ude00😀\ud83d{PLANTED}\ude00\udce9"', rf'"\ud83d\ude00😀\ud83d{MASKED}\ude00\udce9"'),
        (rf'"\\u0041{PLANTED}\\{PLANTED}\n"', rf'"\\u0041{MASKED}\\{MASKED}\n"'),
        ('"a\x7f\u2028\x85' + PLANTED + '"', '"a\x7f\u2028\x85' + MASKED + '"'),
    ):
        line = f'\t{{"a" :1e5, "t"\r: {before} , "u":{before}}}\r\n'
        assert masked(line.encode(), json_records, fields=["t"]).decode() == line.replace(before, after, 1)


@pytest.mark.fault("B4")
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n \t\n\r\n"])
def test_marks_blank_lines_and_ends_stay(mark: bytes, end: bytes) -> None:
    line = b'{"t": "%s"}'
    raw = mark + end + line % PLANTED.encode() + b"\n" + line % b"x" + end
    assert masked(raw, json_records, fields=["t"]) == raw.replace(PLANTED.encode(), MASKED.encode())
    assert masked(mark + end, json_records, fields=["t"]) == mark + end


@pytest.mark.parametrize(
    ("line", "fields", "expected"),
    [
        ('{"a": {"b": "P"}, "b": "P"}', ["a.b"], '{"a": {"b": "N"}, "b": "P"}'),
        ('{"a": [[{"b": "P"}], {"b": ["P", {"c": "P"}]}]}', ["a.b"], '{"a": [[{"b": "N"}], {"b": ["N", {"c": "N"}]}]}'),
        ('[{"a": "P"}, "P"]', ["a"], '[{"a": "N"}, "P"]'),
        ('{"a.b": {"c": "P"}, "a": {"b.c": "P", "b": {"c": "P"}}}', ["a.b.c"],
         '{"a.b": {"c": "N"}, "a": {"b.c": "N", "b": {"c": "N"}}}'),
        ('{"a": "P", "a": "P", "\\u0061": "P"}', ["a"], '{"a": "N", "a": "N", "\\u0061": "N"}'),
        ('{"a": {"P": 0, "x": "P"}, "P": "P"}', ["a.x"], '{"a": {"P": 0, "x": "N"}, "P": "P"}'),
        ('{"a": {"P": null, "x": "P"}}', ["a"], '{"a": {"N": null, "x": "N"}}'),
        ('{"a": {"P": {"P": "P"}}}', ["a"], '{"a": {"N": {"N": "N"}}}'),
        ('{"a": null, "": "P", "b": {}, "c": []}', ["a", "", "b", "c"], '{"a": null, "": "N", "b": {}, "c": []}'),
        ('{"a": NaN, "b": -Infinity, "t": "P"}', ["t"], '{"a": NaN, "b": -Infinity, "t": "N"}'),
    ],
)  # fmt: skip
def test_fields_of_json(line: str, fields: list[str], expected: str) -> None:
    out = masked(line.replace("P", PLANTED).encode(), json_records, fields=fields).decode()
    assert out == re.sub(r"\bN\b", MASKED, expected).replace("P", PLANTED)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"t": 5550100}', "line 2: field 't' holds a number; expected a string"),
        ('{"t": ["x", {"y": NaN}]}', "line 2: field 't' holds a number"),
        ('{"t": 1, "t": "x"}', "line 2: field 't' holds a number"),
        ('{"t": "x"} {"t": "P"}', "line 2 is not JSON: Extra data"),
        ('{"t": "x"}\r{"t": "P"}', "line 2 is not JSON: Extra data"),
        ('{"t": "x\ty"}', "line 2 is not JSON: Invalid control character"),
        ('{"t": "x\0y"}', "line 2 is not JSON: Invalid control character"),
        ('\ufeff{"t": "x"}', "line 2 is not JSON: Unexpected UTF-8 BOM"),
        ("{'t': 'x'}", "line 2 is not JSON"),
        ('{"t": "x",}', "line 2 is not JSON"),
        ('{"u": ' + "7" * 5000 + "}", "line 2 is not JSON: a number of too many digits"),
        ('{"u": ' + "[" * 100000 + "]" * 100000 + "}", "line 2 is not JSON that can be read: nested too deeply"),
        ('{"t": {"P": 1, "PP": 2}}', "line 2: field 't' holds a number"),
        ('{"t": {"P": "x", "[NAME]": "y"}}', "line 2: two keys of an object would be the same when masked"),
        ("\u00a0", "line 2 is not JSON"),
    ],
)
def test_json_that_is_refused(line: str, message: str) -> None:
    raw = '{"t": "x"}\n' + line.replace("P", PLANTED) + "\n"
    with pytest.raises(MaskingError, match=message) as caught:
        masked(raw.encode(), json_records, fields=["t"])
    assert PLANTED not in str(caught.value)
    assert "555" not in str(caught.value)


def test_nesting_as_deep_as_json_reads_it() -> None:
    deep = '{"t": ' + "[" * 500 + f'"{PLANTED}"' + "]" * 500 + "}"
    assert masked(deep.encode(), json_records, fields=["t"]) == deep.replace(PLANTED, MASKED).encode()


@pytest.mark.fault("B4")
def test_a_field_that_no_record_has_is_refused() -> None:
    for raw in (b'{"b": 1}\n', b"1\n", b'"t"\n', b"[]\n"):
        with pytest.raises(MaskingError, match="no record has the field 't' or 'u'"):
            masked(raw, json_records, fields=["t", "u"])


def random_json(rng: random.Random, depth: int = 0) -> object:
    kind = rng.randrange(8 if depth < 4 else 5) if depth else 6
    if kind < 3:
        return "".join(
            rng.choices([*PIECES, PLANTED, PLANTED, "\x00", "\ud83d", "\udce9", "/", "\x7f", "n"], k=rng.randint(0, 5))
        )
    if kind < 5:
        return rng.choice([None, True, False])
    if kind < 7:
        keys = rng.sample(["a", "b", "a.b", "c", PLANTED], rng.randint(0, 3))
        return {key: random_json(rng, depth + 1) for key in keys}
    return [random_json(rng, depth + 1) for _ in range(rng.randint(0, 3))]


def expected_json(value: object, fields: set[str], path: tuple[str, ...] = (), inside: bool = False) -> object:
    if isinstance(value, str):
        return value.replace(PLANTED, MASKED) if inside else value
    if isinstance(value, list):
        return [expected_json(item, fields, path, inside) for item in value]
    if isinstance(value, dict):
        return {
            (key.replace(PLANTED, MASKED) if inside else key): expected_json(
                item, fields, (*path, key), inside or ".".join((*path, key)) in fields
            )
            for key, item in value.items()
        }
    return value


@pytest.mark.parametrize("seed", range(6))
def test_random_json_lines(seed: int) -> None:
    """What json reads of the masked file is what it reads of the file, masked in the wanted fields; lines stay."""
    rng = random.Random(seed)
    fields = {"a", "b.a", "c.a.b"}
    num_masked = 0
    for _ in range(300):
        values = [random_json(rng) for _ in range(rng.randint(0, 5))]
        lines = [
            json.dumps(
                value, ensure_ascii=rng.random() < 0.5, indent=None, separators=rng.choice([(",", ":"), (" , ", " : ")])
            )
            for value in values
        ]
        lines = [json.dumps(json.loads(line)) if re.search("[\ud800-\udfff]", line) else line for line in lines]
        values = list(map(json.loads, lines))
        raw = rng.choice(["\n", "\r\n", "\n\n"]).join(lines)
        file = TextFile(io.BytesIO(raw.encode()))
        masker = RecordMasker(MaskingRules())
        out = "".join(masker.masked(json_records(file, FieldNames(sorted(fields))), classify, lambda size: None))
        num_masked += out != raw
        assert [json.loads(line) for line in out.split("\n") if line.strip()] == [
            expected_json(value, fields) for value in values
        ]
        for before, after in zip(raw.split("\n"), out.split("\n"), strict=True):
            for escaped in (PLANTED, json.dumps(PLANTED)[1:-1]):
                before, after = before.replace(escaped, MASKED), after.replace(escaped, MASKED)
            assert before == after
    assert num_masked > 30


@pytest.mark.fault("C8")
def test_a_long_string_needs_memory_of_its_size() -> None:
    """Of a line the reader keeps a few copies, and nothing for each character."""
    size = 200_000
    for piece in ("x", "\\n", "\\u00e9", "x\\\\"):
        line = ('{"t": "' + piece * (size // len(piece)) + PLANTED + '"}').encode()
        tracemalloc.start()
        try:
            out = masked(line, json_records, fields=["t"])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert out == line.replace(PLANTED.encode(), MASKED.encode())
        assert peak < 12 * 2 * size, piece  # the line has two bytes a character


@pytest.mark.fault("C8")
def test_a_long_cell_needs_memory_of_its_size() -> None:
    size = 200_000
    for piece in ("x", '""', "x\n", "x\r\n,"):
        table = ('t,u\n"' + piece * (size // len(piece)) + PLANTED + '",x\n').encode()
        tracemalloc.start()
        try:
            out = masked(table, csv_records, fields=["t"])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert out == table.replace(PLANTED.encode(), MASKED.encode())
        assert peak < 40 * 2 * size, piece


# ---------------------------------------------------------------- encodings


@pytest.mark.fault("B4")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_marks_and_byte_order_stay(encoding: str, mark: str) -> None:
    text = mark * (encoding != "utf-8-sig") + f"Dear {PLANTED}\r\n\u2028😀\n"
    raw = text.encode(encoding)
    if encoding in ("utf-16", "utf-32") and mark:
        raw = raw[len("".encode(encoding)) :]  # Python has written a mark of its own
    for records in (line_records, document):
        assert masked(raw, records, encoding) == raw.replace(
            PLANTED.encode(f"{encoding}-le" if encoding in ("utf-16", "utf-32") else encoding.removesuffix("-sig")),
            MASKED.encode(f"{encoding}-le" if encoding in ("utf-16", "utf-32") else encoding.removesuffix("-sig")),
        )


@pytest.mark.fault("B4")
def test_big_endian_by_its_mark() -> None:
    raw = codecs.BOM_UTF16_BE + f"a,b\n{PLANTED},x\n".encode("utf-16-be")
    expected = codecs.BOM_UTF16_BE + f"a,b\n{MASKED},x\n".encode("utf-16-be")
    for encoding in ("utf-16", "utf-16-be", "UTF_16", "U16"):
        assert masked(raw, csv_records, encoding, fields=["a"]) == expected


@pytest.mark.parametrize(
    ("raw", "encoding", "message"),
    [
        ("BOB".encode("utf-16"), "utf-8", "is UTF-16 by its byte order mark"),
        ("BOB".encode("utf-32"), "utf-8", "is UTF-32 by its byte order mark"),
        ("BOB".encode("utf-16"), "latin-1", "give --encoding utf-16-le"),
        ("BOB".encode("utf-16"), "utf-16-be", "give --encoding utf-16-le"),
        ("BOB".encode("utf-8-sig"), "latin-1", "is UTF-8 by its byte order mark"),
        ("BOB BOB".encode("utf-16-le"), "utf-8", "without a byte order mark, as it seems"),
        ("BOB BOB".encode("utf-16-be"), "cp1252", "without a byte order mark, as it seems"),
        ("Иван Петров".encode("utf-16-le"), "utf-8", "without a byte order mark, as it seems"),
        ("BOB".encode("utf-16-le"), "utf-16", "has no byte order mark; give --encoding utf-16-le or utf-16-be"),
        (b"\xff\xfeB\0O\0B", "utf-16", "bytes that are no utf-16-le"),
        (b"B\xd8O\0", "utf-16-le", "bytes that are no utf-16-le"),
        (b"+AEI-OB", "utf-7", "bytes that are not what utf-7 has for their text"),
        (b"\\x42", "unicode_escape", "bytes that are not what unicode-escape has for their text"),
        (b"\x87\x90", "cp932", "bytes that are not what cp932 has for their text"),
    ],
)
def test_encodings_that_are_refused(raw: bytes, encoding: str, message: str) -> None:
    with pytest.raises(MaskingError, match=message):
        masked(raw, document, encoding)


def test_what_the_encoding_cannot_write_is_refused() -> None:
    file = TextFile(io.BytesIO(b"x"), "latin-1")
    with pytest.raises(MaskingError, match=r"the replacement has '██', which is not in iso8859-1"):
        file.encode("██")


@pytest.mark.parametrize("encoding", ["rot13", "base64", "utf-9"])
def test_what_is_no_encoding_is_named(encoding: str) -> None:
    with pytest.raises(ValueError, match="no such encoding"):
        TextFile(io.BytesIO(b""), encoding)


@pytest.mark.case("I10")
def test_lines_are_found_wherever_chunks_end(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\r\n\r\rb\u2028é\x0b\x85\n\n😀\r"
    for size in range(1, 9):
        monkeypatch.setattr("fastcore.pii.text_files._CHUNK_BYTES", size)
        for end in ("", "\n", "\r\n"):
            raw = (text + end).encode()
            lines = list(TextFile(io.BytesIO(raw)).universal_lines())
            assert lines == list(io.TextIOWrapper(io.BytesIO(raw), "utf-8", newline=""))
            assert list(TextFile(io.BytesIO(raw)).lines()) == list(
                io.TextIOWrapper(io.BytesIO(raw), "utf-8", newline="\n")
            )


# ---------------------------------------------------------------- Parquet


def parquet_files() -> dict[str, tuple[object, dict[str, object]]]:
    """name -> (table with strings `t` to mask and others, how it is written)."""
    import pyarrow as pa

    texts = [f"to {PLANTED}", None, "x", ""]
    us, decimals = pa.timestamp("us"), pa.array([1, None, 2, 3], pa.decimal128(7, 2))
    times = [datetime.datetime(2020, 1, 2, 3, 4, 5, 6), None, *(datetime.datetime(y, 1, 1) for y in (1700, 1999))]
    other = {"u": texts, "n": pa.array([1, None, 3, 4], pa.uint32()), "l": [["a"], None, [], [PLANTED]]}
    plain = pa.table({"t": texts, **other}, metadata={"made by": "hand"})

    def strings(kind: object) -> object:
        return pa.table({"t": pa.array(texts, kind), **other})

    return {
        "plain": (plain, {}),
        "large_string": (strings(pa.large_string()), {}),
        "string_view": (strings(pa.string_view()), {}),
        "dictionary": (strings(pa.dictionary(pa.int8(), pa.string(), ordered=True)), {}),
        "int96": (pa.table({"t": texts, "d": pa.array(times, us)}), {"use_deprecated_int96_timestamps": True}),
        "times": (pa.table({"t": texts, "d": pa.array(times, us), "e": pa.array(times, pa.timestamp("s", "UTC"))}), {}),
        "codecs": (plain, {"compression": {"t": "ZSTD", "u": "NONE", "n": "GZIP", "l.list.element": "SNAPPY"}}),
        "version 1.0": (plain, {"version": "1.0"}),
        "pages 2.0": (plain, {"data_page_version": "2.0"}),
        "no Arrow schema": (strings(pa.large_string()), {"store_schema": False}),
        "no rows": (plain.slice(0, 0), {}),
        "row groups": (pa.concat_tables([plain] * 5), {"row_group_size": 3}),
        "all null": (pa.table({"t": pa.array([None, None], pa.string()), "z": pa.nulls(2)}), {}),
        "decimals": (pa.table({"t": texts, "d": decimals}), {}),
        "decimals as integers": (pa.table({"t": texts, "d": decimals}), {"store_decimal_as_integer": True}),
        "old lists": (plain, {"use_compliant_nested_type": False}),
        "no dictionaries": (plain, {"use_dictionary": False}),
        "checksums": (plain, {"write_page_checksum": True}),
        "two others of one name": (pa.Table.from_arrays([pa.array(texts)] * 3, names=["t", "u", "u"]), {}),
        "name with a dot": (pa.table({"t": texts, "a.b": texts, "a": [{"b": PLANTED}] * 4}), {}),
    }  # fmt: skip


@pytest.mark.fault("B4")
def test_parquet_files_keep_all_but_the_column(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    for name, (table, options) in parquet_files().items():
        source, target = tmp_path / f"{name}.parquet", tmp_path / f"{name} masked.parquet"
        pq.write_table(table, source, **options)
        masked_parquet(source, target, ["t"])
        with pq.ParquetFile(source) as before, pq.ParquetFile(target) as after:
            assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True), name
            assert after.schema.equals(before.schema), name
            assert after.num_row_groups == before.num_row_groups, name
            for group in range(before.num_row_groups):
                one, two = before.metadata.row_group(group), after.metadata.row_group(group)
                codecs = [[part.column(i).compression for i in range(part.num_columns)] for part in (one, two)]
                assert codecs[0] == codecs[1], name
                first, second = before.read_row_group(group), after.read_row_group(group)
                assert second.num_rows == first.num_rows, name
                for i, column in enumerate(first.schema.names):
                    values = first.column(i).to_pylist()
                    if column == "t":
                        values = [None if value is None else value.replace(PLANTED, MASKED) for value in values]
                    assert second.column(i).to_pylist() == values, name


@pytest.mark.fault("B4")
def test_parquet_that_is_refused(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = [PLANTED, None]
    far = pa.table({"t": texts, "d": pa.array([datetime.datetime(1500, 1, 1), None], pa.timestamp("us"))})
    not_utf8 = pa.table(
        {"t": pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])}
    )
    for table, options, message in (
        (pa.Table.from_arrays([pa.array(texts)] * 2, names=["t", "t"]), {}, "2 columns have the name 't'"),
        (pa.table({"t": [[PLANTED], None]}), {}, r"column 't' holds list<.*>; expected strings"),
        (pa.table({"t": [{"a": PLANTED}, None]}), {}, r"column 't' holds struct<.*>; expected strings"),
        (pa.table({"t": [PLANTED.encode(), None]}), {}, "column 't' holds binary; expected strings"),
        (pa.table({"t": [1, None]}), {}, "column 't' holds int64; expected strings"),
        (pa.table({"t": pa.array(["1", None], pa.json_())}), {}, "column 't' holds extension.*; expected strings"),
        (pa.table({"T": texts}), {}, "no column 't'; the columns are 'T'"),
        (not_utf8, {}, "row group 0 cannot be read"),
        (far, {"use_deprecated_int96_timestamps": True}, "row group 0 has INT96 times before 1678 or after 2261"),
    ):  # fmt: skip
        pq.write_table(table, tmp_path / "in.parquet", **options)
        with pytest.raises(MaskingError, match=message):
            masked_parquet(tmp_path / "in.parquet", tmp_path / "out.parquet", ["t"])


@pytest.mark.fault("B4")
def test_damaged_parquet_is_an_error_of_one_line(tmp_path: Path) -> None:
    """Whatever is read of a damaged file is what pyarrow reads of it; or there is one line about it."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(
        pa.table({"t": [f"{i} {PLANTED}" for i in range(50)], "n": list(range(50))}), source, compression="GZIP"
    )
    whole = source.read_bytes()
    rng = random.Random(1)
    damaged = [b"", b"PAR1", whole[:-5], whole[: len(whole) // 2], whole[4:], whole.replace(b"PAR1", b"PARE")]
    for _ in range(60):
        copy = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            copy[rng.randrange(len(copy))] = rng.randrange(256)
        damaged.append(bytes(copy))
    num_refused = num_read = 0
    for raw in damaged:
        source.write_bytes(raw)
        try:
            masked_parquet(source, target, ["t"])
        except MaskingError as error:
            num_refused += "\n" not in str(error)
        else:
            values = pq.read_table(source).column("t").to_pylist()
            assert pq.read_table(target).column("t").to_pylist() == [v and v.replace(PLANTED, MASKED) for v in values]
            num_read += 1
    assert num_refused + num_read == len(damaged)
    assert num_refused > 20
