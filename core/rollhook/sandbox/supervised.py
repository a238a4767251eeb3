"""A running supervisor and what was asked of it: the host's end of its control socket.

Invariant: whatever is started here is ended by `close`, and by the kernel when this process dies first; every
future handed out is settled at the latest when the supervisor ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollhook.sandbox.descriptors import readable
from rollhook.sandbox.launch import Launch, sandbox_owner

_MESSAGE_BYTES = 1 << 16
_ERROR_BYTES = 4000
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended. status: negative for a signal. why: the limit it was killed at, or None."""

    status: int
    why: str | None


@dataclass(frozen=True, slots=True)
class Command:
    """A command that was asked for. started: its terminal, where it was to have one. exited: how it ended."""

    started: asyncio.Future[int | None]
    exited: asyncio.Future[Exit]


class Supervised:
    """One supervisor. Made on the thread that owns it: the kernel ends it with that thread."""

    def __init__(self, launch: Launch) -> None:
        """Start it; takes about a millisecond. Wait for `ready` before anything else."""
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._numbers = itertools.count()
        self._commands: dict[int, Command] = {}
        self._kills: dict[int, asyncio.Future[None]] = {}
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors, errors = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                list(launch.command),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=launch.descriptors,
                cwd=launch.cwd,
                env={"PATH": os.environ.get("PATH", ""), **sandbox_owner()},
            )
        except BaseException:
            self._socket.close()
            os.close(self._errors)
            raise
        finally:
            theirs.close()
            for descriptor in (errors, *launch.descriptors):
                os.close(descriptor)
        self._gone = os.pidfd_open(self._process.pid)
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket.fileno(), self._receive)

    @property
    def pid(self) -> int:
        """Of the outermost process on the host."""
        return self._process.pid

    def start(self, request: Mapping[str, Any], fds: Sequence[int]) -> Command:
        """Ask for a command. Raises ConnectionError when it has ended, ValueError for a request too long."""
        number = next(self._numbers)
        self._send({**request, "op": "start", "id": number}, fds)
        command = Command(self._loop.create_future(), self._loop.create_future())
        self._commands[number] = command
        return command

    def kill(self) -> asyncio.Future[None]:
        """Ask for the end of everything inside; done once nothing is left."""
        number = next(self._numbers)
        self._send({"op": "kill", "id": number}, [])
        gone = self._kills[number] = self._loop.create_future()
        return gone

    async def close(self) -> None:
        """End it with all that runs inside, and wait until that is gone; after 5 s by force."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        try:
            async with asyncio.timeout(_END_S):
                await readable(self._gone)
        except TimeoutError:
            self._process.kill()
            await readable(self._gone)
        finally:
            if self._process.poll() is None:  # cancelled: do not wait for its own way out
                self._process.kill()
                self._process.wait()
            self._settle(ConnectionError("the sandbox is closed"))
            os.close(self._gone)
            os.close(self._errors)

    def said(self) -> str:
        """What its processes wrote to standard error while starting."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._errors, _ERROR_BYTES).decode(errors="replace").strip()
        return ""

    def _send(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        if self._socket.fileno() < 0:
            raise ConnectionError("the sandbox is closed")
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], list(fds))
        except BlockingIOError as error:
            raise ConnectionError("the sandbox does not take commands any more") from error
        except ConnectionError as error:
            raise ConnectionError("the sandbox ended") from error
        except OSError as error:
            raise ValueError(f"the command and its environment cannot be sent: {error.strerror}") from error

    def _receive(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except ConnectionError:
            data, fds = b"", []
        if data:
            self._heard(json.loads(data), fds)
        else:
            self._loop.remove_reader(self._socket.fileno())
            self._settle(ConnectionError(self.said() or "the sandbox ended"))

    def _heard(self, message: dict[str, Any], fds: list[int]) -> None:
        number = message.get("id")
        match message["op"]:
            case "ready":
                _set(self.ready, None)
            case "started":
                _set(self._commands[message["id"]].started, fds[0] if fds else None)
            case "failed":
                command = self._commands.pop(message["id"])
                code = message["errno"]
                _fail([command.started, command.exited], OSError(code, os.strerror(code)))
            case "exit":
                _set(self._commands.pop(message["id"]).exited, Exit(message["status"], message["why"]))
            case "killed":
                _set(self._kills.pop(message["id"]), None)
            case other:
                raise ValueError(f"the supervisor said {other!r} of {number}")

    def _settle(self, error: Exception) -> None:
        pending = [
            future for command in self._commands.values() for future in (command.started, command.exited)
        ]
        _fail([self.ready, *pending, *self._kills.values()], error)
        self._commands.clear()
        self._kills.clear()


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(futures: Sequence[asyncio.Future[Any]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
            future.exception()  # whoever waits is told; nobody has to wait
