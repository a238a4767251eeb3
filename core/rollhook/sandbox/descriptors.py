"""Non-blocking file descriptors, read and written from an event loop.

Invariant: nothing is read that nobody waits for, so a process that floods its pipe is stopped by the pipe; a
descriptor is closed once, whoever closes it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os

CHUNK_BYTES = 1 << 16


class Descriptor:
    """One end of a pipe, or a terminal. Closed by `close`."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    def fileno(self) -> int:
        """Raises OSError (EBADF) once it is closed."""
        if self._fd < 0:
            raise OSError(errno.EBADF, "closed")
        return self._fd

    def read_now(self) -> bytes | None:
        """What is there, b"" at the end, None when there is nothing yet."""
        try:
            return os.read(self.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EIO:  # a terminal whose last process has gone
                return b""
            raise

    async def read(self) -> bytes:
        """What comes next, at most 64 KiB; b"" at the end. Cancelled, it has taken nothing."""
        await asyncio.sleep(0)  # a flood must not keep the loop from everybody else
        while (data := self.read_now()) is None:
            await readable(self.fileno())
        return data

    async def write(self, data: bytes) -> None:
        """All of it. Raises BrokenPipeError when nobody reads any more."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self.fileno(), rest[:CHUNK_BYTES]) :]
            except BlockingIOError:
                await _writable(self.fileno())
            except OSError as error:
                if error.errno == errno.EIO:
                    raise BrokenPipeError(errno.EPIPE, "the terminal has gone") from error
                raise
            await asyncio.sleep(0)

    def close(self) -> None:
        """Close it, once."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(RuntimeError):  # no loop runs any more
                loop = asyncio.get_running_loop()
                loop.remove_reader(fd)
                loop.remove_writer(fd)
            os.close(fd)


def pipe(*, host_reads: bool) -> tuple[Descriptor, int]:
    """The host's end of a new pipe, and the end for a process."""
    source, target = os.pipe2(os.O_CLOEXEC)
    return (Descriptor(source), target) if host_reads else (Descriptor(target), source)


async def readable(fd: int) -> None:
    """Wait until `fd` can be read, or has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def _writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(fd, _set, ready)
    try:
        await ready
    finally:
        loop.remove_writer(fd)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
