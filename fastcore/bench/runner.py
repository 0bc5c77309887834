"""What runs a model in a benchmark: the protocol, and fastcore itself."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import BLOCK_TOKENS
from fastcore.bench.model_cost import linear_weights
from fastcore.engine.scheduler import MAX_ROWS
from fastcore.engine.state import Piece, SequenceState, StatePool, run_step
from fastcore.errors import ContextLengthError, NonFiniteError, UnsupportedModelError
from fastcore.models import Model

__all__ = ["Fastcore", "Runner"]


class Runner(Protocol):
    """What runs a model: tokens go into sequences, logits come out.

    name: with the dtype of its weights. weight_bytes: of the linear maps, read in each step.
    position_bytes: of the KV cache, for each position of a sequence.
    """

    name: str
    version: str
    weight_bytes: int
    position_bytes: int

    def start(self, batch: int, positions: int) -> None:
        """Forget everything, and begin `batch` empty sequences with room for so many positions each."""

    def run(self, token_ids: NDArray[np.int32]) -> None:
        """Append the rows of token_ids [batch, n] to the sequences and compute what follows; done when it returns."""

    def logits(self) -> NDArray[np.float32]:
        """[batch, vocab_size], of what follows the last run."""

    def mark(self) -> None:
        """Remember the state."""

    def rewind(self) -> None:
        """Go back to the state that was marked."""

    def close(self) -> None:
        """Free everything."""


class Fastcore:
    """The engine that this package is. kv_dtype: f32 | f16 | int8."""

    def __init__(self, model: Model, num_threads: int, kv_dtype: str = "f32") -> None:
        from fastcore import __version__

        if model.config.is_token_classifier:
            raise UnsupportedModelError("this model classifies tokens; what is measured here is generation")
        linear = linear_weights(model)
        self.name = f"fastcore {'/'.join(dict.fromkeys(weights.dtype for weights in linear))}"
        self.version = __version__
        self.weight_bytes = sum(weights.nbytes for weights in linear)
        self._smallest = StatePool(model, 1, kv_dtype)
        self.position_bytes = self._smallest.block_bytes // BLOCK_TOKENS
        self._model = model
        self._num_threads = num_threads
        self._kv_dtype = kv_dtype
        self._sequences: list[SequenceState] = []
        self._marked: list[SequenceState] = []
        self._logits = np.empty((0, model.config.vocab_size), np.float32)
        self._best = np.empty(0, np.int32)

    def start(self, batch: int, positions: int) -> None:
        longest = self._model.config.context_length
        if positions > longest:
            raise ContextLengthError(f"{positions} tokens are asked for and the model's context holds {longest}")
        pool = self._smallest
        blocks = -(-positions // BLOCK_TOKENS) + 2 * pool.state_blocks  # states start at multiples of their size
        pool = StatePool(self._model, 2 * batch * blocks * pool.block_bytes, self._kv_dtype)  # half for what is marked
        self._sequences = [SequenceState(pool) for _ in range(batch)]
        self._marked = [SequenceState(pool) for _ in range(batch)]
        self._logits = np.empty((batch, self._model.config.vocab_size), np.float32)
        self._best = np.empty(batch, np.int32)

    def run(self, token_ids: NDArray[np.int32]) -> None:
        batch, count = token_ids.shape
        rows = max(1, MAX_ROWS // batch)
        for first in range(0, count, rows):
            parts = token_ids[:, first : first + rows]
            if first + rows < count:
                self._step(parts, [], None, None)
            else:
                self._step(parts, [parts.shape[1] - 1], self._logits, self._best)

    def step(self, token_ids: Sequence[int], op_seconds: NDArray[np.float64]) -> None:
        """Run tokens of a single sequence as one step; op_seconds: see Program.run."""
        tokens = np.array([token_ids], np.int32)
        self._step(tokens, [len(token_ids) - 1], self._logits, self._best, op_seconds)

    def _step(
        self,
        token_ids: NDArray[np.int32],
        outputs: list[int],
        logits: NDArray[np.float32] | None,
        best: NDArray[np.int32] | None,
        op_seconds: NDArray[np.float64] | None = None,
    ) -> None:
        pieces = [Piece(sequence, row, outputs) for sequence, row in zip(self._sequences, token_ids, strict=True)]
        run_step(self._model, pieces, num_threads=self._num_threads, logits=logits, best=best, op_seconds=op_seconds)
        if best is not None and best.min() < 0:
            raise NonFiniteError("the model's logits are not finite")

    def logits(self) -> NDArray[np.float32]:
        return self._logits

    def mark(self) -> None:
        for marked, sequence in zip(self._marked, self._sequences, strict=True):
            marked.restore(sequence)

    def rewind(self) -> None:
        for marked, sequence in zip(self._marked, self._sequences, strict=True):
            sequence.restore(marked)

    def close(self) -> None:
        self._sequences, self._marked = [], []
