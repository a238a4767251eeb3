"""The arguments of a call that the model is still writing, as far as they are certain.

Invariant: what `take` gives joins to a beginning of the finished call's arguments, as `dump` writes them once
their types were converted. What could still turn out otherwise waits.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from rollhook.parsing.arguments import allowed_types, converted, from_text
from rollhook.parsing.json_text import JsonEnd
from rollhook.parsing.parser import tags_of

_KEY = re.compile(r'\s*,?\s*"((?:[^"\\]|\\.)*)"\s*:\s*(?=\S)', re.DOTALL)
_IN_STRING = re.compile(r'(?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|[^u]))*', re.DOTALL)
_HALF_CHARACTER = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")
_LONE_HALF = re.compile("[\ud800-\udfff]")
_AFTER_VALUE = re.compile(r"[\s,}]")
_DECODER = json.JSONDecoder(strict=False)


class PartialArguments(ABC):
    """Reads one call's arguments. given: what `take` gave so far, joined.

    start: where in the call's text they begin. properties: the schemas of the tool's arguments.
    """

    def __init__(self, start: int, properties: Mapping[str, Any]) -> None:
        self.given = ""
        self._at = start
        self._properties = properties
        self._in_text = False
        """Whether a text value is open, of which pieces are given."""
        self._keys: set[str] = set()

    def take(self, text: str) -> str:
        """What became certain. text: the call so far, from its opening tag on."""
        parts = []
        while part := self._more_text(text) if self._in_text else self._member(text):
            parts.append(part)
        new = "".join(parts)
        self.given += new
        return new

    @abstractmethod
    def _member(self, text: str) -> str:
        """The next argument, or its key and the quote that opens its text; "" while more is needed."""

    @abstractmethod
    def _more_text(self, text: str) -> str:
        """More of the open text value, with its closing quote at the end; "" while more is needed."""

    def _opened(self, name: str) -> str:
        """An argument's beginning, up to its value."""
        head = f"{', ' if self._keys else '{'}{dump(name)}: "
        self._keys.add(name)
        return head


class JsonArguments(PartialArguments):
    """Arguments written as a JSON object. start: behind its opening brace."""

    def __init__(self, start: int, properties: Mapping[str, Any]) -> None:
        super().__init__(start, properties)
        self._nested: JsonEnd | None = None

    def _member(self, text: str) -> str:
        key = _KEY.match(text, self._at)
        if key is None:
            return ""
        name = _decoded(key[1])
        if name is None or name in self._keys:
            return ""  # written twice: the last one counts, which is known at the end
        start, schema = key.end(), self._properties.get(name)
        if text[start] == '"' and _stays_text(schema):
            self._in_text, self._at = True, start + 1
            return self._opened(name) + '"'
        end = self._value_end(text, start)
        if end is None:
            return ""
        try:
            value, _ = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return ""
        self._at = end
        return self._opened(name) + dump(converted(value, schema))

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
        return end if _AFTER_VALUE.match(text, end) else None  # 1 may go on as 12, or as 1.5 or 1e3

    def _more_text(self, text: str) -> str:
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
        self._in_text = not closed
        return dump(said)[1:-1] + ('"' if closed else "")


class ValueTags:
    """How a family writes an argument between tags.

    opener: an argument up to its value, with its `key`. closer: the tag that ends the value. following: tags
    that end it too, where the closer is left out. outer: tags that may end the whole call.
    trims: whether one line break at the value's end is not part of it.
    """

    def __init__(
        self, opener: str, closer: str, *, following: Sequence[str], outer: Sequence[str], trims: bool
    ) -> None:
        self.opener = re.compile(opener)
        self.trims = trims
        self._end = re.compile("|".join([re.escape(closer), *(f"(?={re.escape(tag)})" for tag in following)]))
        self._outer = outer
        marks = [closer, *following, *outer]
        self.held = tags_of(*marks, *(breaks + mark for mark in marks for breaks in ("\n", "\n\n") if trims))
        """What may be the end: nothing from there on is certain before the end is found."""

    def end_of_value(self, text: str, start: int) -> tuple[str, int] | None:
        """The value from `start` on, and where what follows it begins; None while that is not certain."""
        end = self._end.search(text, start)
        if end is None:
            return None
        value = text[start : end.start()]
        if not end.group() and any(tag in value for tag in self._outer):
            return None  # without its closer, the value may have ended with the call
        return value.removesuffix("\n") if self.trims else value, end.end()


QWEN_TAGS = ValueTags(
    r"\s*<parameter=(?P<key>[^>\n]+)>(?:\n|(?=[^\n]))",
    "</parameter>",
    following=["<parameter="],
    outer=["</function>", "</tool_call>"],
    trims=True,
)
GLM_TAGS = ValueTags(
    r"\s*<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>",
    "</arg_value>",
    following=[],
    outer=["</tool_call>"],
    trims=False,
)


class TaggedArguments(PartialArguments):
    """Arguments written between tags, as bare text."""

    def __init__(self, start: int, properties: Mapping[str, Any], tags: ValueTags) -> None:
        super().__init__(start, properties)
        self._tags = tags

    def _member(self, text: str) -> str:
        key = self._tags.opener.match(text, self._at)
        name = key["key"].strip() if key else None
        if key is None or name is None or name in self._keys:
            return ""
        schema = self._properties.get(name)
        types = allowed_types(schema) if isinstance(schema, Mapping) else []
        if "string" in types and "null" not in types:
            self._in_text, self._at = True, key.end()
            return self._opened(name) + '"'
        found = self._tags.end_of_value(text, key.end())
        if found is None:
            return ""
        value, self._at = found
        return self._opened(name) + dump(converted(from_text(value, schema), schema))

    def _more_text(self, text: str) -> str:
        found = self._tags.end_of_value(text, self._at)
        if found is None:
            certain, _, _ = self._tags.held.cut(text[self._at :], whole=False)
            self._at += len(certain)
            return dump(certain)[1:-1]
        rest, self._at = found
        self._in_text = False
        return dump(rest)[1:-1] + '"'


def dump(value: Any) -> str:
    """`value` as JSON, in one form everywhere.

    Half characters, which no text may hold, are replaced; numbers that JSON has not, as NaN, are null.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False)
    return _LONE_HALF.sub("\ufffd", text)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


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
