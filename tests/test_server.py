"""The server, over real sockets: answers, refusals, limits, keys and CORS."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelled import labelled_checkpoint

import fastcore
from fastcore import MissingPackageError, TokenClassifier
from fastcore.cli import main
from fastcore.pii.masking import unmask

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from serving import call, raw, serving

NAMES = ["tiny", "pii-masking-latest"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> TokenClassifier:
    return TokenClassifier(labelled_checkpoint(tmp_path_factory.mktemp("labelled")), num_threads=1)


@pytest.fixture(scope="module")
def port(classifier: TokenClassifier) -> Iterator[int]:
    with serving(classifier, NAMES) as port:
        yield port


# ---------------------------------------------------------------- answers


def test_health_and_models(port: int) -> None:
    assert call(port, "GET", "/health")[:2] == (200, {"status": "ok", "active_requests": 0})
    status, models, _ = call(port, "GET", "/v1/models")
    assert status == 200
    assert [model["id"] for model in models["data"]] == NAMES


def test_scoring_gives_the_classifiers_numbers(port: int, classifier: TokenClassifier) -> None:
    texts = ["ring BOB", "", "caf\u00e9 \U0001f4f7 555"]
    status, answer, _ = call(port, "POST", "/v1/scoring", {"model": "pii-masking-latest", "sequences": texts})
    assert status == 200
    assert set(answer) == {"token_ids", "pruning_scores", "ranking_scores", "windows"}
    assert answer["windows"] == [1, 0, 1]
    for i, scores in enumerate(classifier.score(texts)):
        assert answer["token_ids"][i] == scores.token_ids
        received = np.array(answer["pruning_scores"][i], np.float32).reshape(-1, 37)
        assert np.array_equal(received, scores.logits)
        assert answer["ranking_scores"][i] == [scores.sensitivity_logit]


def test_pii_finds_and_masks(port: int, classifier: TokenClassifier) -> None:
    texts = ["\U0001f4f7 ring BOB\r\n", "nobody", "at 555"]
    status, answer, _ = call(port, "POST", "/v1/pii", {"sequences": texts})
    assert status == 200
    assert answer["results"] == [
        result.to_dict() | {"masked_text": classifier.mask(text).text}
        for text, result in zip(texts, classifier(texts), strict=True)
    ]
    assert answer["results"][0]["masked_text"] == "\U0001f4f7 ring [PRIVATE_PERSON]\r\n"


def test_pii_options(port: int) -> None:
    def masked(text: str, **options: Any) -> Any:
        status, answer, _ = call(port, "POST", "/v1/pii", {"sequences": [text], **options})
        assert status == 200
        return answer["results"][0]

    assert masked("BOB 555", operator="mask", keep=1, mask_char="#")["masked_text"] == "##B ##5"
    assert masked("BOB 555", per_label={"private_person": None})["masked_text"] == "BOB [PRIVATE_PHONE]"
    assert masked("BOB 555", allow_list=["BOB"], threshold=0.5)["masked_text"] == "BOB [PRIVATE_PHONE]"
    assert len(masked("BOB", operator="hash", key="k")["masked_text"]) == len("[PRIVATE_PERSON:]") + 64
    numbered = masked("BOB, BOB", operator="placeholder")
    assert unmask(numbered["masked_text"], numbered["mapping"]) == "BOB, BOB"
    for offsets, start in (("code_points", 2), ("utf16", 3), ("utf8", 5)):
        assert masked("\U0001f4f7 BOB", offsets=offsets)["entities"][0]["start"] == start


def test_lone_surrogates_come_back_as_they_went_in(port: int) -> None:
    status, answer, _ = call(port, "POST", "/v1/pii", b'{"sequences": ["\\ud800 BOB"]}')
    assert status == 200
    assert answer["results"][0]["masked_text"] == "\ud800 [PRIVATE_PERSON]"


def test_requests_at_once_get_their_own_answers(port: int, classifier: TokenClassifier) -> None:
    texts = [[f"number {caller} of BOB {'x ' * (caller % 7)}{i}" for i in range(5)] for caller in range(12)]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda own: call(port, "POST", "/v1/pii", {"sequences": own}), texts))
    for own, (status, answer, _) in zip(texts, answers, strict=True):
        assert status == 200
        assert [result["masked_text"] for result in answer["results"]] == [classifier.mask(text).text for text in own]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("path", ["/v1/scoring", "/v1/pii"])
@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff", 400, "not JSON"),
        (b"[" * 100_000, 400, "the body is a JSON list; expected an object"),
        (b'{"sequences": [NaN]}', 400, "not JSON"),
        (["x"], 400, "the body is a JSON list; expected an object"),
        ({}, 400, "sequences is missing"),
        ({"sequences": None}, 400, "sequences is missing"),
        ({"sequences": []}, 400, "sequences is empty"),
        ({"sequences": "BOB"}, 400, "sequences is a JSON string; expected a list"),
        ({"sequences": ["BOB", 5]}, 400, "sequences[1] is a JSON number"),
        ({"sequences": ["BOB", None]}, 400, "sequences[1] is a JSON null"),
        ({"sequences": ["BOB"], "model": "gpt"}, 404, "the model 'gpt' is not served here; served: tiny"),
        ({"sequences": ["BOB"], "model": 7}, 400, "model is a JSON number"),
        ({"sequences": ["BOB"], "sequence": 1}, 400, "unknown field 'sequence'"),
    ],
)
def test_bad_bodies_are_refused(port: int, path: str, body: Any, status: int, message: str) -> None:
    got, answer, _ = call(port, "POST", path, body)
    assert got == status
    assert message in answer["error"]["message"]
    codes = {
        "not JSON": "invalid_json", "is a JSON": "invalid_type", "missing": "missing_required_parameter",
        "empty": "invalid_value", "not served": "model_not_found", "unknown field": "unknown_parameter",
    }  # fmt: skip
    assert answer["error"]["code"] == next(code for words, code in codes.items() if words in message)
    field = re.search("sequences?|model", message)
    assert answer["error"]["param"] == (None if field is None else field[0])
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operator": "blur"}, "operator is 'blur'"),
        ({"operator": "hash"}, "needs key="),
        ({"operator": 1}, "operator is a JSON number"),
        ({"threshold": "0.5"}, "threshold is a JSON string"),
        ({"threshold": True}, "threshold is a JSON boolean"),
        ({"threshold": 2}, "threshold is 2.0"),
        ({"keep": 1.5}, "keep is a JSON number; expected a whole number"),
        ({"mask_char": "ab"}, "mask_char is 'ab'"),
        ({"mask_char": ""}, "mask_char is ''"),
        ({"operator": ""}, "''"),
        ({"keep_from": ""}, "keep_from is ''"),
        ({"allow_list": "BOB"}, "allow_list is a JSON string"),
        ({"per_label": {"fax": None}}, "per_label has 'fax'"),
        ({"per_label": {"private_phone": 1}}, "per_label[...] is a JSON number; expected a string"),
        ({"offsets": "bytes"}, "offsets is 'bytes'"),
    ],
)
def test_bad_options_are_refused(port: int, options: dict[str, Any], message: str) -> None:
    status, answer, _ = call(port, "POST", "/v1/pii", {"sequences": ["BOB"], **options})
    assert status == 400
    assert message in answer["error"]["message"]


@pytest.mark.fault("B5")
def test_scores_say_in_how_many_windows_a_text_was_read(tmp_path: Path) -> None:
    text, folder = "ring BOB at home " * 8, labelled_checkpoint(tmp_path)
    for max_seq_len, alone in ((16, False), (4096, True)):
        with serving(TokenClassifier(folder, num_threads=1, max_seq_len=max_seq_len), NAMES) as port:
            status, answer, _ = call(port, "POST", "/v1/scoring", {"sequences": [text, "x"]})
        assert status == 200
        assert answer["windows"][1] == 1
        assert (answer["windows"][0] == 1) == alone


@pytest.mark.fault("B3")
def test_a_text_that_is_not_read_to_its_end_is_not_masked(tmp_path: Path) -> None:
    short = TokenClassifier(labelled_checkpoint(tmp_path), num_threads=1, max_seq_len=8, long_text="truncate")
    with serving(short, NAMES) as port:
        assert call(port, "POST", "/v1/pii", {"sequences": ["BOB"]})[0] == 200
        status, answer, _ = call(port, "POST", "/v1/pii", {"sequences": ["BOB", "nobody " * 20 + "BOB"]})
        assert status == 400
        assert "not all of them were read" in answer["error"]["message"]


def test_no_such_path_or_method(port: int) -> None:
    for method, path, status in (("GET", "/v2", 404), ("GET", "/v1/pii", 405), ("POST", "/health", 405)):
        got, answer, headers = call(port, method, path)
        assert got == status
        assert path in answer["error"]["message"]
        assert (status == 405) == ("allow" in headers)


def test_a_model_that_fails_is_the_servers_fault(tiny_folder: Callable[..., Path], monkeypatch: Any) -> None:
    pii = TokenClassifier(tiny_folder("pii_masking"), num_threads=1)
    with serving(pii, NAMES) as port:
        monkeypatch.setattr("fastcore.engine.scheduler.run_step", lambda *_, logits, **__: logits.fill(np.nan))
        status, answer, _ = call(port, "POST", "/v1/pii", {"sequences": ["x"]})
        assert status == 500
        assert "are not finite" in answer["error"]["message"]
        assert answer["error"]["type"] == "server_error"
        monkeypatch.setattr("fastcore.engine.scheduler.run_step", lambda *_, **__: 1 / 0)
        status, answer, _ = call(port, "POST", "/v1/pii", {"sequences": ["x"]})
        assert (status, answer["error"]["message"]) == (500, "internal error; the server's log has the details")
        monkeypatch.undo()
        assert call(port, "POST", "/v1/pii", {"sequences": ["x"]})[0] == 200


# ---------------------------------------------------------------- limits


def still_serves(port: int) -> bool:
    return call(port, "POST", "/v1/pii", {"sequences": ["BOB"]})[0] == 200


@pytest.mark.case("X1")
def test_a_body_that_is_too_large(port: int) -> None:
    status, answer, headers = call(port, "POST", "/v1/pii", b'{"sequences": ["' + b"x" * (64 << 20) + b'"]}')
    assert status == 413
    assert "larger than 16777216 bytes" in answer["error"]["message"]
    assert headers["connection"] == "close"
    assert still_serves(port)


def test_a_chunked_body_that_is_too_large(classifier: TokenClassifier) -> None:
    with serving(classifier, NAMES, max_body_bytes=1000) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/pii", iter([b"x" * 600] * 5), {}, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()
        body = b'{"sequences": ["%s"]}'
        assert call(port, "POST", "/v1/pii", body % (b"x" * (1000 - len(body) + 2)))[0] == 200
        assert call(port, "POST", "/v1/pii", body % (b"x" * (1000 - len(body) + 3)))[0] == 413


@pytest.mark.case("X1")
def test_a_body_that_comes_slowly(classifier: TokenClassifier) -> None:
    head = b"POST /v1/pii HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
    with serving(classifier, NAMES, body_seconds=0.3) as port:
        answer = raw(port, head, *[b" "] * 4, pause=0.05)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"did not come within 0.3 seconds" in answer
        assert still_serves(port)


@pytest.mark.parametrize("length", [b"-1", b"x", b"1e3", b"5, 6", b"99999999999999999999999999"])
def test_a_wrong_content_length(classifier: TokenClassifier, length: bytes) -> None:
    with serving(classifier, NAMES, body_seconds=0.3) as port:
        head = b"POST /v1/pii HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length + b"\r\n\r\n"
        answer = raw(port, head)
        assert answer.split()[1] in (b"400", b"413")
        assert still_serves(port)


@pytest.mark.case("X1")
def test_a_content_length_that_is_too_short(port: int) -> None:
    head = b"POST /v1/pii HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n"
    answer = raw(port, head + b'{"sequences": ["BOB"]}')
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"not JSON" in answer
    assert still_serves(port)


@pytest.mark.case("S01")
def test_a_client_that_leaves(port: int, classifier: TokenClassifier) -> None:
    body = json.dumps({"sequences": ["BOB " * 50] * 400}).encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"POST /v1/pii HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        while not classifier._scheduler.num_requests:
            time.sleep(0.001)
    deadline = time.monotonic() + 30
    while classifier._scheduler.num_requests and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not classifier._scheduler.num_requests
    assert still_serves(port)


# ---------------------------------------------------------------- keys and other origins

ORIGIN = "https://app.example"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,x-stainless-os",
}


def test_a_key_is_wanted(classifier: TokenClassifier) -> None:
    body = {"sequences": ["BOB"]}
    with serving(classifier, NAMES, api_key="s3cret") as port:
        for headers in (
            {},
            {"Authorization": "Bearer s3cre"},
            {"Authorization": "s3cret"},
            {"Authorization": "Bearer "},
        ):
            status, answer, fields = call(port, "POST", "/v1/pii", body, headers)
            assert status == 401
            assert fields["www-authenticate"] == "Bearer"
            assert "Authorization" in answer["error"]["message"]
            assert call(port, "GET", "/v1/models", None, headers)[0] == 401
        assert call(port, "POST", "/v1/pii", body, {"Authorization": "Bearer s3cret"})[0] == 200
        assert call(port, "GET", "/health")[0] == 200


@pytest.mark.parametrize("api_key", [None, "k"])
@pytest.mark.case("S05")
def test_cors_is_off_by_default(classifier: TokenClassifier, api_key: str | None) -> None:
    with serving(classifier, NAMES, api_key=api_key) as port:
        status, _, preflight = call(port, "OPTIONS", "/v1/pii", None, PREFLIGHT)
        assert status == 403
        key = {"Authorization": f"Bearer {api_key}"}
        status, _, headers = call(port, "POST", "/v1/pii", {"sequences": ["x"]}, {"Origin": ORIGIN} | key)
        assert status == 403
        assert not [name for name in (*preflight, *headers) if name.startswith("access-control")]


@pytest.mark.parametrize("api_key", [None, "k"])
@pytest.mark.parametrize("allowed", [ORIGIN, "*"])
@pytest.mark.case("S05")
def test_cors_when_it_is_on(classifier: TokenClassifier, api_key: str | None, allowed: str) -> None:
    with serving(classifier, NAMES, api_key=api_key, cors_origins=[allowed]) as port:
        status, _, headers = call(port, "OPTIONS", "/v1/pii", None, PREFLIGHT)
        assert 200 <= status < 300
        assert headers["access-control-allow-headers"] == "authorization,x-stainless-os"
        assert "POST" in headers["access-control-allow-methods"]
        key = {"Authorization": f"Bearer {api_key}"}
        for sent, expected in ((key, 200), ({}, 200 if api_key is None else 401)):
            status, _, headers = call(port, "POST", "/v1/pii", {"sequences": ["x"]}, {"Origin": ORIGIN} | sent)
            assert status == expected
            assert headers["access-control-allow-origin"] == allowed
            assert "access-control-allow-credentials" not in headers
        if allowed != "*":
            headers = call(port, "OPTIONS", "/v1/pii", None, PREFLIGHT | {"Origin": "https://other.example"})[2]
            assert "access-control-allow-origin" not in headers


# ---------------------------------------------------------------- without the extra


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("fastcore.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'fastcore-engine\[serve\]'"):
        import fastcore.server  # noqa: F401


# ---------------------------------------------------------------- the command


def test_the_command_serves_until_it_is_interrupted(classifier: TokenClassifier, tmp_path: Path) -> None:
    home = Path(fastcore.__file__).parent.parent
    model = str(classifier._checkpoint.path)
    arguments = ["--model", model, "--port", "0", "--threads", "1", "--served-model-name", "pii"]
    environment = os.environ | {"PYTHONPATH": str(home), "FASTCORE_API_KEY": "k"}
    with subprocess.Popen(
        [sys.executable, "-m", "fastcore", "serve", *map(str, arguments)],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        port = next(int(match[1]) for line in lines if (match := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
        assert call(port, "GET", "/v1/models")[0] == 401
        models = call(port, "GET", "/v1/models", None, {"Authorization": "Bearer k"})[1]
        assert [model["id"] for model in models["data"]] == ["pii"]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_wrong_options_of_the_command(classifier: TokenClassifier, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", str(classifier._checkpoint.path), "--max-body", "0"]) == 1
    assert "--max-body" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_used_port_is_one_line(host: str, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "nowhere", "--host", host, "--port", str(port)]) == 1
    told = capsys.readouterr().err
    assert f"cannot listen at {host}, port {port}: Address already in use; choose another with --port" in told
    assert told.count("\n") == 1


def test_several_models_and_logs_as_json(classifier: TokenClassifier, tiny_folder: Any, tmp_path: Path) -> None:
    pii, llama = classifier._checkpoint.path, tiny_folder("llama", max_position_embeddings=200_000)
    models = [f"one={tiny_folder('qwen2')}", f"two={llama}", "--model", str(pii)]
    options = ["--port", "0", "--log-format", "json", "--threads", "1", "--max-weights", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "fastcore", "serve", *models, *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(fastcore.__file__).parent.parent)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = map(json.loads, iter(process.stderr.readline, ""))
        port = next(int(line["message"].rpartition(":")[2]) for line in lines if "listening" in line["message"])
        models = call(port, "GET", "/v1/models?secret")[1]["data"]
        names = {"one": True, "two": False, pii.name: False, "pii-masking-latest": False}
        assert {model["id"]: model["loaded"] for model in models} == names
        assert call(port, "POST", "/v1/pii", {"sequences": ["secret"]})[0] == 200
        long = {"prompt": "secret", "ignore_eos": True, "max_tokens": 150_000, "model": "two"}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(call, port, "POST", "/v1/completions", long)
            while not call(port, "GET", "/health")[1]["active_requests"]:
                time.sleep(0.01)
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert answer.result(60)[0] == 503
        assert process.wait(60) == 0
        assert time.monotonic() - start < 10
        assert process.stdout is not None
        log = [json.loads(line) for line in process.stdout]
    assert {"method": "POST", "path": "/v1/pii", "status": 200}.items() <= log[1].items()
    assert log[0]["path"] == "/v1/models"
    assert "secret" not in json.dumps(log)


# ---------------------------------------------------------------- pages of elsewhere


@pytest.mark.fault("D1")
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:8000", 200), ("127.0.0.1:1", 200), ("[::1]:80", 200), ("a.localhost", 200),
        ("LOCALHOST", 200), ("evil.example", 421), ("evil.example:8000", 421), ("127.0.0.1.evil.example", 421),
        ("x", 421), ("", 421), ("[", 421), ("proxy.example", 200),
    ],
)  # fmt: skip
def test_known_hosts_only(classifier: TokenClassifier, host: str, status: int) -> None:
    with serving(classifier, NAMES, allowed_hosts=["proxy.example"]) as port:
        for path in ("/health", "/v1/models", "/v1/models/", "/health/"):
            answer = raw(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            expected = 404 if status == 200 and path.endswith("/") else status
            assert answer.startswith(b"HTTP/1.1 %d " % expected)
            assert b"evil.example" not in answer


@pytest.mark.fault("D1")
def test_a_foreign_page_may_not_call(classifier: TokenClassifier) -> None:
    body = {"sequences": ["x"]}
    with serving(classifier, NAMES, cors_origins=[ORIGIN]) as port:
        own = f"http://127.0.0.1:{port}"
        for origin, status in ((ORIGIN, 200), (own, 200), ("https://evil.example", 403), ("null", 403)):
            assert call(port, "POST", "/v1/pii", body, {"Origin": origin})[0] == status
            assert call(port, "GET", "/v1/models", None, {"Origin": origin})[0] == status


@pytest.mark.fault("D1")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": "", "Sec-Fetch-Site": "cross-site"}, 415),
    ],
)
def test_json_is_wanted(port: int, headers: dict[str, str], status: int) -> None:
    got, answer, _ = call(port, "POST", "/v1/pii", {"sequences": ["x"]}, headers)
    assert got == status
    assert status == 200 or "application/json" in answer["error"]["message"]


# ---------------------------------------------------------------- long texts


@pytest.mark.fault("C7")
def test_a_long_text_blocks_nobody_and_ends_with_its_client(port: int, classifier: TokenClassifier) -> None:
    body = json.dumps({"sequences": ["BOB " * 240_000]}).encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = b"POST /v1/scoring HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(body) + body)
        while not classifier._scheduler.num_requests:
            time.sleep(0.01)
        assert call(port, "POST", "/v1/pii", {"sequences": ["BOB"]})[0] == 200
        assert classifier._scheduler.num_requests  # the long one is not done
    deadline = time.monotonic() + 30
    while classifier._scheduler.num_requests and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not classifier._scheduler.num_requests


@pytest.mark.fault("C3")
def test_texts_are_bounded(classifier: TokenClassifier) -> None:
    from fastcore.server import RequestLimits

    limits = RequestLimits(max_texts=2, max_text_chars=100, max_scored_tokens=5)
    with serving(classifier, NAMES, limits=limits) as port:
        for path, texts, message in (
            ("/v1/pii", ["x"] * 3, "sequences has 3 texts; expected at most 2"),
            ("/v1/pii", ["x", "x" * 101], "sequences[1] has 101 characters; expected at most 100"),
            ("/v1/scoring", ["x y z x y z x y z"], "more than 5 tokens"),
        ):
            status, answer, _ = call(port, "POST", path, {"sequences": texts})
            assert (status, answer["error"]["param"]) == (400, "sequences")
            assert message in answer["error"]["message"]
