"""What `fastcore mask` reads of a file is what Python's csv and json read; else nothing is written."""

import codecs
import csv
import io
import random
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace

import pytest

from fastcore.errors import MaskingError
from fastcore.pii.csv_cells import csv_records
from fastcore.pii.masking import MaskingRules
from fastcore.pii.record_masking import RecordMasker
from fastcore.pii.spans import Entity
from fastcore.pii.text_files import FieldNames, TextFile

PLANTED = "Zoë-Nguyễn"  # labelled wherever it stands, and nothing else is
MASKED = "[NAME]"


def classify(texts: Iterable[str]) -> Iterator[SimpleNamespace]:
    """Labels what is planted, exactly."""
    rules_of = MaskingRules()
    for text in texts:
        entities = []
        at = text.find(PLANTED)
        while at >= 0:
            entities.append(Entity("name", at, at + len(PLANTED), PLANTED, 1.0))
            at = text.find(PLANTED, at + len(PLANTED))
        yield SimpleNamespace(mask=lambda rules, mapping, t=text, e=entities: (rules or rules_of).mask(t, e, mapping))


def masked(raw: bytes, records: Callable[..., Iterator], encoding: str = "utf-8", **options: object) -> bytes:
    """The file masked, or MaskingError."""
    file = TextFile(io.BytesIO(raw), encoding)
    masker = RecordMasker(MaskingRules())
    fields = FieldNames(options.pop("fields", ()))  # type: ignore[arg-type]
    read = records(file, fields, **options) if fields.names else records(file)
    parts = [file.encode(part) for part in masker.masked(read, classify, lambda size: None)]
    fields.check()
    return b"".join([file.mark, *parts, file.encode("", final=True)])


def rows_of(raw: bytes, encoding: str = "utf-8", **dialect: object) -> list[list[str]]:
    """What Python's csv sees, without blank lines."""
    text = raw.decode({"utf-8": "utf-8-sig"}.get(encoding, encoding), "surrogateescape")
    return [row for row in csv.reader(io.StringIO(text, newline=""), **dialect) if row]


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


ALPHABET = [
    PLANTED,
    "x",
    " ",
    ",",
    ";",
    "\t",
    '"',
    '""',
    "\n",
    "\r",
    "\r\n",
    "é",
    "\u2028",
    "\x0b",
    "\ufeff",
    "'",
    "\\",
    "😀",
    "1",
]


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
            ["".join(rng.choices(ALPHABET, k=rng.randint(0, 5))) for _ in range(width)]
            for _ in range(rng.randint(0, 5))
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
        body = "".join(rng.choices([*ALPHABET, ",", ",", "\n", "\n", PLANTED], k=rng.randint(0, 14)))
        raw = ("a,b\n" + body).encode()
        try:
            out = masked(raw, csv_records, fields=["b"])
        except MaskingError:
            continue
        num_masked += out != raw
        before = rows_of(raw)
        assert rows_of(out) == [[row[0], row[1].replace(PLANTED, MASKED)] for row in before]
    assert num_masked > 20
