"""A container engine, spoken to through its command line client: docker, podman, or one that takes the same.

Invariant: a container lives as long as the client that started it has an open standard input. That is closed
by the sandbox's end, by `rollhook sandbox gc`, and by the kernel when this process dies, also by `kill -9`:
the container's process 1 then ends, everything inside with it, and the engine removes what it left.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from rollhook import ConfigError, Run, sandbox_owner
from rollhook_docker.config import MIB, DockerConfig

DEFAULT_WORKDIR = "/app"
_CALL_S = 30.0
_READY = b"ready\n"
_PLAIN_PATH = re.compile(r"/[^:\x00-\x1f]*")
_PROXIES = [f"{name}_proxy" for name in ("http", "https", "ftp", "all", "no")]
_PROCESS_1 = """
user=$1; shift
[ "$user" = 0:0 ] || chown "$user" "$@"
[ "$user" = 0:0 ] || chown -R "$user" .
exec 3<&0
echo ready
while :; do cat <&3 > /dev/null & wait $!; [ $? -gt 128 ] || exit; done
"""
"""Wait for the end of standard input, and for orphans; a `cat` that is killed is replaced."""


@dataclass(frozen=True, slots=True)
class Container:
    """A running container. life: the client whose standard input keeps it alive."""

    name: str
    workdir: str
    life: Process


class Closing(Protocol):
    """What can be closed, more than once."""

    async def close(self) -> None: ...


class Engine:
    """One run's engine. Use through `open_engine`.

    tasks: of starts and kills that outlive who asked. open: sandboxes that nobody closed so far.
    """

    def __init__(self, config: DockerConfig, tasks: asyncio.TaskGroup) -> None:
        self.config = config
        self.tasks = tasks
        self.open: set[Closing] = set()
        self._workdirs: dict[str, str] = {}

    @property
    def _writable(self) -> tuple[str, ...]:
        return ("/tmp", *self.config.writable)

    async def call(self, *arguments: str) -> tuple[int, bytes, bytes]:
        """What one short command says (see `call`)."""
        return await call(self.config.command, *arguments)

    async def client(self, *arguments: str) -> Process:
        """A client of the engine, on pipes."""
        return await _client(self.config.command, *arguments)

    async def start(self, image: str) -> Container:
        """A new container. Raises ConnectionError when it does not start."""
        workdir = await self._workdir(image)
        name = f"rollhook-{secrets.token_hex(8)}"
        life = await self.client("run", *self._options(name, workdir), image, *self._process_1())
        container = Container(name, workdir, life)
        assert life.stdout is not None
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                said = await life.stdout.readline()
        except TimeoutError as error:
            await self.stop(container)
            limit = self.config.start_timeout_s
            raise ConnectionError(f"the container of {image} did not start in {limit:g} s") from error
        if said != _READY:
            why = await _said(life)
            await self.stop(container)
            raise ConnectionError(f"the container of {image} did not start: {why}")
        return container

    async def stop(self, container: Container) -> None:
        """End a container, if need be by force, and wait until it is gone."""
        assert container.life.stdin is not None
        container.life.stdin.close()
        try:
            async with asyncio.timeout(_CALL_S):
                await container.life.wait()
        except TimeoutError:
            await self.call("rm", "--force", container.name)
        finally:
            await end(container.life)

    async def _workdir(self, image: str) -> str:
        """An image's working folder. Raises ConnectionError where it has none that can be used."""
        if image not in self._workdirs:
            form = "{{.Config.WorkingDir}}"
            code, out, err = await self.call("image", "inspect", "--format", form, image)
            if code:
                command = " ".join(self.config.command)
                raise ConnectionError(
                    f"the image {image} is not there ({_line(err)}); try: {command} pull {image}"
                )
            told = out.decode().strip()
            workdir = DEFAULT_WORKDIR if told in {"", "/"} else told
            if not _PLAIN_PATH.fullmatch(workdir):  # to `--volume`, what precedes a colon is the host's
                raise ConnectionError(
                    f"the image {image} cannot be run: its working folder {workdir!r} is not a plain path"
                )
            self._workdirs[image] = workdir
        return self._workdirs[image]

    def _options(self, name: str, workdir: str) -> list[str]:
        config = self.config
        memory, size = f"{config.memory_mb}m", config.disk_mb
        options = ["--interactive", "--rm", "--pull=never", f"--name={name}"]
        options += ["--no-healthcheck"]  # it would run as root, on files that the user may have changed
        options += [f"--label={name}={value}" for name, value in sandbox_owner().items()]
        options += ["--hostname=sandbox", "--entrypoint=sh"]
        options += [f"--network={config.network}", "--user=0:0", "--cap-drop=ALL", "--cap-add=CHOWN"]
        options += ["--security-opt=no-new-privileges", f"--pids-limit={config.processes}"]
        options += [f"--memory={memory}", f"--memory-swap={memory}", f"--cpus={config.cpus:g}"]
        options += [f"--ulimit=nofile={config.open_files}:{config.open_files}"]
        options += [f"--ulimit=fsize={config.file_mb * MIB}", "--ulimit=core=0", "--shm-size=64m"]
        options += [f"--workdir={workdir}", f"--volume={workdir}"]
        if config.read_only:
            options += ["--read-only"]
        for folder in self._writable:
            options += [f"--tmpfs={folder}:rw,exec,nosuid,nodev,size={size}m,mode=1777"]
        for variable in _PROXIES:  # clients hand the host's on, passwords and all
            options += [f"--env={variable}=", f"--env={variable.upper()}="]
        options += [f"--env=HOME={workdir}", "--env=LANG=C.UTF-8", "--env=TERM=xterm"]
        return [*options, *config.options]

    def _process_1(self) -> list[str]:
        return ["-c", _PROCESS_1, "sh", self.config.user, *self._writable]


@asynccontextmanager
async def open_engine(config: DockerConfig, run: Run) -> AsyncIterator[Engine]:
    """The run's engine. Raises ConfigError, with what to do, where it cannot be reached."""
    del run
    command = " ".join(config.command)
    try:
        code, _, err = await call(config.command, "version")
    except FileNotFoundError as error:
        raise ConfigError(
            f"the sandbox docker/docker needs {config.command[0]}, which is not installed: install it, "
            "or set command of docker/docker in settings, as to [podman]"
        ) from error
    if code:
        raise ConfigError(
            f"{command} does not reach its engine ({_line(err)}); see that `{command} ps` works"
        )
    async with asyncio.TaskGroup() as tasks:
        engine = Engine(config, tasks)
        try:
            yield engine
        finally:
            for sandbox in list(engine.open):
                await sandbox.close()


async def call(command: Sequence[str], *arguments: str) -> tuple[int, bytes, bytes]:
    """Exit code, output and errors of one short command of an engine. Raises ConnectionError after 30 s."""
    client = await _client(command, *arguments)
    try:
        async with asyncio.timeout(_CALL_S):
            out, err = await client.communicate()
    except TimeoutError as error:
        raise ConnectionError(f"{command[0]} {arguments[0]} does not answer") from error
    finally:
        await end(client)
    assert client.returncode is not None
    return client.returncode, out, err


async def _client(command: Sequence[str], *arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        *command, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment()
    )


def environment() -> dict[str, str]:
    """The clients': this process's own, and whose they are."""
    return {**os.environ, **sandbox_owner()}


async def end(client: Process) -> None:
    """Make sure that a client is gone."""
    if client.returncode is None:
        client.kill()
        await client.wait()
    # asyncio closes the pipes of a client whose processes hold them only when they are collected
    client._transport.close()  # type: ignore[attr-defined]


async def _said(client: Process) -> str:
    """What a client that ends wrote to standard error."""
    assert client.stderr is not None
    try:
        async with asyncio.timeout(_CALL_S):
            return _line(await client.stderr.read(4000))
    except TimeoutError:
        return "it does not say why"


def _line(text: bytes) -> str:
    return " ".join(text.decode(errors="replace").split()) or "it does not say why"


def words(command: Sequence[str]) -> list[str]:
    """A command as it was given. Raises ValueError for one that is a string, or empty."""
    if isinstance(command, str) or not command:
        raise ValueError(f"a command is a list of at least one word, not {command!r}")
    return list(command)
