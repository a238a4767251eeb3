"""What a sandbox is: the protocol that backends implement, and what running a command in one gives.

Invariant: nothing here does work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

KilledBy = Literal["time", "memory", "files", "output"]


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command in a sandbox ended.

    exit_code: negative for a signal; None when the sandbox killed it at the limit that `killed_by` names.
    stdout, stderr: what it wrote until then.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    killed_by: KilledBy | None = None


class Process(Protocol):
    """A command that goes on running in a sandbox and ends with it. Its stdout and stderr are one stream.

    Every wait ends with TimeoutError after `timeout_s` seconds.
    """

    async def read(self, *, timeout_s: float = 30.0) -> bytes:
        """What it wrote next, at most 64 KiB; b"" once everybody who could write has ended."""
        ...

    async def write(self, data: bytes, *, timeout_s: float = 30.0) -> None:
        """To its standard input. Raises BrokenPipeError when that is closed."""
        ...

    async def wait(self, *, timeout_s: float = 30.0) -> int:
        """Its exit code, negative for a signal."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """The size of its terminal. Raises ValueError without one."""
        ...

    async def kill_foreground(self) -> None:
        """Kill the process group in its terminal's foreground. Raises ValueError without a terminal."""
        ...


@runtime_checkable
class Sandbox(Protocol):
    """A place to run untrusted commands, gone with all its processes after `close`.

    Relative paths start at its working folder. Every call raises ConnectionError once the sandbox has ended.
    """

    @property
    def python(self) -> str:
        """A Python inside that can import the packages the sandbox was asked for with."""
        ...

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a command to its end. When it is killed at a limit, or this call is cancelled, everything
        inside is killed with it."""
        ...

    async def start(
        self,
        command: Sequence[str],
        *,
        terminal: tuple[int, int] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a command and leave it running. terminal: rows and columns of a PTY; None: pipes."""
        ...

    async def read_file(self, path: str) -> bytes:
        """The whole of a regular file. Raises OSError (FileNotFoundError, ...) as reading one here would."""
        ...

    async def write_file(self, path: str, data: bytes) -> None:
        """Make or replace a file, and the folders above it. Raises OSError."""
        ...

    async def snapshot(self, path: str) -> bytes:
        """A folder as a tar archive of files, folders and links, for `restore` alone. Raises OSError."""
        ...

    async def restore(self, path: str, archive: bytes) -> None:
        """Unpack a tar archive into a folder, which is made where it is missing. Raises OSError."""
        ...

    async def kill(self) -> None:
        """End every process inside; files stay."""
        ...

    async def close(self) -> None:
        """End the sandbox. May be called again."""
        ...
