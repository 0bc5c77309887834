"""`fastcore mask` and `fastcore generate` over folders of files: parts, processes, going on after a kill, failures."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import squares
from labelled import labelled_checkpoint

from fastcore import LLM
from fastcore.cli import main
from fastcore.cli.processes import Processes
from fastcore.errors import WorkerError
from fastcore.quantization.quantize import packed_copy

JOURNAL = ".fastcore-mask.jsonl"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Capital letters are persons, digits are phone numbers."""
    return labelled_checkpoint(tmp_path_factory.mktemp("labelled"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Partitions of JSON lines: day=0/0.jsonl and so on."""
    for i in range(6):
        part = tmp_path / "in" / f"day={i % 2}" / f"{i}.jsonl"
        part.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"id": k, "text": f"ring BOB{k} of part {i}" + " and ANN" * (k % 9)}) for k in range(80)]
        part.write_text("\n".join(lines) + "\n")
    for hidden in ("_SUCCESS.jsonl", ".part.jsonl"):
        (tmp_path / "in" / hidden).write_text("not data")
    return tmp_path / "in"


@pytest.fixture
def mask(classifier: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """mask(*arguments) -> exit status, stderr."""

    def run(*arguments: str | Path) -> tuple[int, str]:
        code = main(["mask", "--model", str(classifier), "--threads", "1", "--field", "text", *map(str, arguments)])
        return code, capsys.readouterr().err

    return run


def files_of(folder: Path, hidden: bool = False) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (hidden or not path.name.startswith("."))
    }


def test_a_folder_keeps_its_partitions(mask, corpus: Path, tmp_path: Path) -> None:
    code, err = mask(corpus, "--output", tmp_path / "out")
    assert code == 0
    assert err.startswith("480 texts, 480 with something masked: ")
    assert "\n6 files done in " in err
    found = files_of(tmp_path / "out", hidden=True)
    assert sorted(found) == [f"day={i % 2}/{i}.jsonl" for i in (0, 2, 4, 1, 3, 5)]
    for name, masked in found.items():
        for before, after in zip((corpus / name).read_text().splitlines(), masked.decode().splitlines(), strict=True):
            assert json.loads(after)["id"] == json.loads(before)["id"]
            assert "BOB" not in after


def test_processes_patterns_and_single_files_give_the_same_bytes(mask, corpus: Path, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert mask(corpus, "--output", alone)[0] == 0
    assert mask(corpus, "--output", together, "--jobs", "2")[0] == 0
    assert files_of(alone) == files_of(together)
    assert mask(f"{corpus}/*/3.jsonl", "--output", tmp_path / "some")[0] == 0
    assert files_of(tmp_path / "some") == {"day=1/3.jsonl": files_of(alone)["day=1/3.jsonl"]}
    assert mask(corpus / "day=0/2.jsonl", "--output", tmp_path / "one.jsonl", "--jobs", "2")[0] == 0
    assert (tmp_path / "one.jsonl").read_bytes() == files_of(alone)["day=0/2.jsonl"]


def test_a_part_that_fails_does_not_keep_the_others(mask, corpus: Path, tmp_path: Path) -> None:
    good = (corpus / "day=1/1.jsonl").read_bytes()
    (corpus / "day=1/1.jsonl").write_bytes(good + b'{"text": 5}\n')
    code, err = mask(corpus, "--output", tmp_path / "out", "--jobs", "2")
    assert code == 1
    assert f"fastcore: {corpus}/day=1/1.jsonl: line 81: field 'text' holds a number" in err
    assert err.startswith("fastcore: ")
    assert ", 1 failed" in err
    assert len(files_of(tmp_path / "out")) == 5
    (corpus / "day=1/1.jsonl").write_bytes(good)
    code, err = mask(corpus, "--output", tmp_path / "out", "--resume")
    assert code == 0
    assert err.startswith("480 texts")
    assert "1 files done" in err
    assert "5 done before" in err
    assert mask(corpus, "--output", tmp_path / "new")[0] == 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "new")


def test_a_killed_run_goes_on(mask, classifier: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for i in range(16):
        lines = [json.dumps({"text": f"ring BOB{k} of part {i}" + " and ANN" * (k % 12)}) for k in range(100)]
        (source / f"{i:02}.jsonl").write_text("\n".join(lines))
    options = ["--model", classifier, "--field", "text", "--threads", "1", "--jobs", "2", source, "--output", out]
    command = [sys.executable, "-m", "fastcore", "mask", *options, "--resume"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # where its copy of the model is left
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.DEVNULL, env=environment)
    while not (out / JOURNAL).is_file() or (out / JOURNAL).read_bytes().count(b"\n") < 4:
        assert process.poll() is None
        time.sleep(0.002)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    left = children.read_text().split() if children.exists() else []
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(Path(f"/proc/{child}").exists() for child in left):  # they end with it
        time.sleep(0.01)
    finished = files_of(out)
    assert 3 <= len(finished) < 16
    times = {name: (out / name).stat().st_mtime_ns for name in finished}
    journal = (out / JOURNAL).read_bytes()
    recorded = {json.loads(line)["file"] for line in journal.splitlines()[1:]}
    (out / JOURNAL).write_bytes(journal + b'{"file": "torn')
    code, err = mask(source, "--output", out, "--jobs", "2", "--resume")
    assert code == 0
    assert err.startswith("1600 texts")
    assert f"{len(recorded)} done before" in err
    assert {name: (out / name).stat().st_mtime_ns for name in recorded} == {name: times[name] for name in recorded}
    assert mask(source, "--output", tmp_path / "whole")[0] == 0
    assert files_of(out) == files_of(tmp_path / "whole")
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == [JOURNAL]
    code, err = mask(source, "--output", out, "--resume")
    assert (code, err.splitlines()[1]) == (0, "no new files, 16 done before")


def test_going_on_is_refused_where_results_would_not_be_one_run_s(mask, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert mask(corpus, "--output", out, "--resume")[0] == 0
    code, err = mask(corpus, "--output", out, "--resume", "--whole-words")
    assert code == 1
    assert "holds the results of a run with other options" in err
    assert "--resume to go on" in mask(corpus, "--output", out)[1]
    with open(out / JOURNAL, "ab") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        assert "another run writes to this folder" in mask(corpus, "--output", out, "--resume")[1]
    (corpus / "day=0/0.jsonl").write_text('{"text": "now EVE"}\n')  # a part that has changed is done again
    assert "1 files done" in mask(corpus, "--output", out, "--resume")[1]
    assert (out / "day=0/0.jsonl").read_text() == '{"text": "now [PRIVATE_PERSON]"}\n'
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "day=0").mkdir()
    (tmp_path / "strange" / "day=0" / "0.jsonl").write_text("dear to me")
    code, err = mask(corpus, "--output", tmp_path / "strange", "--resume")
    assert code == 1
    assert "day=0/0.jsonl exists" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["in"], "--output is needed"),
        (["in", "--output", "in/masked"], "is inside of in, an input"),
        (["in/day=0/0.jsonl", "--output", "x.jsonl", "--resume"], "needs a folder as --output"),
        (["empty", "--output", "out"], "no files that end in .txt"),
        (["in/*.csv", "--output", "out"], "no file matches this pattern"),
        (["in", "--output", "out", "--resume", "--operator", "placeholder", "--mapping", "m"], "leave --resume out"),
    ],
)
def test_wrong_runs_are_refused(mask, corpus: Path, monkeypatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(corpus.parent)
    Path("empty").mkdir()
    code, err = mask(*arguments)
    assert code == 1
    assert message in err
    assert not Path("out").exists()


# ---------------------------------------------------------------- generate


@pytest.fixture
def generate(tiny_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*arguments: str | Path) -> tuple[int, str]:
        model = str(tiny_folder("qwen2"))
        options = ["--model", model, "--threads", "1", "--max-tokens", "5", *map(str, arguments)]
        code = main(["generate", *options])
        return code, capsys.readouterr().err

    return run


def test_rows_get_completions_or_errors(generate, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b'{"q":"hi","n":1.10}\r\n\n{ "q" : "caf\xc3\xa9" }\n{"q": 7}\n{"q": null}\n{}\n{"q": ""}')
    code, err = generate("--input", source, "--field", "q", "--into", "a", "--output", out)
    llm = LLM(tiny_folder("qwen2"), num_threads=1)
    expected = [llm.generate(text, max_tokens=5) for text in ("hi", "café")]
    assert code == 1
    lines = out.read_bytes().decode().split("\n")
    assert lines[0].startswith('{"q":"hi","n":1.10, "a": ')
    assert lines[0].endswith("}\r")
    rows = [json.loads(line) for line in lines]
    assert [row["a"] for row in rows] == [*(each.text for each in expected), None, None, None, rows[-1]["a"]]
    assert [row["a_error"] for row in rows[:5]] == [None, None, "expected a text, found int", None, None]
    assert rows[0]["a_finish_reason"] == expected[0].finish_reason
    assert rows[1]["a_tokens"] == len(expected[1].token_ids)
    assert err.startswith("6 prompts, 1 failed; ")


def test_json_lines_and_parquet_by_several_processes(generate, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    prompts = [f"word {i}" for i in range(40)]
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    parquet.write_table(pyarrow.table({"id": range(40), "prompt": prompts}), source / "b.parquet")
    for jobs in ("1", "2"):
        code, err = generate("--input", source, "--output", tmp_path / jobs, "--jobs", jobs, "--chat")
        assert code == 0
        assert err.startswith("80 prompts, 0 failed; ")
    assert files_of(tmp_path / "1") == files_of(tmp_path / "2")
    rows = [json.loads(line) for line in (tmp_path / "1" / "a.jsonl").read_text().splitlines()]
    table = parquet.read_table(tmp_path / "1" / "b.parquet")
    assert table.column_names[:2] == ["id", "prompt"]
    assert table.select(list(rows[0])).to_pylist() == rows
    code, err = generate("--input", source / "a.jsonl", "--output", tmp_path / "x.jsonl", "--into", "prompt")
    assert code == 1
    assert "the output is the column 'prompt' itself" in err
    (source / "a.jsonl").write_text('{"prompt": "x", "completion": "y"}\n')
    code, err = generate("--input", source / "a.jsonl", "--output", tmp_path / "x.jsonl")
    assert code == 1
    assert "line 1: a column 'completion' is there already" in err
    assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no", "line 1 is not JSON"),
        ("[1]", "line 1: is a list; expected an object"),
        ('{"x": 1}', "no row has the field 'prompt'"),
    ],
)
def test_what_is_no_row_is_refused(generate, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "in.jsonl").write_text(f"{line}\n")
    code, err = generate("--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")
    assert code == 1
    assert f"{tmp_path}/in.jsonl: {message}" in err
    assert not (tmp_path / "out.jsonl").exists()


# ---------------------------------------------------------------- processes


def test_a_process_that_ends_is_told() -> None:
    with Processes(squares.start, 2) as processes:
        assert list(processes.map(iter(range(9)))) == [(i, i**2) for i in range(9)]
        with pytest.raises(WorkerError, match="--resume goes on"):
            list(processes.map([1, -1, 2]))


def test_a_packed_copy_is_the_model(tiny_folder: Callable[..., Path]) -> None:
    model = tiny_folder("qwen2")
    for dtype in ("auto", "int8"):
        with packed_copy(model, dtype) as folder:
            copy = LLM(folder, num_threads=1).generate("hi", max_tokens=5)
            with packed_copy(folder, "auto") as same:
                assert same == folder
        assert not folder.exists()
        assert copy.token_ids == LLM(model, dtype=dtype, num_threads=1).generate("hi", max_tokens=5).token_ids
