"""What requests of OpenAI's API may say: the fields as msgspec structs, and the sampling options they ask for."""

from collections.abc import Sequence
from typing import Any

import msgspec

from fastcore.engine.sampling_params import GRAMMARS, SamplingParams
from fastcore.server.answers import RequestError
from fastcore.server.limits import RequestLimits

__all__ = [
    "CHAT_REFUSED",
    "IGNORED",
    "REFUSED",
    "ChatFields",
    "CompletionFields",
    "SamplingFields",
    "StreamOptions",
    "check_work",
    "prompts",
    "sampling_params",
]

COMPLETION_MAX_TOKENS = 16  # where a request does not say, as OpenAI has it
CHAT_MAX_TOKENS = 1024

# About accounts, caches, speed and logs: none can change the answer.
IGNORED = frozenset(
    {
        "metadata", "moderation", "prediction", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user",
    }
)  # fmt: skip
_GUIDED = "it is of an older form; send structured_outputs"
REFUSED = {
    "guided_choice": _GUIDED,
    "guided_grammar": _GUIDED,
    "guided_json": _GUIDED,
    "guided_regex": _GUIDED,
    "use_beam_search": "there is no beam search",
}
CHAT_REFUSED = REFUSED | {
    "audio": "the model writes text alone",
    "function_call": "it is of an older form; send tools and tool_choice",
    "functions": "it is of an older form; send tools",
    "verbosity": "no chat template has a switch for it; ask for short answers in a message",
    "web_search_options": "the model reads what it is sent alone",
}


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """include_obfuscation is about the sizes of events, and ignored."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """What a text is held to, as vLLM has it: at most one of them. grammar is Lark's."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: list[str] | None = None


class SamplingFields(msgspec.Struct):
    """What both endpoints take."""

    model: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = None
    structured_outputs: StructuredOutputs | None = None
    speculate: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class CompletionFields(SamplingFields):
    """The body of /v1/completions."""

    prompt: str | list[int | str | list[int]] | None = None
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


class ChatFields(SamplingFields):
    """The body of /v1/chat/completions."""

    messages: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    mask: bool | None = None


def sampling_params(
    fields: CompletionFields | ChatFields, defaults: SamplingParams, limits: RequestLimits
) -> SamplingParams:
    """What a request asks for; `defaults` where it says nothing. Raises RequestError, which names the field."""
    options: dict[str, Any] = {}
    for name in SamplingFields.__struct_fields__:
        value = getattr(fields, name)
        if value is not None and name not in ("model", "stream", "stream_options", "logit_bias", "structured_outputs"):
            options[name] = value
    if isinstance(fields, ChatFields):
        options["max_tokens"] = _first(fields.max_completion_tokens, fields.max_tokens, CHAT_MAX_TOKENS)
        logprobs, name = _top_logprobs(fields), "top_logprobs"
    else:
        options["max_tokens"] = _first(fields.max_tokens, COMPLETION_MAX_TOKENS)
        logprobs, name = fields.logprobs, "logprobs"
        if fields.echo:
            options["prompt_logprobs"] = logprobs
    if logprobs is not None and logprobs > limits.max_logprobs:
        raise _too_many(name, logprobs, limits.max_logprobs)
    options["logprobs"] = logprobs
    if fields.logit_bias is not None:
        options["logit_bias"] = _logit_bias(fields.logit_bias, limits)
    if fields.structured_outputs is not None:
        held = msgspec.structs.asdict(fields.structured_outputs)
        options |= {"json_schema" if name == "json" else name: value for name, value in held.items()}
    _check_sizes(fields, limits)
    try:
        return defaults.replace(**options)
    except (ValueError, OverflowError) as error:
        name = str(error).split()[0]
        param = "structured_outputs" if name in GRAMMARS else name if name in options else None
        raise RequestError(400, str(error), param=param) from None


def _first(*values: int | None) -> int:
    """The first that is given."""
    return next(value for value in values if value is not None)


def _top_logprobs(fields: ChatFields) -> int | None:
    if fields.logprobs:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise RequestError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    return None


def _too_many(name: str, found: int, most: int) -> RequestError:
    return RequestError(400, f"{name} is {found}; expected at most {most}", param=name)


def _check_sizes(fields: SamplingFields, limits: RequestLimits) -> None:
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    for name, values, most in (
        ("stop", stop, limits.max_stop),
        ("stop_token_ids", fields.stop_token_ids or [], limits.max_stop_token_ids),
    ):
        if len(values) > most:
            raise RequestError(400, f"{name} has {len(values)} entries; expected at most {most}", param=name)
    if any(len(text) > limits.max_stop_chars for text in stop):
        raise RequestError(400, f"stop has a text of more than {limits.max_stop_chars} characters", param="stop")
    if fields.n is not None and fields.n > limits.max_completions:
        raise _too_many("n", fields.n, limits.max_completions)


def _logit_bias(biases: dict[str, float], limits: RequestLimits) -> dict[int, float]:
    """Keys are token ids, which JSON writes as strings."""
    if len(biases) > limits.max_logit_bias:
        message = f"logit_bias has {len(biases)} entries; expected at most {limits.max_logit_bias}"
        raise RequestError(400, message, param="logit_bias")
    for key in biases:
        if not (key.isascii() and key.isdecimal() and len(key) < 20):
            raise RequestError(400, f"logit_bias has {key!r:.80}; expected a token id", param="logit_bias")
    return {int(key): bias for key, bias in biases.items()}


def prompts(
    value: str | list[int | str | list[int]] | None, limits: RequestLimits, name: str = "prompt"
) -> Sequence[Any]:
    """A list of prompts: strings or lists of token ids, which the model checks."""
    if value is None or value == []:
        what = "missing" if value is None else "empty"
        message = f"{name} is {what}; expected a text, token ids, or a list of either"
        code = "missing_required_parameter" if value is None else None
        raise RequestError(400, message, code=code, param=name)
    if isinstance(value, str):
        value = [value]
    elif any(isinstance(item, int) for item in value):
        if not all(isinstance(item, int) for item in value):
            raise RequestError(400, f"{name} has token ids beside texts or lists; expected one kind", param=name)
        return [value]
    for text in value:
        if isinstance(text, str) and len(text) > limits.max_text_chars:
            message = f"{name} has {len(text)} characters; expected at most {limits.max_text_chars}"
            raise RequestError(400, message, param=name)
    return value


def check_work(params: SamplingParams, num_prompts: int, positions: int, limits: RequestLimits) -> None:
    """Refuse what multiplies beyond the limits. positions: whose logprobs one completion may come to report."""
    completions = num_prompts * params.n
    if completions > limits.max_completions:
        message = f"{num_prompts} prompts with n {params.n}; at most {limits.max_completions} completions"
        raise RequestError(400, message, param="n")
    if params.logprobs is not None and completions * positions * (1 + params.logprobs) > limits.max_logprob_values:
        message = (
            f"logprobs {params.logprobs} at {positions} positions of {completions} completions are more than "
            f"{limits.max_logprob_values} values; ask for fewer"
        )
        raise RequestError(400, message, param="logprobs")
