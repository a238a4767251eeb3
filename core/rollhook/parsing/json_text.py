"""JSON inside model text: where a value ends, what it is, whether a text stops inside a string.

Invariant: finding an end is linear in the text however it is cut.
"""

from __future__ import annotations

import json
import re
from typing import Any

from rollhook.parsing.results import BrokenSyntax

_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'\\.|"', re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)


class JsonEnd:
    """Finds the end of one JSON object or array in a text that grows."""

    def __init__(self) -> None:
        self._at: int | None = None
        self._depth = 0
        self._in_string = False

    def of(self, text: str, start: int) -> int | None:
        """The position behind the value that begins at `start`; None while it is open."""
        at = start if self._at is None else self._at
        while True:
            match = (_STRING_END if self._in_string else _STRUCTURE).search(text, at)
            if match is None:
                # a backslash at the very end waits for what it escapes, unless it is escaped itself
                escapes = self._in_string and at < len(text) and text.endswith("\\")
                self._at = len(text) - escapes
                return None
            at = match.end()
            mark = match.group()
            if mark == '"':
                self._in_string = not self._in_string
            elif mark in "{[":
                self._depth += 1
            elif mark in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at


def json_value(text: str) -> Any:
    """The JSON value `text` is; line breaks inside strings are allowed. Raises BrokenSyntax."""
    try:
        return json.loads(text, strict=False)
    except RecursionError:
        raise BrokenSyntax("the tool call is nested too deeply") from None
    except ValueError as error:
        raise BrokenSyntax(f"the tool call is not valid JSON: {error}") from None


def json_values(text: str, *, separators: str) -> list[Any]:
    """The JSON values in a row. Raises BrokenSyntax."""
    values = []
    rest = text.strip(separators)
    while rest:
        try:
            value, end = _DECODER.raw_decode(rest)
        except RecursionError:
            raise BrokenSyntax("the tool call is nested too deeply") from None
        except ValueError as error:
            raise BrokenSyntax(f"the tool call is not valid JSON: {error}") from None
        values.append(value)
        rest = rest[end:].lstrip(separators)
    return values


def ends_in_string(text: str) -> bool:
    """Whether JSON text stops inside a string."""
    try:
        json.loads(text, strict=False)
    except RecursionError:
        return False
    except ValueError as error:
        return str(error).startswith("Unterminated string")
    return False
