"""Sandboxes for tests, each started by what a run would use."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from rollhook.sandbox import SandboxLimits
from rollhook.sandbox.bubblewrap import INSTALL, Bubblewrap
from rollhook.sandbox.local import LocalSandbox

MakeSandbox = Callable[..., Awaitable[LocalSandbox]]


@pytest.fixture(autouse=True)
def _needs_bubblewrap() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip(f"bubblewrap is not installed: {INSTALL}")


@pytest_asyncio.fixture
async def make_sandbox() -> AsyncIterator[MakeSandbox]:
    """A factory: `await make_sandbox(*packages, memory_mb=64, ...)`. Closed at the test's end."""
    async with AsyncExitStack() as stack:

        async def make(*packages: str, **limits: int) -> LocalSandbox:
            sandbox = LocalSandbox(Bubblewrap(SandboxLimits(**limits)), packages)
            stack.push_async_callback(sandbox.close)
            await sandbox.open()
            return sandbox

        yield make


@pytest_asyncio.fixture
async def sandbox(make_sandbox: MakeSandbox) -> LocalSandbox:
    """One sandbox with the default limits."""
    return await make_sandbox()
