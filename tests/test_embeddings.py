"""/v1/embeddings and /v1/rerank, over real sockets, against the Python API's numbers."""

import base64
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastcore import LLM

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from serving import call, serving

TEXTS = ["hello my name is", "red", "a rose is a rose is a rose"]


@pytest.fixture(scope="module")
def llm(tiny_folder: Callable[..., Path]) -> LLM:
    return LLM(tiny_folder("qwen2"), num_threads=1)


@pytest.fixture(scope="module")
def port(llm: LLM) -> Iterator[int]:
    with serving(llm, ["tiny"]) as port:
        yield port


def post(port: int, path: str, **body: Any) -> dict[str, Any]:
    status, answer, _ = call(port, "POST", path, body)
    assert status == 200, answer
    return answer


def test_embeddings_are_those_of_the_python_api(port: int, llm: LLM) -> None:
    answer = post(port, "/v1/embeddings", input=TEXTS, model="tiny")
    vectors = llm.embed(TEXTS)
    assert np.array_equal(np.array([item["embedding"] for item in answer["data"]], np.float32), vectors)
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    count = sum(len(llm.tokenizer.encode(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    packed = post(port, "/v1/embeddings", input=TEXTS[1], encoding_format="base64", pooling="last")["data"][0]
    assert np.array_equal(
        np.frombuffer(base64.b64decode(packed["embedding"]), "<f4"), llm.embed(TEXTS[1], pooling="last")
    )
    ids = llm.tokenizer.encode(TEXTS[0])
    for given, count in ((ids, 1), ([ids, ids], 2)):
        data = post(port, "/v1/embeddings", input=given)["data"]
        assert [item["embedding"] for item in data] == [answer["data"][0]["embedding"]] * count


def test_fewer_dimensions_have_length_one_again(port: int, llm: LLM) -> None:
    cut = post(port, "/v1/embeddings", input=TEXTS[0], dimensions=7)["data"][0]["embedding"]
    whole = llm.embed(TEXTS[0])[:7].astype(np.float64)
    assert np.array_equal(np.array(cut, np.float32), (whole / math.sqrt((whole * whole).sum())).astype(np.float32))


def test_reranking_by_cosine(port: int, llm: LLM) -> None:
    answer = post(port, "/v1/rerank", query="rose", documents=[*TEXTS, "rose"], method="cosine", top_n=3)
    query, *vectors = llm.embed(["rose", *TEXTS, "rose"]).astype(np.float64)
    scores = [float(vector @ query) for vector in vectors]
    assert answer["method"] == "cosine"
    assert answer["results"] == [
        {"index": i, "relevance_score": scores[i]} for i in sorted(range(4), key=lambda i: -scores[i])[:3]
    ]
    assert answer["results"][0]["index"] == 3  # the query itself


def test_reranking_by_yes_and_no(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, encode = llm.tokenizer, llm.tokenizer.encode
    words = {"yes": [300], "no": [301]}  # the tiny vocabulary has no token for them
    monkeypatch.setattr(tokenizer, "encode", lambda text, *rest, **more: words.get(text) or encode(text, *rest, **more))
    monkeypatch.setattr("fastcore.server.embeddings.SYSTEM", "s")
    with serving(llm, ["tiny"]) as port:
        documents = [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]
        answer = post(port, "/v1/rerank", query="q", documents=documents, return_documents=True, instruction="i")
    scores = []
    for text in TEXTS:
        asked = f"<Instruct>: i\n\n<Query>: q\n\n<Document>: {text}"
        ids = tokenizer.encode_chat([{"role": "system", "content": "s"}, {"role": "user", "content": asked}])
        yes, no = (llm.loglikelihood(ids, word)[0] for word in words.values())
        scores.append(1 / (1 + math.exp(no - yes)))
    order = sorted(range(3), key=lambda i: -scores[i])
    assert answer["method"] == "yes_no"
    assert [result["index"] for result in answer["results"]] == order
    assert [result["document"]["text"] for result in answer["results"]] == [TEXTS[i] for i in order]
    assert [result["relevance_score"] for result in answer["results"]] == [scores[i] for i in order]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ("/v1/embeddings", {"input": "x", "dimensions": 41}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "dimensions": -1}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "pooling": "max"}, "pooling"),
        ("/v1/embeddings", {"input": ["x"] * 4097}, "input"),
        ("/v1/embeddings", {"input": [3] * 600}, "input"),  # beyond the context
        ("/v1/rerank", {"documents": ["x"]}, "query"),
        ("/v1/rerank", {"query": "x"}, "documents"),
        ("/v1/rerank", {"query": "x", "documents": ["x"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "x", "documents": ["x"], "method": "bm25"}, "method"),
        ("/v1/rerank", {"query": "x", "documents": ["x"], "method": "yes_no"}, "method"),  # two tokens a word
    ],
)
def test_what_cannot_be_is_refused_by_name(port: int, path: str, body: dict[str, Any], param: str | None) -> None:
    status, answer, _ = call(port, "POST", path, body)
    assert (status, answer["error"]["param"]) == (400, param)
