"""What the model layer asks of one tensor of a checkpoint, whichever format it is stored in."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Tensor"]


class Tensor(Protocol):
    """One tensor: its facts, and its values when asked for. Nothing is read before `array` or `f32`."""

    @property
    def name(self) -> str:
        """As the file spells it."""

    @property
    def dtype(self) -> str:
        """Of `array`, as safetensors names it: F32, F16, BF16, BOOL, I64 ..., or INT8 and INT4: groups of such maps."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[out_features, in_features] for a linear map, () for a scalar."""

    @property
    def nbytes(self) -> int:
        """Size as stored."""

    @property
    def auto_dtype(self) -> str:
        """What dtype "auto" packs it as: f32, f16, bf16, int8 or int4."""

    @property
    def array(self) -> NDArray[Any]:
        """The values, C order, of `shape`; bfloat16 as its bits in uint16. A view where the file allows.

        Of INT8 and INT4 each row is its groups of 32, as csrc/formats.h stores them.
        """

    def f32(self) -> NDArray[np.float32]:
        """The values as a new f32 array of `shape`."""

    def release(self) -> None:
        """Let what is in memory only for this tensor go. It stays readable."""
