"""The text of a completion while its tokens come."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastcore.text.tokenizer import Tokenizer

__all__ = ["NoText", "TextStream"]

FIRST_MARK = 0xD800  # a surrogate, which no text holds, stands for a hidden token that a stop string names


class TextStream:
    """The text of a growing completion: whole characters only, and nothing that may turn out to begin a stop string.

    prompt: the ids before it. stop: strings that end the text and are not part of it; special tokens, whose text is
    hidden, count in them. ending_ids: tokens that end the text and give none.
    text: what is settled. offsets: for each token, how many code points of text came before it, settled or not.
    """

    def __init__(
        self, tokenizer: "Tokenizer", prompt: Sequence[int], stop: Sequence[str], ending_ids: Collection[int] = ()
    ) -> None:
        self.text = ""
        self.offsets: list[int] = []
        self._length = 0
        self._pending = ""  # may be the beginning of a stop string
        self._decoder = tokenizer.decoder(after=prompt)
        self._ending_ids = ending_ids
        self._stopped = False
        hidden = {text: token_id for token_id, text in tokenizer.special_tokens.items()} if stop else {}
        named = [text for text in sorted(hidden, key=len, reverse=True) if any(text in string for string in stop)]
        self._marks = {hidden[text]: chr(FIRST_MARK + i) for i, text in enumerate(named)}
        self._unmarked = dict.fromkeys(map(ord, self._marks.values()))
        self._stop = list(stop)
        for string in stop if named else ():
            for text in named:
                string = string.replace(text, self._marks[hidden[text]])
            self._stop.append(string)

    def push(self, token_id: int, may_stop: bool = True) -> bool:
        """Add a token; whether the text ends with it, which it does not before it may."""
        if may_stop and token_id in self._ending_ids:
            self.finish()
            self.offsets.append(self._length)
            return True
        text = self._decoder.push(token_id)
        self.offsets.append(self._decoder.offset)
        self._length += len(text)
        return self._settle(text + self._marks.get(token_id, ""), self._stop if may_stop else ())

    def finish(self) -> None:
        """No token follows: what was held back is text after all."""
        if not self._stopped:
            text = self._decoder.finish()
            self._length += len(text)
            self._settle(text, self._stop)
            self._show(len(self._pending))
            self._stopped = True

    def _settle(self, new: str, stops: Sequence[str]) -> bool:
        self._pending += new
        found = [start for stop in stops if (start := self._pending.find(stop)) >= 0]
        if found:
            self._show(min(found))
            self._pending, self._stopped = "", True
            return True
        self._show(len(self._pending) - max((_overlap(self._pending, stop) for stop in stops), default=0))
        return False

    def _show(self, count: int) -> None:
        """Settle the first code points of what is pending."""
        shown, self._pending = self._pending[:count], self._pending[count:]
        self.text += shown.translate(self._unmarked) if self._marks else shown


class NoText(TextStream):
    """The stream of a model without a tokenizer: it ends where the tokens say, and its text stays empty."""

    def __init__(self, ending_ids: Collection[int]) -> None:
        self.text = ""
        self.offsets = []
        self._ending_ids = ending_ids

    def push(self, token_id: int, may_stop: bool = True) -> bool:
        self.offsets.append(0)
        return may_stop and token_id in self._ending_ids

    def finish(self) -> None:
        pass


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`, short of all of it."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
