"""The snippets and commands of README.md and docs/ run as written, on tiny models in place of those they name."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_checkpoint

import fastcore
from fastcore import _kernels
from fastcore.sources import resolve

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# a snippet that needs one is skipped
EXTRAS = (
    "torch",
    "transformers",
    "presidio_analyzer",
    "lm_eval",
    "matplotlib",
    "fastcore.ray",
    "fastcore.spark",
    "fastcore.dask",
)


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text(encoding="utf-8")) if language in languages]


def commands(page: Path) -> list[str]:
    """The lines of a page that call fastcore, without comments."""
    lines = [
        line.split("  #")[0].split("   (")[0].strip()
        for body in blocks(page, "", "console")
        if not body.startswith("$ ")  # shows what a command prints
        for line in body.splitlines()
    ]
    return [line for line in lines if re.match(r"(python -m )?fastcore\b", line)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        model_type: tiny_checkpoint(folder / model_type, model_type, max_position_embeddings=1024)
        for model_type in ("qwen2", "falcon_h1", "pii_masking")
    }


@pytest.fixture
def tiny_for_every_name(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(model: Any = None, progress: bool = True) -> Path:
        return models["pii_masking" if model in ("path/to/model", "pplx-pii") else "qwen2"]

    monkeypatch.setattr(resolve, "resolve", tiny)


@pytest.fixture
def names(tiny_for_every_name: None) -> dict[str, Any]:
    """What snippets use and do not define."""
    question, text = "What is red?", "My name is Ada Quill. Call 555-0100."
    return {
        "llm": fastcore.LLM("any"),
        "SamplingParams": fastcore.SamplingParams,
        "TokenClassifier": fastcore.TokenClassifier,
        "question": question,
        "prompt": question,
        "answers": [" a rose", " blood"],
        "messages": [{"role": "user", "content": question}],
        "text": text,
        "file": [f"{text}\n", "nothing\n"],
    }


def snippets() -> Iterator[Any]:
    for page in PAGES:
        for number, body in enumerate(blocks(page, "python"), 1):
            yield pytest.param(page, body, id=f"{page.stem}-{number}")


@pytest.mark.parametrize(("page", "body"), list(snippets()))
def test_snippet(page: Path, body: str, names: dict[str, Any]) -> None:
    for extra in EXTRAS:
        if extra in body or (extra == "presidio_analyzer" and "presidio" in body):
            pytest.skip(f"needs {extra}")
    earlier = [block for block in blocks(page, "python") if not any(extra in block for extra in (*EXTRAS, "presidio"))]
    for block in earlier[: earlier.index(body) + 1]:
        exec(compile(block, str(page), "exec"), names)


@pytest.fixture
def folder(tmp_path: Path, models: dict[str, Path]) -> Path:
    """A folder with the files that commands name, and a `fastcore` to call."""
    (tmp_path / "in.txt").write_text("My name is Ada Quill.\nnothing here\n")
    (tmp_path / "people.csv").write_text("id,name,notes\n1,Ada Quill,call 555-0100\n2,Bo,\n")
    (tmp_path / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "I am Ada Quill"}]}\n')
    for name, field in (("corpus", "text"), ("questions", "question")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jsonl").write_text(f'{{"{field}": "My name is Ada Quill"}}\n')
    (tmp_path / "masked").mkdir()
    command = tmp_path / "bin" / "fastcore"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fastcore "$@"\n')
    command.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("page", "command"),
    [pytest.param(page, line, id=f"{page.stem}: {line}") for page in PAGES for line in dict.fromkeys(commands(page))],
)
def test_command(page: Path, command: str, folder: Path, models: dict[str, Path]) -> None:
    for extra in EXTRAS:
        if extra in command or (extra == "matplotlib" and "--plot" in command):
            pytest.importorskip(extra)
    if "parquet" in command:
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        parquet.write_table(pyarrow.table({"notes": ["I am Ada Quill", None]}), folder / "rows.parquet")
    if "NAME" in command:
        pytest.skip("stands for any name")
    kind = "pii_masking" if " mask " in command else "falcon_h1" if " export " in command else "qwen2"
    line = re.sub(r"\b(FOLDER|MODEL)\b", str(models[kind]), command.replace("[MODEL]", "MODEL"))
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(_kernels.__file__).parents[1]),
        "FASTCORE_HOME": str(folder / "home"),
    }
    if " serve" in line:
        _serve(line + " --port 0", folder, environment)
        return
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr


def _serve(line: str, folder: Path, environment: dict[str, str]) -> None:
    """It says where it answers, and ends when it is asked to."""
    pytest.importorskip("starlette")
    server = subprocess.Popen(
        ["bash", "-c", f"exec {line}"], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        said = ""
        while "http://" not in said:
            line = server.stderr.readline()
            assert line, said
            said += line
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert server.returncode in (0, -signal.SIGTERM), said


@pytest.mark.fault("H6")
def test_the_first_command_of_the_readme_asks_through_the_template(folder: Path, models: dict[str, Path]) -> None:
    """It is `generate --chat`, its model is described next to it, and stdout is the answer alone."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = FENCE.findall(readme)[0][1].splitlines()[0]
    options = shlex.split(first.partition("fastcore generate ")[2])
    assert options[0] == "--chat"
    assert "SmolLM2-135M-Instruct" in readme[: readme.index("```python")]
    options += ["--model", str(models["qwen2"]), "--temperature", "0", "--max-tokens", "8"]
    done = subprocess.run([str(folder / "bin" / "fastcore"), "generate", *options], capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    question = [{"role": "user", "content": options[1]}]
    answer = fastcore.LLM(models["qwen2"]).chat(question, temperature=0, max_tokens=8).text
    assert done.stdout.decode().strip() == answer.strip()
    assert b"tok/s" in done.stderr
