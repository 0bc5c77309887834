"""Bodies of requests: what a field says reaches its struct, and what is wrong is the client's to mend."""

import copy
import json
import random
from types import SimpleNamespace
from typing import Any, cast

from fastcore.engine.sampling_params import SamplingParams
from fastcore.server.answers import RequestError, request_error
from fastcore.server.bodies import decode
from fastcore.server.limits import RequestLimits
from fastcore.server.openai_fields import (
    CHAT_REFUSED,
    IGNORED,
    REFUSED,
    ChatFields,
    CompletionFields,
    check_work,
    prompts,
    sampling_params,
)
from fastcore.server.pii import FindFields, PiiService, ScoringFields
from fuzz.mutate import json_bytes, mutate_json
from fuzz.reader import READERS, Reader

LIMITS = RequestLimits()
CLASSIFIER = SimpleNamespace(labels=SimpleNamespace(entity_types=("person", "email")))
PII = PiiService(cast(Any, CLASSIFIER), LIMITS)

SAMPLING: dict[str, Any] = {
    "model": "m", "temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1,
    "presence_penalty": 0.5, "frequency_penalty": -0.5, "seed": 7, "max_tokens": 20, "min_tokens": 2,
    "stop": ["\n", "END"], "stop_token_ids": [2, 5], "ignore_eos": False, "logit_bias": {"5": -100, "17": 1.5}, "n": 2,
    "stream": True, "stream_options": {"include_usage": True}, "user": "someone",
}  # fmt: skip
MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [{"type": "text", "text": "Oh"}]}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        SAMPLING | {"prompt": "Once", "logprobs": 3, "suffix": None},
        {"prompt": [[1, 2], "b"], "echo": True, "logprobs": 0, "best_of": 1},
        {"prompt": [1, 2, 3], "stop": "."},
    ],
    "/v1/chat/completions": [
        SAMPLING | {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "tools": TOOLS, "tool_choice": "auto"},
        {"messages": MESSAGES, "max_completion_tokens": 5, "response_format": {"type": "text"}, "modalities": ["text"]},
    ],
    "/v1/pii": [
        {"sequences": ["I am Ann", ""], "operator": "mask", "keep": 2, "keep_from": "start", "mask_char": "#"},
        {"sequences": ["a"], "per_label": {"person": "redact", "email": None}, "threshold": 0.5, "join": 1},
        {"sequences": ["a"], "operator": "hash", "key": "0123456789abcdef", "allow_list": ["Ann"], "offsets": "utf16"},
    ],
    "/v1/scoring": [{"model": "m", "sequences": ["I am Ann", "é😀"]}],
}
KEYS = sorted({name for bodies in BODIES.values() for body in bodies for name in body} | REFUSED.keys())


def make_body(rng: random.Random) -> bytes:
    """Its path, a space, and the body."""
    path = rng.choice(list(BODIES))
    body = mutate_json(copy.deepcopy(rng.choice(BODIES[path])), rng, names=KEYS)
    return path.encode() + b" " + json_bytes(body, rng)


def read_body(case: bytes) -> None:
    path, _, raw = case.partition(b" ")
    try:
        _read(path.decode(), raw)
    except Exception as error:
        told = request_error(error)
        if not 400 <= told.status < 500:
            raise
        raise told from None


def _read(path: str, raw: bytes) -> None:
    fields: CompletionFields | ChatFields | ScoringFields
    match path:
        case "/v1/completions":
            fields = decode(raw, CompletionFields, IGNORED, REFUSED)
            check_work(
                sampling_params(fields, SamplingParams(), LIMITS), len(prompts(fields.prompt, LIMITS)), 1, LIMITS
            )
        case "/v1/chat/completions":
            fields = decode(raw, ChatFields, IGNORED, CHAT_REFUSED)
            check_work(sampling_params(fields, SamplingParams(), LIMITS), 1, 1, LIMITS)
        case "/v1/pii":
            fields = decode(raw, FindFields)
            PII._texts(fields)
            PII._rules(fields)
        case _:
            fields = decode(raw, ScoringFields)
            PII._texts(fields)
    sent = json.loads(raw)
    for name in fields.__struct_fields__:
        value, given = getattr(fields, name), sent.get(name)
        if not isinstance(given, dict):  # of a dict, numbers may have become floats
            _require(value == given or value == float(given), f"{name} is {value!r:.80}; sent as {given!r:.80}")


def _require(condition: bool, problem: str) -> None:
    """A breach is no ValueError, which a client would be told of."""
    if not condition:
        raise AssertionError(problem)


READERS["bodies"] = Reader(make_body, read_body, (RequestError,))
