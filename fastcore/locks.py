"""A lock that knows about fork."""

import os
import threading

from fastcore.errors import ForkError

__all__ = ["Lock"]


class Lock:
    """A threading.Lock that a child of fork can trust: `with lock.usable(): ...`.

    The `with` enters and leaves the interpreter's own lock, which no signal handler can come between: an `__exit__`
    written in Python could be interrupted before it lets go.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def usable(self) -> threading.Lock:
        """The lock itself; ForkError in a child of fork whose thread that held it is gone."""
        if self._pid != os.getpid():
            if self._lock.locked():
                raise ForkError(
                    "this model was at work in another thread when the process forked, and its state in the child is "
                    "half done; open the model again in the child, or fork before using it"
                )
            self._pid = os.getpid()
        return self._lock
