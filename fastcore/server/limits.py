"""What a request may take of the server."""

from dataclasses import dataclass, fields

__all__ = ["RequestLimits"]


@dataclass(frozen=True)
class RequestLimits:
    """Bounds of each request, and of all together. Beyond them a request is refused, with 400, 408, 413, 429 or 503.

    max_body_bytes, body_seconds: how large its body may be, and how long it may take to come.
    max_pending_bytes: of all bodies that are on their way or being read.
    max_json_values: numbers, texts, lists and objects in a body.
    max_requests: completions, or requests to a classifier, under way and waiting.
    max_completions: prompts times n in one request.
    max_logprobs: most probable tokens to report at a position; max_logprob_values: of all positions of a request.
    max_stop, max_stop_chars: stop strings, and characters of each. max_stop_token_ids, max_logit_bias: entries.
    max_texts, max_text_chars: texts in one request to a classifier; characters of a text or prompt.
    max_scored_tokens: tokens whose numbers one answer of /v1/scoring may hold.
    """

    max_body_bytes: int = 16 << 20
    body_seconds: float = 30.0
    max_pending_bytes: int = 256 << 20
    max_json_values: int = 1_000_000
    max_requests: int = 256
    max_completions: int = 128
    max_logprobs: int = 20
    max_logprob_values: int = 1_000_000
    max_stop: int = 16
    max_stop_chars: int = 1000
    max_stop_token_ids: int = 128
    max_logit_bias: int = 1024
    max_texts: int = 4096
    max_text_chars: int = 1_000_000
    max_scored_tokens: int = 250_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{field.name} is {value!r}; expected a number above 0")
