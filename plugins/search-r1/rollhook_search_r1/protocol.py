"""The text protocol of Search-R1: what the model is told, writes and is shown.

Invariant: tags in what is shown come from here alone: passages are cleaned of them, so that no passage can
open an answer or close the observation. Source: arXiv 2503.09516, and its public code for the exact texts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

STOP_STRINGS = ("</search>", "</answer>")

INSTRUCTION = """\
Answer the question at the end. Work in steps, and mark each step by its tags:
- First reason between <think> and </think>, and do so again whenever you learn something new.
- When a fact is missing, write a query between <search> and </search>. The best passages found for it are \
then shown to you between <information> and </information>. You may search several times.
- As soon as you know enough, write the answer alone between <answer> and </answer>, without an explanation, \
for example <answer> Beijing </answer>.

Question: {question}"""

CORRECTION = (
    "My previous action is invalid. If I want to search, I should put the query between <search> and "
    "</search>. If I want to give the final answer, I should put the answer between <answer> and </answer>. "
    "Let me try again."
)

NO_SERVICE = "The search service does not answer. Go on with what you know."
NOTHING_FOUND = "Nothing was found."
MOST_CHARS_A_TOKEN = 16
"""Beyond so many, what is to be shown is cut before it is counted: a passage may be of any length."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One piece of a corpus, as text. id: what the corpus calls it; None where it has no name."""

    title: str
    text: str
    id: str | None = None

    @classmethod
    def of(cls, contents: str, name: str | None = None) -> Passage:
        """Read the form `Title\\ntext`, in which corpora and services hold passages."""
        title, _, text = contents.strip().partition("\n")
        return cls(title.strip(), text.strip(), name)

    @property
    def contents(self) -> str:
        """The form `Title\\ntext`."""
        return f"{self.title}\n{self.text}"


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found. score: higher is better, None where the source gives none."""

    passage: Passage
    score: float | None = None


ActionKind = Literal["search", "answer"]


@dataclass(frozen=True, slots=True)
class Action:
    """What a turn asks for. content: the query or the answer, without space around it."""

    kind: ActionKind
    content: str


def read_action(text: str) -> Action | None:
    """The first complete search or answer in a turn; None when there is none, or a search for nothing."""
    kinds: tuple[ActionKind, ...] = ("search", "answer")
    found = [(*first, kind) for kind in kinds if (first := next(elements(text, kind), None))]
    if not found:
        return None
    start, end, kind = min(found)
    content = text[start:end].strip()
    return None if kind == "search" and not content else Action(kind, content)


def elements(text: str, tag: str) -> Iterator[tuple[int, int]]:
    """Where the content of each closed `<tag>...</tag>` stands, first opened first; none within another.

    Linear in the text, also where a model writes thousands of tags and closes none.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    at = 0
    while (opened := text.find(opening, at)) >= 0 and (closed := text.find(closing, opened)) >= 0:
        yield opened + len(opening), closed
        at = closed + len(closing)


def instruct(question: str) -> str:
    """The prompt that explains the protocol and asks `question`."""
    return INSTRUCTION.format(question=question.strip())


def information(shown: str) -> str:
    """An observation: `shown` between its tags, as it continues the open turn."""
    return f"\n\n<information>{shown}</information>\n\n"


def correction() -> str:
    """What continues an open turn after an invalid action."""
    return f"\n{CORRECTION}\n"


def show_passages(passages: Sequence[Passage], max_tokens: int, count: Callable[[str], int]) -> str:
    """The passages as the model reads them, cut to at most `max_tokens`. count: tokens of a text."""
    lines = [
        f"Doc {number}(Title: {_clean(passage.title)}) {_clean(passage.text)}"
        for number, passage in enumerate(passages, start=1)
    ]
    shown = "\n".join(lines) or NOTHING_FOUND
    most_chars = max_tokens * MOST_CHARS_A_TOKEN
    if len(shown) <= most_chars and count(shown) <= max_tokens:
        return shown
    room = range(min(most_chars, len(shown)) + 1)
    fit = bisect_right(room, max_tokens, key=lambda chars: count(_cut(shown, chars))) - 1
    while fit > 0 and count(_cut(shown, fit)) > max_tokens:
        fit -= 1  # one character more may take one token less
    return _cut(shown, max(fit, 0))


def _cut(text: str, chars: int) -> str:
    """At most so many characters and a mark, up to the end of a word where one is near."""
    head = text[:chars]
    word = re.search(r"\s\S{0,20}$", head)
    return f"{head[: word.start()] if word else head}…"


def _clean(text: str) -> str:
    text = _HALF_PAIR.sub("\ufffd", text)  # no tokenizer takes half a character
    while (cleaned := _TAG.sub("", text)) != text:  # again: what is left may close up to a tag
        text = cleaned
    return " ".join(text.split())


_HALF_PAIR = re.compile("[\ud800-\udfff]")
_TAG = re.compile(r"</?(?:think|search|information|answer)>", re.IGNORECASE)
