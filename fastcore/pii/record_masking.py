"""Records of a file masked, in order: their texts through a classifier, what it finds through the rules."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fastcore.pii.masking import MaskingRules
from fastcore.pii.text_files import Edit, Record

if TYPE_CHECKING:
    from fastcore.classify import Classification

__all__ = ["Classify", "RecordMasker"]

T = TypeVar("T")
Classify = Callable[[Iterable[str]], "Iterator[Classification]"]


@dataclass
class RecordMasker:
    """The rules, and what has come of them so far.

    mapping: of placeholders, numbered across texts; None where they are numbered within each.
    texts, hit, found: how many texts were masked, how many had something in them, and how many of each label.
    """

    rules: MaskingRules
    mapping: dict[str, str] | None = None
    texts: int = 0
    hit: int = 0
    found: Counter[str] = field(default_factory=Counter)

    def masked(self, records: Iterable[Record[T]], classify: Classify, advance: Callable[[int], object]) -> Iterator[T]:
        """The records rendered, in order; `advance` is told the size of each. The classifier reads ahead."""
        ahead: deque[Record[T]] = deque()

        def texts() -> Iterator[str]:
            for record in records:
                ahead.append(record)
                yield from record.texts or ("",)  # so that a record without texts waits for its turn as well

        edits: list[list[Edit]] = []
        for result in classify(texts()):
            if ahead[0].texts:
                edits.append(self._edits(result))
            if len(edits) == len(ahead[0].texts):
                record = ahead.popleft()
                yield record.render(edits)
                advance(record.size)
                edits = []

    def _edits(self, result: "Classification") -> list[Edit]:
        masked = result.mask(self.rules, self.mapping)
        if self.mapping is not None:
            self.mapping = masked.mapping
        self.texts += 1
        self.hit += bool(masked.items)
        self.found.update(item.label for item in masked.items)
        return [(item.start, item.end, item.replacement) for item in masked.items]

    @property
    def counts(self) -> dict[str, Any]:
        """What was counted, ready for JSON."""
        return {"texts": self.texts, "hit": self.hit, "found": dict(self.found)}

    def add(self, counts: Mapping[str, Any]) -> None:
        """The counts of another masker."""
        self.texts += counts["texts"]
        self.hit += counts["hit"]
        self.found.update(counts["found"])

    def summary(self) -> str:
        """One line of what was found."""
        what = ", ".join(f"{label} {count}" for label, count in self.found.most_common()) or "nothing"
        return f"{self.texts} texts, {self.hit} with something masked: {what}"
