"""The two backends that come with the core, as a run opens them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rollhook.errors import ConfigError
from rollhook.protocols import Run
from rollhook.sandbox.bubblewrap import Bubblewrap, advice
from rollhook.sandbox.limits import SandboxLimits
from rollhook.sandbox.local import LocalSandbox
from rollhook.sandbox.pool import Pool, open_pool
from rollhook.sandbox.unsafe import UnsafeSubprocess


@asynccontextmanager
async def open_bubblewrap(limits: SandboxLimits, run: Run) -> AsyncIterator[Pool]:
    """The run's sandboxes on bubblewrap. Raises ConfigError, with what to do, where it cannot run."""
    del run
    launcher = await asyncio.to_thread(Bubblewrap, limits)
    first = LocalSandbox(launcher, ())
    try:
        await first.open()
    except ConnectionError as error:
        raise ConfigError(
            f"rollhook/bubblewrap cannot start a sandbox: {error}; {advice(str(error))}"
        ) from error
    finally:
        await first.close()
    async with open_pool(launcher, limits.warm) as pool:
        yield pool


@asynccontextmanager
async def open_unsafe(limits: SandboxLimits, run: Run) -> AsyncIterator[Pool]:
    """Commands without walls, under the same interface."""
    del run
    async with open_pool(UnsafeSubprocess(limits), limits.warm) as pool:
        yield pool


def take(pool: Pool, packages: Sequence[str]) -> LocalSandbox:
    """A sandbox whose Python can import `packages`."""
    return pool.take(tuple(sorted(packages)))
