"""The text protocol of Search-R1: what the model is told, writes and is shown.

Invariant: tags in what is shown come from here alone: passages are cleaned of them, so that no passage can
open an answer or close the observation. Source: arXiv 2503.09516, and its public code for the exact texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class Action:
    """What a turn asks for. content: the query or the answer, without space around it."""

    kind: Literal["search", "answer"]
    content: str


def read_action(text: str) -> Action | None:
    """The first complete search or answer in a turn; None when there is none, or a search for nothing."""
    found = _ACTION.search(text)
    if found is None:
        return None
    content = found["content"].strip()
    if found["kind"] == "answer":
        return Action("answer", content)
    return Action("search", content) if content else None


def instruct(question: str) -> str:
    """The prompt that explains the protocol and asks `question`."""
    return INSTRUCTION.format(question=question.strip())


def information(shown: str) -> str:
    """An observation: `shown` between its tags, as it continues the open turn."""
    return f"\n\n<information>{shown}</information>\n\n"


def correction() -> str:
    """What continues an open turn after an invalid action."""
    return f"\n{CORRECTION}\n"


def show_passages(passages: Sequence[Passage], max_chars: int) -> str:
    """The passages as the model reads them, cut at a word to at most `max_chars` characters."""
    lines = [
        f"Doc {number}(Title: {_clean(passage.title)}) {_clean(passage.text)}"
        for number, passage in enumerate(passages, start=1)
    ]
    shown = "\n".join(lines) or NOTHING_FOUND
    if len(shown) <= max_chars:
        return shown
    return shown[: max_chars - 1].rsplit(maxsplit=1)[0] + "…"


def _clean(text: str) -> str:
    while (cleaned := _TAG.sub("", text)) != text:  # again: what is left may close up to a tag
        text = cleaned
    return " ".join(text.split())


_TAG = re.compile(r"</?(?:think|search|information|answer)>", re.IGNORECASE)
_ACTION = re.compile(r"<(?P<kind>search|answer)>(?P<content>.*?)</(?P=kind)>", re.DOTALL)
