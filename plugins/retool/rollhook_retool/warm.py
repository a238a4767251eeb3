"""Interpreters that are started before a rollout needs one.

Invariant: at most `warm` unused ones exist at a time, and all end with the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollhook import Run, Sandbox
from rollhook_retool.config import InterpreterConfig
from rollhook_retool.worker import Worker

_log = logging.getLogger("rollhook.retool")
_IMPORT_S = 60.0


class Workers:
    """A run's stock of interpreters with the same packages. Use through `open_interpreters`.

    unused: started, oldest first. spare: sandboxes without an interpreter.
    """

    def __init__(self, packages: tuple[str, ...], warm: int, run: Run, group: asyncio.TaskGroup) -> None:
        self._packages, self._warm = packages, warm
        self._run = run
        self._group = group
        self._filling: asyncio.Task[None] | None = None
        self.unused: list[Worker] = []
        self.spare: list[Sandbox] = []

    async def take(self) -> Worker:
        """An interpreter for one rollout, which closes it; with its packages imported if one was in stock."""
        worker = self.unused.pop(0) if self.unused else Worker(await self._sandbox())
        self.fill()
        return worker

    def fill(self) -> None:
        """Start what is missing, beside everything else."""
        if self._filling is None or self._filling.done():
            self._filling = self._group.create_task(self._fill())

    async def close(self) -> None:
        """End what nobody took."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        for worker in self.unused:
            await worker.close()
        for sandbox in self.spare:
            await sandbox.close()
        self.unused.clear()
        self.spare.clear()

    async def _fill(self) -> None:
        while len(self.unused) < self._warm:
            worker = None
            try:
                worker = Worker(await self._sandbox())
                await worker.ask({"packages": self._packages}, timeout_s=_IMPORT_S)
            except Exception as error:  # noqa: BLE001  rollouts start their own, and are told if they cannot
                _log.warning("an interpreter could not be started ahead: %s", error)
                if worker is not None:
                    await worker.close()
                return
            except BaseException:
                if worker is not None:
                    await worker.close()
                raise
            self.unused.append(worker)

    async def _sandbox(self) -> Sandbox:
        return self.spare.pop() if self.spare else await self._run.sandbox(packages=self._packages)


Opened = tuple[InterpreterConfig, Workers]


@asynccontextmanager
async def open_interpreters(config: InterpreterConfig, run: Run) -> AsyncIterator[Opened]:
    """The configuration, and the run's interpreters for it: the environment and the tool share them."""
    key = (config.packages, config.warm)
    yield config, await run.share("retool/interpreters", lambda: _open_workers(*key, run), key=key)


@asynccontextmanager
async def _open_workers(packages: tuple[str, ...], warm: int, run: Run) -> AsyncIterator[Workers]:
    first = await run.sandbox(packages=packages)  # opens the backend, so that it is closed after this
    async with asyncio.TaskGroup() as group:
        workers = Workers(packages, warm, run, group)
        workers.spare.append(first)
        workers.fill()
        try:
            yield workers
        finally:
            await workers.close()
