"""Where tables and transcripts are printed.

Invariant: what is piped or redirected has no escape sequences and is not folded to a terminal's width, unless
the user asks for colour.
"""

from __future__ import annotations

from rich.console import Console

_PIPED_WIDTH = 200


def make_console(color: bool | None = None) -> Console:
    """A console on standard output. color: None leaves it to the terminal, NO_COLOR and FORCE_COLOR."""
    found = Console(highlight=False)
    if color is None:
        color = found.color_system is not None and not found.no_color
    width = None if found.is_terminal else _PIPED_WIDTH
    if not color:
        return Console(highlight=False, color_system=None, width=width)
    return Console(highlight=False, force_terminal=True, color_system="standard", no_color=False, width=width)
