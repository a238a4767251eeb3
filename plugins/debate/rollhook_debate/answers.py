"""Reading an answer out of what an agent said, and counting votes.

Invariant: two answers vote together when their keys are equal. What an extractor cannot read is None: it
never votes, and never counts as right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

ExtractorName = Literal["number", "boxed", "answer", "text"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One agent's answer. key: what votes are counted by. text: the answer in a form that verifiers read."""

    key: str
    text: str


def last_number(said: str) -> Answer | None:
    """The last number; thousands commas are dropped, and 4, 4.0 and +4 are one answer."""
    found = _NUMBER.findall(said)
    if not found:
        return None
    number = Decimal(found[-1].replace(",", ""))
    whole = number == number.to_integral_value()
    text = format(number.to_integral_value() if whole else number.normalize(), "f")
    return _answer("0", "0") if number == 0 else _answer(text, text)


def last_boxed(said: str) -> Answer | None:
    r"""The content of the last complete `\boxed{...}`, nested braces included."""
    opened: list[re.Match[str]] = []
    start, end = -1, -1
    for brace in _BRACE.finditer(said):
        if brace[0] != "}":
            opened.append(brace)
        elif opened and (opening := opened.pop())[0] != "{" and opening.end() > start:
            start, end = opening.end(), brace.start()
    content = said[start:end] if start >= 0 else ""
    return _answer("".join(content.split()), rf"\boxed{{{content.strip()}}}")


def last_tagged(said: str) -> Answer | None:
    """The content of the last `<answer>...</answer>`."""
    start = said.rfind("<answer>", 0, max(said.rfind("</answer>"), 0))
    if start < 0:
        return None
    content = said[start + len("<answer>") :].partition("</answer>")[0]
    return _answer(_plain(content), f"<answer>{content.strip()}</answer>")


def last_line(said: str) -> Answer | None:
    """The last line with a letter or digit, without a leading "Answer:"; compared without case or signs."""
    for line in reversed(said.splitlines()):
        text = _LABEL.sub("", line).strip()
        if _plain(text):
            return _answer(_plain(text), text)
    return None


def _answer(key: str, text: str) -> Answer | None:
    return Answer(key, text) if key else None


def _plain(text: str) -> str:
    return " ".join(_NOT_WORD.sub(" ", text.casefold()).split())


def majority(answers: Sequence[Answer | None]) -> Answer | None:
    """The answer most agents gave; of equally many the one whose first voter comes first. None without votes.

    answers: one per agent, in agent order. Its text is as that first voter wrote it.
    """
    votes = [answer for answer in answers if answer is not None]
    count = Counter(vote.key for vote in votes)
    return max(votes, key=lambda vote: count[vote.key], default=None)


def agree(answers: Sequence[Answer | None]) -> bool:
    """Whether everyone gave the same answer, and all could be read."""
    return None not in answers and len({answer.key for answer in answers if answer}) == 1


EXTRACTORS: dict[ExtractorName, Callable[[str], Answer | None]] = {
    "number": last_number,
    "boxed": last_boxed,
    "answer": last_tagged,
    "text": last_line,
}

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w)")
_BRACE = re.compile(r"\\boxed\{|[{}]")
_LABEL = re.compile(r"^\W*(?:(?:the )?(?:final )?answer\s*(?:is\b|[:=-])\s*)+", re.IGNORECASE)
_NOT_WORD = re.compile(r"[\W_]+")
