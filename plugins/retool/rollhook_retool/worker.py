"""A process in a sandbox that answers questions, one line of JSON for another.

Invariant: whatever the process writes, an answer is bounded in time and size, and belongs to the question
asked; a process that breaks this is killed.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from importlib.resources import files
from typing import Any

from rollhook import Process, Sandbox

ANSWER_BYTES = 1 << 20
DRIVER = "/tmp/.driver.py"


class WorkerDied(Exception):
    """The process ended, or was killed for writing nonsense or nothing in time. late: for the latter."""

    def __init__(self, why: str, *, late: bool = False) -> None:
        super().__init__(why)
        self.late = late


class Worker:
    """Runs the driver in a sandbox of its own, and starts it anew after it died."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._process: Process | None = None
        self._buffer = b""
        self._was_cancelled = False

    async def ask(self, question: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """The answer. Raises WorkerDied; the next question starts a new process."""
        nonce = secrets.token_hex(16)
        line = json.dumps({**question, "nonce": nonce}).encode() + b"\n"
        try:
            if self._was_cancelled:
                await self._kill()
            if self._process is None:
                self._process = await self._start()
            async with asyncio.timeout(timeout_s):
                await self._process.write(line, timeout_s=timeout_s)
                return await self._answer(self._process, nonce)
        except TimeoutError as error:
            await self._kill()
            raise WorkerDied(f"no answer in {timeout_s:g} s", late=True) from error
        except (WorkerDied, BrokenPipeError, ValueError) as error:
            await self._kill()
            raise WorkerDied(str(error) or "it ended") from error
        except asyncio.CancelledError:
            self._was_cancelled = True  # what it is at is of no use to anybody
            raise

    async def close(self) -> None:
        """End it with its sandbox."""
        await self._sandbox.close()

    async def _start(self) -> Process:
        await self._sandbox.write_file(DRIVER, files("rollhook_retool").joinpath("driver.py").read_bytes())
        self._buffer = b""
        return await self._sandbox.start([self._sandbox.python, "-s", "-P", DRIVER])

    async def _answer(self, process: Process, nonce: str) -> dict[str, Any]:
        """The line that carries `nonce`; others are code writing where it should not."""
        read = 0
        while True:
            line, found, rest = self._buffer.partition(b"\n")
            if found:
                self._buffer = rest
                if (answer := _with_nonce(line, nonce)) is not None:
                    return answer
                continue
            data = await process.read(timeout_s=3600)
            read += len(data)
            if not data:
                raise WorkerDied("it ended")
            if read > ANSWER_BYTES:
                raise WorkerDied("it wrote too much")
            self._buffer += data

    async def _kill(self) -> None:
        self._process, self._was_cancelled = None, False
        await self._sandbox.kill()


def _with_nonce(line: bytes, nonce: str) -> dict[str, Any] | None:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) and answer.get("nonce") == nonce else None
