"""`fastcore ps`: servers are seen while their process lives, and leave nothing."""

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tiny import tiny_checkpoint

from fastcore.running import RunningServer, announced, running_servers

SERVER = RunningServer(5, "http://127.0.0.1:1", 10.0, {"a": True, "b": False}, 2, 3 << 20)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FASTCORE_HOME", str(tmp_path))
    return tmp_path


def ps(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fastcore", "ps", *arguments], capture_output=True, text=True)


def test_a_server_is_seen_until_it_ends(home: Path) -> None:
    later = RunningServer(6, "http://[::1]:2", 11.0, {"c": True}, 0, 1 << 20)
    assert running_servers() == []
    with announced() as say_later, announced() as say:
        assert running_servers() == []
        say_later(later)
        say(SERVER)
        assert running_servers() == [SERVER, later]
        header, first, second = ps().stdout.splitlines()
        assert header.split() == ["PID", "ADDRESS", "REQUESTS", "MEMORY", "SINCE", "MODELS"]
        assert re.fullmatch(r"5 +http://127.0.0.1:1 +2 +3 MB +[0-9: -]+a, \(b\)", first)
        assert second.startswith("6 ")
        assert second.endswith(" c")
        assert json.loads(ps("--json").stdout) == [asdict(SERVER), asdict(later)]
        busy = RunningServer(**asdict(SERVER) | {"active_requests": 7})
        say(busy)
        assert running_servers() == [busy, later]
    assert running_servers() == []
    assert list((home / "servers").iterdir()) == []
    done = ps()
    assert (done.returncode, done.stdout) == (0, "")
    assert "fastcore serve" in done.stderr
    assert ps("--json").stdout == "[]\n"


def test_what_a_killed_server_leaves_is_deleted(home: Path) -> None:
    code = f"""
        import os, signal
        from fastcore.running import RunningServer, announced, running_servers
        with announced() as say:
            say({SERVER!r})
            assert running_servers() == [{SERVER!r}]
            os.kill(os.getpid(), signal.SIGKILL)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)]).returncode == -9
    assert list((home / "servers").glob("*.json"))
    assert running_servers() == []
    assert list((home / "servers").iterdir()) == []


def test_files_of_another_kind_are_passed_over(home: Path) -> None:
    with announced() as say:
        say(SERVER)
        (path,) = (home / "servers").glob("*.json")
        for text in ("", "[]", "5", '{"pid": 1}', '{"further": 1}'):
            path.write_text(text)
            assert running_servers() == []


def test_a_server_whose_home_cannot_be_written_runs_unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FASTCORE_HOME", str(tmp_path / "file"))
    with announced() as say:
        say(SERVER)
        assert running_servers() == []


def test_fastcore_serve_tells_of_itself(home: Path) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    folder = tiny_checkpoint(home / "m", "qwen2", max_position_embeddings=1 << 14)
    command = [sys.executable, "-m", "fastcore", "serve", f"a={folder}", f"b={folder}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            url = next(found[1] for line in server.stderr if (found := re.search(r"listening at (http\S+)", line)))
            found = one_that(lambda server: True)
            assert (found.pid, found.url, found.models) == (server.pid, url, {"a": True, "b": False})
            assert found.memory_bytes > 10 << 20
            with closing(HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=60)) as connection:
                body = {"model": "b", "prompt": "hello", "max_tokens": 16_000, "ignore_eos": True, "stream": True}
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                connection.getresponse()
                assert one_that(lambda server: server.active_requests == 1).models == {"a": True, "b": True}
            assert one_that(lambda server: server.active_requests == 0).started == found.started
        finally:
            server.terminate()
    assert server.returncode == 0
    assert running_servers() == []


def one_that(fits: Callable[[RunningServer], bool]) -> RunningServer:
    """The server that runs, when it is so; at the latest within a minute."""
    for _ in range(600):
        for server in running_servers():
            if fits(server):
                return server
        time.sleep(0.1)
    raise AssertionError(running_servers())
