"""LocalSandbox: commands and files inside a supervisor's walls.

Invariant: every process that ran inside is gone after `close`, after `kill`, and after an `exec` that ran out
of time, flooded its output or was cancelled. What comes out is bounded before it is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from rollhook.errors import first_leaf
from rollhook.isolation import ExecResult
from rollhook.sandbox.descriptors import Descriptor, pipe
from rollhook.sandbox.launch import Launcher, Packages
from rollhook.sandbox.limits import MIB
from rollhook.sandbox.process import LocalProcess
from rollhook.sandbox.streams import Streams
from rollhook.sandbox.supervised import Command, Exit, Supervised

_T = TypeVar("_T")
_FILE_TIMEOUT_S = 60.0
_GRACE_S = 15.0
Task = Literal["read", "write", "pack", "unpack"]


class LocalSandbox:
    """A sandbox on this machine (`rollhook.isolation.Sandbox`), started by its first use.

    launcher: how. packages: what its Python can import beside the standard library.
    """

    def __init__(self, launcher: Launcher, packages: Packages) -> None:
        self.launcher = launcher
        self.packages = packages
        self._opening = asyncio.Lock()
        self._closed = False
        self._box: Supervised | None = None
        self._processes: list[LocalProcess] = []

    @property
    def python(self) -> str:
        return self.launcher.python

    @property
    def pid(self) -> int | None:
        """Of its outermost process on the host; None while it has none."""
        return self._box.pid if self._box else None

    async def open(self) -> Supervised:
        """Start it, if that was not done. Raises ConnectionError when it does not start, or is closed."""
        async with self._opening:
            if self._closed:
                raise ConnectionError("the sandbox is closed")
            if self._box is None:
                await asyncio.to_thread(self.launcher.prepare, self.packages)
                self._box = await _started(self.launcher, self.packages)
            return self._box

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        request = self._request(command, cwd, env)
        limit = self.launcher.limits.output_mb * MIB
        return await self._run(request, stdin, timeout_s=timeout_s, limit=limit)

    async def start(
        self,
        command: Sequence[str],
        *,
        terminal: tuple[int, int] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> LocalProcess:
        box = await self.open()
        request = {**self._request(command, cwd, env), "timeout_s": None, "pty": terminal}
        if terminal is not None:
            asked = box.start(request, [])
            master = await _within(asked.started, _GRACE_S)
            assert master is not None
            screen = Descriptor(master)
            return self._hold(LocalProcess(screen, screen, asked.exited))
        target, stdin = pipe(host_reads=False)
        source, stdout = pipe(host_reads=True)
        asked = _start(box, request, (stdin, stdout, stdout))
        return self._hold(LocalProcess(source, target, asked.exited))

    async def read_file(self, path: str) -> bytes:
        return await self._task("read", path)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._task("write", path, data)

    async def snapshot(self, path: str) -> bytes:
        return await self._task("pack", path)

    async def restore(self, path: str, archive: bytes) -> None:
        await self._task("unpack", path, archive)

    async def kill(self) -> None:
        box = await self.open()
        await _within(box.kill(), _GRACE_S)

    async def close(self) -> None:
        self._closed = True
        async with self._opening:  # a start under way ends first
            box, self._box = self._box, None
        try:
            if box is not None:
                await box.close()
        finally:
            for process in self._processes:
                process.release()
            self._processes.clear()

    def _hold(self, process: LocalProcess) -> LocalProcess:
        self._processes.append(process)
        return process

    def _request(
        self, command: Sequence[str], cwd: str | None, env: Mapping[str, str] | None
    ) -> dict[str, Any]:
        if isinstance(command, str) or not command:
            raise ValueError(f"a command is a list of at least one word, not {command!r}")
        environment = {**self.launcher.environment, **(env or {})}
        return {"argv": list(command), "env": environment, "cwd": cwd or "."}

    async def _task(self, task: Task, path: str, data: bytes = b"") -> bytes:
        """A file operation by the supervisor's own code. Raises OSError as the same operation here would."""
        limit = self.launcher.limits.transfer_mb * MIB
        if len(data) > limit:
            raise OSError(errno.EFBIG, f"more than transfer_mb ({limit // MIB} MiB)", path)
        request = {"task": task, "path": path, "limit": limit, "cwd": "."}
        done = await self._run(request, data, timeout_s=_FILE_TIMEOUT_S, limit=2 * limit)
        if done.exit_code is None:
            raise TimeoutError(f"{task} {path}: it was killed at its limit ({done.killed_by})")
        if done.exit_code:
            code = done.exit_code
            why = os.strerror(code) if code > 0 else f"killed by signal {-code}"
            raise OSError(code, done.stderr.decode(errors="replace").strip() or why, path)
        return done.stdout

    async def _run(
        self, request: Mapping[str, Any], stdin: bytes, *, timeout_s: float, limit: int
    ) -> ExecResult:
        """Run one command to its end, its streams served side by side."""
        box = await self.open()
        streams = Streams(limit)
        try:
            asked = _start(box, {**request, "timeout_s": timeout_s, "pty": None}, streams.theirs)
            ended = await _served(box, asked, streams, stdin, timeout_s=timeout_s + _GRACE_S)
        finally:
            streams.close()
        killed: Any = "output" if streams.flooded else ended.why
        return ExecResult(None if killed else ended.status, streams.stdout, streams.stderr, killed)


async def _served(
    box: Supervised, asked: Command, streams: Streams, stdin: bytes, *, timeout_s: float
) -> Exit:
    """Serve a command's streams until it ends; whatever else happens here, everything inside is killed."""
    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(streams.serve(stdin, box.kill))
            ended = await _within(asked.exited, timeout_s)
            serving.cancel()
    except BaseException as error:
        with contextlib.suppress(ConnectionError):
            box.kill()
        leaf = first_leaf(error)
        if isinstance(leaf, TimeoutError):
            raise ConnectionError("the sandbox does not answer") from error
        if leaf is None or leaf is error:
            raise
        raise leaf from error
    streams.drain()
    return ended


async def _started(launcher: Launcher, packages: Packages) -> Supervised:
    box = Supervised(launcher.launch(packages))
    limit = launcher.limits.start_timeout_s
    try:
        await _within(box.ready, limit)
    except BaseException as error:
        await box.close()
        if isinstance(error, TimeoutError):
            raise ConnectionError(f"the sandbox did not start within {limit:g} s") from error
        raise
    return box


def _start(box: Supervised, request: Mapping[str, Any], fds: Sequence[int]) -> Command:
    """Ask for a command that gets `fds`, which are closed here either way."""
    try:
        return box.start(request, fds)
    finally:
        for fd in set(fds):
            os.close(fd)


async def _within(future: asyncio.Future[_T], timeout_s: float) -> _T:
    async with asyncio.timeout(timeout_s):
        return await future
