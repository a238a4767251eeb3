"""The commands that the scripts of this example run, and show."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

SEED = 7


def rollhook(*arguments: object) -> list[str]:
    """The rollhook command beside this interpreter."""
    return [str(Path(sys.executable).with_name("rollhook")), *map(str, arguments)]


def shown(command: Sequence[str]) -> str:
    """A command as one would type it here."""
    here = f"{Path.cwd()}/"
    return shlex.join(argument.removeprefix(here) for argument in command)
