"""All readers, by name."""

from fuzz import bodies, chats, checkpoints, mask_files  # noqa: F401  they register their readers
from fuzz.reader import READERS

__all__ = ["READERS"]
