"""A command that goes on running in a container, as the host holds it."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import struct
import termios
import tty
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence

from rollhook_docker.engine import end

CHUNK_BYTES = 1 << 16


class Terminal:
    """The host's end of a terminal that a client has for its standard streams. rows, columns: its size."""

    def __init__(self, rows: int, columns: int) -> None:
        self.master, self.slave = os.openpty()
        tty.setraw(self.slave)  # what is typed before the client has done so must not be echoed twice
        self.resize(rows, columns)
        self._reading: asyncio.ReadTransport | None = None

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """What comes out and goes in, until `close`."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        source = os.fdopen(os.dup(self.master), "rb", buffering=0)
        self._reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
        target = os.fdopen(os.dup(self.master), "wb", buffering=0)
        flow = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        transport, _ = await loop.connect_write_pipe(lambda: flow, target)
        return reader, asyncio.StreamWriter(transport, flow, None, loop)

    def close(self) -> None:
        os.close(self.master)
        if self._reading is not None:
            self._reading.close()


class DockerProcess:
    """A running command (`rollhook.Process`). kill_group: ends what is in its terminal's foreground."""

    def __init__(
        self,
        client: Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        terminal: Terminal | None = None,
        kill_group: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._client = client
        self._reader = reader
        self._writer = writer
        self._terminal = terminal
        self._kill_group = kill_group

    async def read(self, *, timeout_s: float = 30.0) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._reader.read(CHUNK_BYTES)
        except OSError as error:
            if error.errno == errno.EIO:  # a terminal whose last process has gone
                return b""
            raise

    async def write(self, data: bytes, *, timeout_s: float = 30.0) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(data)
                await self._writer.drain()
        except ConnectionResetError as error:
            raise BrokenPipeError(errno.EPIPE, "nobody reads any more") from error

    async def wait(self, *, timeout_s: float = 30.0) -> int:
        async with asyncio.timeout(timeout_s):
            return await self._client.wait()

    def resize(self, rows: int, columns: int) -> None:
        self._has_terminal().resize(rows, columns)
        self._client.send_signal(signal.SIGWINCH)  # it has no terminal of its own that would tell it

    async def kill_foreground(self) -> None:
        self._has_terminal()
        assert self._kill_group is not None
        await self._kill_group()

    async def release(self) -> None:
        """End the client, and close the descriptors."""
        self._writer.close()
        if self._terminal is not None:
            self._terminal.close()
        await end(self._client)

    def _has_terminal(self) -> Terminal:
        if self._terminal is None:
            raise ValueError("the command was started without a terminal")
        return self._terminal


async def on_pipes(command: Sequence[str], env: Mapping[str, str]) -> DockerProcess:
    """A client with pipes: standard output and standard error are one."""
    client = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, env=env)
    assert client.stdin is not None
    assert client.stdout is not None
    return DockerProcess(client, client.stdout, client.stdin)


async def on_terminal(
    command: Sequence[str],
    env: Mapping[str, str],
    size: tuple[int, int],
    kill_group: Callable[[], Awaitable[None]],
) -> DockerProcess:
    """A client on a terminal of `size`, rows and columns, which it hands through to the container."""
    terminal = Terminal(*size)
    try:
        slave = terminal.slave
        client = await asyncio.create_subprocess_exec(
            *command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
    except BaseException:
        terminal.close()
        raise
    finally:
        os.close(terminal.slave)
    reader, writer = await terminal.streams()
    return DockerProcess(client, reader, writer, terminal, kill_group)
