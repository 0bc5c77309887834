"""Work for processes: squares. One of a negative number ends its process."""

import os
import signal
from collections.abc import Callable

__all__ = ["start"]


def start() -> Callable[[int], int]:
    return _square


def _square(number: int) -> int:
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2
