"""What a reader under test is."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["READERS", "Reader"]


@dataclass(frozen=True)
class Reader:
    """make: a case from a generator of random numbers. read: reads it. allowed: what it may raise beside Error."""

    make: Callable[[random.Random], bytes]
    read: Callable[[bytes], Any]
    allowed: tuple[type[BaseException], ...] = ()


READERS: dict[str, Reader] = {}
