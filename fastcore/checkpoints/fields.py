"""The fields of a JSON object, each checked as it is taken."""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from fastcore.errors import CheckpointError, UnsupportedModelError

_T = TypeVar("_T")

MAX_SIZE = 2**24  # of any dimension of a weight
F32_MAX = 3.4028234663852886e38
F32_TINY = 1.1754943508222875e-38  # what is smaller is 0 or loses digits in f32


class Fields:
    """The fields of one JSON object. Each is taken once; what nobody took is left over."""

    def __init__(
        self, values: Mapping[str, Any], where: str, prefix: str = "", names: Mapping[str, str] | None = None
    ) -> None:
        """where: the file, for errors. names: what the file calls fields that it spells otherwise, for errors."""
        self._left = dict(values)
        self._children: list[Fields] = []
        self._names = names or {}
        self.where = where
        self.prefix = prefix

    def values(self) -> dict[str, Any]:
        """All fields that are left, as they are."""
        return dict(self._left)

    def take(self, name: str) -> Any:
        return self._left.pop(name, None)

    def nested(self, name: str) -> "Fields | None":
        """The object in field `name`; None where it is absent, null or empty. Its leftovers count as ours."""
        value = self.take(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        if not value:
            return None
        child = Fields(value, self.where, f"{self.prefix}{name}.", self._names)
        self._children.append(child)
        return child

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def label(self, name: str) -> str:
        """The field's name for people: with the path to it, or as the file spells it."""
        return self._names.get(self.prefix + name, self.prefix + name)

    def wrong(self, name: str, found: object, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {self.label(name)} is {short(found)}, expected {expected}")

    def unsupported(self, name: str, found: object, advice: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.where}: {self.label(name)} is {short(found)}, which is not implemented; {advice}"
        )

    def integer(self, name: str, default: _T, low: int = 1, high: int = MAX_SIZE) -> int | _T:
        value = self.take(name)
        if value is None:
            return default
        if type(value) is not int or not low <= value <= high:
            raise self.wrong(name, value, f"an integer from {low} to {high}")
        return value

    def needed_integer(self, name: str, high: int = MAX_SIZE) -> int:
        value = self.integer(name, None, 1, high)
        if value is None:
            raise self.missing(name, f"an integer from 1 to {high}")
        return value

    def missing(self, name: str, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {self.label(name)} is missing or null, expected {expected}")

    def number(self, name: str, default: _T, above: float = -math.inf) -> float | _T:
        """A number greater than `above` that f32, in which models compute, holds: finite, and 0 or not too small."""
        value = self.take(name)
        return default if value is None else self.finite(name, value, above)

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """A list of `count` finite numbers; all 1 where the file does not say."""
        value = self.take(name)
        if value is None:
            return (1.0,) * count
        if not isinstance(value, list | tuple) or len(value) != count:
            raise self.wrong(name, value, f"a list of {count} numbers")
        return tuple(self.finite(f"{name}[{i}]", item, -math.inf) for i, item in enumerate(value))

    def finite(self, name: str, value: object, above: float = -math.inf) -> float:
        """A value that was taken already, as `number` gives it."""
        bound = "" if above == -math.inf else f" above {above:g}"
        if type(value) not in (int, float) or not above < value < math.inf:  # type: ignore[operator]
            raise self.wrong(name, value, f"a finite number{bound}")
        if value != 0 and not F32_TINY <= abs(value) <= F32_MAX:  # type: ignore[arg-type]
            raise self.wrong(name, value, f"a finite number{bound} that f32 holds")
        return float(value)  # type: ignore[arg-type]

    def boolean(self, name: str, default: _T) -> bool | _T:
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def string(self, name: str, default: _T) -> str | _T:
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, value, "a string")
        return value

    def leftovers(self, harmless: Collection[str] = ()) -> list[str]:
        """Names that nobody took and that might mean something, with their prefix."""
        own = [
            self.label(name)
            for name, value in self._left.items()
            if name not in harmless and not name.startswith("_") and not _says_nothing(value)
        ]
        return own + [name for child in self._children for name in child.leftovers(harmless)]


def agreed(where: str, stated: Mapping[str, _T | None]) -> _T | None:
    """The one value that the named fields give, None if none does. Two values are an error."""
    given = {name: value for name, value in stated.items() if value is not None}
    if len(set(given.values())) > 1:
        values = " but ".join(f"{name} is {short(value)}" for name, value in given.items())
        raise CheckpointError(f"{where}: {values}; make them equal or remove all but one")
    return next(iter(given.values()), None)


def _says_nothing(value: object) -> bool:
    return value is None or value is False or value in ("", [], {}, ())


def short(value: object) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."
