"""The one planner of steps: completions, scored texts and classifier windows stand in one queue and share steps.

A step takes one row of every sequence that decodes, and fills up with rows of those that have more to run. Callers
share these; where works run in one piece, they take turns: whoever has had rows goes to the end of the line.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from fastcore._kernels import BLOCK_TOKENS, TurnLock
from fastcore.engine.state import Piece, SequenceState, StatePool, run_step
from fastcore.engine.work import CALLER, Array, Best, Caller, Work
from fastcore.errors import CacheFullError, ClosedError
from fastcore.locks import Lock
from fastcore.model.model import Model

__all__ = ["MAX_ROWS", "Results", "Scheduler"]

MAX_ROWS = 512  # of a step: bounds the workspace
SHARED_ROWS = 128  # of prompts in a step of several callers: bounds how long one waits for another's prompt
LONG_ROWS = 16  # of prompts that are longer than that, in a step while others decode
MAX_RUNNING = 128  # sequences that share steps
MAX_RUNNING_EACH = 96  # of one caller, which leaves places for others
LOGIT_BYTES = 1 << 27  # of outputs that a step may write
KEPT_BEFORE = (0, 4, 16, 64)  # blocks before the first wanted output, after which recurrent states are kept
CLOSED = "this model is closed; open it again to use it"
WAIT_SECONDS = 0.001  # between looks for blocks that somebody holds outside the queue

T = TypeVar("T")


class Results(Iterator[T]):
    """Results in order, worked out as they are taken."""

    def __init__(self, caller: Caller, results: Generator[T, None, None]) -> None:
        self._caller = caller
        self._results = results

    def __next__(self) -> T:
        return next(self._results)

    def leave(self) -> None:
        """Ask for no more, from any thread and without waiting: whoever iterates comes to the end after a step."""
        self._caller.has_left = True

    def close(self) -> None:
        """End the work. Not while another thread iterates."""
        self._results.close()


class Scheduler:
    """Runs works over one model and one state pool. Threads may share it: a step advances everybody's works.

    An interrupt may come between any two of its instructions. What counts is therefore read from the works themselves
    (`finish_reason`, `sequence`), and each step begins by putting the lists in order.
    """

    def __init__(self, model: Model, pool: StatePool, num_threads: int, prefix_cache: bool = True) -> None:
        """prefix_cache: share what earlier works have computed of the same tokens, where the model allows it."""
        config = model.config
        # Dynamic keys follow the prompt's length; in one piece each token sees what follows.
        shareable = config.rope.rope_type != "dynamic" and not config.is_token_classifier
        self._prefixes = pool.prefixes if prefix_cache and shareable else None
        self.model = model
        self.pool = pool
        self.num_threads = num_threads
        self._callers: list[Caller] = []  # in the order of their turns
        self._turn = TurnLock()
        self._lock = Lock(self._turn)  # held during a step and around every change of the lists
        self._outputs: dict[str, Array] = {}  # where steps write, while there is work
        self._last_output = ""
        self._is_closed = False

    @property
    def num_requests(self) -> int:
        """Works waiting or running."""
        return sum(len(caller.waiting) + len(caller.running) for caller in list(self._callers))

    # ---------------------------------------------------------------- for callers

    def run(self, works: Sequence[Work]) -> Iterator[None]:
        """Submit the works and drive steps until all are finished; yields after each. Leaving early aborts them."""
        caller = CALLER.get() or Caller()
        try:
            self.submit(works, caller)
            while not caller.has_left and self._advance(works):
                yield
        finally:
            self.abort(works)

    def in_order(
        self, source: Iterable[T], works: Callable[[T], Sequence[Work]], caller: Caller | None = None
    ) -> Generator[T, None, None]:
        """Each item of the source when its works are done, in order; an error of its works is raised in its place.

        Reads ahead by no more than fills a step, so that memory does not grow with the source. Ends when the caller
        leaves, which another thread may make it do.
        """
        caller = caller or CALLER.get() or Caller()
        items = iter(source)
        ahead: deque[T] = deque()

        def unfinished(item: T) -> bool:
            parts = works(item)
            return all(work.error is None for work in parts) and any(work.finish_reason is None for work in parts)

        def rows_left(item: T) -> int:
            return sum(work.rows_left for work in works(item)) if unfinished(item) else 0

        try:
            while not caller.has_left:
                if not ahead or unfinished(ahead[0]):
                    room = MAX_ROWS - sum(map(rows_left, ahead))
                    while room > 0 and len(ahead) < MAX_RUNNING:
                        try:
                            item = next(items)
                        except StopIteration:
                            break
                        ahead.append(item)
                        self.submit(works(item), caller)
                        room -= rows_left(item)
                if not ahead:
                    return
                while unfinished(ahead[0]) and not caller.has_left:
                    self._advance(works(ahead[0]))
                if not caller.has_left:
                    for work in works(ahead[0]):
                        if work.error is not None:
                            raise work.error
                    yield ahead.popleft()
        finally:
            self.abort([work for item in ahead for work in works(item)])

    def submit(self, works: Sequence[Work], caller: Caller | None = None) -> None:
        """Let the works take part in the steps to come. What can never fit the pool ends with an error at once."""
        caller = caller or Caller()
        with self._lock.usable():
            if self._is_closed:
                raise ClosedError(CLOSED)
            for work in works:
                needed, bound = work.num_positions, self.pool.max_positions
                if needed > bound:
                    message = f"{needed} positions are needed and the cache holds {bound}; raise kv_cache_bytes"
                    work.finish("error", CacheFullError(message))
                elif work.finish_reason is None:
                    caller.waiting.append(work)
            if caller.waiting and caller not in self._callers:
                self._callers.append(caller)

    def step(self) -> None:
        """Run one step, if there is work."""
        with self._lock.usable():
            is_stuck = not self._step()
        if is_stuck:
            time.sleep(WAIT_SECONDS)

    def abort(self, works: Sequence[Work]) -> None:
        """End those of the works that are not finished, and free what they hold."""
        for work in works:  # without the lock, so that an interrupt while it waits for it leaves no work behind
            work.finish("abort")
        with self._lock.usable():
            for caller in self._callers:
                caller.waiting = deque(work for work in caller.waiting if work.finish_reason is None)
            self._tidy()

    def close(self) -> None:
        """Wait for the step that runs, end all works with ClosedError, and let go of model and pool."""
        with self._lock.usable():
            if not self._is_closed:
                self._is_closed = True
                for caller in self._callers:
                    for work in (*caller.running, *caller.waiting):
                        work.finish("error", ClosedError(CLOSED))
                    caller.waiting.clear()
                self._tidy()
                self._prefixes = None
                del self.model, self.pool

    def _advance(self, works: Sequence[Work]) -> bool:
        """Have a step run, by this thread or another; False if the works are done."""
        if all(work.finish_reason is not None for work in works):
            return False
        lock = self._lock.usable()
        if self._turn.wait():  # what another thread ran was everybody's step
            return True
        is_stuck = False
        with lock:
            if any(work.finish_reason is None for work in works):  # another thread's step may have done it
                is_stuck = not self._step()
        if is_stuck:
            time.sleep(WAIT_SECONDS)
        return True

    # ---------------------------------------------------------------- steps, under the lock

    def _tidy(self) -> None:
        """Free what finished works hold, and drop works and callers that are done with."""
        for caller in self._callers:
            for work in caller.running:
                if work.finish_reason is not None and work.sequence is not None:
                    self._keep(work)
                    work.sequence.free()
                    work.sequence = None
            caller.running = [work for work in caller.running if work.finish_reason is None and work.sequence]
            while caller.waiting and (caller.waiting[0].finish_reason is not None or caller.waiting[0].sequence):
                caller.waiting.popleft()
        self._callers = [caller for caller in self._callers if caller.running or caller.waiting]
        if not self._callers:
            self._outputs = {}

    def _keep(self, work: Work) -> None:
        """Let later works share the full blocks of this one."""
        if self._prefixes is not None and work.sequence is not None:
            count = work.sequence.length // BLOCK_TOKENS
            self._prefixes.keep(work.tokens(0, count * BLOCK_TOKENS), work.sequence.blocks[:count])

    def _keep_state(self, work: Work) -> None:
        """Let later works go on from here, if it is a place for that: of those beyond the prompt, the last one."""
        sequence = work.sequence
        if self._prefixes is None or sequence is None or sequence.state is None or not sequence.length:
            return
        length, is_new = sequence.length, sequence.length > len(work.prompt_token_ids)
        if length in work.kept_at or (is_new and length % BLOCK_TOKENS == 0):
            blocks = sequence.blocks[: length // BLOCK_TOKENS]
            key = self._prefixes.keep_state(work.tokens(0, length), blocks, sequence.state)
            if is_new:
                if work.kept_last is not None and work.kept_last != key:
                    self._prefixes.drop_state(work.kept_last)
                work.kept_last = key

    def _admit(self) -> None:
        """Start waiting works, in order, while all that they have to run fits; none overtakes one that does not yet.

        Those that had to give up their state come first.
        """
        running = [work for caller in self._callers for work in caller.running]
        for caller in sorted(self._callers, key=_gave_up, reverse=True):
            while caller.waiting and len(running) < MAX_RUNNING and len(caller.running) < MAX_RUNNING_EACH:
                work = caller.waiting[0]
                if work.finish_reason is None:
                    sequence = self._new_state(work)
                    if sequence is None or (running and not self._leaves_room(running)):
                        return
                    caller.running.append(work)
                    running.append(work)
                    work.started = work.started or time.perf_counter()
                    work.sequence = sequence
                caller.waiting.popleft()

    def _new_state(self, work: Work) -> SequenceState | None:
        """With blocks for all there is to run, and what is cached of it; None if they are not free."""
        sequence = SequenceState(self.pool, prompt_length=len(work.prompt_token_ids))
        try:
            if self._prefixes is not None:
                shared = self._prefixes.find(work.tokens(0, work.num_tokens), work.first_output)
                sequence.begin_with(shared)
                if self.pool.state_blocks:
                    work.kept_at = _kept_at(work.first_output, shared.num_known)
            if work.started is None:
                work.cached_tokens = sequence.length
            sequence.reserve(work.num_tokens)
        except CacheFullError:
            return None
        return sequence

    def _leaves_room(self, running: Sequence[Work]) -> bool:
        """Whether those that run and grow have a free block each: who starts late should not have to stop soon."""
        growing = sum(work.num_positions > work.num_tokens for work in running)
        return self.pool.has_free(growing)

    def _plan(self) -> list[tuple[Work, Piece]]:
        """The rows of the next step, of works that want the same output."""
        running = [work for caller in self._callers for work in caller.running]
        kinds = dict.fromkeys(work.output for work in running)
        if not kinds:
            return []
        kind = next((kind for kind in kinds if kind != self._last_output), self._last_output)
        self._last_output = kind
        plan: list[tuple[Work, Piece]] = []
        most_outputs = outputs_room = max(1, LOGIT_BYTES // (4 * self._width(kind)))
        turns = self._with_blocks(list(self._turns(kind)))
        num_rows = sum(count for _, count in turns)
        for work, most in turns:
            assert work.sequence is not None
            start, first = work.sequence.length, work.first_output
            if work.in_one_piece:
                if plan and most > outputs_room:
                    continue
                count = most
            else:
                count = min(most, max(0, first - start) + outputs_room)
                if work.kept_at:
                    count = min([count, *(length - start for length in work.kept_at if length > start)])
            if count <= 0:
                continue
            tokens = work.tokens(start, start + count)
            guesses: Sequence[int] = ()
            if start + count == work.num_tokens:
                room = min(MAX_ROWS, most_outputs) - num_rows
                guesses = work.guesses(min(room, work.sequence.capacity - start - count), num_rows)
                if guesses:
                    tokens = [*tokens, *guesses]
                    num_rows += len(guesses)
            outputs = range(min(max(0, first - start), count), count + len(guesses))
            plan.append((work, Piece(work.sequence, tokens, outputs, len(guesses))))
            outputs_room -= len(outputs)
        return plan

    def _with_blocks(self, turns: list[tuple[Work, int]]) -> list[tuple[Work, int]]:
        """The turns whose rows have blocks. Where those run out, older works take the state of the youngest.

        So the oldest never waits, and as the pool holds it whole, all come to an end.
        """
        try:
            for work, count in turns:
                assert work.sequence is not None
                work.sequence.reserve(work.sequence.length + count)
        except CacheFullError:
            turns.sort(key=lambda turn: turn[0].started or 0)
            return [(work, count) for work, count in turns if self._has_blocks(work, count)]
        return turns

    def _has_blocks(self, work: Work, count: int) -> bool:
        while work.sequence is not None:
            try:
                work.sequence.reserve(work.sequence.length + count)
                return True
            except CacheFullError:
                running = [(caller, work) for caller in self._callers for work in caller.running if work.sequence]
                caller, youngest = max(running, key=lambda each: each[1].started or 0)
                if youngest is work:
                    return False
                self._keep(youngest)
                caller.waiting.appendleft(youngest)  # while it has state, so that an interrupt finds it running
                youngest.sequence = None
        return False

    def _turns(self, kind: str) -> Iterator[tuple[Work, int]]:
        """Works of the next step in order, each with the rows that it may have: decoding ones, then the others.

        Callers share rows alike, and get what others leave; one caller's works take its share in order. While some
        decode, only the long prompt whose turn it is goes on, and by few rows, as its whole step makes all others wait.
        """
        running = [[work for work in caller.running if work.sequence] for caller in self._callers]
        is_shared = sum(map(bool, running)) > 1
        some_decode = any(work.rows_left == 1 for works in running for work in works)
        callers = [[work for work in works if work.output == kind] for works in running]
        in_one_piece = any(work.in_one_piece for works in callers for work in works)
        decoding = [work for works in callers for work in works if work.rows_left == 1]
        yield from ((work, 1) for work in decoding)
        room = MAX_ROWS - len(decoding)
        if is_shared and not in_one_piece:
            room = min(room, SHARED_ROWS)
        longer = [[work for work in works if work.rows_left > 1] for works in callers]
        if in_one_piece:  # in order of turns, as far as they fit; one that is longer than a step is a step of its own
            for work in [work for works in longer for work in works]:
                if work.rows_left <= room or room == MAX_ROWS:
                    room -= work.rows_left
                    yield work, work.rows_left
            return
        if is_shared and some_decode:
            long = [works for works in longer if works and works[0].rows_left > SHARED_ROWS]
            longer = [works for works in longer if works not in long]
            if long:
                room -= LONG_ROWS
                yield long[0][0], LONG_ROWS
        longer = sorted(filter(None, longer), key=_rows_left)
        for i, works in enumerate(longer):
            share = room // (len(longer) - i)
            for work in works:
                count = min(work.rows_left, share)
                room, share = room - count, share - count
                yield work, count

    def _step(self) -> bool:
        """Run one step; False if there is work and none of it can run."""
        self._tidy()
        self._admit()
        plan = self._plan()
        if not plan:
            return not self._callers
        outputs, best = self._space(plan)
        lengths = [piece.sequence.length for _, piece in plan]
        taken = row = 0
        try:
            self._run([piece for _, piece in plan], plan[0][0].output, outputs, best)
            for work, piece in plan:
                rows = slice(row, row + len(piece.outputs))
                if piece.outputs and work.finish_reason is None:
                    self._hand_over(work, outputs[rows], best[rows])
                taken, row = taken + 1, rows.stop
                if lengths[taken - 1] < len(work.prompt_token_ids) == piece.sequence.length:
                    self._keep(work)  # now, so that those who wait share a prompt while this one goes on
                if self.pool.state_blocks:
                    self._keep_state(work)
        except BaseException:  # other threads' works take the step again
            for (_, piece), length in zip(plan[taken:], lengths[taken:], strict=True):
                piece.sequence.rewind(length)
            raise
        had_turn = {id(work) for work, piece in plan if len(piece.token_ids) - piece.num_guesses > 1}
        self._callers = sorted(
            self._callers, key=lambda caller: any(id(work) in had_turn for work in caller.running)
        )  # whoever had none comes first
        self._tidy()
        return True

    def _run(self, pieces: Sequence[Piece], kind: str, outputs: Array, best: Best) -> None:
        if kind == "logits":
            run_step(self.model, pieces, num_threads=self.num_threads, logits=outputs, best=best)
            return
        if kind == "hidden":
            run_step(self.model, pieces, num_threads=self.num_threads, hidden=outputs)
        else:
            run_step(self.model, pieces, num_threads=self.num_threads, logits=outputs)
        best[:] = np.where(np.isfinite(outputs).all(axis=1), 0, -1)

    @staticmethod
    def _hand_over(work: Work, outputs: Array, best: Best) -> None:
        try:
            work.take(outputs, best)
        except Exception as error:  # the others go on
            work.finish("error", error)
        except BaseException:
            if not work.can_take_again:
                work.finish("error", InterruptedError("the step that this request was in was interrupted"))
            raise

    def _space(self, plan: Sequence[tuple[Work, Piece]]) -> tuple[Array, Best]:
        """Arrays for the outputs of a step."""
        kind, count = plan[0][0].output, sum(len(piece.outputs) for _, piece in plan)
        space = self._outputs.get(kind)
        if space is None or len(space) < count:
            space = self._outputs[kind] = np.empty((count, self._width(kind)), np.float32)
        return space[:count], np.empty(count, np.int32)

    def _width(self, kind: str) -> int:
        if kind == "labels":
            return self.model.program.output_width
        return self.model.config.hidden_size if kind == "hidden" else self.model.config.vocab_size


def _rows_left(works: Sequence[Work]) -> int:
    return sum(work.rows_left for work in works)


def _gave_up(caller: Caller) -> bool:
    """Whether its next work has run before."""
    return bool(caller.waiting) and caller.waiting[0].started is not None


def _kept_at(first_output: int, num_known: int) -> list[int]:
    """Where recurrent states are kept for texts that begin alike: at the ends of blocks, as steps have to end there.

    Before the first wanted output, where the next turn of a chat goes on; ever farther before it, as another text may
    end in more of its own; and where texts are seen to part, after num_known blocks.
    """
    end = first_output // BLOCK_TOKENS
    return sorted({at * BLOCK_TOKENS for at in (num_known, *(end - far for far in KEPT_BEFORE)) if at > 0})
