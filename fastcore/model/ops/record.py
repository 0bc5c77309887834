"""What all records of ops have: what they read and write, and the checks of their shapes."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastcore.errors import UnsupportedModelError

__all__ = [
    "MAX_WIDTH",
    "OUTPUT",
    "Buffer",
    "LinearWeights",
    "Op",
    "RowSet",
    "Shapes",
    "Vector",
    "check_size",
    "check_vector",
]

OUTPUT = -1  # [rows asked for, out_features]
MAX_WIDTH = 1 << 24  # of a buffer, a vector, a side of a linear map

Vector: TypeAlias = NDArray[np.float32]
RowSet: TypeAlias = Literal["all", "out"]


class LinearWeights(Protocol):
    """A linear map [out_features, in_features], packed or not yet."""

    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...


@dataclass(frozen=True)
class Buffer:
    """[rows, width] f32, where rows are all those of the step or those whose output is asked for."""

    width: int
    rows: RowSet = "all"


class Shapes:
    """The buffers of a program, and the width of its output as far as ops have written it."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        for number, buffer in enumerate(buffers):
            check_size(f"the width of buffer {number}", buffer.width, MAX_WIDTH)
            if buffer.rows not in ("all", "out"):
                raise ValueError(f"buffer {number} holds rows {buffer.rows!r}; expected 'all' or 'out'")
        self.buffers = tuple(buffers)
        self.output_width = 0

    def buffer(self, number: int) -> Buffer:
        if number == OUTPUT:
            return Buffer(self.output_width, "out")
        if not 0 <= number < len(self.buffers):
            raise ValueError(f"no buffer {number}; there are {len(self.buffers)}")
        return self.buffers[number]

    def read(self, what: str, number: int, width: int, column: int = 0, *, whole: bool = True) -> None:
        """Buffer `number` must hold columns [column, column + width), and no others if `whole`."""
        found = self.buffer(number).width
        if number == OUTPUT or column < 0 or width < 1 or (found != width if whole else column + width > found):
            raise ValueError(f"{what} reads columns {column} to {column + width} of buffer {number}, which has {found}")

    def write(self, what: str, number: int, width: int, src: int | None = None) -> None:
        """Buffer `number` must be `width` wide, and hold rows that src holds too."""
        if number == OUTPUT:
            if self.output_width:
                raise ValueError(f"{what} writes the output, which another op has written")
            self.output_width = width
        elif self.buffer(number).width != width:
            raise ValueError(f"{what} of {width} into buffer {number}, which has {self.buffer(number).width}")
        if src is not None and (self.buffer(src).rows, self.buffer(number).rows) == ("out", "all"):
            raise ValueError(f"{what} reads rows asked for, from buffer {src}, and writes all rows, to buffer {number}")

    def all_rows(self, what: str, *numbers: int) -> None:
        for number in numbers:
            if self.buffer(number).rows != "all":
                raise ValueError(f"{what} needs all rows of the step; buffer {number} holds those asked for")


class Op:
    """What all records have: `kind`, by which C knows it, and what it reads and writes."""

    kind: ClassVar[str]

    @property
    def state_floats(self) -> int:
        """Floats of a sequence's recurrent state."""
        return 0

    @property
    def reads(self) -> set[Hashable]:
        found = (getattr(self, field, None) for field in ("src", "src2", "gate"))
        return {number for number in found if number is not None}

    @property
    def writes(self) -> set[Hashable]:
        return {getattr(self, "dst")}  # noqa: B009

    def check(self, shapes: Shapes) -> None:
        """ValueError for a list that contradicts itself, UnsupportedModelError for sizes beyond a limit."""
        raise NotImplementedError


def check_size(what: str, value: int, limit: int) -> None:
    if value < 1:
        raise ValueError(f"{what} is {value}; expected a positive number")
    if value > limit:
        raise UnsupportedModelError(f"{what} is {value}; at most {limit} is supported")


def check_vector(what: str, value: Vector | None, size: int | None = None, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if value is None or value.dtype != np.float32 or value.shape != (len(value) if size is None else size,):
        found = "missing" if value is None else f"{value.dtype} {list(value.shape)}"
        raise ValueError(f"{what} is {found}; expected float32 {'[n]' if size is None else [size]}")
    check_size(f"the size of {what}", len(value), MAX_WIDTH)
