"""gpt-oss: a turn is a row of messages, each with a header that says its channel and whom it is for.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.f
    <|constrain|>json<|message|>{...}<|call|>

Invariant: analysis is reasoning, a message with a recipient is a call, everything else is text; a header
that never gets its message, and text outside messages, stay text.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Literal

from rollhook.parsing.grammars import named_call
from rollhook.parsing.json_text import json_value
from rollhook.parsing.parser import NewId, Parser, tags_of
from rollhook.parsing.results import ToolSchemas, WrittenCall

_HEADER_STARTS = ("<|start|>", "<|channel|>", "<|constrain|>", "to=", "assistant")
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class HarmonyParser(Parser):
    """Parses one gpt-oss turn, from behind `<|start|>assistant`."""

    def __init__(self, *, schemas: ToolSchemas, new_id: NewId | None = None) -> None:
        super().__init__(schemas, new_id)
        self._place: Literal["between", "text", "header", "message"] = "between"
        self._header = ""
        self._message_tag = tags_of("<|message|>")
        self._starts = tags_of("<|start|>", "<|channel|>", *_ENDS)
        self._ends = tags_of(*_ENDS, "<|start|>")

    @property
    def open_call(self) -> str | None:
        """See `Parser.open_call`; from the message's header on."""
        if self._place != "message" or _RECIPIENT.search(self._header) is None:
            return None
        return f"{self._header}<|message|>{self._buffer}"

    def _step(self, *, whole: bool) -> bool:
        steps = {
            "between": self._between,
            "text": self._in_text,
            "header": self._in_header,
            "message": self._in_message,
        }
        return steps[self._place](whole)

    def _between(self, whole: bool) -> bool:
        """At the start, or behind a message's end: a header comes, or text that belongs to no message."""
        text = self._buffer.lstrip()
        if not whole and any(start.startswith(text) for start in _HEADER_STARTS):
            return False
        self._place = "header" if text.startswith(_HEADER_STARTS) else "text"
        return True

    def _in_text(self, whole: bool) -> bool:
        before, tag, after = self._starts.cut(self._buffer, whole=whole)
        self._say(before)
        self._buffer = after
        if tag in _ENDS:
            self._place = "between"
        elif tag is not None:
            self._buffer = tag + after
            self._place = "header"
        return tag is not None

    def _in_header(self, whole: bool) -> bool:
        before, tag, after = self._message_tag.cut(self._buffer, whole=True)
        if tag is not None:
            self._header, self._buffer, self._place = before, after, "message"
            return True
        if whole:
            self._say(self._buffer)
            self._buffer = ""
        return False

    def _in_message(self, whole: bool) -> bool:
        before, tag, after = self._ends.cut(self._buffer, whole=whole)
        recipient = _RECIPIENT.search(self._header)
        if recipient is not None:
            return self._in_call(recipient.group(1), before, tag, after, whole)
        channel = _CHANNEL.search(self._header)
        if channel is not None and channel.group(1) == "analysis":
            self._think(before)
        else:
            self._say(before)
        self._buffer = after
        return self._ended(tag)

    def _in_call(self, recipient: str, before: str, tag: str | None, after: str, whole: bool) -> bool:
        if tag is None and not whole:
            return False
        block = f"{self._header}<|message|>{before}"
        self._buffer = after
        self._read_calls(block, partial(_read, recipient.removeprefix("functions."), before))
        self._ended(tag)
        return tag is not None

    def _ended(self, tag: str | None) -> bool:
        if tag is None:
            return False
        self._place = "between"
        self._reasoning.block()
        self._content.block()
        if tag == "<|start|>":
            self._buffer = tag + self._buffer
        return True


def _read(name: str, arguments: str) -> list[WrittenCall]:
    return [named_call({"name": name, "arguments": json_value(arguments) if arguments.strip() else {}})]
