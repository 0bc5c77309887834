"""What is loaded: a config and a program over packed weights."""

from dataclasses import dataclass, field

from fastcore._kernels import Program
from fastcore.locks import cached_property
from fastcore.model.config import ModelConfig
from fastcore.model.program import without_head
from fastcore.model.rope import RopeTable

__all__ = ["Model"]


@dataclass(frozen=True)
class Model:
    """A program with its packed weights. Shared freely: only the rope table grows, under a lock.

    weight_bytes: of everything packed, each matrix counted once.
    """

    config: ModelConfig
    program: Program
    weight_bytes: int
    rope: RopeTable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rope", RopeTable(self.config.rope, self.config.head_dim))

    @cached_property
    def backbone(self) -> Program:
        """The program without its head: the output is the hidden states after the last norm, [num_out, hidden_size]."""
        return without_head(self.program)
