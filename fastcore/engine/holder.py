"""What holds a model's memory until it is closed."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from fastcore.engine.scheduler import CLOSED, Scheduler
from fastcore.errors import ClosedError, ForkError

__all__ = ["ModelHolder", "is_whole"]


class ModelHolder:
    """Has a scheduler and a model, and lets go of both when it is closed. _held: the attributes that keep memory."""

    _held: ClassVar[tuple[str, ...]]
    _scheduler: Scheduler

    def close(self) -> None:
        """Free weights and cache. Calls under way in other threads end with ClosedError, as all later ones do.

        A model that is shared with another holder stays until that one is closed, too. Closing twice does nothing.
        """
        scheduler = self.__dict__.get("_scheduler")
        if scheduler is not None:
            with suppress(ForkError):  # half done in this process, so that nothing of it can run anyway
                scheduler.close()
        for name in self._held:
            self.__dict__.pop(name, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:  # a checker would take any name for one of its attributes

        def __getattr__(self, name: str) -> Any:
            if name in type(self)._held:
                raise ClosedError(CLOSED)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: its weights lie in this process. Pass the model's path to the "
            "other process and open it there, or open it before the process forks"
        )


def is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
