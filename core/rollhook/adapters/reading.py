"""What the model samples, read while it comes: ids in, text, thinking and tool calls out.

Invariant: read in pieces or at once, a turn gives the same `Parsed`, and the events' texts join to it. What
an id sequence says is what `Renderer.decode` says of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollhook.parsing import BrokenCall, Event, Parsed, Parser, TextDelta, ToolCall
from rollhook.render import Renderer


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A tool call began. index: its place in the turn."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments: the deltas of one call join to a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    """A tool call is complete. arguments: its whole JSON."""

    index: int
    id: str
    name: str
    arguments: str


TurnEvent = TextDelta | CallOpened | ArgumentsDelta | CallClosed


class TurnReader:
    """Reads one turn. Feed it the ids as they come, then `finish` it with all of them."""

    def __init__(self, renderer: Renderer, parser: Parser) -> None:
        self._renderer = renderer
        self._parser = parser
        self._ids: list[int] = []
        self._window_at = 0  # ids before it were decoded and their text given out
        self._read_to = 0  # ids before it are in the text given out
        self._said = ""
        self._calls = 0

    def feed(self, token_ids: Sequence[int]) -> list[TurnEvent]:
        """What became certain with these ids."""
        self._ids.extend(token_ids)
        end = len(self._ids)
        if self._ids and self._ids[-1] in self._renderer.end_of_turn_ids:
            end -= 1  # ends the turn unless more follows
        if end <= self._read_to:
            return []
        before = self._decode(self._window_at, self._read_to)
        text = self._decode(self._window_at, end)
        if text.endswith("\ufffd") or not text.startswith(before):
            return []  # inside a character
        self._window_at, self._read_to = self._read_to, end
        return self._say(text[len(before) :])

    def finish(self, token_ids: Sequence[int]) -> tuple[list[TurnEvent], Parsed]:
        """The last events, and the whole turn. token_ids: all of it."""
        whole = self._renderer.decode(token_ids)
        events = self._say(whole[len(self._said) :]) if whole.startswith(self._said) else []
        events += self._events(self._parser.flush())
        return events, self._parser.finish()

    def _decode(self, start: int, end: int) -> str:
        text: str = self._renderer.tokenizer.decode(
            self._ids[start:end], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _say(self, text: str) -> list[TurnEvent]:
        if not text:
            return []
        self._said += text
        return self._events(self._parser.feed(text))

    def _events(self, events: Sequence[Event]) -> list[TurnEvent]:
        return [turn_event for event in events for turn_event in self._turn_events(event)]

    def _turn_events(self, event: Event) -> Iterator[TurnEvent]:
        if isinstance(event, BrokenCall):
            return  # its text is content, which was said
        if isinstance(event, TextDelta):
            yield event
            return
        index, self._calls = self._calls, self._calls + 1
        arguments = dump_arguments(event)
        yield CallOpened(index, event.id, event.name)
        yield ArgumentsDelta(index, arguments)
        yield CallClosed(index, event.id, event.name, arguments)


def merged(events: Sequence[TurnEvent]) -> list[TurnEvent]:
    """The same events with neighbouring deltas of one kind joined, so that a busy server sends fewer."""
    joined: list[TurnEvent] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta) and event.kind == last.kind:
            joined[-1] = TextDelta(event.kind, last.text + event.text)
        elif (
            isinstance(event, ArgumentsDelta)
            and isinstance(last, ArgumentsDelta)
            and event.index == last.index
        ):
            joined[-1] = ArgumentsDelta(event.index, last.text + event.text)
        else:
            joined.append(event)
    return joined


def dump_arguments(call: ToolCall) -> str:
    """A call's arguments as JSON text, in one form everywhere."""
    return json.dumps(call.arguments, ensure_ascii=False)
