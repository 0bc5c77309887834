"""What comes out of a request: chunks while it runs, a Completion at the end."""

import time
from collections.abc import Generator
from dataclasses import dataclass

from fastcore.engine.request import Request
from fastcore.engine.scheduler import Scheduler
from fastcore.engine.text_stream import TextStream

__all__ = ["Chunk", "Completion", "Timings", "TokenLogprob", "Usage", "chunks", "completion"]


@dataclass(frozen=True)
class TokenLogprob:
    """A token, its logprob under the model, and the most probable ones there, (token id, logprob), best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Usage:
    """cached_tokens: of the prompt, those that an earlier call had computed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Timings:
    """Seconds. A batch shares its steps, so the times of its requests overlap.

    prompt_tokens: those that were computed, which leaves out the cached ones.
    """

    queued: float  # until the first step
    prefill: float  # from there to the first new token
    decode: float  # from the first to the last new token
    prompt_tokens: int
    completion_tokens: int

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prefill if self.prefill > 0 else 0.0

    @property
    def decode_rate(self) -> float:
        """New tokens per second after the first."""
        return max(0, self.completion_tokens - 1) / self.decode if self.decode > 0 else 0.0


@dataclass(frozen=True)
class Completion:
    """What came out for one prompt.

    text: what decoding prompt and new tokens gives beyond decoding the prompt, without special tokens.
    finish_reason: stop (an end-of-sequence or stop token, or a stop string; none is part of the text) | length.
    token_ids: all new tokens, an ending token included.
    logprobs, prompt_logprobs: when asked for, one per new token and one per prompt token, None for the first.
    reasoning: what was split from the text, when asked for.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    usage: Usage
    timings: Timings
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    reasoning: str | None = None


@dataclass(frozen=True)
class Chunk:
    """What is new since the last chunk. The texts of all chunks together are the completion's text."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: list[TokenLogprob] | None = None
    completion: Completion | None = None  # with the last chunk


def _token_logprobs(request: Request, start: int = 0, end: int | None = None) -> list[TokenLogprob] | None:
    if request.params.logprobs is None:
        return None
    return [
        TokenLogprob(token_id, *values)
        for token_id, values in zip(request.token_ids[start:end], request.logprobs[start:end], strict=True)
    ]


def completion(request: Request, text: str) -> Completion:
    """The finished request as a Completion."""
    prompt, new = len(request.prompt_token_ids), len(request.token_ids)
    finished = request.finished or time.perf_counter()
    started = request.started or finished
    first = request.first_token or finished
    prompt_logprobs = None
    if request.params.prompt_logprobs is not None:
        prompt_logprobs = [
            None,
            *(
                TokenLogprob(request.prompt_token_ids[i + 1], *values)
                for i, values in enumerate(request.prompt_logprobs)
            ),
        ]
    return Completion(
        text=text,
        token_ids=list(request.token_ids),
        finish_reason=request.finish_reason or "abort",
        usage=Usage(prompt, new, request.cached_tokens),
        timings=Timings(
            started - request.submitted, first - started, finished - first, prompt - request.cached_tokens, new
        ),
        logprobs=_token_logprobs(request),
        prompt_logprobs=prompt_logprobs,
    )


def chunks(scheduler: Scheduler, request: Request, text: TextStream) -> Generator[Chunk, None, None]:
    """Run a request, and give what comes of it piece by piece."""
    sent_text = sent_tokens = 0
    for _ in scheduler.run([request]):
        if request.error is not None:
            raise request.error
        if request.finish_reason is not None:
            break
        shown, count = text.text, len(request.token_ids)  # as of now: steps of others go on while a chunk is looked at
        if len(shown) > sent_text:
            logprobs = _token_logprobs(request, sent_tokens, count)
            yield Chunk(shown[sent_text:], request.token_ids[sent_tokens:count], logprobs=logprobs)
            sent_text, sent_tokens = len(shown), count
    if request.error is not None:
        raise request.error
    text.finish()
    yield Chunk(
        text.text[sent_text:],
        request.token_ids[sent_tokens:],
        request.finish_reason,
        _token_logprobs(request, sent_tokens),
        completion(request, text.text),
    )
