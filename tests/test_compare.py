"""Comparing a classifier with a scoring server, against servers that answer known numbers."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastcore import TokenClassifier
from fastcore.cli import main
from fastcore.errors import ServerError
from fastcore.verify.scoring_client import compare_scoring

TEXT = "my name is Alice"


@pytest.fixture(scope="module")
def classifier(tiny_folder: Callable[..., Path]) -> TokenClassifier:
    return TokenClassifier(tiny_folder("pii_masking"), num_threads=1)


@contextmanager
def answering(answer: Any, status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """A server that gives one answer to everything: its address, and what it was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, self.headers.get("Authorization"), json.loads(body)))
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def answer_of(classifier: TokenClassifier, text: str = TEXT) -> dict[str, Any]:
    scores = classifier.score(text)
    return {
        "token_ids": [scores.token_ids],
        "pruning_scores": [scores.logits.tolist()],
        "ranking_scores": [[scores.sensitivity_logit]],
    }


@pytest.mark.parametrize("path", ["", "/", "/v1/scoring", "/v1/scoring/"])
def test_the_same_numbers(classifier: TokenClassifier, path: str) -> None:
    with answering(answer_of(classifier)) as (url, asked):
        result = compare_scoring(classifier, TEXT, f"{url}{path}", api_key="k")
    assert asked == [("/v1/scoring", "Bearer k", {"model": "pii-masking-latest", "sequences": [TEXT]})]
    tokens = len(classifier.tokenizer.encode(TEXT))
    sensitivity = round(classifier(TEXT).sensitivity_logit, 5)
    assert result == {
        "tokens": tokens,
        "max_abs_delta": 0.0,
        "mean_abs_delta": 0.0,
        "min_cosine": 1.0,
        "argmax_agreement": f"{tokens}/{tokens}",
        "sensitivity_ref": sensitivity,
        "sensitivity_served": sensitivity,
        "sensitivity_delta": 0.0,
        "same_token_ids": True,
    }


def test_differences_are_measured(classifier: TokenClassifier) -> None:
    answer = answer_of(classifier)
    served = np.array(answer["pruning_scores"][0])
    logits = served.copy()
    served[1, 5] += 40.0
    served[2] *= 3.0
    answer["pruning_scores"], answer["ranking_scores"] = [served.tolist()], [[2.0]]
    with answering(answer) as (url, _):
        result = compare_scoring(classifier, TEXT, url, model="other")
    delta = np.abs(served - logits)
    assert result["max_abs_delta"] == pytest.approx(delta.max(), abs=1e-5)
    assert result["mean_abs_delta"] == pytest.approx(delta.mean(), abs=1e-6)
    cosine = served[1] @ logits[1] / np.linalg.norm(served[1]) / np.linalg.norm(logits[1])
    assert result["min_cosine"] == pytest.approx(cosine, abs=1e-8)
    tokens = len(served)
    assert result["argmax_agreement"] == f"{tokens - 1}/{tokens}"
    assert result["sensitivity_served"] == 2.0
    assert result["sensitivity_delta"] == pytest.approx(2.0 - result["sensitivity_ref"], abs=1e-5)


def test_other_token_ids_are_the_ones_compared(classifier: TokenClassifier) -> None:
    answer = answer_of(classifier, "hello world")
    with answering(answer) as (url, _):
        result = compare_scoring(classifier, TEXT, url)
    assert result["max_abs_delta"] == 0.0
    assert not result["same_token_ids"]


def test_no_tokens_and_no_sensitivity(classifier: TokenClassifier) -> None:
    with answering({"token_ids": [[]], "pruning_scores": [[]], "ranking_scores": [[]]}) as (url, _):
        result = compare_scoring(classifier, "", url)
    assert (result["tokens"], result["argmax_agreement"], result["max_abs_delta"]) == (0, "0/0", 0.0)
    assert result["sensitivity_served"] is None
    assert result["sensitivity_delta"] is None


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (b"down\n for lunch", 503, "answers 503 Service Unavailable: down for lunch"),
        (b"<p>" * 300, 500, r"Internal Server Error: (<p>){66}<p$"),
        (b"<html>", 200, "something other than JSON"),
        ({"data": []}, 200, r"KeyError: 'token_ids'"),
        ({"token_ids": [[3]], "pruning_scores": [[[1.0]]], "ranking_scores": [[0.0]]}, 200, r"\[1, 1\]; .* \[1, 37\]"),
        ({"token_ids": [[3]], "pruning_scores": [[[1.0], [1.0, 2.0]]], "ranking_scores": [[0.0]]}, 200, "ValueError"),
        ({"token_ids": [[3]], "pruning_scores": [[[None] * 37]], "ranking_scores": [[0.0]]}, 200, "not finite"),
    ],
)
def test_wrong_answers_are_named(classifier: TokenClassifier, answer: Any, status: int, message: str) -> None:
    with answering(answer, status) as (url, _), pytest.raises(ServerError, match=message):
        compare_scoring(classifier, TEXT, url)


def test_no_server(classifier: TokenClassifier) -> None:
    with answering({}) as (url, _):
        pass
    with pytest.raises(ServerError, match="does not answer"):
        compare_scoring(classifier, TEXT, url)
    with pytest.raises(ServerError, match="http://"):
        compare_scoring(classifier, TEXT, "file:///etc")


def test_the_command_prints_and_writes_the_comparison(
    classifier: TokenClassifier,
    tiny_folder: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FASTCORE_API_KEY", "secret")
    folder, out = str(tiny_folder("pii_masking")), tmp_path / "out.json"
    with answering(answer_of(classifier)) as (url, asked):
        arguments = ["verify", folder, "--scoring-url", url, "--text", TEXT, "--out", str(out), "--threads", "1"]
        assert main(arguments) == 0
        expected = compare_scoring(classifier, TEXT, url)
    assert json.loads(capsys.readouterr().out) == expected
    assert json.loads(out.read_text()) == {"text": TEXT} | expected
    assert expected["max_abs_delta"] == 0
    assert asked[0] == ("/v1/scoring", "Bearer secret", {"model": "pii-masking-latest", "sequences": [TEXT]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", "x"], "--text and --out belong to --scoring-url"),
        (["--out", "x"], "--text and --out belong to --scoring-url"),
        (["--scoring-url", "http://127.0.0.1:1", "--golden", "x"], "give one of them"),
        (
            ["--scoring-url", "http://127.0.0.1:1", "--out", "/no/such/folder/x"],
            "--out /no/such/folder/x: expected a file",
        ),
        (["--scoring-url", "http://127.0.0.1:1", "--out", "/"], "--out /: expected a file"),
        (["--scoring-url", "http://127.0.0.1:1"], "http://127.0.0.1:1"),
    ],
)
def test_the_command_names_what_is_wrong(
    tiny_folder: Callable[..., Path], options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tiny_folder("pii_masking")), *options]) == 1
    assert message in capsys.readouterr().err
