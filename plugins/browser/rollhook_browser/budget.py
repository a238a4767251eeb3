"""Text within a number of the model's tokens.

Invariant: what is cut fits. A count is of a text alone; how a tokenizer joins it with its neighbours may move
it by a token.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

_MOST_CHARS_A_TOKEN = (
    6  # of a page's text; beyond it, counting the whole of a huge page is not worth its time
)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be shown. count: the tokens of a text."""

    tokens: int
    count: Callable[[str], int]

    def part(self, share: float) -> Budget:
        """A share of it."""
        return Budget(int(self.tokens * share), self.count)

    def without(self, text: str) -> Budget:
        """What `text` leaves of it."""
        return Budget(max(0, self.tokens - self.count(text)), self.count)

    def holds(self, text: str) -> bool:
        """Whether all of `text` fits. What is very long for the budget is not counted, and does not."""
        return len(text) <= self.tokens * _MOST_CHARS_A_TOKEN and self.count(text) <= self.tokens

    def cut(self, text: str) -> str:
        """As much of `text`, from its beginning, as fits."""
        if self.holds(text):
            return text
        room = range(min(len(text), self.tokens * _MOST_CHARS_A_TOKEN) + 1)
        fits = bisect_right(room, self.tokens, key=lambda chars: self.count(f"{text[:chars]}…")) - 1
        while fits > 0 and self.count(f"{text[:fits]}…") > self.tokens:
            fits -= 1
        return f"{text[:fits]}…" if fits > 0 else ""
