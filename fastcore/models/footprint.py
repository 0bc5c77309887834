"""What a model is, and what memory it will need, from its config and the headers of its weights."""

from dataclasses import dataclass

from fastcore._kernels import BLOCK_TOKENS, KV_DTYPES, KVBlocks
from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.checkpoints.open import ModelPath, opened
from fastcore.model.config import ModelConfig
from fastcore.model.weights import DTYPES, Weights
from fastcore.models import record_program

__all__ = ["ModelPlan", "plan_model"]


@dataclass(frozen=True)
class ModelPlan:
    """A model's numbers.

    stored_parameters: by dtype in the checkpoint, each matrix counted once.
    weight_bytes: as packed, by the `dtype` to load with. kv_bytes_per_token: by kv_dtype.
    recurrent_state_bytes: of each sequence, for models with such a state.
    workspace_bytes: of a step of max_rows rows over the longest context.
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


def plan_model(source: ModelPath | Checkpoint, max_rows: int, num_threads: int) -> ModelPlan:
    """Record the model over the headers of its tensors: no matrix is read, unless it may be a copy of another.

    Raises what loading would raise about names, shapes and the config.
    """
    with opened(source) as checkpoint:
        config = checkpoint.config()
        weights = Weights(checkpoint)
        program = record_program(config, weights, lambda linear: linear)
        maps = {linear: None for linear in program.weights if linear is not None}
        weight_bytes = {dtype: sum(linear.packed_bytes(dtype) for linear in maps) for dtype in DTYPES}
    return ModelPlan(
        config=config,
        stored_parameters=weights.parameters,
        weight_bytes={dtype: matrices + weights.vector_bytes for dtype, matrices in weight_bytes.items()},
        kv_bytes_per_token={
            kv_dtype: KVBlocks(
                program.max_layer + 1, config.num_key_value_heads, config.head_dim, kv_dtype, 1
            ).block_bytes
            // BLOCK_TOKENS
            for kv_dtype in KV_DTYPES
        },
        recurrent_state_bytes=program.state_bytes,
        workspace_bytes=program.workspace_bytes(max_rows, config.context_length, num_threads),
    )
