"""The completions endpoints, over real sockets: the Python API's numbers, streams, refusals, clients that go."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fastcore import LLM, SamplingParams

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from serving import call, serving

from fastcore.server import RequestLimits

PROMPT = "hello my name is"
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def llm(tiny_folder: Callable[..., Path]) -> LLM:
    return LLM(tiny_folder("qwen2"), num_threads=1)


@pytest.fixture(scope="module")
def port(llm: LLM) -> Iterator[int]:
    with serving(llm, ["tiny"]) as port:
        yield port


def complete(port: int, **body: Any) -> dict[str, Any]:
    status, answer, _ = call(port, "POST", "/v1/completions", body)
    assert status == 200, answer
    return answer


def chat(port: int, **body: Any) -> dict[str, Any]:
    status, answer, _ = call(port, "POST", "/v1/chat/completions", {"messages": MESSAGES} | body)
    assert status == 200, answer
    return answer


def stream(port: int, path: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, without the last, [DONE]."""
    status, text, headers = call(port, "POST", path, body | {"stream": True})
    assert status == 200
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert text.endswith("\n\n")
    events = text[:-2].split("\n\n")
    assert all(event.startswith("data: ") for event in events)
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


# ---------------------------------------------------------------- answers


def test_a_completion(port: int, llm: LLM) -> None:
    answer = complete(port, model="tiny", prompt=PROMPT, max_tokens=12, temperature=0)
    expected = llm.generate(PROMPT, max_tokens=12)
    assert answer["choices"] == [
        {"index": 0, "text": expected.text, "logprobs": None, "finish_reason": expected.finish_reason}
    ]
    assert answer["usage"] == {
        "prompt_tokens": expected.usage.prompt_tokens,
        "completion_tokens": expected.usage.completion_tokens,
        "total_tokens": expected.usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    complete(port, model="tiny", prompt=PROMPT * 5, max_tokens=1)
    again = complete(port, model="tiny", prompt=PROMPT * 5, max_tokens=1)["usage"]
    assert again["prompt_tokens_details"] == {"cached_tokens": (again["prompt_tokens"] - 1) // 32 * 32}
    assert (answer["object"], answer["model"]) == ("text_completion", "tiny")
    assert answer["id"].startswith("cmpl-")


def test_prompts_of_every_shape(port: int, llm: LLM) -> None:
    ids = llm.tokenizer.encode(PROMPT)
    expected = llm.generate(PROMPT, max_tokens=5).text
    for prompt, count in ((PROMPT, 1), (ids, 1), ([PROMPT, PROMPT], 2), ([ids, ids, ids], 3), ([PROMPT, ids], 2)):
        answer = complete(port, prompt=prompt, max_tokens=5, temperature=0)
        assert [choice["text"] for choice in answer["choices"]] == [expected] * count
        assert [choice["index"] for choice in answer["choices"]] == list(range(count))
        assert answer["usage"]["prompt_tokens"] == count * len(ids)


def test_sampling_options_reach_the_sampler(port: int, llm: LLM) -> None:
    options = {
        "temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.001, "repetition_penalty": 1.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.1, "seed": 7, "max_tokens": 20, "min_tokens": 3,
        "stop": ["ou", "zz"], "stop_token_ids": [300], "ignore_eos": True, "n": 3,
    }  # fmt: skip
    params = SamplingParams(**options, logit_bias={5: 2.0})
    expected = [completion.text for completion in llm.generate(PROMPT, params)]
    answer = complete(port, prompt=PROMPT, logit_bias={"5": 2.0}, **options)
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert len(set(expected)) == 3
    chatted = [completion.text for completion in llm.chat(MESSAGES, params)]
    answer = chat(port, logit_bias={"5": 2.0}, **options)
    assert [choice["message"]["content"] for choice in answer["choices"]] == chatted


def test_a_request_says_whether_to_guess(port: int, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, prepare = [], llm._request
    monkeypatch.setattr(
        llm, "_request", lambda ids, params, *rest: seen.append(params.speculate) or prepare(ids, params, *rest)
    )
    texts = {
        complete(port, prompt=PROMPT, max_tokens=20, temperature=0, speculate=x)["choices"][0]["text"]
        for x in ("ngram", "off")
    }
    assert (len(texts), seen) == (1, ["ngram", "off"])
    status, answer, _ = call(port, "POST", "/v1/completions", {"prompt": PROMPT, "speculate": "draft"})
    assert (status, answer["error"]["param"]) == (400, "speculate")


def test_lengths(port: int) -> None:
    for max_tokens in (0, 1, 2):
        answer = complete(port, prompt=PROMPT, max_tokens=max_tokens, temperature=0, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == max_tokens
        assert answer["choices"][0]["finish_reason"] == "length"
    assert complete(port, prompt=PROMPT, ignore_eos=True)["usage"]["completion_tokens"] == 16
    assert chat(port, max_completion_tokens=3, max_tokens=9, ignore_eos=True)["usage"]["completion_tokens"] == 3
    # the context of 512 ends before chat's 1024 tokens
    usage = chat(port, ignore_eos=True)["usage"]
    assert usage["total_tokens"] == 512


@pytest.mark.case("G09")
def test_logprobs_and_echo(port: int, llm: LLM) -> None:
    expected = llm.generate(PROMPT, SamplingParams(max_tokens=6, logprobs=2, prompt_logprobs=2))
    choice = complete(port, prompt=PROMPT, max_tokens=6, temperature=0, logprobs=2, echo=True)["choices"][0]
    assert choice["text"] == PROMPT + expected.text
    all_logprobs = [*expected.prompt_logprobs, *expected.logprobs]
    assert choice["logprobs"]["token_logprobs"] == [None if item is None else item.logprob for item in all_logprobs]
    ids = [*llm.tokenizer.encode(PROMPT), *expected.token_ids]
    assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["text_offset"]) == len(ids)
    assert choice["logprobs"]["top_logprobs"][0] is None
    for top, item in zip(choice["logprobs"]["top_logprobs"][1:], all_logprobs[1:], strict=True):
        assert list(top.values())[:2] == [logprob for _, logprob in item.top]
        assert item.logprob in top.values()
    for token, offset in zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True):
        if offset < len(PROMPT):
            assert PROMPT[offset:].startswith(token)
    only_prompt = complete(port, prompt=PROMPT, max_tokens=0, logprobs=2, echo=True)["choices"][0]
    assert only_prompt["text"] == PROMPT
    assert only_prompt["logprobs"]["token_logprobs"] == choice["logprobs"]["token_logprobs"][: len(ids) - 6]


def test_tokens_that_are_no_text_by_themselves(port: int, llm: LLM) -> None:
    lead = llm.tokenizer.encode("\u2603")[0]
    choice = complete(port, prompt=PROMPT, max_tokens=2, temperature=0, logprobs=1, logit_bias={lead: 100})["choices"][
        0
    ]
    assert choice["logprobs"]["tokens"] == ["bytes:\\xe2"] * 2
    content = chat(port, max_tokens=1, temperature=0, logprobs=True, logit_bias={lead: 100})["choices"][0]["logprobs"]
    assert content["content"][0]["bytes"] == [0xE2]


def test_a_chat(port: int, llm: LLM) -> None:
    messages = [{"role": "system", "content": "is"}, {"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    answer = chat(port, messages=messages, max_tokens=9, temperature=0, logprobs=True, top_logprobs=2)
    plain = [messages[0], {"role": "user", "content": "hello"}]
    expected = llm.chat(plain, SamplingParams(max_tokens=9, logprobs=2))
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": expected.text}
    assert choice["finish_reason"] == expected.finish_reason
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [item.logprob for item in expected.logprobs]
    assert [[top["logprob"] for top in entry["top_logprobs"]] for entry in choice["logprobs"]["content"]] == [
        [logprob for _, logprob in item.top] for item in expected.logprobs
    ]
    assert answer["usage"]["prompt_tokens"] == len(llm.tokenizer.encode_chat(plain))
    assert answer["object"] == "chat.completion"


# ---------------------------------------------------------------- streams


def test_a_stream_gives_the_same_in_pieces(port: int, llm: LLM) -> None:
    options = {"max_tokens": 40, "temperature": 0.8, "seed": 3, "n": 2, "logprobs": 1}
    whole = complete(port, prompt=[PROMPT, "hello"], **options)
    events = stream(
        port, "/v1/completions", prompt=[PROMPT, "hello"], stream_options={"include_usage": True}, **options
    )
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == whole["usage"]
    assert len({event["id"] for event in events}) == 1
    assert len(events) > 8
    for choice in whole["choices"]:
        own = [event["choices"][0] for event in events[:-1] if event["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in own) == choice["text"]
        assert [piece["finish_reason"] for piece in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]
        for name, values in choice["logprobs"].items():
            pieces = [value for piece in own for value in piece["logprobs"][name]]
            assert pieces == values


def test_a_chat_stream(port: int) -> None:
    options = {"messages": MESSAGES, "max_tokens": 20, "temperature": 0}
    whole = chat(port, **options)["choices"][0]
    events = stream(port, "/v1/chat/completions", **options)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta["content"] for delta in deltas) == whole["message"]["content"]
    assert events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert "usage" not in events[-1]


def test_requests_at_once_equal_requests_alone(port: int, llm: LLM) -> None:
    prompts = [" ".join(["hello my name"] * (1 + n % 9)) for n in range(24)]
    expected = [llm.generate(prompt, max_tokens=15).text for prompt in prompts]

    def ask(prompt: str) -> str:
        if len(prompt) % 2:
            return complete(port, prompt=prompt, max_tokens=15, temperature=0)["choices"][0]["text"]
        events = stream(port, "/v1/completions", prompt=prompt, max_tokens=15, temperature=0)
        return "".join(event["choices"][0]["text"] for event in events)

    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(ask, prompts)) == expected


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "prompt is missing"),
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": [[]]}, "the prompt has no tokens"),
        ({"prompt": 7}, "prompt is a JSON number"),
        ({"prompt": ["x", 7]}, "token ids beside texts"),
        ({"prompt": [[True]]}, "prompt[0][0] is a JSON boolean"),
        ({"prompt": [99999]}, "outside the vocabulary"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens is -1"),
        ({"prompt": "x", "max_tokens": 1.5}, "max_tokens is a JSON number; expected a whole number"),
        ({"prompt": "x", "temperature": -1}, "temperature is -1"),
        ({"prompt": "x", "temperature": "1"}, "temperature is a JSON string"),
        ({"prompt": "x", "top_p": 0}, "top_p is 0"),
        ({"prompt": "x", "stop": [1]}, "stop[0] is a JSON number; expected a string"),
        ({"prompt": "x", "stop_token_ids": ["a"]}, "stop_token_ids[0] is a JSON string"),
        ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias has 'a'"),
        ({"prompt": "x", "logit_bias": [1]}, "logit_bias is a JSON list"),
        ({"prompt": "x", "n": 0}, "n is 0"),
        ({"prompt": ["x"] * 65, "n": 2}, "at most 128 completions"),
        ({"prompt": "x", "best_of": 2}, "best_of is not supported here, other than 1"),
        ({"prompt": "x", "suffix": "y"}, "suffix is not supported here"),
        ({"prompt": "x", "stream": 1}, "stream is a JSON number; expected true or false"),
        ({"prompt": "x", "echo": True, "stream": True}, "echo and stream"),
        ({"prompt": "x", "tempreature": 1}, "unknown field 'tempreature'"),
        ({"prompt": list(range(3, 203)) * 3}, "600 tokens and the context holds 512"),
    ],
)
def test_wrong_completions_are_refused(port: int, body: dict[str, Any], message: str) -> None:
    status, answer, _ = call(port, "POST", "/v1/completions", body)
    assert status == 400
    assert message in answer["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "messages is missing"),
        ({"messages": []}, "messages is empty"),
        ({"messages": "hello"}, "messages is a JSON string; expected a list"),
        ({"messages": ["hello"]}, "messages[0] is a JSON string; expected an object"),
        ({"messages": [{"content": "hello"}]}, "messages[0] needs a 'role'"),
        ({"messages": [{"role": "user"}]}, "messages[0] has no content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content must be a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not of type text"),
        ({"messages": MESSAGES, "top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"messages": MESSAGES, "logprobs": 2}, "logprobs is a JSON number; expected true or false"),
        ({"messages": MESSAGES, "response_format": {"type": "xml"}}, "response_format.type is 'xml'"),
        ({"messages": MESSAGES, "response_format": {"type": "json_schema"}}, "needs a 'schema'"),
        ({"messages": MESSAGES, "tools": {}}, "tools is a JSON object; expected a list"),
        ({"messages": MESSAGES, "tool_choice": "required"}, "tool_choice asks for a tool, and there are no tools"),
        ({"messages": MESSAGES, "chat_template_kwargs": []}, "chat_template_kwargs is a JSON list"),
    ],
)
def test_wrong_chats_are_refused(port: int, body: dict[str, Any], message: str) -> None:
    status, answer, _ = call(port, "POST", "/v1/chat/completions", body)
    assert status == 400
    assert message in answer["error"]["message"]


def test_a_model_without_a_chat_template(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    from tiny import tiny_checkpoint, write_tokenizer

    write_tokenizer(tiny_checkpoint(tmp_path, "qwen2"), chat_template=None)
    with serving(LLM(tmp_path, num_threads=1), ["bare"]) as port:
        status, answer, _ = call(port, "POST", "/v1/chat/completions", {"messages": MESSAGES})
        assert status == 400
        assert "no chat template" in answer["error"]["message"]
        assert complete(port, prompt="x", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_steps_that_fail_fail_their_requests_alone(port: int, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    import fastcore.engine.scheduler

    with monkeypatch.context() as patch:
        patch.setattr(fastcore.engine.scheduler, "run_step", lambda *_, **__: 1 / 0)
        status, answer, _ = call(port, "POST", "/v1/completions", {"prompt": "x"})
        assert (status, answer["error"]["type"]) == (500, "server_error")
    assert llm._scheduler.num_requests == 0
    assert complete(port, prompt="x", max_tokens=1)["usage"]["completion_tokens"] == 1


# ---------------------------------------------------------------- clients that go

LONG = {"max_tokens": 5000, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def slow(tiny_folder: Callable[..., Path]) -> Iterator[tuple[int, LLM]]:
    """A model with a context that takes long to fill, in a cache that holds one long request."""
    llm = LLM(tiny_folder("llama", max_position_embeddings=20_000), num_threads=1, kv_cache_bytes=4 << 20)
    with serving(llm, ["slow"]) as port:
        yield port, llm


def active(port: int) -> int:
    number: int = call(port, "GET", "/health")[1]["active_requests"]
    return number


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("phase", ["decode", "prefill", "queued"])
@pytest.mark.case("S01")
def test_work_ends_when_the_client_goes(slow: tuple[int, LLM], streams: bool, phase: str) -> None:
    port, llm = slow
    free = llm.pool.free_positions

    def send(prompt: list[int]) -> socket.socket:
        body = json.dumps({"prompt": prompt, "stream": streams, **LONG}).encode()
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        return connection

    clients = [send([5] * (4000 if phase == "prefill" else 3))]
    wait_for(lambda: active(port) == 1)
    if phase == "decode" and streams:
        received = b""
        while received.count(b"data: ") < 2:
            received += clients[0].recv(65536)
    if phase == "queued":
        clients.append(send([6] * 3))
        wait_for(lambda: active(port) == 2)
        clients.pop().close()
        wait_for(lambda: active(port) == 1)
    for client in clients:
        client.close()
    wait_for(lambda: active(port) == 0)
    wait_for(lambda: llm.pool.free_positions == free)
    expected = llm.generate(PROMPT, max_tokens=5).text
    assert complete(port, prompt=PROMPT, max_tokens=5, temperature=0)["choices"][0]["text"] == expected


def test_a_server_that_stops_ends_its_requests(tiny_folder: Callable[..., Path]) -> None:
    llm = LLM(tiny_folder("llama", max_position_embeddings=200_000), num_threads=1)
    before = set(threading.enumerate())
    body = json.dumps({"prompt": "x", "max_tokens": 150_000, "ignore_eos": True}).encode()
    serves = serving(llm, ["slow"], running={"shutdown_seconds": 1.0})
    with serves as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        wait_for(lambda: active(port) == 1)
    assert llm._scheduler.num_requests == 0
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if "AnyIO" not in thread.name]  # AnyIO's own idle workers end later


def test_too_many_requests_are_turned_away(llm: LLM) -> None:
    with serving(llm, ["tiny"], limits=RequestLimits(max_requests=2)) as port:
        assert complete(port, prompt="x", n=2, max_tokens=1)["usage"]["completion_tokens"] == 2
        status, answer, headers = call(port, "POST", "/v1/completions", {"prompt": "x", "n": 3})
        assert (status, answer["error"]["type"], headers["retry-after"]) == (429, "rate_limit_error", "1")


# ---------------------------------------------------------------- what clients send besides


@pytest.mark.fault("H2")
@pytest.mark.parametrize(
    "field",
    [
        {"parallel_tool_calls": True}, {"prompt_cache_key": "k"}, {"safety_identifier": "s"},
        {"reasoning_effort": "none"},
        {"user": "u"}, {"metadata": {"a": "b"}}, {"store": False}, {"service_tier": "auto"}, {"nonsense": None},
        {"reasoning_effort": None}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"tools": None}, {"n": None},
        {"stream": None}, {"max_tokens": None, "max_completion_tokens": 3}, {"response_format": {"type": "text"}},
        {"stream_options": {"include_obfuscation": False}}, {"modalities": ["text"]},
        {"tools": [{"type": "function"}], "tool_choice": "none"},
    ],
)  # fmt: skip
def test_what_cannot_change_the_answer_is_accepted(port: int, field: dict[str, Any]) -> None:
    body = {"temperature": 0, "max_completion_tokens": 3} | field
    assert chat(port, **body)["choices"] == chat(port, temperature=0, max_completion_tokens=3)["choices"]


@pytest.mark.fault("H2")
@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"functions": [{}]}, "functions"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"audio": {}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"guided_json": {}}, "guided_json"),
        ({"nonsense": 0}, "nonsense"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(port: int, field: dict[str, Any], param: str) -> None:
    status, answer, _ = call(port, "POST", "/v1/chat/completions", {"messages": MESSAGES} | field)
    assert (status, answer["error"]["param"]) == (400, param)
    assert param in answer["error"]["message"]


@pytest.mark.fault("H4")
def test_errors_carry_a_code_and_the_field(port: int, llm: LLM) -> None:
    def error(path: str = "completions", **body: Any) -> tuple[int, str, str]:
        status, answer, _ = call(port, "POST", f"/v1/{path}", body)
        return status, answer["error"]["code"], answer["error"]["param"]

    assert error(prompt=list(range(3, 203)) * 3) == (400, "context_length_exceeded", "prompt")
    long = [{"role": "user", "content": "hello " * 600}]
    assert error("chat/completions", messages=long) == (400, "context_length_exceeded", "messages")
    assert error("chat/completions", messages=[{"role": "user"}]) == (400, "invalid_value", "messages")
    assert error("chat/completions") == (400, "missing_required_parameter", "messages")
    assert error() == (400, "missing_required_parameter", "prompt")
    assert error(prompt="x", n="1") == (400, "invalid_type", "n")
    assert error(prompt="x", nn=1) == (400, "unknown_parameter", "nn")
    assert error(prompt="x", use_beam_search=True) == (400, "unsupported_parameter", "use_beam_search")
    assert error(prompt="x", suffix="y") == (400, "unsupported_value", "suffix")
    assert error(prompt="x", logit_bias={"9999": 1}) == (400, "invalid_value", "logit_bias")
    assert error(prompt="x", stop_token_ids=[9999]) == (400, "invalid_value", "stop_token_ids")
    assert error(prompt=[9999]) == (400, "invalid_value", "prompt")
    assert call(port, "GET", "/nowhere")[1]["error"]["code"] == "not_found"
    assert call(port, "PUT", "/v1/completions")[1]["error"]["code"] == "method_not_allowed"
    status, answer, _ = call(port, "POST", "/v1/completions", {"prompt": "x", "model": "gpt"})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "model_not_found", "model")
    status, answer, _ = call(port, "POST", "/v1/completions", {"prompt": "x", "temperature": -1})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_value", "temperature")
    assert call(port, "GET", "/v1/models/tiny")[1]["id"] == "tiny"
    assert call(port, "GET", "/v1/models/gpt")[1]["error"]["code"] == "model_not_found"
    with serving(llm, ["owner/name"], api_key="k") as port:
        assert call(port, "GET", "/v1/models/owner/name", None, {"Authorization": "bearer k"})[0] == 200
        assert call(port, "GET", "/v1/models")[1]["error"]["code"] == "invalid_api_key"


@pytest.mark.fault("C3")
@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 1_000_000}, "logprobs"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 1001}, "stop"),
        ({"n": 129}, "n"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"stop_token_ids": [5] * 129}, "stop_token_ids"),
        ({"prompt": ["x"] * 129}, "n"),
        ({"prompt": ["hello"] * 128, "logprobs": 20, "max_tokens": 400}, "logprobs"),
    ],
)
def test_fields_whose_cost_multiplies_are_bounded(port: int, field: dict[str, Any], param: str) -> None:
    status, answer, _ = call(port, "POST", "/v1/completions", {"prompt": "x"} | field)
    assert (status, answer["error"]["param"]) == (400, param)


@pytest.mark.fault("C3")
def test_top_logprobs_of_a_chat_are_bounded(port: int, llm: LLM) -> None:
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 21, "max_tokens": 1}
    assert call(port, "POST", "/v1/chat/completions", body)[0] == 400
    with serving(llm, ["tiny"], limits=RequestLimits(max_logprobs=30)) as wide:
        assert call(wide, "POST", "/v1/chat/completions", body)[0] == 200


@pytest.mark.fault("C9")
@pytest.mark.parametrize(
    "field",
    [
        '"seed": 1%s' % ("0" * 400), '"temperature": 1%s' % ("0" * 400), '"temperature": 1e400',
        '"top_k": 1%s' % ("0" * 30),
        '"logit_bias": {"5": 1e39}', '"logit_bias": {"1%s": 1}' % ("0" * 30), '"stop_token_ids": [1%s]' % ("0" * 30),
        '"n": 1%s' % ("0" * 30), '"max_tokens": 1%s' % ("0" * 30), '"prompt": [1%s]' % ("0" * 30),
        '"logprobs": 1%s' % ("0" * 5000),
    ],
)  # fmt: skip
def test_numbers_that_fit_nowhere_are_refused(port: int, field: str) -> None:
    status, answer, _ = call(port, "POST", "/v1/completions", f'{{"prompt": "x", {field}}}'.encode())
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error"), answer


@pytest.mark.fault("C4")
@pytest.mark.parametrize(
    "part", ["[" * 200 + "]" * 200, "[" * 2_000_000 + "]" * 2_000_000, "[" + "[]," * 2_900_000 + "[]]"]
)
def test_a_body_of_many_lists_is_refused_at_once(port: int, part: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "x", "more": {part}}}]}}'
    status, answer, _ = call(port, "POST", "/v1/chat/completions", body.encode())
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert active(port) == 0


@pytest.mark.fault("H3")
def test_the_checkpoints_sampling_is_the_default(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(tiny_folder("qwen2"), tmp_path / "model")
    generation = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    llm = LLM(folder, num_threads=1)
    del generation["do_sample"]
    body = {"prompt": PROMPT, "seed": 3, "max_tokens": 20}
    with serving(llm, ["tiny"]) as port:
        assert generation.items() <= call(port, "GET", "/v1/models")[1]["data"][0]["default_sampling"].items()
        expected = llm.generate(PROMPT, SamplingParams(seed=3, max_tokens=20, **generation)).text
        assert complete(port, **body)["choices"][0]["text"] == expected
        expected = llm.generate(PROMPT, SamplingParams(seed=3, max_tokens=20, **generation | {"top_k": 0})).text
        assert complete(port, **body, top_k=0)["choices"][0]["text"] == expected
    with serving(llm, ["tiny"], use_generation_config=False) as port:
        expected = llm.generate(PROMPT, SamplingParams(seed=3, max_tokens=20, temperature=1.0)).text
        assert complete(port, **body)["choices"][0]["text"] == expected


@pytest.mark.fault("C10")
@pytest.mark.parametrize("streams", [True, False])
def test_clients_are_told_that_the_server_ends(tiny_folder: Callable[..., Path], streams: bool) -> None:
    llm = LLM(tiny_folder("llama", max_position_embeddings=200_000), num_threads=1)
    body = {"prompt": "x", "max_tokens": 150_000, "ignore_eos": True, "stream": streams}
    with ThreadPoolExecutor(1) as pool:
        with serving(llm, ["slow"], running={"shutdown_seconds": 2.0}) as port:
            answer = pool.submit(call, port, "POST", "/v1/completions", body)
            wait_for(lambda: active(port) == 1)
        status, told, _ = answer.result(60)
    if streams:
        *_, error, done, _ = told.split("\n\n")
        assert (status, done) == (200, "data: [DONE]")
        told = json.loads(error.removeprefix("data: "))
    else:
        assert status == 503
    assert told["error"] == {
        "message": "the server is shutting down", "type": "server_error", "param": None,
        "code": "service_unavailable",
    }  # fmt: skip
