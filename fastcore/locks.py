"""A lock that knows about fork."""

import os
import threading

from fastcore.errors import ForkError

__all__ = ["Lock"]


class Lock:
    """As threading.Lock in a `with`; in a child of fork, where the thread that held it is gone, it raises ForkError."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            if self._lock.locked():
                raise ForkError(
                    "this model was at work in another thread when the process forked, and its state in the child is "
                    "half done; open the model again in the child, or fork before using it"
                )
            self._pid = os.getpid()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
