"""How a supervisor is started, and whose it is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollhook.sandbox.limits import SandboxLimits

SUPERVISOR = Path(__file__).parent / "supervisor.py"
OWNER_VARIABLE = "ROLLHOOK_SANDBOX_OWNER"
"""In the environment of a sandbox's outermost process: who started it, as `PID/START`."""

Packages = tuple[str, ...]
"""Distributions that the Python inside can import, with what they require."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What starts one supervisor.

    descriptors: files that the command reads; closed once it runs. cwd: where it starts on the host, None for
    anywhere.
    """

    command: Sequence[str]
    descriptors: tuple[int, ...] = ()
    cwd: str | None = None


class Launcher(Protocol):
    """A way to start sandboxes. environment: of every command. python: as it is called inside."""

    @property
    def limits(self) -> SandboxLimits: ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    @property
    def python(self) -> str: ...

    def prepare(self, packages: Packages) -> None:
        """Whatever takes long, once for the same packages; called on a thread."""
        ...

    def launch(self, packages: Packages) -> Launch:
        """How to start one, its packages prepared; quick."""
        ...


def sandbox_owner() -> dict[str, str]:
    """Environment variables for a process that holds a sandbox of this one: `rollhook sandbox gc` ends it
    when this one has died."""
    return {OWNER_VARIABLE: owner_label()}


def owner_label() -> str:
    """This process, told from a later one that gets the same pid."""
    return f"{os.getpid()}/{start_time(os.getpid())}"


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none, or it is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
