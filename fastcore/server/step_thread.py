"""The thread that runs a language model's steps for all requests of the server."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fastcore.engine.request import Request
from fastcore.engine.sampling_params import SamplingParams
from fastcore.engine.text_stream import TextStream
from fastcore.llm import LLM
from fastcore.server.answers import RequestError

__all__ = ["Job", "Progress", "StepThread"]


class Progress(NamedTuple):
    """How far a completion was after some step: its text, how many of its tokens and logprobs count, how it ended."""

    text: str = ""
    num_tokens: int = 0
    finish_reason: str | None = None


@dataclass(eq=False)
class Job:
    """The completions of one HTTP request, prompt by prompt.

    progress: of each, put in place by the engine's thread after a step, before `stepped` is set.
    """

    completions: list[tuple[Request, TextStream]]
    progress: list[Progress] = field(init=False)
    stepped: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.progress = [Progress()] * len(self.completions)

    @property
    def is_done(self) -> bool:
        return all(progress.finish_reason is not None for progress in self.progress)

    def update(self) -> None:
        progress = []
        for request, text in self.completions:
            reason = request.finish_reason  # before the rest, which is whole then: others may run steps meanwhile
            if reason is not None:
                text.finish()
            progress.append(Progress(text.text, len(request.token_ids), reason))
        self.progress = progress


class StepThread:
    """Runs steps while there are jobs. The event loop never waits for a step: jobs are handed over between steps."""

    def __init__(self, llm: LLM, max_requests: int, done: Callable[[Request], None]) -> None:
        """max_requests: completions under way and waiting. done: called with each that has ended, by the thread."""
        self.llm = llm
        self._max_requests = max_requests
        self._done = done
        self._scheduler = llm._scheduler
        self._jobs: list[Job] = []  # of the thread alone, as the scheduler is
        self._arrived: list[Job] = []
        self._left: list[Job] = []
        self._handover = threading.Condition()
        self._closing = False
        self._stopped = False  # no more work: whatever there is ends
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def num_requests(self) -> int:
        """Completions under way or waiting."""
        return self._scheduler.num_requests + sum(len(job.completions) for job in self._arrived)

    def prepare(self, prompts: Sequence[list[int]], params: SamplingParams) -> Job:
        """A job of params.n completions for each prompt.

        Raises ContextLengthError for a prompt that is too long, and a 429 when too much is under way already.
        """
        wanted = len(prompts) * params.n
        if self.num_requests + wanted > self._max_requests:
            raise RequestError(429, f"{self.num_requests} completions are under way or waiting; try again later")
        return Job([self.llm._request(ids, params, i) for ids in prompts for i in range(params.n)])

    async def run(self, job: Job) -> AsyncGenerator[None, None]:
        """Submit the job; yields after each step until it is done. Leaving early ends it within one step."""
        self._hand_over(self._arrived, job)
        try:
            is_done = False
            while not is_done:
                await job.stepped.wait()
                job.stepped.clear()
                is_done = job.is_done  # asked before the yield, so that the last progress is seen by whoever iterates
                yield
        finally:
            if not job.is_done:
                self._hand_over(self._left, job)

    def stop(self) -> None:
        """End all jobs within a step, and those that still come."""
        with self._handover:
            self._stopped = True
            self._handover.notify()

    def close(self) -> None:
        """End all jobs and the thread."""
        with self._handover:
            self._closing = True
            self._handover.notify()
        if self._thread is not None:
            self._thread.join()

    def _hand_over(self, to: list[Job], job: Job) -> None:
        self._loop = asyncio.get_running_loop()
        with self._handover:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="fastcore engine", daemon=True)
                self._thread.start()
            to.append(job)
            self._handover.notify()

    def _work(self) -> None:
        while True:
            with self._handover:
                self._handover.wait_for(lambda: self._closing or self._arrived or self._left or self._jobs)
                if self._closing:
                    break
                arrived, left = self._arrived[:], self._left[:]
                self._arrived.clear()
                self._left.clear()
            self._jobs += arrived
            self._abort(self._jobs if self._stopped else left)
            for job in arrived:
                if job not in left and not self._stopped:
                    self._scheduler.submit([request for request, _ in job.completions])
            try:
                self._scheduler.step()
            except Exception as error:  # out of memory, say: these requests fail, later ones may not
                for job in self._jobs:
                    self._fail(job, error)
            self._tell(self._jobs)
            self._jobs = [job for job in self._jobs if not job.is_done]
        self._abort([*self._jobs, *self._arrived])

    def _abort(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._scheduler.abort([request for request, _ in job.completions])
        self._tell(jobs)

    def _fail(self, job: Job, error: Exception) -> None:
        for request, _ in job.completions:
            request.finish("error", error)
        self._scheduler.abort([request for request, _ in job.completions])

    def _tell(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.update()
            if job.is_done:
                for request, _ in job.completions:
                    self._done(request)
        loop = self._loop
        if loop is not None and not loop.is_closed():
            for job in jobs:
                loop.call_soon_threadsafe(job.stepped.set)
