"""Reading a request's JSON: any bytes give a value of known shape or a 400 that names the field.

Invariant: what leaves here is safe to walk recursively (bounded depth) and to encode (no lone surrogates, no
NaN), and every getter of `Fields` returns what its name says or raises WireError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

from rollhook.adapters.errors import WireError, bad_request
from rollhook.names import did_you_mean

MAX_DEPTH = 64
MAX_PROBLEM = 300
"""Characters of what is wrong with a field: it may quote what the client sent, an image in a wrong place."""


def read_json(raw: bytes, max_depth: int = MAX_DEPTH) -> Fields:
    """The JSON object in a request's body. Raises WireError (400)."""
    try:
        value = _DECODER.decode(raw.decode("utf-8"))
    except RecursionError:
        raise _too_deep(max_depth) from None
    except ValueError as error:  # also UnicodeDecodeError
        raise bad_request(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_request(f"the body must be a JSON object, not {_kind(value)}")
    if raw.count(b"{") + raw.count(b"[") > max_depth:  # else it cannot be deeper
        _check_depth(value, max_depth)
    if b"\\ud" in raw or b"\\uD" in raw:
        value = _without_lone_surrogates(value)
    return Fields(value)


class Fields:
    """One JSON object of a request. where: its place, for the error's text."""

    def __init__(self, value: Mapping[str, Any], where: str = "") -> None:
        self.value = value
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.value.get(name) is not None

    def get(self, name: str) -> Any:
        """Whatever stands there."""
        return self.value.get(name)

    def path(self, name: str) -> str:
        """A field's full name."""
        return f"{self.where}.{name}" if self.where else name

    def fail(self, name: str, problem: str) -> NoReturn:
        """Refuse the request because of one field."""
        told = problem if len(problem) <= MAX_PROBLEM else f"{problem[:MAX_PROBLEM]}..."
        raise bad_request(f"{self.path(name)}: {told}", self.path(name))

    def only(self, known: Collection[str]) -> None:
        """Refuse the request when it has a field that is not `known`."""
        for name in self.value:
            if name not in known:
                hint = did_you_mean(name, known)
                self.fail(name, "unknown key" + (f"; {hint}" if hint else ""))

    def text(self, name: str) -> str | None:
        """A string, or None."""
        value = self.value.get(name)
        if value is not None and not isinstance(value, str):
            self.fail(name, f"must be a string, not {_kind(value)}")
        return value

    def required_text(self, name: str) -> str:
        """A string that is not empty."""
        value = self.text(name)
        if not value:
            self.fail(name, "is missing; it must be a string that is not empty")
        return value

    def integer(self, name: str, minimum: int) -> int | None:
        """A whole number, or None."""
        value = self.value.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            self.fail(name, f"must be a whole number of at least {minimum}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.value.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(name, f"must be true or false, not {_kind(value)}")
        return value

    def object(self, name: str) -> Fields | None:
        """An object, or None."""
        value = self.value.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(name, f"must be an object, not {_kind(value)}")
        return Fields(value, self.path(name))

    def objects(self, name: str) -> Iterator[Fields]:
        """The objects of a list; none when there is no list."""
        value = self.value.get(name)
        if value is None:
            return
        if not isinstance(value, list):
            self.fail(name, f"must be a list, not {_kind(value)}")
        for at, item in enumerate(value):
            if not isinstance(item, dict):
                self.fail(f"{name}[{at}]", f"must be an object, not {_kind(item)}")
            yield Fields(item, f"{self.path(name)}[{at}]")

    def refuse(self, name: str, why: str) -> None:
        """Refuse the request if a field that cannot be served is given."""
        if self.value.get(name) not in (None, False, [], {}):
            self.fail(name, why)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number:.30} is too large a number")
    return value


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)
_CONTAINERS = frozenset({dict, list})  # JSON gives no subclasses


def _check_depth(value: Any, limit: int) -> None:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if type(child) in _CONTAINERS
        ]
        if not level:
            return
    raise _too_deep(limit)


def _too_deep(limit: int) -> WireError:
    return bad_request(f"the body is nested more than {limit} levels deep")


def _without_lone_surrogates(value: Any) -> Any:
    """`value` with half characters, as JavaScript makes them by cutting text, replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_without_lone_surrogates(key): _without_lone_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_lone_surrogates(item) for item in value]
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
