"""A lock that knows about fork, and a cached property without one."""

import functools
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from fastcore.errors import ForkError

__all__ = ["Lock", "RawLock", "cached_property"]

T = TypeVar("T")


class RawLock(AbstractContextManager[object], Protocol):
    """What threading.Lock is."""

    def acquire(self, blocking: bool = True) -> bool: ...

    def release(self) -> None: ...


class Lock:
    """A lock that a child of fork can trust: `with lock.usable(): ...`.

    The `with` enters and leaves a lock written in C, threading.Lock by default, which no signal handler can come
    between: an `__exit__` written in Python could be interrupted before it lets go.
    """

    def __init__(self, lock: RawLock | None = None) -> None:
        self._lock: RawLock = lock or threading.Lock()
        self._is_orphan = False
        _all.add(self)

    def usable(self) -> RawLock:
        """The lock itself; ForkError in a child of fork whose thread that held it is gone."""
        if self._is_orphan:
            raise ForkError(
                "this model was at work in another thread when the process forked, and its state in the child is "
                "half done; open the model again in the child, or fork before using it"
            )
        return self._lock


class cached_property(functools.cached_property[T]):
    """Worked out at first use; by two threads at once, perhaps, of which one result stays.

    Before Python 3.12 functools' own holds a lock meanwhile, which a child of fork may find held for ever.
    """

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock: Any = nullcontext()


_all: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """No other thread is there yet, so a lock that cannot be had has lost its owner.

    The lock itself is asked: `locked()` is not true yet of a thread that has the lock and waits for the interpreter.
    """
    for lock in list(_all):
        if lock._lock.acquire(blocking=False):
            lock._lock.release()
        else:
            lock._is_orphan = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
