"""What a check finds."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["Checks", "Outcome", "skip"]

# passed (None: the check could not be made), a sentence, and figures
Outcome = tuple[bool | None, str, Mapping[str, Any]]
Checks = Iterator[tuple[str, Callable[[], Outcome]]]


def skip(reason: str) -> Outcome:
    return None, reason, {}
