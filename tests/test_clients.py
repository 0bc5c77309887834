"""Clients that people use, on a running server: what they send is understood, and what comes back is what they expect.

They are an extra, `clients`, and best in an environment of their own; each test is skipped without its client.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from fastcore import LLM

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("llguidance")
pytest.importorskip("pydantic")

import pydantic
from serving import call, serving
from tiny import CHATML_TOOLS, tiny_checkpoint, write_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # the clients' own

MESSAGES: Any = [{"role": "user", "content": "hello"}]


class City(str, Enum):
    paris = "Paris"
    rome = "Rome"


class Visit(pydantic.BaseModel):
    """A visit to a city."""

    model_config = pydantic.ConfigDict(extra="forbid")
    city: City
    days: int = pydantic.Field(ge=1, le=9)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("clients") / "m"
    tiny_checkpoint(folder, "qwen2", max_position_embeddings=4096)
    write_tokenizer(folder, chat_template=CHATML_TOOLS)
    return LLM(folder, num_threads=1)


@pytest.fixture(scope="module")
def base_url(llm: LLM) -> Iterator[str]:
    with serving(llm, ["tiny"]) as port:
        yield f"http://127.0.0.1:{port}/v1"


def is_served(base_url: str, path: str) -> bool:
    port = int(base_url.rpartition(":")[2].partition("/")[0])
    return call(port, "POST", f"/v1/{path}", {})[0] != 404


# ---------------------------------------------------------------- openai


@pytest.fixture(scope="module")
def openai(base_url: str) -> Any:
    return pytest.importorskip("openai").OpenAI(base_url=base_url, api_key="none", max_retries=0)


def test_openai_chat(openai: Any, llm: LLM) -> None:
    expected = llm.chat(MESSAGES, max_tokens=12)
    options: Any = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
    whole = openai.chat.completions.create(**options)
    assert whole.choices[0].message.content == expected.text
    assert whole.usage.completion_tokens == expected.usage.completion_tokens
    pieces = list(openai.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == expected.text
    assert pieces[-1].usage.total_tokens == whole.usage.total_tokens
    assert pieces[-1].usage.prompt_tokens_details.cached_tokens >= whole.usage.prompt_tokens_details.cached_tokens
    text = openai.completions.create(model="tiny", prompt="hello", temperature=0, max_tokens=5).choices[0].text
    assert text == llm.generate("hello", max_tokens=5).text
    assert [model.id for model in openai.models.list()] == ["tiny"]


def test_openai_parse(openai: Any) -> None:
    for seed in range(3):
        found = openai.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Visit, seed=seed)
        visit = found.choices[0].message.parsed
        assert isinstance(visit, Visit)
        with openai.chat.completions.stream(
            model="tiny", messages=MESSAGES, response_format=Visit, seed=seed
        ) as stream:
            for _ in stream:
                pass
            assert stream.get_final_completion().choices[0].message.parsed == visit


def test_openai_tools(openai: Any) -> None:
    tool = pytest.importorskip("openai").pydantic_function_tool(Visit)
    options: Any = {"model": "tiny", "messages": MESSAGES, "tools": [tool], "parallel_tool_calls": False, "seed": 1}
    choice = openai.chat.completions.parse(**options, tool_choice="required").choices[0]
    (called,) = choice.message.tool_calls
    assert (choice.finish_reason, called.function.name) == ("tool_calls", "Visit")
    assert isinstance(called.function.parsed_arguments, Visit)
    with openai.chat.completions.stream(**options, tool_choice="required") as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert streamed.function.parsed_arguments == called.function.parsed_arguments
    talk = [*MESSAGES, choice.message, {"role": "tool", "tool_call_id": called.id, "content": "sunny"}]
    after = openai.chat.completions.create(model="tiny", messages=talk, tools=[tool], max_tokens=3)
    assert after.usage.completion_tokens > 0
    named = {"type": "function", "function": {"name": "Visit"}}
    assert openai.chat.completions.create(**options, tool_choice=named).choices[0].message.tool_calls


def test_openai_embeddings(openai: Any, base_url: str, llm: LLM) -> None:
    if not is_served(base_url, "embeddings"):
        pytest.skip("no embeddings here")
    found = openai.embeddings.create(model="tiny", input=["hello", "my name"])
    assert [len(item.embedding) for item in found.data] == [llm.config.hidden_size] * 2


def test_openai_responses(openai: Any, base_url: str, llm: LLM) -> None:
    if not is_served(base_url, "responses"):
        pytest.skip("no responses here")
    found = openai.responses.create(model="tiny", input="hello", temperature=0, max_output_tokens=12)
    assert found.output_text == llm.chat(MESSAGES, max_tokens=12).text


def test_openai_errors(openai: Any) -> None:
    errors = pytest.importorskip("openai")
    with pytest.raises(errors.BadRequestError) as refused:
        openai.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hello " * 5000}])
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(errors.NotFoundError) as missing:
        openai.chat.completions.create(model="gpt", messages=MESSAGES)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(errors.BadRequestError) as wrong:
        openai.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
    assert (wrong.value.code, wrong.value.param) == ("invalid_value", "temperature")


# ---------------------------------------------------------------- LangChain


@pytest.fixture(scope="module")
def langchain(base_url: str) -> Any:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    return chat(base_url=base_url, api_key="none", model="tiny", max_retries=0, seed=1, temperature=1.0)


def test_langchain(langchain: Any, llm: LLM) -> None:
    greedy = langchain.bind(temperature=0, max_tokens=12)
    expected = llm.chat(MESSAGES, max_tokens=12).text
    assert greedy.invoke("hello").content == expected
    assert "".join(piece.content for piece in greedy.stream("hello")) == expected


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structured_output(langchain: Any, method: str) -> None:
    found = langchain.with_structured_output(Visit, method=method).invoke("hello")
    assert isinstance(found, Visit)


def test_langchain_tools(langchain: Any) -> None:
    found = langchain.bind_tools([Visit], tool_choice="any", parallel_tool_calls=False).invoke("hello")
    (called,) = found.tool_calls
    assert called["name"] == "Visit"
    assert Visit.model_validate(called["args"])
    streamed = None
    for piece in langchain.bind_tools([Visit], tool_choice="Visit", parallel_tool_calls=False).stream("hello"):
        streamed = piece if streamed is None else streamed + piece
    assert streamed is not None
    assert Visit.model_validate(streamed.tool_calls[0]["args"])
    messages = pytest.importorskip("langchain_core.messages")
    talk = [messages.HumanMessage("hello"), found, messages.ToolMessage("sunny", tool_call_id=called["id"])]
    assert langchain.bind_tools([Visit]).bind(max_tokens=3).invoke(talk).response_metadata["finish_reason"]


# ---------------------------------------------------------------- LlamaIndex


@pytest.fixture(scope="module")
def llama_index(base_url: str) -> Any:
    like = pytest.importorskip("llama_index.llms.openai_like").OpenAILike
    return like(
        model="tiny", api_base=base_url, api_key="none", is_chat_model=True, is_function_calling_model=True,
        should_use_structured_outputs=True, temperature=1.0, max_retries=0, max_tokens=600,
    )  # fmt: skip


def test_llama_index_tools(llama_index: Any) -> None:
    tools = pytest.importorskip("llama_index.core.tools")

    def visit(city: str) -> str:
        """Visit a city."""
        return city

    tool = tools.FunctionTool.from_defaults(visit)
    answer = llama_index.chat_with_tools([tool], user_msg="hello", tool_required=True, allow_parallel_tool_calls=False)
    calls = llama_index.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
    assert [each.tool_name for each in calls] == ["visit"] or answer.raw.choices[0].finish_reason == "length"


def test_llama_index_structured_predict(llama_index: Any) -> None:
    prompts = pytest.importorskip("llama_index.core.prompts")
    found = llama_index.structured_predict(Visit, prompts.PromptTemplate("hello {name}"), name="Anna")
    assert isinstance(found, Visit)


# ---------------------------------------------------------------- LiteLLM


def test_litellm(base_url: str, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # prices are not fetched
    litellm = pytest.importorskip("litellm")
    options: Any = {"model": "openai/tiny", "api_base": base_url, "api_key": "none", "num_retries": 0}
    found = litellm.completion(**options, messages=MESSAGES, temperature=0, max_tokens=12)
    assert found.choices[0].message.content == llm.chat(MESSAGES, max_tokens=12).text
    found = litellm.completion(**options, messages=MESSAGES, response_format=Visit, seed=1)
    assert Visit.model_validate_json(found.choices[0].message.content)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**options, messages=[{"role": "user", "content": "hello " * 5000}])


# ---------------------------------------------------------------- llm


def test_llm_schema(base_url: str, tmp_path: Path) -> None:
    pytest.importorskip("llm")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: tiny\n  model_name: tiny\n  api_base: {base_url}\n  supports_schema: true\n  can_stream: true\n"
    )
    schema = json.dumps(Visit.model_json_schema())
    for stream in ([], ["--no-stream"]):
        done = subprocess.run(
            [sys.executable, "-m", "llm", "-m", "tiny", "--key", "none", "--schema", schema, *stream, "hello"],
            env=os.environ | {"LLM_USER_PATH": str(tmp_path)}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert Visit.model_validate_json(done.stdout)
