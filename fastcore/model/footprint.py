"""What a model is, and what memory it will need, from its config and the headers of its weights: no weight is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from fastcore._kernels import BLOCK_TOKENS, PackedLinear
from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.checkpoints.open import ModelPath, opened
from fastcore.engine.scheduler import MAX_ROWS
from fastcore.engine.state import StatePool
from fastcore.model.config import ModelConfig
from fastcore.model.tensor import Tensor
from fastcore.model.weights import DTYPES, Weights
from fastcore.models import record_model

__all__ = ["ModelPlan", "plan_model"]


@dataclass(frozen=True)
class ModelPlan:
    """A model's numbers.

    stored_parameters: by dtype in the checkpoint, each matrix counted once.
    weight_bytes: as packed, by the `dtype` to load with. kv_bytes_per_token: by kv_dtype.
    recurrent_state_bytes: of each sequence, for models with such a state.
    workspace_bytes: of the largest step over the longest context.
    """

    config: ModelConfig
    stored_parameters: dict[str, int]
    weight_bytes: dict[str, int]
    kv_bytes_per_token: dict[str, int]
    recurrent_state_bytes: int
    workspace_bytes: int

    @property
    def num_parameters(self) -> int:
        return sum(self.stored_parameters.values())


def plan_model(source: ModelPath | Checkpoint, num_threads: int) -> ModelPlan:
    """Record the model over its headers alone. Raises what loading would raise about names, shapes and the config."""
    weight_bytes = {}
    with opened(source) as checkpoint:
        config = checkpoint.config()
        for dtype in reversed(DTYPES):  # auto, the first, comes last and stays
            headers = _Headers(checkpoint, dtype)
            model = record_model(config, headers)
            weight_bytes[dtype] = model.weight_bytes
    return ModelPlan(
        config=config,
        stored_parameters=headers.stored,
        weight_bytes={dtype: weight_bytes[dtype] for dtype in DTYPES},
        kv_bytes_per_token={dtype: StatePool(model, 1, dtype).block_bytes // BLOCK_TOKENS for dtype in ("f32", "f16")},
        recurrent_state_bytes=model.program.state_bytes,
        workspace_bytes=model.program.workspace_bytes(MAX_ROWS, config.context_length, num_threads),
    )


class _Headers(Weights):
    """Weights whose names, shapes and sizes count, and whose values are never read. Their memory is not touched."""

    def __init__(self, tensors: Mapping[str, Tensor], dtype: str) -> None:
        super().__init__(tensors, dtype)
        self.stored: dict[str, int] = {}

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        return self.array(name, (size,))

    def array(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        self._take(name, shape)
        value = np.ones(shape, np.float32)
        self.nbytes += value.nbytes
        return value

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = super()._take(name, shape)
        self.stored[tensor.dtype] = self.stored.get(tensor.dtype, 0) + prod(shape)
        return tensor

    def _pack(self, packed: PackedLinear, tensor: Tensor, first_row: int, group_stride: int) -> None:
        pass
