"""The incremental parser: text in pieces of any size, events out, one result.

Invariant: the result depends on the whole text alone, never on where it was cut, and the events' texts join
to the result's. What could still turn out otherwise is held back.
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

from rollhook.parsing.results import (
    BrokenCall,
    BrokenSyntax,
    Event,
    NotACall,
    Parsed,
    TextDelta,
    ToolSchemas,
    WrittenCall,
)
from rollhook.protocols import ToolCall

NewId = Callable[[str, int], str]
"""Makes a call's id from its tool's name and its place in the turn, where the model wrote none."""


class Parser(ABC):
    """Parses one assistant turn. Feed it once; make a new one for the next turn."""

    def __init__(self, schemas: ToolSchemas, new_id: NewId | None) -> None:
        self._schemas = schemas
        self._new_id = new_id or _random_id
        self._buffer = ""
        self._content = _Text("content")
        self._reasoning = _Text("reasoning")
        self._calls: list[ToolCall] = []
        self._broken: list[BrokenCall] = []
        self._events: list[Event] = []
        self._flushed = False

    @property
    def open_call(self) -> str | None:
        """The text of a call that is still being written, its opening tag first; None outside of one."""
        return None

    def parse(self, text: str) -> Parsed:
        """Parse a whole turn."""
        self.feed(text)
        return self.finish()

    def feed(self, chunk: str) -> list[Event]:
        """Take the next piece of text. Returns what became certain."""
        self._buffer += chunk
        self._run(whole=False)
        return self._taken()

    def flush(self) -> list[Event]:
        """The last events: no text will follow."""
        if not self._flushed:
            self._flushed = True
            self._run(whole=True)
            self._events += self._content.rest()
        return self._taken()

    def finish(self) -> Parsed:
        """The result: no text will follow."""
        self.flush()
        return Parsed(
            content=self._content.joined(),
            reasoning=self._reasoning.joined() or None,
            tool_calls=tuple(self._calls),
            broken_calls=tuple(self._broken),
        )

    @abstractmethod
    def _step(self, *, whole: bool) -> bool:
        """Take what is certain off the buffer. Returns whether more of it may be taken at once."""

    def _run(self, *, whole: bool) -> None:
        while self._buffer and self._step(whole=whole):
            pass

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _say(self, text: str) -> None:
        self._events += self._content.add(text)

    def _think(self, text: str) -> None:
        self._events += self._reasoning.add(text)

    def _read_calls(self, block: str, read: Callable[[], list[WrittenCall]]) -> None:
        """Keep the calls of a block; one that cannot be read stays text and is flagged."""
        try:
            written = read()
        except NotACall:
            self._say(block)
            return
        except BrokenSyntax as error:
            self._say(block)
            self._broken.append(BrokenCall(block, str(error)))
            self._events.append(self._broken[-1])
            return
        self._content.block()
        for call in written:
            made = ToolCall(
                id=call.call_id or self._new_id(call.name, len(self._calls)),
                name=call.name,
                arguments=self._schemas.typed(call.name, call.arguments),
            )
            self._calls.append(made)
            self._events.append(made)


@lru_cache(maxsize=64)
def tags_of(*tags: str) -> Tags:
    """What finds `tags`, made once: a parser is made for every turn."""
    return Tags(tags)


class Tags:
    """Finds the first of some tags in a text that may go on."""

    def __init__(self, tags: Sequence[str]) -> None:
        longest_first = sorted(tags, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._starts = frozenset(tag[:length] for tag in tags for length in range(1, len(tag)))
        self._longest = max(map(len, self._starts), default=0)

    def cut(self, text: str, *, whole: bool) -> tuple[str, str | None, str]:
        """(text before the first tag, the tag, the rest); without a tag the rest is what may become one."""
        match = self._pattern.search(text)
        if match is not None:
            return text[: match.start()], match.group(), text[match.end() :]
        if not whole:
            for length in range(min(self._longest, len(text)), 0, -1):
                if text[-length:] in self._starts:
                    return text[:-length], None, text[-length:]
        return text, None, ""


class _Text:
    """Text of one kind. Blanks beside a block are dropped; text on both sides of one is joined by a newline.

    Reasoning counts as standing between blocks.
    """

    def __init__(self, kind: Literal["content", "reasoning"]) -> None:
        self._kind = kind
        self._parts: list[str] = []
        self._blanks = ""
        self._after_block = kind == "reasoning"

    def add(self, text: str) -> list[Event]:
        """Take text that is certain to be of this kind; its trailing blanks wait for what follows."""
        solid = text.rstrip()
        if not solid:
            self._blanks += text
            return []
        joint = "\n" if self._parts else ""
        solid = joint + solid.lstrip() if self._after_block else self._blanks + solid
        self._after_block = False
        self._blanks = text[len(text.rstrip()) :]
        self._parts.append(solid)
        return [TextDelta(self._kind, solid)]

    def block(self) -> None:
        """A block stands here: what was blank before it, and will be behind it, is not text."""
        self._blanks = ""
        self._after_block = True

    def rest(self) -> list[Event]:
        """Blanks at the very end, which belong to the text unless a block came before them."""
        if not self._blanks or self._after_block:
            return []
        self._parts.append(self._blanks)
        self._blanks = ""
        return [TextDelta(self._kind, self._parts[-1])]

    def is_blank(self) -> bool:
        """Whether nothing was said yet."""
        return not self._parts

    def joined(self) -> str:
        """All of it."""
        return "".join(self._parts)


def _random_id(name: str, place: int) -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
