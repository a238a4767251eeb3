"""A bounded stock of started sandboxes, so that a rollout need not wait for one.

Invariant: at most `size` unused sandboxes exist at a time, of whatever packages; all end with the pool.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollhook.sandbox.launch import Launcher, Packages
from rollhook.sandbox.local import LocalSandbox

_log = logging.getLogger("rollhook.sandbox")


class Pool:
    """Sandboxes of one run. Use through `open_pool`. unused: started and not yet taken, oldest first."""

    def __init__(self, launcher: Launcher, group: asyncio.TaskGroup, size: int) -> None:
        self.launcher = launcher
        self.size = size
        self._group = group
        self.unused: list[LocalSandbox] = []
        self._filling: asyncio.Task[None] | None = None
        self._closed = False

    def take(self, packages: Packages) -> LocalSandbox:
        """A sandbox for one owner, who closes it; started already where there was one in stock."""
        if self._closed:
            raise ConnectionError("the run's sandboxes are closed")
        taken = next((box for box in self.unused if box.packages == packages), None)
        if taken is not None:
            self.unused.remove(taken)
        if not self.filling:
            self._filling = self._group.create_task(self._fill(packages))
        return taken or LocalSandbox(self.launcher, packages)

    @property
    def filling(self) -> bool:
        """Whether one is being started ahead."""
        return self._filling is not None and not self._filling.done()

    async def _fill(self, packages: Packages) -> None:
        """Start sandboxes with `packages` until the stock is full; others make room, oldest first."""
        while sum(box.packages == packages for box in self.unused) < self.size:
            other = next((box for box in self.unused if box.packages != packages), None)
            if len(self.unused) >= self.size and other is not None:
                self.unused.remove(other)
                await other.close()
            box = LocalSandbox(self.launcher, packages)
            try:
                await box.open()
            except (ConnectionError, OSError) as error:
                _log.warning("a sandbox could not be started ahead: %s", error)
                return
            except BaseException:
                await box.close()
                raise
            self.unused.append(box)

    async def close(self) -> None:
        """End what nobody took."""
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        for box in self.unused:
            await box.close()
        self.unused.clear()


@asynccontextmanager
async def open_pool(launcher: Launcher, size: int) -> AsyncIterator[Pool]:
    """A pool that ends, with everything unused, on leaving."""
    async with asyncio.TaskGroup() as group:
        pool = Pool(launcher, group, size)
        try:
            yield pool
        finally:
            await pool.close()
