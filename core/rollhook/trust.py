"""What a data row may not set: rows are untrusted unless the run says `trust_rows: true`.

Invariant: a field is refused to rows when it is marked `RunOnly`, when its type holds a path, URL, secret,
bytes or code, or when its name says so and it is not marked `RowMay`; at any depth of a configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ImportString, Json, Secret, SecretBytes, SecretStr
from typing_extensions import TypeAliasType

from rollhook.fields import Field, Loc, Place, places
from rollhook.hookspecs import RowMay, RunOnly

RUN_ONLY_WORDS = frozenset(
    {"path", "paths", "dir", "directory", "file", "files", "url", "uri", "host", "endpoint", "port"}
    | {"key", "token", "secret", "password", "credential", "credentials"}
    | {"image", "command", "cmd", "corpus", "index", "backend", "sandbox", "module"}
)
"""Words that make a field run-only when its name has one: `base_url`, `base-url` and `baseUrl` have `url`."""

_REASONS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (PathLike, "it holds a path"),
    ((Secret, SecretStr, SecretBytes), "it holds a secret"),
    ((bytes, bytearray), "it holds bytes"),
    (ImportString, "it names code to import"),
    (Json, "it holds JSON text, which is not looked into"),
)


def refused(config: type[BaseModel], data: Mapping[str, Any]) -> tuple[Loc, str] | None:
    """The first key of `data` that a row may not set, and why; None when it may set them all."""
    for place in places(config, data):
        if reason := _reason(place):
            return place.loc, reason
    return None


def _reason(place: Place) -> str | None:
    for field in place.fields:
        if reason := _by_type(field):
            return reason
    named_by = place.fields or (place.inside,)
    if any(field is not None and _has_mark(field, RowMay) for field in named_by):
        return None
    words = re.split(r"[\W_]|(?<=[a-z0-9])(?=[A-Z])", str(place.loc[-1]))
    word = next((word for word in words if word.lower() in RUN_ONLY_WORDS), None)
    return f'its name says "{word}"' if word else None


def _by_type(field: Field) -> str | None:
    if _has_mark(field, RunOnly):
        return "it is marked run-only"
    for part in _parts(field):
        if part is Callable:
            return "it holds code"
        kind = part if isinstance(part, type) else type(part)
        if any(_is_url(base) for base in kind.__mro__):
            return "it holds a URL"
        for kinds, reason in _REASONS:
            if issubclass(kind, kinds):
                return reason
    return None


def _is_url(kind: type) -> bool:
    """pydantic's URL and DSN types share no public base class."""
    return kind.__module__ == "pydantic.networks" and kind.__name__.endswith(("Url", "Dsn"))


def _has_mark(field: Field, mark: type) -> bool:
    return any(isinstance(part, mark) or part is mark for part in _parts(field))


def _parts(field: Field) -> Iterator[Any]:
    """The type of a field, all types inside it, and what `Annotated` says beside them."""
    yield from field.marks
    yield from _types(field.annotation)


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    if isinstance(annotation, TypeAliasType):
        yield from _types(annotation.__value__)
    if (origin := get_origin(annotation)) is not None:
        yield origin
    for inner in get_args(annotation):
        yield from _types(inner)
    for inner in getattr(annotation, "__metadata__", ()):
        yield inner
    if isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        for inner in get_type_hints(annotation, include_extras=True).values():
            yield from _types(inner)
