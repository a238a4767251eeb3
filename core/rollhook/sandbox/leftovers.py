"""Sandboxes whose owner is gone, found by the label on their outermost process.

Invariant: only processes that carry rollhook's label, and of these only those of a dead or named owner, are
ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollhook.sandbox.launch import OWNER_VARIABLE, start_time

_END_S = 10.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process of a sandbox. owner: `PID/START` of who started it. owner_lives: whether that still runs."""

    pid: int
    owner: str
    owner_lives: bool


def find_leftovers(owner: str | None = None) -> list[Leftover]:
    """Sandboxes of dead owners; of `owner` alone, dead or alive, when one is named (a label, or its pid)."""
    found = list(_labelled())
    if owner is None:
        return [process for process in found if not process.owner_lives]
    return [process for process in found if owner in (process.owner, process.owner.partition("/")[0])]


def end_leftovers(leftovers: list[Leftover]) -> None:
    """End these sandboxes, and wait until their processes are gone; blocks.

    Raises TimeoutError when one does not go, PermissionError for another user's.
    """
    for process in leftovers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + _END_S
    while alive := [process.pid for process in leftovers if start_time(process.pid) is not None]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"still there {_END_S:g} s after SIGKILL: {', '.join(map(str, alive))}")
        time.sleep(_POLL_S)


def _labelled() -> Iterator[Leftover]:
    marker = f"{OWNER_VARIABLE}=".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # gone, or another user's
        label = next((variable for variable in variables if variable.startswith(marker)), None)
        if label is not None and start_time(int(folder.name)) is not None:
            owner = label[len(marker) :].decode(errors="replace")
            yield Leftover(int(folder.name), owner, _lives(owner))


def _lives(owner: str) -> bool:
    pid, _, started = owner.partition("/")
    return pid.isdigit() and str(start_time(int(pid))) == started
