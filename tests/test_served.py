"""Several models in one server: which answers, when each is loaded and unloaded; token ids; metrics."""

import json
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from labelled import labelled_checkpoint

from fastcore import LLM, TokenClassifier

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from serving import call, serving

from fastcore.server import ServedModel, create_app

GREEDY = {"prompt": "hello my name is", "max_tokens": 6, "temperature": 0, "ignore_eos": True}


class Shelf:
    """Tiny models of 100 bytes each by their own account, and which of them are in memory."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders = folders
        self.loads: list[str] = []

    def model(self, name: str, **options: Any) -> ServedModel:
        def load() -> LLM | TokenClassifier:
            self.loads.append(name)
            kind = TokenClassifier if name == "pii" else LLM
            return kind(self.folders[name], num_threads=1)

        return ServedModel([name], load, is_classifier=name == "pii", weight_bytes=100, **options)


@pytest.fixture
def shelf(tiny_folder: Callable[..., Path], tmp_path: Path) -> Shelf:
    return Shelf({"a": tiny_folder("qwen2"), "b": tiny_folder("llama"), "pii": labelled_checkpoint(tmp_path)})


def text_of(port: int, model: str | None) -> str:
    status, answer, _ = call(port, "POST", "/v1/completions", GREEDY | {"model": model})
    assert status == 200, answer
    return answer["choices"][0]["text"]


def loaded(port: int) -> list[str]:
    return [model["id"] for model in call(port, "GET", "/v1/models")[1]["data"] if model["loaded"]]


def test_each_model_answers_to_its_name_and_is_loaded_by_its_first_request(shelf: Shelf) -> None:
    options = {"max_tokens": 6, "ignore_eos": True}
    expected = {name: LLM(shelf.folders[name], num_threads=1).generate(GREEDY["prompt"], **options) for name in "ab"}
    assert expected["a"].text != expected["b"].text
    with serving([shelf.model("pii"), shelf.model("a"), shelf.model("b")]) as port:
        assert loaded(port) == shelf.loads == []
        assert call(port, "GET", "/health")[1] == {"status": "ok", "active_requests": 0}
        for name in ("b", "a", "b"):
            assert text_of(port, name) == expected[name].text
        assert shelf.loads == ["b", "a"]
        assert text_of(port, None) == expected["a"].text  # the first that completes texts
        status, answer, _ = call(port, "POST", "/v1/pii", {"sequences": ["ring BOB"]})
        assert (status, answer["results"][0]["masked_text"]) == (200, "ring [PRIVATE_PERSON]")
        assert loaded(port) == ["pii", "a", "b"]
        status, answer, _ = call(port, "POST", "/v1/completions", GREEDY | {"model": "pii"})
        assert (status, answer["error"]["param"]) == (400, "model")
        assert "it does at /v1/scoring, /v1/pii" in answer["error"]["message"]
        assert call(port, "POST", "/v1/completions", GREEDY | {"model": "c"})[0] == 404


def test_what_was_unused_for_longest_makes_room(shelf: Shelf) -> None:
    models = [shelf.model("a"), shelf.model("b"), shelf.model("pii", at_once=True)]
    with serving(models, max_weight_bytes=200) as port:
        assert loaded(port) == ["pii"]
        first = text_of(port, "a")
        call(port, "POST", "/v1/pii", {"sequences": ["BOB"]})
        text_of(port, "b")
        assert loaded(port) == ["b", "pii"]
        assert text_of(port, "a") == first
        assert loaded(port) == ["a", "b"]
        assert shelf.loads == ["pii", "a", "b", "a"]


def test_a_model_in_use_is_not_unloaded(shelf: Shelf, tiny_folder: Callable[..., Path]) -> None:
    shelf.folders["a"] = tiny_folder("llama", max_position_embeddings=100_000)
    with serving([shelf.model("a"), shelf.model("b")], max_weight_bytes=150) as port:
        body = json.dumps({"model": "a", "prompt": "x", "max_tokens": 90_000, "ignore_eos": True, "stream": True})
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall((head + body).encode())
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            status, answer, headers = call(port, "POST", "/v1/completions", GREEDY | {"model": "b"})
            assert (status, headers["retry-after"]) == (503, "1")
            assert "b needs 0 MB of weights" in answer["error"]["message"]
        deadline = time.monotonic() + 60
        while call(port, "POST", "/v1/completions", GREEDY | {"model": "b"})[0] == 503:
            assert time.monotonic() < deadline
        assert loaded(port) == ["b"]


def test_models_that_cannot_be_served_are_refused(shelf: Shelf) -> None:
    with pytest.raises(ValueError, match="two models are called 'a'"):
        create_app([shelf.model("a"), shelf.model("a")])
    with pytest.raises(ValueError, match="a needs 0 MB of weights"):
        create_app([shelf.model("a")], max_weight_bytes=99)
    with pytest.raises(ValueError, match="names is empty"):
        ServedModel([], lambda: LLM("x"), is_classifier=False)


def test_a_model_that_does_not_load_fails_its_requests_alone(shelf: Shelf, tmp_path: Path) -> None:
    shelf.folders["b"] = tmp_path / "nothing"
    with serving([shelf.model("a"), shelf.model("b")]) as port:
        status, answer, _ = call(port, "POST", "/v1/completions", GREEDY | {"model": "b"})
        assert status >= 400
        assert "nothing" in answer["error"]["message"]
        assert text_of(port, "a")


# ---------------------------------------------------------------- token ids


def test_tokens(shelf: Shelf) -> None:
    llm = LLM(shelf.folders["a"], num_threads=1)
    messages = [{"role": "user", "content": "hello"}]
    with serving([ServedModel.loaded(llm, ["a"]), shelf.model("pii")]) as port:

        def tokenize(**body: Any) -> dict[str, Any]:
            status, answer, _ = call(port, "POST", "/tokenize", body)
            assert status == 200, answer
            return answer

        ids = llm.tokenizer.encode("caf\u00e9 au lait")
        answer = tokenize(prompt="caf\u00e9 au lait", return_token_strs=True)
        strings = answer.pop("token_strs")
        assert answer == {"count": len(ids), "max_model_len": llm.max_seq_len, "tokens": ids}
        assert len(strings) == len(ids)
        assert strings[0] == llm.tokenizer.token_bytes(ids[0]).decode(errors="replace")
        assert tokenize(messages=messages)["tokens"] == llm.tokenizer.encode_chat(messages)
        assert tokenize(prompt="BOB", model="pii")["count"] > 0
        status, answer, _ = call(port, "POST", "/detokenize", {"tokens": ids})
        assert (status, answer) == (200, {"prompt": "caf\u00e9 au lait"})
        for path, body, param in (
            ("/tokenize", {}, "prompt"),
            ("/tokenize", {"prompt": "x", "messages": messages}, "prompt"),
            ("/detokenize", {}, "tokens"),
            ("/detokenize", {"tokens": [10**6]}, "tokens"),
            ("/detokenize", {"tokens": [-1]}, "tokens"),
        ):
            status, answer, _ = call(port, "POST", path, body)
            assert (status, answer["error"]["param"]) == (400, param)


# ---------------------------------------------------------------- metrics


def test_metrics_count_what_was_done(shelf: Shelf) -> None:
    llm = LLM(shelf.folders["a"], num_threads=1)
    prompt = [5 + i % 90 for i in range(100)]
    with serving([ServedModel.loaded(llm, ["a"]), shelf.model("b")]) as port:
        for _ in range(2):
            call(port, "POST", "/v1/completions", GREEDY | {"prompt": prompt})
        call(port, "POST", "/v1/completions", {"temperature": -1, "prompt": "a secret"})
        call(port, "GET", "/nowhere/a-secret")
        status, page, headers = call(port, "GET", "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    values = dict(re.findall(r"^(fastcore_\S+) (\S+)$", page, re.MULTILINE))
    expected = {
        'fastcore_prompt_tokens_total{model="a"}': 200,
        'fastcore_cached_tokens_total{model="a"}': 96,  # the second finds the full blocks of the first
        'fastcore_completion_tokens_total{model="a"}': 12,
        'fastcore_completions_total{finish_reason="length",model="a"}': 2,
        'fastcore_first_token_seconds_count{model="a"}': 2,
        'fastcore_requests_total{path="/v1/completions",status="200"}': 2,
        'fastcore_requests_total{path="/v1/completions",status="400"}': 1,
        'fastcore_requests_total{path="other",status="404"}': 1,
        'fastcore_model_loaded{model="a"}': 1,
        'fastcore_model_loaded{model="b"}': 0,
        'fastcore_active_requests{model="a"}': 0,
    }
    assert {name: float(values[name]) for name in expected} == expected
    assert "secret" not in page
