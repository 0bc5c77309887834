"""`fastcore mask` on streams and files: what is masked, what stays as it was, and what is refused."""

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from labelled import labelled_checkpoint

import fastcore
from fastcore.cli import main
from fastcore.pii.masking import unmask


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Capital letters are persons, digits are phone numbers."""
    return labelled_checkpoint(tmp_path_factory.mktemp("labelled"))


@pytest.fixture
def mask(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., tuple[int, bytes, str]]:
    """mask(*arguments, stdin=b"...") -> exit status, stdout, stderr."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "ascii"))
        code = main(["mask", "--model", str(folder), "--threads", "1", *map(str, arguments)])
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return run


# ---------------------------------------------------------------- stdin


def test_each_line_of_stdin_is_a_text(mask) -> None:
    code, out, err = mask(stdin=b"ring BOB\nno one\n\nat 555\nANN")
    assert code == 0
    assert out == b"ring [PRIVATE_PERSON]\nno one\n\nat [PRIVATE_PHONE]\n[PRIVATE_PERSON]"
    assert err == "5 texts, 3 with something masked: private_person 2, private_phone 1\n"


@pytest.mark.case("I10")
def test_nothing_else_is_rewritten(mask) -> None:
    text = "\ufeffname:\r\nBOB\r\n\ttel 1\x0c\u2028 end\u0085\r\r\n\x00".encode() + b"caf\xe9 ANN \xff\xfe\n"
    code, out, _ = mask(stdin=text)
    assert code == 0
    assert out == text.replace(b"BOB", b"[PRIVATE_PERSON]").replace(b"1", b"[PRIVATE_PHONE]").replace(
        b"ANN", b"[PRIVATE_PERSON]"
    )


def test_an_empty_stdin(mask) -> None:
    assert mask(stdin=b"") == (0, b"", "0 texts, 0 with something masked: nothing\n")


def test_other_encodings(mask) -> None:
    assert mask("--encoding", "latin-1", stdin=b"caf\xe9 BOB \xfc\n")[1] == b"caf\xe9 [PRIVATE_PERSON] \xfc\n"
    code, _, err = mask("--encoding", "utf-9", stdin=b"x")
    assert (code, err) == (1, "fastcore: --encoding utf-9: no such encoding\n")


def test_exit_status_for_found(mask) -> None:
    assert mask("--fail-on-found", stdin=b"ring BOB")[0] == 3
    assert mask("--fail-on-found", stdin=b"nobody")[0] == 0
    assert mask("--fail-on-found", "--threshold", "1", stdin=b"ring BOB")[0] == 0


def test_quiet(mask) -> None:
    assert mask("--quiet", stdin=b"BOB") == (0, b"[PRIVATE_PERSON]", "")


def test_line_buffered_masks_a_line_before_the_next_comes(folder: Path, tmp_path: Path) -> None:
    home = Path(fastcore.__file__).parent.parent
    command = [sys.executable, "-m", "fastcore", "mask", "--model", folder, "--threads", "1", "--line-buffered"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=home
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for name in (b"BOB", b"ANN"):
            process.stdin.write(b"ring " + name + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"ring [PRIVATE_PERSON]\n"
        out, err = process.communicate()
    assert (process.returncode, out) == (0, b"")
    assert err == b"2 texts, 2 with something masked: private_person 2\n"


# ---------------------------------------------------------------- operators


def test_operators(mask, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"secret\n")
    text = b"BOB 5550100"
    assert mask("--operator", "mask", "--keep", "2", stdin=text)[1] == b"*OB *****00"
    assert mask("--operator", "mask", "--keep", "1", "--keep-from", "start", "--mask-char", "#", stdin=text)[1] == (
        b"B## 5######"
    )
    assert mask("--operator", "redact", stdin=text)[1] == b" "
    assert mask("--label", "private_phone=leave", stdin=text)[1] == b"[PRIVATE_PERSON] 5550100"
    assert mask("--label", "private_phone=mask", stdin=text)[1] == b"[PRIVATE_PERSON] *******"
    assert mask("--allow", "BOB", stdin=text)[1] == b"BOB [PRIVATE_PHONE]"
    hashed = mask("--operator", "hash", "--key-file", key, stdin=b"BOB and BOB")[1].split(b" and ")
    assert hashed[0] == hashed[1]
    assert len(hashed[0]) == len("[PRIVATE_PERSON:]") + 64


def test_an_allow_list_file(mask, tmp_path: Path) -> None:
    (tmp_path / "allow").write_text("BOB\n\nEVE\n")
    assert mask("--allow-list", tmp_path / "allow", stdin=b"BOB, ANN, EVE")[1] == b"BOB, [PRIVATE_PERSON], EVE"


def test_placeholders_are_numbered_within_a_text_or_across_all(mask, tmp_path: Path) -> None:
    text = b"BOB\nANN, BOB\n"
    assert mask("--operator", "placeholder", stdin=text)[1] == (
        b"[PRIVATE_PERSON_1]\n[PRIVATE_PERSON_1], [PRIVATE_PERSON_2]\n"
    )
    mapping = tmp_path / "map.json"
    code, out, _ = mask("--operator", "placeholder", "--mapping", mapping, stdin=text)
    assert code == 0
    assert out == b"[PRIVATE_PERSON_1]\n[PRIVATE_PERSON_2], [PRIVATE_PERSON_1]\n"
    assert mapping.stat().st_mode & 0o077 == 0
    assert unmask(out.decode(), json.loads(mapping.read_text())) == text.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--label", "private_fax=mask"], "the model has no such label; it has private_person, "),
        (["--label", "private_phone"], "expected LABEL=OPERATOR"),
        (["--label", "private_phone=blur"], "expected LABEL=OPERATOR"),
        (["--operator", "hash"], "needs --key-file"),
        (["--threshold", "2"], "threshold is 2.0"),
        (["--mask-char", "**"], "expected one character"),
        (["--operating-point", "fast"], "one of default, recall, precision"),
        (["--operating-point", "1,x"], "two numbers"),
        (["--mapping", "map.json"], "needs the operator placeholder"),
        (["--jobs", "0"], "--jobs is 0"),
        (["--jobs", "2", "--line-buffered"], "cannot go with --jobs"),
        (["--field", "a"], "text has no --field"),
        (["--format", "csv"], "csv needs --field"),
        (["--format", "parquet", "--field", "a"], "cannot come from stdin"),
        (["--output", "x"], "--output is for files"),
        (["--key-file", "nowhere"], "nowhere: No such file"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(mask, arguments: list[str], message: str) -> None:
    code, out, err = mask(*arguments, stdin=b"BOB")
    assert (code, out) == (1, b"")
    assert message in err


# ---------------------------------------------------------------- text files


def test_a_text_file_is_one_text(mask, tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(b"\xef\xbb\xbfDear BOB,\r\n\r\ncall 555\r\n" + b"0100\x0c")
    assert mask(source, "--output", target)[0] == 0
    assert target.read_bytes() == (
        b"\xef\xbb\xbf[PRIVATE_PERSON]ear [PRIVATE_PERSON],\r\n\r\ncall [PRIVATE_PHONE]\r\n[PRIVATE_PHONE]\x0c"
    )
    code, out, err = mask(source)
    assert (code, out) == (0, target.read_bytes())
    assert err.startswith("1 texts")
    assert mask(source, "--lines")[2].startswith("4 texts")
    assert source.read_bytes().startswith(b"\xef\xbb\xbfDear BOB")


def test_several_files_go_into_a_folder(mask, tmp_path: Path) -> None:
    for name in ("a.txt", "b.log"):
        (tmp_path / name).write_text(f"{name} BOB")
    code, _, err = mask(tmp_path / "a.txt", tmp_path / "b.log", "--output", tmp_path / "masked")
    assert code == 0
    first, second = err.splitlines()
    assert first == "2 texts, 2 with something masked: private_person 2"
    assert re.fullmatch(r"2 files done in [0-9.]+ s, [0-9.]+ texts/s", second)
    assert {path.name: path.read_text() for path in (tmp_path / "masked").iterdir()} == {
        "a.txt": "a.txt [PRIVATE_PERSON]",
        "b.log": "b.log [PRIVATE_PERSON]",
    }


def test_masking_in_place_is_refused(mask, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("BOB")
    (tmp_path / "link.txt").symlink_to(source)
    for output in (source, tmp_path, tmp_path / "link.txt"):
        for extra in ([], ["--overwrite"]):
            code, _, err = mask(source, "--output", output, *extra)
            assert code == 1
            assert "in place is not possible" in err
    assert source.read_text() == "BOB"


def test_an_output_that_exists_is_kept_unless_told(mask, tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("BOB")
    target.write_text("dear to me")
    assert "give --overwrite" in mask(source, "--output", target)[2]
    assert target.read_text() == "dear to me"
    assert mask(source, "--output", target, "--overwrite")[0] == 0
    assert target.read_text() == "[PRIVATE_PERSON]"


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["none.txt"], [], "no such file"),
        (["sub"], ["--format", "text"], "--output is needed"),
        (["none"], [], "no such file"),
        (["*.csv"], [], "no file matches this pattern"),
        (["in.dat"], [], "what format has it"),
        (["in.txt", "in.dat"], ["--format", "text"], "--output is needed"),
        (["in.txt", "sub/in.txt"], ["--output", "masked/"], "have the same name"),
        (["wide.txt"], [], "is UTF-16"),
    ],
)
def test_wrong_files_are_refused(mask, tmp_path: Path, monkeypatch, names, options, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    for name in ("in.txt", "in.dat", "sub/in.txt"):
        Path(name).write_text("BOB")
    Path("wide.txt").write_text("BOB", encoding="utf-16")
    code, out, err = mask(*names, *options)
    assert (code, out) == (1, b"")
    assert message in err
    assert not Path("masked").exists()


def test_utf16_files(mask, tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes("dear BOB\r\n\u2028".encode("utf-16"))
    assert mask(source, "--encoding", "utf-16", "--output", target)[0] == 0
    assert target.read_bytes() == "dear [PRIVATE_PERSON]\r\n\u2028".encode("utf-16")


def test_a_failed_file_leaves_no_output(mask, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"a": "BOB"}\n{"a": ')
    code, _, err = mask(source, "--field", "a", "--output", tmp_path / "out.jsonl")
    assert code == 1
    assert f"{source}: line 2 is not JSON" in err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


# ---------------------------------------------------------------- JSON lines

RECORDS = rb"""{"id": 1.10, "text":"ring BOB","other": "ANN 555"}
{ "text" : "caf\u00e9 BOB\n\"\ud83d\ude00\"", "n": 1e5, "text2": "BOB" }

{"text": null, "deep": {"messages": [{"content": "ANN"}, {"content": ["x", "EVE 1"]}]}}
{"text": "\u0042\/ no", "list": [1, "BOB", {"a": [], "b": {}}]}
"""


def test_json_lines_keep_everything_but_the_field(mask) -> None:
    code, out, err = mask("--format", "jsonl", "--field", "text", stdin=RECORDS)
    assert code == 0
    assert out == (
        RECORDS.replace(b'"ring BOB"', b'"ring [PRIVATE_PERSON]"')
        .replace(b"caf\\u00e9 BOB", b"caf\\u00e9 [PRIVATE_PERSON]")
        .replace(rb'"\u0042\/ no"', rb'"[PRIVATE_PERSON]\/ no"')
    )
    assert err.endswith("private_person 3\n")


def test_nested_fields(mask) -> None:
    out = mask("--format", "jsonl", "--field", "deep.messages.content", "--field", "text2", stdin=RECORDS)[1]
    assert out == (
        RECORDS.replace(b'"text2": "BOB"', b'"text2": "[PRIVATE_PERSON]"')
        .replace(b'"content": "ANN"', b'"content": "[PRIVATE_PERSON]"')
        .replace(b'"EVE 1"', b'"[PRIVATE_PERSON] [PRIVATE_PHONE]"')
    )


def test_a_whole_object_can_be_the_field(mask) -> None:
    out = mask("--format", "jsonl", "--field", "a", stdin=b'{"a": {"b": ["BOB"], "c": {"d": "ANN"}}, "e": "EVE"}')[1]
    assert json.loads(out) == {"a": {"b": ["[PRIVATE_PERSON]"], "c": {"d": "[PRIVATE_PERSON]"}}, "e": "EVE"}


def test_a_key_with_a_dot(mask) -> None:
    assert mask("--format", "jsonl", "--field", "a.b", stdin=b'{"a.b": "BOB"}')[1] == b'{"a.b": "[PRIVATE_PERSON]"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": 5550100}', "line 2: field 'text' holds a number"),
        (b'{"text": "BOB"', "line 2 is not JSON"),
        (b"BOB", "line 2 is not JSON"),
    ],
)
def test_what_cannot_be_masked_in_json_fails(mask, line: bytes, message: str) -> None:
    code, out, err = mask("--format", "jsonl", "--field", "text", stdin=b'{"text": "x"}\n' + line + b"\n")
    assert code == 1
    assert message in err
    assert line not in out


def test_a_field_that_no_record_has_fails(mask) -> None:
    code, _, err = mask("--format", "jsonl", "--field", "text", "--field", "txet", stdin=RECORDS)
    assert code == 1
    assert "no record has the field 'txet'" in err


# ---------------------------------------------------------------- CSV

TABLE = (
    b"\xef\xbb\xbfname,note,\"the, rest\"\r\n"
    b'BOB,"call ""BOB"", 555\r\nor ANN",x\r\n'
    b'"BOB",,"y"\r\n'
    b"\r\n"
    b' EVE ,plain ANN,BOB "q"'
)  # fmt: skip


def test_csv_keeps_everything_but_the_columns(mask) -> None:
    code, out, _ = mask("--format", "csv", "--field", "note", "--field", "name", stdin=TABLE)
    assert code == 0
    assert out == (
        b"\xef\xbb\xbfname,note,\"the, rest\"\r\n"
        b'[PRIVATE_PERSON],"call ""[PRIVATE_PERSON]"", [PRIVATE_PHONE]\r\nor [PRIVATE_PERSON]",x\r\n'
        b'"[PRIVATE_PERSON]",,"y"\r\n'
        b"\r\n"
        b' [PRIVATE_PERSON] ,plain [PRIVATE_PERSON],BOB "q"'
    )  # fmt: skip


def test_cells_are_those_of_the_csv_module(mask) -> None:
    """Replacing nothing, and then everything, keeps the table that Python's csv reads."""
    rows = [["k", "v"], ["a,b", 'x"y'], ["", "two\nlines"], ["é\u2028", "tab\there"], ['"', "x,"], ["\r\n", " "]]
    for dialect in ({}, {"quoting": csv.QUOTE_ALL}, {"lineterminator": "\n"}, {"delimiter": ";"}):
        buffer = io.StringIO(newline="")
        csv.writer(buffer, **dialect).writerows(rows)
        raw = buffer.getvalue().encode()
        options = ["--format", "csv", "--field", "v", "--delimiter", dialect.get("delimiter", ",")]
        assert mask(*options, stdin=raw)[1] == raw
        out = mask(*options, stdin=raw.replace(b"two", b'"BOB"' if b'"two' not in raw else b'""BOB""'))[1]
        read = list(csv.reader(io.StringIO(out.decode(), newline=""), delimiter=dialect.get("delimiter", ",")))
        expected = [[cell.replace("two", '"[PRIVATE_PERSON]"') for cell in row] for row in rows]
        assert read == expected


def test_csv_without_header_and_tsv(mask, tmp_path: Path) -> None:
    out = mask("--format", "csv", "--no-header", "--field", "2", stdin=b"BOB,ANN\nBOB,\n")[1]
    assert out == b"BOB,[PRIVATE_PERSON]\nBOB,\n"
    (tmp_path / "in.tsv").write_bytes(b"a\tb\nBOB, 1\tANN, 2\n")
    assert mask(tmp_path / "in.tsv", "--field", "b")[1] == b"a\tb\nBOB, 1\t[PRIVATE_PERSON], [PRIVATE_PHONE]\n"


def test_a_replacement_is_quoted_where_it_must_be(mask, tmp_path: Path) -> None:
    out = mask("--format", "csv", "--field", "a", "--delimiter", "_", stdin=b"a_b\nBOB_x\n")[1]
    assert out == b'a_b\n"[PRIVATE_PERSON]"_x\n'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--field", "c"], "no column 'c'; the columns are 'a', 'b'"),
        (["--field", "a", "--no-header"], "by number, from 1"),
        (["--field", "3", "--no-header"], "no record has the field '3'"),
        (["--field", "a", "--delimiter", ",,"], "expected one character"),
    ],
)
def test_wrong_columns_are_refused(mask, options: list[str], message: str) -> None:
    code, _, err = mask("--format", "csv", *options, stdin=b"a,b\nBOB,ANN\n")
    assert code == 1
    assert message in err


def test_a_quote_that_is_never_closed_fails(mask) -> None:
    code, out, err = mask("--format", "csv", "--field", "a", stdin=b'a\n"BOB\nANN\n')
    assert (code, out) == (1, b"")
    assert "a quote is never closed" in err


# ---------------------------------------------------------------- Parquet


def test_parquet_keeps_everything_but_the_columns(mask, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(
        {
            "id": pyarrow.array([1, 2, 3], pyarrow.int16()),
            "note": ["ring BOB", None, "x"],
            "kind": pyarrow.array(["ANN", "b", "ANN"]).dictionary_encode(),
            "other": pyarrow.array(["BOB", "", None], pyarrow.large_string()),
        },
        metadata={"made by": "hand"},
    )
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pyarrow.parquet.write_table(table, source, row_group_size=2, compression="zstd")
    code, _, err = mask(source, "--field", "note", "--field", "kind", "--output", target)
    assert (code, err) == (0, "5 texts, 3 with something masked: private_person 3\n")
    masked = pyarrow.parquet.read_table(target)
    assert masked.schema.equals(pyarrow.parquet.read_table(source).schema, check_metadata=True)
    assert masked.to_pydict() == table.to_pydict() | {
        "note": ["ring [PRIVATE_PERSON]", None, "x"],
        "kind": ["[PRIVATE_PERSON]", "b", "[PRIVATE_PERSON]"],
    }
    written = pyarrow.parquet.ParquetFile(target).metadata
    assert written.num_row_groups == 2
    assert written.row_group(0).column(1).compression == "ZSTD"
    for field, message in (("id", "holds int16"), ("nota", "no column 'nota'")):
        code, _, err = mask(source, "--field", field, "--output", tmp_path / "no.parquet")
        assert code == 1
        assert message in err


def test_parquet_without_pyarrow_names_the_extra(mask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "in.parquet").write_bytes(b"PAR1")
    code, _, err = mask(tmp_path / "in.parquet", "--field", "a", "--output", tmp_path / "out.parquet")
    assert code == 1
    assert "pip install 'fastcore-engine[data]'" in err


# ---------------------------------------------------------------- processes


def test_several_processes_give_the_same(mask) -> None:
    text = b"".join(b"line %d of BOB%s\n" % (i, b" and ANN" * (i % 50)) for i in range(700))
    alone, together = mask(stdin=text), mask("--jobs", "2", stdin=text)
    assert alone == together
    assert alone[1].count(b"\n") == 700


def test_an_error_in_a_process_is_told(mask, folder: Path) -> None:
    code, _, err = mask("--jobs", "2", "--format", "jsonl", "--field", "text", stdin=b'{"text": "BOB"}\n{"text": 7}\n')
    assert code == 1
    assert "line 2: field 'text' holds a number" in err


# ---------------------------------------------------------------- nothing is written but what is masked


@pytest.mark.fault("B1")
@pytest.mark.parametrize("file", [False, True])
def test_csv_as_pandas_writes_it_for_spreadsheets(mask, tmp_path: Path, file: bool) -> None:
    raw = b'\xef\xbb\xbf"name","city","notes"\r\n"BOB","ROME","ring ANN, or 555"\r\n'
    headless = raw.replace(b"name", b"ANN")
    for table, options in ((raw, ["--field", "name"]), (headless, ["--no-header", "--field", "1"])):
        (tmp_path / "in.csv").write_bytes(table)
        code, out, _ = mask(*([tmp_path / "in.csv"] if file else ["--format", "csv"]), *options, stdin=table)
        assert code == 0
        assert out == table.replace(b"BOB", b"[PRIVATE_PERSON]").replace(b'"ANN"', b'"[PRIVATE_PERSON]"')


@pytest.mark.fault("B2")
@pytest.mark.fault("B4")
@pytest.mark.parametrize("file", [False, True])
@pytest.mark.parametrize(
    ("name", "raw", "options", "message"),
    [
        ("a.csv", b"id,notes\n1,x\n1,ANN, ROME 555\n", ["--field", "notes"], "line 3: a row of 3 cells; expected 2"),
        ("a.csv", b"id,notes\n1,x\n1\n", ["--field", "notes"], "line 3: a row of 1 cells; expected 2"),
        ("a.csv", b"id,notes\n1,BOB\n", ["--field", "note"], "no column 'note'"),
        ("a.jsonl", b'{"text": "BOB"}\n{"text": 5}\n', ["--field", "text"], "line 2: field 'text' holds a number"),
        ("a.jsonl", b'{"text": "BOB"}\n', ["--field", "txet"], "no record has the field 'txet'; nothing is written"),
        ("a.jsonl", b'{"text": "BOB"}\n{"text": ', ["--field", "text"], "line 2 is not JSON"),
        ("a.txt", b"\xff\xfeB\0", [], "is UTF-16 by its byte order mark"),
        ("a.txt", b"x\nBOB\n", ["--encoding", "latin-1", "--operator", "mask", "--mask-char", "\u2588"],
         "which is not in iso8859-1"),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_nothing(mask, tmp_path: Path, name, raw, options, message, file: bool) -> None:
    (tmp_path / name).write_bytes(raw)
    source = [tmp_path / name] if file else ["--format", {"csv": "csv", "jsonl": "jsonl", "txt": "text"}[name[2:]]]
    code, out, err = mask(*source, *options, stdin=raw)
    assert (code, out) == (1, b"")
    assert message in err
    assert err.count("\n") == 1
    if file:
        assert mask(*source, *options, "--output", tmp_path / "out")[0] == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == [name]


@pytest.mark.fault("B4")
def test_line_buffered_output_waits_for_the_fields(mask) -> None:
    options = ["--format", "jsonl", "--line-buffered", "--field", "t", "--field", "u"]
    lines = b'{"a": "BOB"}\n{"t": "BOB"}\n'
    assert mask(*options, stdin=lines)[:2] == (1, b"")
    out = mask(*options, stdin=lines + b'{"u": "x"}\n{"t": 5}\n')
    assert out[:2] == (1, lines.replace(b'"t": "BOB"', b'"t": "[PRIVATE_PERSON]"') + b'{"u": "x"}\n')


@pytest.mark.fault("B4")
def test_files_without_records_succeed(mask, tmp_path: Path) -> None:
    for name, raw in (
        ("a.csv", b"name,notes\n"), ("b.csv", b'\xef\xbb\xbf"name"'), ("a.txt", b""), ("b.txt", b"\xef\xbb\xbf"),
        ("a.jsonl", b""), ("b.jsonl", b"\xef\xbb\xbf\n\n"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(raw)
        options = [] if name.endswith("txt") else ["--field", "name"]
        assert mask(tmp_path / name, *options)[:2] == (0, raw)
        assert mask(tmp_path / name, *options, "--output", tmp_path / "out", "--overwrite")[0] == 0
        assert (tmp_path / "out").read_bytes() == raw


@pytest.mark.fault("B4")
@pytest.mark.parametrize("order", ["le", "be"])
def test_utf16_keeps_mark_and_order_on_pipes(mask, order: str) -> None:
    text = "\ufeffring BOB\r\n\u2028\n"
    out = mask("--encoding", "utf-16", stdin=text.encode(f"utf-16-{order}"))
    assert out[:2] == (0, text.replace("BOB", "[PRIVATE_PERSON]").encode(f"utf-16-{order}"))


def test_a_mapping_is_kept_for_the_files_that_are_done(mask, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("BOB")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    mapping = tmp_path / "map.json"
    options = ["--operator", "placeholder", "--mapping", mapping]
    code, _, err = mask(tmp_path / "a.txt", tmp_path / "b.txt", "--output", tmp_path / "out", *options)
    assert code == 1
    assert "b.txt: is UTF-16" in err
    assert unmask((tmp_path / "out" / "a.txt").read_text(), json.loads(mapping.read_text())) == "BOB"
    assert not (tmp_path / "out" / "b.txt").exists()
    for wrong, message in (
        (tmp_path / "none" / "map.json", "there is no folder"),
        (tmp_path / "new.txt", "is an output, too; expected a file of its own"),
        (mapping, "exists; remove it, or give --overwrite"),
    ):
        code, _, err = mask(tmp_path / "a.txt", "--output", tmp_path / "new.txt", *options[:2], "--mapping", wrong)
        assert (code, err.startswith(f"fastcore: --mapping {wrong}"), message in err) == (1, True, True)


def test_what_cannot_be_written_is_said_before_anything_is_read(mask, tmp_path: Path) -> None:
    taken = tmp_path / "map.json"
    taken.write_text("{}")
    code, out, err = mask("--operator", "placeholder", "--mapping", taken, stdin=b"BOB")
    assert (code, out, err) == (1, b"", f"fastcore: --mapping {taken} exists; remove it, or give --overwrite\n")


def test_only_regular_files_are_replaced(mask, tmp_path: Path) -> None:
    """A device or a pipe under the output's name would be replaced by a file."""
    (tmp_path / "in.txt").write_text("BOB")
    os.mkfifo(tmp_path / "pipe")
    for options in ([], ["--overwrite"]):
        code, _, err = mask(tmp_path / "in.txt", "--output", tmp_path / "pipe", *options)
        assert code == 1
        assert err == f"fastcore: --output {tmp_path / 'pipe'} is no regular file; it cannot be replaced by one\n"
    assert (tmp_path / "pipe").is_fifo()
    code, _, err = mask(tmp_path / "pipe", "--format", "text")
    assert (code, err) == (1, f"fastcore: {tmp_path / 'pipe'}: no regular file; give it as stdin\n")


@pytest.mark.fault("C9")
@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("{mask} > /dev/full", 1, "fastcore: stdout: No space left on device\n"),
        ("{mask} in.txt > /dev/full", 1, "fastcore: stdout: No space left on device\n"),
        ("{mask} >&-", 1, "fastcore: standard output is closed\n"),
        ("{mask} --quiet 2>&-", 0, ""),
        ("{mask} 2>&-", 0, ""),
        ("{mask} in.txt --output nowhere/out.txt", 1, "fastcore: nowhere/out.txt: No such file or directory\n"),
        ("{mask} in.txt --output in.txt/out.txt", 1, "fastcore: in.txt/out.txt: Not a directory\n"),
        ("(ulimit -f 1; {mask} long.txt --output out.txt)", 1, "fastcore: out.txt: File too large\n"),
        ("TMPDIR=/nowhere {mask} --key-file in.txt/x", 1, "fastcore: in.txt/x: Not a directory\n"),
    ],
)
def test_what_the_system_refuses_is_one_line(folder: Path, tmp_path: Path, command, code: int, message: str) -> None:
    (tmp_path / "in.txt").write_text("BOB")
    (tmp_path / "long.txt").write_text("no one " * 1000)
    arguments = [sys.executable, "-m", "fastcore", "mask", "--threads", "1", "--model", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(Path(fastcore.__file__).parent.parent)}
    done = subprocess.run(
        ["sh", "-c", command.format(mask=shlex.join(arguments))],
        input=b"ring BOB", capture_output=True, cwd=tmp_path, env=environment, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.decode()) == (code, message)
    assert done.stdout == (b"" if code else b"ring [PRIVATE_PERSON]")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "long.txt"]


# ---------------------------------------------------------------- whole words, and neighbours as one


def test_whole_words_and_neighbours(mask) -> None:
    text = b"Bob (ANN) LEE, 555\n"
    assert mask(stdin=text)[1] == b"[PRIVATE_PERSON]ob ([PRIVATE_PERSON]) [PRIVATE_PERSON], [PRIVATE_PHONE]\n"
    assert mask("--whole-words", stdin=text)[1].startswith(b"[PRIVATE_PERSON] ([PRIVATE_PERSON]) ")
    assert mask("--whole-words", "--join", "1", stdin=text)[1].startswith(b"[PRIVATE_PERSON] ([PRIVATE_PERSON]) ")
    assert mask("--whole-words", "--join", "2", stdin=text)[1] == b"[PRIVATE_PERSON], [PRIVATE_PHONE]\n"
    assert mask("--join", "-1", stdin=text)[:2] == (1, b"")
