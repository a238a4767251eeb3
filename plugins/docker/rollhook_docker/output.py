"""The three standard streams of one command, served side by side.

Invariant: no more than the limit is kept of what a command writes; when it writes more, it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine
from typing import Any

CHUNK_BYTES = 1 << 16


class Output:
    """What a client said. limit: bytes of stdout and stderr together. flooded: whether there was more."""

    def __init__(self, limit: int, on_flood: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._left = limit
        self._on_flood = on_flood
        self._out, self._err = bytearray(), bytearray()
        self.flooded = False

    @property
    def stdout(self) -> bytes:
        return bytes(self._out)

    @property
    def stderr(self) -> bytes:
        return bytes(self._err)

    async def serve(self, client: Process, stdin: bytes) -> None:
        """Feed `stdin` and read until the client ends."""
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stderr is not None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_feed(client.stdin, stdin))
                group.create_task(self._read(group, client.stdout, self._out))
                group.create_task(self._read(group, client.stderr, self._err))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        await client.wait()

    async def _read(self, group: asyncio.TaskGroup, source: asyncio.StreamReader, kept: bytearray) -> None:
        """Read on also after a flood: a client that cannot write does not end."""
        while data := await source.read(CHUNK_BYTES):
            kept += data[: max(self._left, 0)]
            self._left -= len(data)
            if self._left < 0 and not self.flooded:
                self.flooded = True
                group.create_task(self._on_flood())


async def _feed(target: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for at in range(0, len(data), CHUNK_BYTES):
            target.write(data[at : at + CHUNK_BYTES])
            await target.drain()
        target.close()
