"""A command that goes on running inside a sandbox, as the host holds it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios

from rollhook.sandbox.descriptors import Descriptor
from rollhook.sandbox.supervised import Exit


class LocalProcess:
    """A running command (`rollhook.isolation.Process`). source and target: one descriptor for a terminal."""

    def __init__(self, source: Descriptor, target: Descriptor, exited: asyncio.Future[Exit]) -> None:
        self._source = source
        self._target = target
        self._exited = exited

    async def read(self, *, timeout_s: float = 30.0) -> bytes:
        async with asyncio.timeout(timeout_s):
            return await self._source.read()

    async def write(self, data: bytes, *, timeout_s: float = 30.0) -> None:
        async with asyncio.timeout(timeout_s):
            await self._target.write(data)

    async def wait(self, *, timeout_s: float = 30.0) -> int:
        async with asyncio.timeout(timeout_s):
            return (await asyncio.shield(self._exited)).status

    @property
    def killed_by(self) -> str | None:
        ended = self._exited.done() and not self._exited.cancelled() and self._exited.exception() is None
        return self._exited.result().why if ended else None

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._terminal(), termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def kill_foreground(self) -> None:
        group = os.tcgetpgrp(self._terminal())
        if group > 1:  # 0 when the terminal has no foreground any more, and to killpg that is our own group
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(group, signal.SIGKILL)

    def release(self) -> None:
        """Close the descriptors."""
        self._source.close()
        self._target.close()

    def _terminal(self) -> int:
        if self._source is not self._target:
            raise ValueError("the command was started without a terminal")
        return self._source.fileno()
