"""/tokenize and /detokenize, as vLLM has them: for every model that has a tokenizer."""

from typing import TYPE_CHECKING, Any, Protocol

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fastcore.server.answers import RequestError, json_response
from fastcore.server.endpoint import Handler

if TYPE_CHECKING:
    from fastcore.text.tokenizer import Tokenizer

__all__ = ["TOKENS"]


class TokenizeFields(msgspec.Struct):
    """The body of /tokenize: a text, or messages as the chat template writes them out."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeFields(msgspec.Struct):
    """The body of /detokenize."""

    model: str | None = None
    tokens: list[int] | None = None


class _Reads(Protocol):
    """A service whose model has a tokenizer."""

    @property
    def tokenizer(self) -> "Tokenizer": ...

    @property
    def max_seq_len(self) -> int: ...


async def tokenize(service: _Reads, http: Request, fields: TokenizeFields, model: str) -> Response:
    """{"prompt": text} or {"messages": [...]} -> count, max_model_len, tokens; on request token_strs."""
    if (fields.prompt is None) == (fields.messages is None):
        raise RequestError(400, "one of prompt and messages is wanted: a text, or a conversation", param="prompt")

    def work() -> Response:
        tokenizer = service.tokenizer
        if fields.messages is not None:
            options = fields.chat_template_kwargs
            ids = tokenizer.encode_chat(fields.messages, tools=fields.tools, template_kwargs=options)
        else:
            ids = tokenizer.encode(fields.prompt or "", fields.add_special_tokens is not False)
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": service.max_seq_len, "tokens": ids}
        if fields.return_token_strs:
            answer["token_strs"] = [tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in ids]
        return json_response(answer)

    return await anyio.to_thread.run_sync(work)


async def detokenize(service: _Reads, http: Request, fields: DetokenizeFields, model: str) -> Response:
    """{"tokens": ids} -> {"prompt": text}, special tokens written out."""
    ids = fields.tokens
    if ids is None:
        message = "tokens is missing; expected a list of token ids"
        raise RequestError(400, message, code="missing_required_parameter", param="tokens")

    def work() -> Response:
        tokenizer = service.tokenizer
        outside = [token_id for token_id in ids if not 0 <= token_id < tokenizer.vocab_size]
        if outside:
            message = f"tokens has {outside[0]}; expected ids from 0 to {tokenizer.vocab_size - 1}"
            raise RequestError(400, message, param="tokens")
        return json_response({"prompt": tokenizer.decode(ids, skip_special_tokens=False)})

    return await anyio.to_thread.run_sync(work)


TOKENS: dict[str, Handler[Any]] = {
    "/tokenize": Handler(TokenizeFields, tokenize),
    "/detokenize": Handler(DetokenizeFields, detokenize),
}
