"""DockerSandbox: commands and files in a container.

Invariant: everything that ran inside is gone after `kill`, after `close`, and after an `exec` that ran out of
time, flooded its output or was cancelled. What comes out is bounded before it is kept.

Commands are `exec`s of the engine, as a user who cannot touch process 1. Ending all of them is one signal of
that user to everybody whom it may send one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import posixpath
import re
import secrets
import signal
from asyncio.subprocess import Process
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeVar

from rollhook import ExecResult
from rollhook_docker import files
from rollhook_docker.config import IMAGE, MIB
from rollhook_docker.engine import Container, Engine, end, environment, words
from rollhook_docker.output import Output
from rollhook_docker.process import DockerProcess, on_pipes, on_terminal

_T = TypeVar("_T")
_FILE_S = 60.0
_ENDED_S = 1.0
_KILLS = 5
_KILL_ALL = "kill -9 -1 || :"  # it fails when there is nobody
_ON_TERMINAL = 'echo $$ > "$0"; exec "$@"'
_KILL_GROUP = (
    'read -r stat < "/proc/$(cat "$1")/stat" || exit 0; set -- ${stat##*) }; [ "$6" -le 1 ] || kill -9 "-$6"'
)
_HAS_PACKAGES = "import sys; from importlib.metadata import version; [version(p) for p in sys.argv[1:]]"


class DockerSandbox:
    """A container (`rollhook.Sandbox`), started by its first use.

    packages: what its Python has to have; an image without them is an error of its first use.
    """

    def __init__(self, engine: Engine, image: str, packages: Sequence[str]) -> None:
        self.engine = engine
        self.image = image
        self.packages = tuple(packages)
        self._starting: asyncio.Task[Container | Exception] | None = None
        self._closed = False
        self._processes: list[DockerProcess] = []
        engine.open.add(self)

    @property
    def python(self) -> str:
        return self.engine.config.python

    async def open(self) -> Container:
        """Start it, if that was not done. Raises ConnectionError when it does not start, or has ended."""
        if self._closed:
            raise ConnectionError("the sandbox is closed")
        if self._starting is None:
            self._starting = self.engine.tasks.create_task(_outcome(self._start()))
        container = await asyncio.shield(self._starting)
        if isinstance(container, Exception):
            raise container
        if container.life.returncode is not None:
            raise ConnectionError("the container ended")
        return container

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        limit = self.engine.config.output_mb * MIB
        return await self._run(words(command), stdin, timeout_s=timeout_s, limit=limit, cwd=cwd, env=env)

    async def start(
        self,
        command: Sequence[str],
        *,
        terminal: tuple[int, int] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> DockerProcess:
        container = await self.open()
        client = [*self.engine.config.command, "exec", "--interactive"]
        where = self._where(container, cwd, env)
        if terminal is None:
            process = await on_pipes([*client, *where, *words(command)], environment())
        else:
            place = f"/tmp/.terminal-{secrets.token_hex(8)}"
            inside = [*where, "sh", "-c", _ON_TERMINAL, place, *words(command)]

            async def kill_group() -> None:
                await self._script(_KILL_GROUP, place)

            process = await on_terminal([*client, "--tty", *inside], environment(), terminal, kill_group)
        self._processes.append(process)
        return process

    async def read_file(self, path: str) -> bytes:
        return await self._file(files.READ, path)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._file(files.WRITE, path, data)

    async def snapshot(self, path: str) -> bytes:
        return await asyncio.to_thread(files.cleaned, await self._file(files.PACK, path))

    async def restore(self, path: str, archive: bytes) -> None:
        await self._file(files.UNPACK, path, archive)

    async def kill(self) -> None:
        container = await self.open()
        await self._surely(self._kill(container))

    async def close(self) -> None:
        self._closed = True
        starting, self._starting = self._starting, None
        if starting is not None:
            await self._surely(self._close(starting))
        self.engine.open.discard(self)

    async def _start(self) -> Container:
        container = await self.engine.start(self.image)
        if self.packages:
            check = [self.python, "-c", _HAS_PACKAGES, *self.packages]
            code, _, err = await self.engine.call("exec", *self._where(container, None, None), *check)
            if code:
                await self.engine.stop(container)
                said = err.decode(errors="replace").strip().rpartition("\n")[2]
                raise ConnectionError(
                    f"the image {self.image} has no {self.python} with {', '.join(self.packages)} ({said})"
                )
        return container

    async def _close(self, starting: asyncio.Task[Container | Exception]) -> None:
        container = await starting
        try:
            if isinstance(container, Container):
                await self.engine.stop(container)
        finally:
            for process in self._processes:
                await process.release()
            self._processes.clear()

    async def _kill(self, container: Container) -> None:
        """One signal to all; where even that cannot be sent, the container goes."""
        where = self._where(container, None, None)
        code, _, err = await self.engine.call("exec", *where, "sh", "-c", _KILL_ALL)
        if code:
            await self.engine.stop(container)
            raise ConnectionError(f"the container ended: {err.decode(errors='replace').strip()}")

    async def _end(self, container: Container, client: Process) -> None:
        """End a command with everything inside: also one that the engine is only about to start."""
        for _ in range(_KILLS):
            await self._kill(container)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ENDED_S):
                    await client.wait()
                    return
        await self.engine.stop(container)

    async def _surely(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` to its end, also when whoever waits for it is cancelled."""
        failed = await asyncio.shield(self.engine.tasks.create_task(_outcome(work)))
        if isinstance(failed, Exception):
            raise failed

    def _where(self, container: Container, cwd: str | None, env: Mapping[str, str] | None) -> list[str]:
        """What goes between `exec` and the command."""
        for name in env or ():
            if not name or "=" in name:
                raise ValueError(f"{name!r} cannot be the name of an environment variable")
        variables = [f"--env={name}={value}" for name, value in (env or {}).items()]
        folder = posixpath.join(container.workdir, cwd or "")
        return [f"--user={self.engine.config.user}", f"--workdir={folder}", *variables, container.name]

    async def _script(
        self, script: str, path: str, stdin: bytes = b"", limit: int = files.SAID_BYTES
    ) -> ExecResult:
        command = ["sh", "-c", script, "sh", files.shell_path(path)]
        return await self._run(command, stdin, timeout_s=_FILE_S, limit=limit)

    async def _file(self, script: str, path: str, data: bytes = b"") -> bytes:
        limit = self.engine.config.transfer_mb * MIB
        too_large = OSError(errno.EFBIG, f"more than transfer_mb ({limit // MIB} MiB)", path)
        if len(data) > limit:
            raise too_large
        done = await self._script(script, path, data, limit)
        if done.killed_by == "output":
            raise too_large
        if done.exit_code is None:
            raise TimeoutError(f"{path}: it took more than {_FILE_S:g} s")
        if done.exit_code:
            raise files.failure(done.exit_code, path, done.stderr)
        return done.stdout

    async def _run(
        self,
        command: list[str],
        stdin: bytes,
        *,
        timeout_s: float,
        limit: int,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run one command to its end, its streams served side by side."""
        container = await self.open()
        client = await self.engine.client(
            "exec", "--interactive", *self._where(container, cwd, env), *command
        )
        output = Output(limit, lambda: self._end(container, client))
        late = False
        try:
            async with asyncio.timeout(timeout_s):
                await output.serve(client, stdin)
        except TimeoutError:
            late = True
            await self._surely(self._end(container, client))
        except BaseException:
            with contextlib.suppress(ConnectionError):  # it has ended, and so has all in it
                await self._surely(self._end(container, client))
            raise
        finally:
            await end(client)
        killed: Literal["output", "time"] | None = "output" if output.flooded else "time" if late else None
        if killed is None and await _is_gone(container, client.returncode, output.stderr):
            raise ConnectionError("the container ended")
        return ExecResult(None if killed else client.returncode, output.stdout, output.stderr, killed)


async def _is_gone(container: Container, code: int | None, stderr: bytes) -> bool:
    """Whether a command failed because its container had ended."""
    if code == 128 + signal.SIGKILL or (code and stderr.startswith(b"Error")):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDED_S):
                await container.life.wait()
    return container.life.returncode is not None


async def _outcome(work: Coroutine[Any, Any, _T]) -> _T | Exception:
    """What comes of it, an error included: one sandbox's must not end the others' tasks."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001  whoever waits for it raises it
        return error


def create(engine: Engine, packages: Sequence[str]) -> DockerSandbox:
    """A sandbox of the run's own image."""
    return DockerSandbox(engine, engine.config.image, packages)


def from_image(engine: Engine, packages: Sequence[str], image: str) -> DockerSandbox:
    """A sandbox of `image`. Raises ValueError for one that the run did not allow."""
    if not re.fullmatch(IMAGE, image) or not engine.config.allows(image):
        raise ValueError(
            f"the run does not allow the image {image!r}: name it, or a pattern of it, in `images` under "
            "`settings: docker/docker:`"
        )
    return DockerSandbox(engine, image, packages)
