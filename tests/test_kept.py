"""`fastcore list` and `fastcore rm`: models that were fetched, of both kinds, and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import tiny_checkpoint

REVISIONS = {"models--owner--whole": "0" * 40, "models--owner--part": "1" * 40, "datasets--owner--whole": "2" * 40}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A cache with a named model, a damaged one and a lock; and the hub's with a model, a part of one and a dataset."""
    named = tmp_path / "home"
    for name in ("tiny", "damaged"):
        folder = tiny_checkpoint(named / name, "qwen2")
        files = {path.name: {"bytes": path.stat().st_size} for path in folder.iterdir()}
        if name == "damaged":
            files["model.safetensors"]["bytes"] += 1
        (folder / "source.json").write_text(json.dumps({"files": files}))
    (named / "tiny.lock").touch()
    hub = tmp_path / "hf" / "hub"
    for name, revision in REVISIONS.items():
        repository = hub / name
        folder = tiny_checkpoint(repository / "snapshots" / revision, "qwen2")
        if name.endswith("part"):
            (folder / "model.safetensors").unlink()
        (repository / "blobs").mkdir()
        for path in [*folder.iterdir()]:
            blob = repository / "blobs" / path.name
            path.rename(blob)
            path.symlink_to(os.path.relpath(blob, folder))
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(revision)
    return tmp_path


def fastcore(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    places = {
        "FASTCORE_HOME": str(home / "home"),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_CACHE": str(home / "hf" / "hub"),
    }
    command = [sys.executable, "-m", "fastcore", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | places, stdin=subprocess.DEVNULL)


def names(home: Path) -> list[str]:
    done = fastcore(home, "list", "--json")
    assert done.returncode == 0, done.stderr
    return [model["name"] for model in json.loads(done.stdout)]


def test_what_was_fetched_is_listed(home: Path) -> None:
    assert names(home) == ["tiny", "owner/whole"]
    done = fastcore(home, "list")
    first, second = done.stdout.splitlines()
    size = sum(path.stat().st_size for path in (home / "home" / "tiny").iterdir())
    assert first.split() == ["tiny", f"{size / 1e6:.1f}", "MB", str(home / "home" / "tiny")]
    assert second.endswith(f"models--owner--whole/snapshots/{REVISIONS['models--owner--whole']}")


def test_removing_takes_what_is_named_and_nothing_else(home: Path) -> None:
    done = fastcore(home, "rm", "tiny", "owner/whole", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == ["deleted tiny", "deleted owner/whole"]
    assert names(home) == []
    assert sorted(path.name for path in (home / "home").iterdir()) == ["damaged", "tiny.lock"]
    left = {path.name for path in (home / "hf" / "hub").iterdir()}
    assert {"models--owner--part", "datasets--owner--whole"} <= left
    assert "models--owner--whole" not in left


@pytest.mark.parametrize("name", ["owner/none", "..", "../home/tiny", "damaged", "", "."])
def test_only_what_was_fetched_can_be_removed(home: Path, name: str) -> None:
    done = fastcore(home, "rm", "tiny", name, "--yes")
    assert done.returncode == 1
    assert "`fastcore list` shows tiny, owner/whole" in done.stderr
    assert names(home) == ["tiny", "owner/whole"]


def test_nothing_is_removed_unasked(home: Path) -> None:
    done = fastcore(home, "rm", "tiny")
    assert (done.returncode, names(home)) == (1, ["tiny", "owner/whole"])
    assert "--yes" in done.stderr


def test_short_names_are_listed_and_name_what_was_fetched(home: Path) -> None:
    known = json.loads(fastcore(home, "list", "--known", "--json").stdout)
    assert known["qwen3-0.6b"] == "Qwen/Qwen3-0.6B"
    lines = fastcore(home, "list", "--known").stdout.splitlines()
    assert [line.split() for line in lines] == [[name, source] for name, source in known.items()]
    done = fastcore(home, "rm", "qwen3-0.6b", "--yes")
    assert (done.returncode, "no model 'qwen3-0.6b' was fetched" in done.stderr) == (1, True)
    hub = home / "hf" / "hub"
    (hub / "models--owner--whole").rename(hub / "models--Qwen--Qwen3-0.6B")
    assert fastcore(home, "rm", "qwen3-0.6b", "--yes").stdout.startswith("deleted Qwen/Qwen3-0.6B, ")
    assert names(home) == ["tiny"]


def test_an_empty_cache(tmp_path: Path) -> None:
    done = fastcore(tmp_path, "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "fastcore pull" in done.stderr
    assert fastcore(tmp_path, "list", "--json").stdout == "[]\n"
