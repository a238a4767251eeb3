"""Names that were not found, and what may have been meant.

Invariant: nothing is ever suggested for installation but what the project itself publishes: a row's text
never ends in a `pip install` line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from rollhook.errors import PluginNotFound

ITEM_NAME = r"[a-z0-9][a-z0-9_-]*"
"""What plugins and their items may be called."""

BUILTIN_PLUGIN = "rollhook"
"""The plugin name that built-in items live under."""

PUBLISHED_PLUGINS = frozenset(
    {"browser", "calculator", "debate", "docker", "retool", "search-r1", "terminal", "topologies"}
)
"""Plugins the project publishes; each is the distribution `rollhook-NAME`."""


class UnknownName(PluginNotFound):
    """A name nobody registered. hint: what may have been meant, or what to install; None without a guess."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None when none is near."""
    candidates = {candidate.lower(): candidate for candidate in sorted(known)}
    found = difflib.get_close_matches(name.lower(), candidates, n=1)
    return candidates[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """`did you mean "x"?` for the nearest known name, or None."""
    found = nearest(name, known)
    return f'did you mean "{found}"?' if found else None


def unknown_plugin(name: str, known: Iterable[str]) -> UnknownName:
    """The error for a plugin that is not installed. known: the names that could have been meant."""
    message = f'no plugin named "{name}" is installed'
    if name in PUBLISHED_PLUGINS:
        return UnknownName(message, f"try: pip install rollhook-{name}")
    return UnknownName(message, did_you_mean(name, {*known, *PUBLISHED_PLUGINS}))
