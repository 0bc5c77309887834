"""Guesses of how a text goes on, from the text itself: what followed when its last tokens stood in it before.

A step that verifies guesses reads the weights once for all of its rows. So a right guess saves most of a step, a wrong
one costs little, and few of them have to be right.
"""

import math
from collections.abc import Sequence

__all__ = ["Drafts"]

ROW_COST = 0.16  # of one more row in a step, in steps of one row
LONGEST = 5  # guesses in a step: six rows take a third longer than one, eight twice as long
FREE_SHARE = 0.008  # of the tokens' cost may go into guesses that do not pay
FIRST_CREDIT, MOST_CREDIT = 0.4, 2.0
PRECEDING = (3, 2)  # tokens that must have stood there before
MEMORY = 0.9  # how much of what is known of guesses outlives the next one
FIRST_HOPE, LEAST_HOPE, MOST_HOPE = 0.6, 0.35, 0.97


class Drafts:
    """The guesses for one text, and how many of them pay.

    Credit, in tokens, is what right guesses have saved beyond what all have cost, up to MOST_CREDIT, and a small share
    of all tokens. A draft must be within it, so that a text without repetitions costs no more than that share. Hope is
    how often guesses were right of late: a draft is so long that the last of it is as likely right as its row costs.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._followers: dict[tuple[int, ...], int] = {}  # some tokens -> where the one stands that followed last
        self._credit = FIRST_CREDIT
        self._hope = FIRST_HOPE
        self._price = 0.0  # of a guess, in tokens
        for token_id in token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """The text goes on with a token."""
        tokens = self._tokens
        for count in PRECEDING:
            if len(tokens) >= count:
                self._followers[tuple(tokens[-count:])] = len(tokens)
        tokens.append(token_id)

    def guess(self, most: int, num_rows: int) -> list[int]:
        """Up to `most` tokens that may come next, for a step that has num_rows rows besides them."""
        self._credit = min(self._credit + FREE_SHARE, MOST_CREDIT)
        tokens = self._tokens
        start = next((at for n in PRECEDING if (at := self._followers.get(tuple(tokens[-n:]))) is not None), None)
        if start is None:
            return []
        # A row makes the step longer by ROW_COST, and each of its num_rows tokens costs a share of the step.
        self._price = price = ROW_COST * num_rows / (1 - ROW_COST + ROW_COST * num_rows)
        worth = max(1.0, math.log(price) / math.log(self._hope))  # one is always tried: else nothing is found out
        count = int(min(worth, self._credit / price, LONGEST, most))
        period = len(tokens) - start  # what repeats up to the end may well go on
        return [tokens[start + i % period] for i in range(count)]

    def learn(self, num_guesses: int, num_right: int) -> None:
        """How many of a draft were right, up to the first that was not."""
        self._credit += num_right - self._price * num_guesses
        for i in range(min(num_guesses, num_right + 1)):
            self._hope = MEMORY * self._hope + (1 - MEMORY) * (i < num_right)
        self._hope = min(max(self._hope, LEAST_HOPE), MOST_HOPE)
