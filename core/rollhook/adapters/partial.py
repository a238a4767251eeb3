"""A tool call that the model is still writing: what is already certain of its arguments.

Invariant: what `take` gives joins to a beginning of the finished call's arguments, as `dump` writes them once
their types were converted. What could still turn out otherwise waits. Each character is read once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rollhook.parsing.arguments import allowed_types, converted
from rollhook.parsing.json_text import JsonEnd
from rollhook.parsing.results import ToolSchemas

_HEAD = re.compile(
    r"\s*(?:<tool_call>|<\|python_tag\|>)?\s*"
    r'\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*\{'
)
_KEY = re.compile(r'\s*,?\s*"((?:[^"\\]|\\.)*)"\s*:\s*(?=\S)', re.DOTALL)
_IN_STRING = re.compile(r'(?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|[^u]))*', re.DOTALL)
_HALF_CHARACTER = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")
_LONE_HALF = re.compile("[\ud800-\udfff]")
_DECODER = json.JSONDecoder(strict=False)


class PartialCalls:
    """Makes the reader of each call. tools: as offered, for the types of arguments."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._schemas = ToolSchemas(tools)

    def open(self, text: str) -> PartialCall | None:
        """A reader for the call that `text` begins, once its name is certain.

        None for now, or for good in families that do not write calls as JSON with the name first.
        """
        head = _HEAD.match(text)
        if head is None:
            return None
        properties = self._schemas.parameters(head["name"]).get("properties")
        return PartialCall(head["name"], head.end(), properties if isinstance(properties, Mapping) else {})


class PartialCall:
    """Reads one call's arguments. name: of the tool. given: what `take` gave so far, joined."""

    def __init__(self, name: str, start: int, properties: Mapping[str, Any]) -> None:
        self.name = name
        self.given = ""
        self._at = start
        self._properties = properties
        self._in_string = False
        self._nested: JsonEnd | None = None
        self._keys: set[str] = set()

    def take(self, text: str) -> str:
        """What became certain. text: the call so far, from its opening tag on."""
        parts = []
        while part := self._step(text):
            parts.append(part)
        new = "".join(parts)
        self.given += new
        return new

    def _step(self, text: str) -> str:
        """The next piece, "" while more text is needed."""
        return self._string(text) if self._in_string else self._member(text)

    def _member(self, text: str) -> str:
        key = _KEY.match(text, self._at)
        if key is None:
            return ""
        name = _decoded(key[1])
        if name is None or name in self._keys:
            return ""  # written twice: the last one counts, which is known at the end
        start, schema = key.end(), self._properties.get(name)
        head = f"{', ' if self._keys else '{'}{dump(name)}: "
        if text[start] == '"' and _stays_text(schema):
            self._in_string, self._at = True, start + 1
            self._keys.add(name)
            return head + '"'
        end = self._value_end(text, start)
        if end is None:
            return ""
        try:
            value, _ = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return ""
        self._at = end
        self._keys.add(name)
        return head + dump(converted(value, schema))

    def _value_end(self, text: str, start: int) -> int | None:
        """Where a value ends that is not a text, None while that is not certain."""
        if text[start] in "{[":
            self._nested = self._nested or JsonEnd()
            end = self._nested.of(text, start)
            if end is not None:
                self._nested = None
            return end
        try:
            _, end = _DECODER.raw_decode(text, start)
        except ValueError:
            return None
        return end if end < len(text) else None  # a number may go on

    def _string(self, text: str) -> str:
        match = _IN_STRING.match(text, self._at)
        assert match is not None
        end = match.end()
        closed = text[end : end + 1] == '"'
        if not closed and _HALF_CHARACTER.search(match[0]):
            end -= 6
        said = _decoded(text[self._at : end])
        if said is None:
            return ""
        self._at = end + closed
        self._in_string = not closed
        return dump(said)[1:-1] + ('"' if closed else "")


def dump(value: Any) -> str:
    """`value` as JSON, in one form everywhere; half characters, which no text may hold, are replaced."""
    return _LONE_HALF.sub("\ufffd", json.dumps(value, ensure_ascii=False))


def _stays_text(schema: Any) -> bool:
    """Whether a text is left as it is under this schema."""
    types = allowed_types(schema) if isinstance(schema, Mapping) else []
    return not types or "string" in types


def _decoded(inside: str) -> str | None:
    try:
        value = _DECODER.decode(f'"{inside}"')
    except ValueError:
        return None
    return value if isinstance(value, str) else None
