"""Turns in which tags mark reasoning and calls, and the rest is text: all families but gpt-oss.

Invariant: a tag inside reasoning is reasoning, and a tag inside a call is that call's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from rollhook.parsing.parser import NewId, Parser, tags_of
from rollhook.parsing.results import ToolSchemas, WrittenCall


class Grammar(Protocol):
    """How one family writes calls. Made for one turn, so that it may keep what it searched.

    openers: tags that start a call. bare_opener: a text that does so at the very start of a turn.
    ignored: tags around calls that carry nothing.
    """

    openers: Sequence[str]
    ignored: Sequence[str]
    bare_opener: str | None

    def end_of_call(self, text: str, opener: str, start: int, *, whole: bool) -> int | None:
        """Where the call ends whose opener stands at 0 in `text`; None while more text is needed.

        start: no end lies before it. whole: no text will follow, so an end must be given.
        """
        ...

    def read(self, block: str, opener: str, schemas: ToolSchemas) -> list[WrittenCall]:
        """The calls in a block, tags included. Raises BrokenSyntax, or NotACall for plain text."""
        ...


class TagParser(Parser):
    """reasoning: (opening tag, closing tag), None without. starts_in_reasoning: the prompt opened it."""

    def __init__(
        self,
        grammar: Grammar | None,
        reasoning: tuple[str, str] | None,
        *,
        schemas: ToolSchemas,
        starts_in_reasoning: bool = False,
        new_id: NewId | None = None,
    ) -> None:
        super().__init__(schemas, new_id)
        self._grammar = grammar
        self._reasoning_tags = reasoning
        openers = [*grammar.openers, *grammar.ignored] if grammar else []
        self._tags = tags_of(*(reasoning[:1] if reasoning else ()), *openers)
        self._thought_tags = tags_of(*(reasoning or ()))
        self._in_reasoning = starts_in_reasoning and reasoning is not None
        self._opener: str | None = None
        self._searched = 0

    @property
    def open_call(self) -> str | None:
        """See `Parser.open_call`."""
        return self._buffer if self._opener is not None else None

    def _step(self, *, whole: bool) -> bool:
        if self._in_reasoning:
            return self._in_thought(whole)
        if self._opener is not None:
            return self._in_call(whole)
        return self._starts_bare() or self._in_text(whole)

    def _starts_bare(self) -> bool:
        """Whether the turn begins with a call that no tag announces."""
        bare = self._grammar.bare_opener if self._grammar else None
        if bare is None or self._calls or not self._content.is_blank():
            return False
        text = self._buffer.lstrip()
        if not text.startswith(bare):
            return False
        self._say(self._buffer[: len(self._buffer) - len(text)])
        self._opener, self._buffer, self._searched = bare, text, len(bare)
        return True

    def _in_text(self, whole: bool) -> bool:
        before, tag, after = self._tags.cut(self._buffer, whole=whole)
        self._say(before)
        self._buffer = after
        if tag is None:
            return False
        assert self._grammar is not None or self._reasoning_tags is not None
        if self._reasoning_tags and tag == self._reasoning_tags[0]:
            self._content.block()
            self._in_reasoning = True
        elif self._grammar and tag in self._grammar.ignored:
            self._content.block()
        else:
            self._opener, self._buffer, self._searched = tag, tag + after, len(tag)
        return True

    def _in_thought(self, whole: bool) -> bool:
        before, tag, after = self._thought_tags.cut(self._buffer, whole=whole)
        assert self._reasoning_tags is not None
        opening, closing = self._reasoning_tags
        self._buffer = after
        self._think(before)
        if tag == closing:
            self._in_reasoning = False
            self._reasoning.block()
            self._content.block()
        elif tag == opening and not self._reasoning.is_blank():
            self._think(tag)  # else the model repeats the tag that the prompt had opened
        return tag is not None

    def _in_call(self, whole: bool) -> bool:
        assert self._grammar is not None
        assert self._opener is not None
        opener = self._opener
        end = self._grammar.end_of_call(self._buffer, opener, self._searched, whole=whole)
        if end is None:
            self._searched = len(self._buffer)
            return False
        block, self._buffer = self._buffer[:end], self._buffer[end:]
        self._opener = None
        self._read_calls(block, partial(self._grammar.read, block, opener, self._schemas))
        return True
