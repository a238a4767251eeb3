"""The three standard streams of one command, served side by side.

Invariant: no more than the limit is kept of what a command writes, and it cannot block itself by writing and
reading in an order that the host did not expect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from rollhook.sandbox.descriptors import Descriptor, pipe


class Streams:
    """Pipes to a command. limit: bytes of stdout and stderr together. flooded: whether there was more.

    theirs: the command's ends, in the order stdin, stdout, stderr.
    """

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._stdin, stdin = pipe(host_reads=False)
        self._stdout, stdout = pipe(host_reads=True)
        self._stderr, stderr = pipe(host_reads=True)
        self._kept = {self._stdout: bytearray(), self._stderr: bytearray()}
        self.theirs = (stdin, stdout, stderr)
        self.flooded = False

    @property
    def stdout(self) -> bytes:
        return bytes(self._kept[self._stdout])

    @property
    def stderr(self) -> bytes:
        return bytes(self._kept[self._stderr])

    async def serve(self, stdin: bytes, on_flood: Callable[[], object]) -> None:
        """Feed `stdin` and read until both ends close; call `on_flood` once when there is too much."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed(stdin))
            for source in self._kept:
                group.create_task(self._read(source, on_flood))

    def drain(self) -> None:
        """Keep what is still in the pipes of a command that has ended; a daemon of it may hold them open."""
        for source in self._kept:
            while (data := source.read_now()) and self._keep(source, data):
                pass

    def close(self) -> None:
        for end in (self._stdin, *self._kept):
            end.close()

    async def _feed(self, stdin: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            await self._stdin.write(stdin)
        self._stdin.close()

    async def _read(self, source: Descriptor, on_flood: Callable[[], object]) -> None:
        while data := await source.read():
            if self._keep(source, data):
                continue
            if not self.flooded:
                self.flooded = True
                on_flood()
            return

    def _keep(self, source: Descriptor, data: bytes) -> bool:
        self._kept[source] += data[: max(self._left, 0)]
        self._left -= len(data)
        return self._left >= 0
