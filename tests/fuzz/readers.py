"""All readers, by name."""

from fuzz import checkpoints  # noqa: F401  registers its readers
from fuzz.reader import READERS

__all__ = ["READERS"]
