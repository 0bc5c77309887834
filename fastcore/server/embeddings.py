"""/v1/embeddings, vectors of texts, and /v1/rerank, documents in the order of how well they answer a query."""

import base64
import math
import uuid
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from fastcore.engine import loglikelihood
from fastcore.engine.scheduler import Results
from fastcore.engine.work import Array, Caller
from fastcore.llm import LLM
from fastcore.server.answers import RequestError, json_response
from fastcore.server.endpoint import Handler, collect
from fastcore.server.openai import OpenAIService
from fastcore.server.openai_fields import prompts

__all__ = ["EMBEDDINGS"]

IGNORED = frozenset({"user"})
METHODS = ("yes_no", "cosine")
AT_ONCE = 8  # documents that a model is asked about before the next look whether the client is still there

# What Qwen3-Reranker was trained with.
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)


class EmbeddingFields(msgspec.Struct):
    """The body of /v1/embeddings. pooling: mean | last."""

    model: str | None = None
    input: str | list[int | str | list[int]] | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    pooling: str | None = None


class Document(msgspec.Struct):
    """A document as an object."""

    text: str


class RerankFields(msgspec.Struct):
    """The body of /v1/rerank. method: yes_no | cosine; instruction: of yes_no, what an answer is to be."""

    model: str | None = None
    query: str | None = None
    documents: list[str | Document] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    method: str | None = None
    instruction: str | None = None


async def embeddings(service: OpenAIService, http: Request, fields: EmbeddingFields, model: str) -> Response:
    """{"input": text, token ids, or a list of either} -> a vector of length 1 for each.

    Pooled hidden states after the last norm: of all positions (pooling "mean") or of the last. dimensions: its first
    so many numbers, made to length 1 again. encoding_format: float, or base64 of little-endian f32.
    """
    given = prompts(fields.input, service.limits, "input")
    if len(given) > service.limits.max_texts:
        raise RequestError(400, f"input has {len(given)} texts; at most {service.limits.max_texts}", param="input")
    encoding = fields.encoding_format or "float"
    if encoding not in ("float", "base64"):
        raise RequestError(400, f"encoding_format is {encoding!r:.80}; float or base64", param="encoding_format")
    pooling = fields.pooling or "mean"
    if pooling not in loglikelihood.POOLINGS:
        raise RequestError(400, f"pooling is {pooling!r:.80}; mean or last", param="pooling")
    width = service.llm.config.hidden_size
    dimensions = fields.dimensions or width
    if not 1 <= dimensions <= width:
        raise RequestError(400, f"dimensions is {dimensions}; from 1 to the model's {width}", param="dimensions")
    with service.room.place():
        ids = await anyio.to_thread.run_sync(lambda: [service.llm._prompt_ids(text) for text in given])
        vectors = await collect(http, service.llm._embeddings(ids, pooling, normalize=True), service.room.threads)

    def write() -> Response:
        cut = vectors if dimensions == width else [_cut(vector, dimensions) for vector in vectors]
        data = [
            {"object": "embedding", "index": i, "embedding": _encoded(vector, encoding)} for i, vector in enumerate(cut)
        ]
        return json_response({"object": "list", "data": data, "model": model, "usage": _usage(ids)})

    return await anyio.to_thread.run_sync(write)


def _cut(vector: Array, dimensions: int) -> Array:
    """Its first numbers, to length 1 again."""
    first = vector[:dimensions].astype(np.float64)
    return (first / (math.sqrt((first * first).sum()) or 1.0)).astype(np.float32)


def _encoded(vector: Array, encoding: str) -> list[float] | str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode() if encoding == "base64" else vector.tolist()


async def rerank(service: OpenAIService, http: Request, fields: RerankFields, model: str) -> Response:
    """{"query": text, "documents": [text, ...]} -> results, best first: index, relevance_score.

    method "yes_no": the model is asked, through its chat template, whether the document answers the query; the score is
    the probability of yes against no. "cosine": of mean-pooled embeddings. The first is the default where the model has
    a template, and a token each for the two words. The answer names the method.
    """
    query, documents = fields.query, fields.documents
    if not query:
        raise RequestError(400, "query is missing or empty; expected a text", param="query")
    if not documents:
        raise RequestError(400, "documents is missing or empty; expected a list of texts", param="documents")
    if len(documents) > service.limits.max_texts:
        message = f"documents has {len(documents)} texts; at most {service.limits.max_texts}"
        raise RequestError(400, message, param="documents")
    if fields.top_n is not None and fields.top_n < 1:
        raise RequestError(400, f"top_n is {fields.top_n}; expected a number above 0", param="top_n")
    if fields.method not in (None, *METHODS):
        raise RequestError(400, f"method is {fields.method!r:.80}; expected yes_no or cosine", param="method")
    llm, texts = service.llm, [text if isinstance(text, str) else text.text for text in documents]
    answers = _answer_ids(llm)
    method = fields.method or ("cosine" if answers is None else "yes_no")
    if method == "yes_no" and answers is None:
        message = "method yes_no needs a chat template and a token each for yes and no; this model has not; try cosine"
        raise RequestError(400, message, param="method")

    def read() -> list[list[int]]:
        if method == "cosine":
            return [llm._prompt_ids(text) for text in (query, *texts)]
        return [_question(llm, fields.instruction or INSTRUCTION, query, text) for text in texts]

    with service.room.place():
        ids = await anyio.to_thread.run_sync(read)
        if answers is not None and method == "yes_no":
            scores = await collect(http, _probabilities(llm, ids, answers), service.room.threads)
        else:
            vectors = await collect(http, llm._embeddings(ids, "mean", normalize=True), service.room.threads)
            scores = [float(vectors[0].astype(np.float64) @ vector) for vector in vectors[1:]]
    best = sorted(range(len(texts)), key=lambda i: -scores[i])[: fields.top_n]
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in best]
    if fields.return_documents:
        results = [result | {"document": {"text": texts[result["index"]]}} for result in results]
    head = {"id": f"rerank-{uuid.uuid4().hex}", "model": model, "method": method}
    return json_response({**head, "results": results, "usage": _usage(ids)})


def _answer_ids(llm: LLM) -> tuple[int, int] | None:
    """The tokens of yes and no, where the model can be asked."""
    if not llm.tokenizer.has_chat_template:
        return None
    yes, no = (llm.tokenizer.encode(word, add_special_tokens=False) for word in ("yes", "no"))
    return (yes[0], no[0]) if len(yes) == len(no) == 1 else None


def _question(llm: LLM, instruction: str, query: str, document: str) -> list[int]:
    asked = f"<Instruct>: {instruction}\n\n<Query>: {query}\n\n<Document>: {document}"
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]
    return llm.tokenizer.encode_chat(messages, template_kwargs={"enable_thinking": False})


def _probabilities(llm: LLM, questions: Sequence[list[int]], answers: tuple[int, int]) -> Results[float]:
    """Of yes against no, after each question."""
    caller = Caller()

    def scores() -> Generator[float, None, None]:
        for start in range(0, len(questions), AT_ONCE):
            if caller.has_left:
                return
            asked = questions[start : start + AT_ONCE]
            pairs = [(ids, [answer]) for ids in asked for answer in answers]
            logprobs = [logprob for logprob, _ in llm.loglikelihood(pairs)]
            for yes, no in zip(logprobs[::2], logprobs[1::2], strict=True):
                yield 1.0 / (1.0 + math.exp(min(no - yes, 700.0)))

    return Results(caller, scores())


def _usage(ids: Iterable[Sequence[int]]) -> dict[str, int]:
    count = sum(map(len, ids))
    return {"prompt_tokens": count, "total_tokens": count}


EMBEDDINGS: dict[str, Handler[Any]] = {
    "/v1/embeddings": Handler(EmbeddingFields, embeddings, IGNORED),
    "/v1/rerank": Handler(RerankFields, rerank),
}
