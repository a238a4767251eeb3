"""Arguments in the types a tool's JSON schema asks for.

Invariant: a value is changed only when it does not have an allowed type and can be read as one; what cannot
is left as it is, for the tool's own validation to refuse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

_NOTHING = object()


def converted(value: Any, schema: Any) -> Any:
    """`value` in a type that `schema` allows: "1" as 1 for an integer, 5 as "5" for a string."""
    if not isinstance(schema, Mapping):
        return value
    types = allowed_types(schema)
    if types and not any(_IS[kind](value) for kind in types if kind in _IS):
        for kind in types:
            read = _READ[kind](value) if kind in _READ else _NOTHING
            if read is not _NOTHING:
                value = read
                break
    if isinstance(value, dict) and isinstance(schema.get("properties"), Mapping):
        properties = schema["properties"]
        return {key: converted(item, properties.get(key)) for key, item in value.items()}
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return [converted(item, schema["items"]) for item in value]
    return value


def from_text(text: str, schema: Any) -> Any:
    """A value that a family writes as bare text: a string where the schema allows one, else JSON if it is."""
    types = allowed_types(schema) if isinstance(schema, Mapping) else []
    if "string" in types and not (text == "null" and "null" in types):
        return text
    if types:
        return converted(text, schema)
    read = _read_json(text)
    return text if read is _NOTHING else read


def allowed_types(schema: Mapping[str, Any]) -> list[str]:
    """The types a schema names, itself or in its alternatives; [] when it names none."""
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return [kinds]
    if isinstance(kinds, list):
        return [kind for kind in kinds if isinstance(kind, str)]
    found: list[str] = []
    for alternatives in ("anyOf", "oneOf"):
        options = schema.get(alternatives)
        for option in options if isinstance(options, list) else ():
            if isinstance(option, Mapping):
                found += allowed_types(option)
    if not found and isinstance(schema.get("enum"), list):
        found = [name for name, is_kind in _IS.items() if any(is_kind(v) for v in schema["enum"])]
    return found


def _read_json(value: Any) -> Any:
    if not isinstance(value, str):
        return _NOTHING
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return _NOTHING


def _json_of(is_kind: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        found = _read_json(value)
        return found if found is not _NOTHING and is_kind(found) else _NOTHING

    return read


def _read_integer(value: Any) -> Any:
    if isinstance(value, str):
        value = _read_json(value.strip())
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if _IS["integer"](value) else _NOTHING


def _read_boolean(value: Any) -> Any:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower(), _NOTHING)
    return _NOTHING


def _read_null(value: Any) -> Any:
    return None if value in ("null", "None", "") else _NOTHING


def _read_string(value: Any) -> Any:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_IS: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}

_READ: Mapping[str, Callable[[Any], Any]] = {
    "integer": _read_integer,
    "number": _json_of(_IS["number"]),
    "boolean": _read_boolean,
    "array": _json_of(_IS["array"]),
    "object": _json_of(_IS["object"]),
    "null": _read_null,
    "string": _read_string,
}
