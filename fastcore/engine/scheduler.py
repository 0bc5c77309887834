"""Continuous batching: each step takes one token of every running request and fills up with prompt rows of new ones."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fastcore.engine.sampling import Choice, Sampler, SamplingParams, logprobs_of
from fastcore.engine.state import Piece, SequenceState, StatePool, run_step
from fastcore.errors import CacheFullError, NonFiniteError
from fastcore.locks import Lock
from fastcore.models import Model

__all__ = ["Request", "Scheduler"]

MAX_ROWS = 512  # of a step: bounds the workspace, and how long a running request waits behind a prompt
MAX_RUNNING = 64
WAIT_SECONDS = 0.001  # between looks, when nothing can start
LOGIT_ROWS = 128  # of one request in a step when all its rows ask for logits: bounds the logits' memory

TokenLogprobs = tuple[float, tuple[tuple[int, float], ...]]  # of the token, and of the most probable ones


@dataclass(eq=False)
class Request:
    """One completion on its way: what goes in, and what has come out so far.

    on_token is called with each new token id and whether a stop string counts yet; it says if the text ends there.
    """

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    sampler: Sampler
    max_new_tokens: int
    ending_ids: frozenset[int]  # end the text; not before params.min_tokens
    on_token: Callable[[int, bool], bool] = lambda token_id, may_stop: False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None  # stop | length | abort | error
    error: Exception | None = None
    sequence: SequenceState | None = None
    submitted: float = field(default_factory=time.perf_counter)
    started: float | None = None  # first step
    first_token: float | None = None
    finished: float | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.token_ids)

    def tokens(self, start: int, end: int) -> Sequence[int]:
        """Token ids of prompt and output at positions start to end."""
        split = len(self.prompt_token_ids)
        if start >= split:
            return self.token_ids[start - split : end - split]
        return (*self.prompt_token_ids[start:end], *self.token_ids[: max(0, end - split)])

    @property
    def wants_prompt_logits(self) -> bool:
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.prompt_token_ids) - 1

    def accept(self, choice: Choice) -> None:
        """Take a token, and decide whether it is the last."""
        now = time.perf_counter()
        self.first_token = self.first_token or now
        self.token_ids.append(choice.token_id)
        if choice.logprob is not None:
            self.logprobs.append((choice.logprob, choice.top_logprobs or ()))
        self.sampler.accept(choice.token_id)
        enough = len(self.token_ids) > self.params.min_tokens  # an ending token is not itself one of the min_tokens
        text_ends = self.on_token(choice.token_id, enough)
        if text_ends or (enough and choice.token_id in self.ending_ids):
            self.finish("stop")
        elif len(self.token_ids) >= self.max_new_tokens:
            self.finish("length")

    def finish(self, reason: str, error: Exception | None = None) -> None:
        if self.finish_reason is None:
            self.finish_reason, self.error, self.finished = reason, error, time.perf_counter()
        if self.sequence is not None:
            self.sequence.free()
            self.sequence = None


class Scheduler:
    """Runs requests over one model and one state pool. Threads may share it: a step advances everybody's requests."""

    def __init__(self, model: Model, pool: StatePool, num_threads: int) -> None:
        self.model = model
        self.pool = pool
        self.num_threads = num_threads
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._lock = Lock()  # held during a step and around every change of the two lists
        self._logits = np.empty((0, model.config.vocab_size), np.float32)

    @property
    def num_requests(self) -> int:
        return len(self._waiting) + len(self._running)

    def run(self, requests: Sequence[Request]) -> Iterator[None]:
        """Submit the requests and drive steps until all are finished; yields after each. Leaving early aborts them."""
        self.submit(requests)
        try:
            while any(request.finish_reason is None for request in requests):
                with self._lock.usable():
                    if any(request.finish_reason is None for request in requests):
                        self._step()
                yield
        finally:
            self.abort(requests)

    def submit(self, requests: Sequence[Request]) -> None:
        """Let the requests take part in the steps to come."""
        with self._lock.usable():
            for request in requests:
                self._submit(request)

    def step(self) -> None:
        """Run one step, if any request is there."""
        with self._lock.usable():
            if self.num_requests:
                self._step()

    def abort(self, requests: Sequence[Request]) -> None:
        """End those of the requests that are not finished, and free what they hold."""
        with self._lock.usable():
            for request in requests:
                request.finish("abort")
            self._drop_finished()

    def _submit(self, request: Request) -> None:
        if request.max_new_tokens == 0 and request.params.prompt_logprobs is None:
            request.finish("length")
        elif self._positions(request) > self.pool.max_positions:
            needed, bound = self._positions(request), self.pool.max_positions
            request.finish(
                "error",
                CacheFullError(f"{needed} positions are needed and the cache holds {bound}; raise kv_cache_bytes"),
            )
        else:
            self._waiting.append(request)

    @staticmethod
    def _positions(request: Request) -> int:
        """Positions that the request can come to need: its last token is never an input."""
        return len(request.prompt_token_ids) + max(0, request.max_new_tokens - 1)

    def _admit(self) -> None:
        """Start waiting requests, in order, while all they can need fits, so that a running one never runs out."""
        while self._waiting and len(self._running) < MAX_RUNNING:
            request = self._waiting[0]
            if request.sequence is None:
                request.sequence = SequenceState(self.pool, prompt_length=len(request.prompt_token_ids))
            try:
                request.sequence.reserve(self._positions(request))
            except CacheFullError:
                return
            if request not in self._running:  # an interrupt may have left it in both
                request.started = time.perf_counter()
                self._running.append(request)
            self._waiting.popleft()

    def _plan(self) -> list[tuple[Request, Piece]]:
        """The rows of the next step: one of each decoding request, then prompts in order of arrival."""
        plan, room = [], MAX_ROWS
        by_remaining = sorted(self._running, key=lambda request: request.num_tokens - _length(request) > 1)
        for request in by_remaining:
            done, end = _length(request), request.num_tokens
            count = min(end - done, room, LOGIT_ROWS if request.wants_prompt_logits else room)
            if count == 0:
                break
            outputs = range(count) if request.wants_prompt_logits else [count - 1] if done + count == end else []
            assert request.sequence is not None
            plan.append((request, Piece(request.sequence, request.tokens(done, done + count), outputs)))
            room -= count
        return plan

    def _step(self) -> None:
        self._admit()
        plan = self._plan()
        if not plan:  # other users of the pool hold what the first in line needs, and give it back in time
            time.sleep(WAIT_SECONDS)
            return
        num_outputs = sum(len(piece.outputs) for _, piece in plan)
        if len(self._logits) < num_outputs:
            self._logits = np.empty((num_outputs, self.model.config.vocab_size), np.float32)
        logits, best = self._logits[:num_outputs], np.empty(num_outputs, np.int32)
        lengths = [_length(request) for request, _ in plan]
        taken, row = 0, 0
        try:
            run_step(self.model, [piece for _, piece in plan], num_threads=self.num_threads, logits=logits, best=best)
            for request, piece in plan:
                outputs = slice(row, row + len(piece.outputs))
                taken, row = taken + 1, outputs.stop
                try:
                    self._take_outputs(request, logits[outputs], best[outputs])
                except Exception as error:  # the others go on
                    request.finish("error", error)
                except BaseException:
                    request.finish("error", InterruptedError("the step that this request was in was interrupted"))
                    raise
        except BaseException:  # requests of other threads take the step again
            for (_, piece), length in zip(plan[taken:], lengths[taken:], strict=True):
                piece.sequence.rewind(length)
            raise
        self._drop_finished()

    def _take_outputs(self, request: Request, logits: np.ndarray, best: np.ndarray) -> None:
        """Logprobs of prompt tokens from the rows before them; a new token from the last row of all."""
        if (best < 0).any():
            raise NonFiniteError("the model's logits are not finite: a weight is not, or activations overflow")
        if request.wants_prompt_logits:
            position = _length(request) - len(logits)
            # Recurrent state lost to an interrupted step is computed again, and its rows have been here before.
            done = len(request.prompt_logprobs) - position
            for row in logits[done : len(request.prompt_token_ids) - 1 - position]:
                token_id = request.prompt_token_ids[len(request.prompt_logprobs) + 1]
                request.prompt_logprobs.append(logprobs_of(row, token_id, request.params.prompt_logprobs or 0))
        if _length(request) < request.num_tokens:
            return
        if request.max_new_tokens == 0:
            request.finish("length")
        elif request.sampler.is_plain_greedy:
            request.accept(Choice(int(best[-1])))
        else:
            request.accept(request.sampler.sample(logits[-1]))

    def _drop_finished(self) -> None:
        self._running = [request for request in self._running if request.finish_reason is None]
        self._waiting = deque(request for request in self._waiting if request.finish_reason is None)


def _length(request: Request) -> int:
    return request.sequence.length if request.sequence is not None else 0
