"""What the model samples, read while it comes: ids in, text, thinking and tool calls out.

Invariant: the events' texts join to what `finish` gives, which is the same for a turn read in pieces and read
at once, but for a call that breaks off after its client saw it begin: then it stays a call, and is not text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rollhook.adapters.partial import PartialCall, PartialCalls
from rollhook.adapters.partial_arguments import dump
from rollhook.parsing import BrokenCall, Event, Parser, TextDelta, ToolCall
from rollhook.parsing.parser import NewId
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
    """A tool call ended. arguments: its whole JSON, or what there is of it when the model broke off."""

    index: int
    id: str
    name: str
    arguments: str


TurnEvent = TextDelta | CallOpened | ArgumentsDelta | CallClosed


@dataclass(frozen=True, slots=True)
class Said:
    """A whole turn, as its client saw it. reasoning: None when there was none."""

    content: str
    reasoning: str | None
    calls: tuple[CallClosed, ...]


class TurnReader:
    """Reads one turn. Feed it the ids as they come, then `finish` it with all of them.

    make_parser: makes the turn's parser with the given maker of call ids. new_call_id: makes such an id.
    partial_calls: what tells of a call before it is whole.
    """

    def __init__(
        self,
        renderer: Renderer,
        make_parser: Callable[[NewId], Parser],
        new_call_id: Callable[[], str],
        partial_calls: PartialCalls,
    ) -> None:
        self._renderer = renderer
        self._parser = make_parser(lambda name, place: new_call_id())
        self._new_call_id = new_call_id
        self._partial_calls = partial_calls
        self._partial: PartialCall | None = None
        self._partial_id = ""
        self._broke_off = False
        self._ids: list[int] = []
        self._window_at = 0  # ids before it were decoded and their text given out
        self._read_to = 0  # ids before it are in the text given out
        self._said = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[CallClosed] = []

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
        return [*self._say(text[len(before) :]), *self._open_call()]

    def finish(self, token_ids: Sequence[int]) -> tuple[list[TurnEvent], Said]:
        """The last events, and the whole turn. token_ids: all of it."""
        whole = self._renderer.decode(token_ids)
        events = self._say(whole[len(self._said) :]) if whole.startswith(self._said) else []
        events += self._events(self._parser.flush())
        reasoning = "".join(self._reasoning) if self._reasoning else None
        return events, Said("".join(self._content), reasoning, tuple(self._calls))

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

    def _open_call(self) -> list[TurnEvent]:
        """What is certain of a call that is still being written."""
        text = self._parser.open_call
        if text is None:
            return []
        events: list[TurnEvent] = []
        index = len(self._calls)
        if self._partial is None:
            self._partial = self._partial_calls.open(text)
            if self._partial is None:
                return []
            self._partial_id = self._partial.id or self._new_call_id()
            events.append(CallOpened(index, self._partial_id, self._partial.name))
        if arguments := self._partial.arguments.take(text):
            events.append(ArgumentsDelta(index, arguments))
        return events

    def _events(self, events: Sequence[Event]) -> list[TurnEvent]:
        told: list[TurnEvent] = []
        for event, following in zip_longest(events, events[1:]):
            match event:
                case ToolCall():
                    told += self._close_call(event)
                case BrokenCall() if self._partial is not None:
                    told.append(self._give_up_call(self._partial))
                case TextDelta() if self._partial is not None and isinstance(following, BrokenCall):
                    pass  # the text of the call that the client has seen as a call
                case TextDelta(text=text) if self._broke_off and text.isspace():
                    pass  # what followed that text
                case TextDelta(kind=kind, text=text):
                    (self._content if kind == "content" else self._reasoning).append(text)
                    told.append(event)
        return told

    def _close_call(self, call: ToolCall) -> list[TurnEvent]:
        index, arguments = len(self._calls), dump(call.arguments)
        partial, self._partial = self._partial, None
        if partial is None:
            self._calls.append(CallClosed(index, call.id, call.name, arguments))
            opened: list[TurnEvent] = [CallOpened(index, call.id, call.name)]
            return [*opened, ArgumentsDelta(index, arguments), self._calls[-1]]
        if not arguments.startswith(partial.arguments.given):
            return [self._give_up_call(partial)]
        self._calls.append(CallClosed(index, self._partial_id, call.name, arguments))
        return [ArgumentsDelta(index, arguments[len(partial.arguments.given) :]), self._calls[-1]]

    def _give_up_call(self, partial: PartialCall) -> TurnEvent:
        """A call that the client has seen begin and that cannot be read: it ends where it stands."""
        self._partial, self._broke_off = None, True
        self._calls.append(
            CallClosed(len(self._calls), self._partial_id, partial.name, partial.arguments.given)
        )
        return self._calls[-1]


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
