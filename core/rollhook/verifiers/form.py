"""The verifier `format`: whether a response has the form it was asked for, whatever it says.

Invariant: matching ends in bounded time, whatever pattern and response.
"""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from rollhook.protocols import Rollout, Score, View
from rollhook.verifiers.labels import TAG

_MATCH_TIMEOUT_S = 1.0

TagName = Annotated[str, StringConstraints(pattern=TAG, max_length=40)]


class FormatConfig(BaseModel):
    """What the whole response must look like. One of the two.

    tags: <tag>...</tag> for each of these, in this order, each once and not empty, with nothing but space
        around them. pattern: a regular expression that matches all of it; a dot matches line ends too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tags: tuple[TagName, ...] = Field((), max_length=16)
    pattern: str | None = Field(None, max_length=1000)

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        import regex  # type: ignore[import-untyped]  # ships no types

        if bool(self.tags) == (self.pattern is not None):
            raise ValueError("give tags or pattern, one of them")
        if len(set(self.tags)) < len(self.tags):
            raise ValueError("tags: each may be named once")
        try:
            regex.compile(self.pattern or "")
        except regex.error as error:
            raise ValueError(f"pattern: no regular expression: {error}") from error
        return self


class Format:
    """1.0 when the response has the form, else 0.0. The parts: 1.0 for each tag that is there as asked."""

    def __init__(self, config: FormatConfig, rollout: Rollout) -> None:
        del rollout
        self._config = config

    async def score(self, view: View) -> float | Score:
        if self._config.pattern is not None:
            return float(await asyncio.to_thread(_matches, self._config.pattern, view.response))
        return _tags_score(self._config.tags, view.response)


def _matches(pattern: str, text: str) -> bool:
    """Whether `pattern` matches all of `text`; one that takes too long to tell does not."""
    import regex

    try:
        found = regex.fullmatch(pattern, text, regex.DOTALL, timeout=_MATCH_TIMEOUT_S, concurrent=True)
    except TimeoutError:
        return False
    return found is not None


def _tags_score(tags: tuple[str, ...], text: str) -> Score:
    spans = {tag: span for tag in tags if (span := _span(tag, text))}
    parts = {tag: float(tag in spans) for tag in tags}
    if len(spans) < len(tags):
        return Score(0.0, parts)
    edges = [(0, 0), *(spans[tag] for tag in tags), (len(text), len(text))]
    apart = all(end <= start and not text[end:start].strip() for (_, end), (start, _) in pairwise(edges))
    return Score(float(apart), parts)


def _span(tag: str, text: str) -> tuple[int, int] | None:
    """Where the element is; None unless it is there once, closed and not empty."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    start, end = text.index(opening), text.index(closing)
    if not re.search(r"\S", text[start + len(opening) : max(end, 0)]):
        return None
    return start, end + len(closing)
