"""Sessions in real sandboxes of a real run."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from rollhook import Plugins, RunConfig, Runtime, Sandbox
from rollhook_terminal.config import TerminalConfig
from rollhook_terminal.session import Session
from rollhook_terminal.shell import Shell
from rollhook_terminal.task import load_task

TASKS = Path(__file__).parents[1] / "examples" / "tasks"


@pytest.fixture(autouse=True)
def _needs_bubblewrap() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: apt-get install --no-install-recommends bubblewrap")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(qwen3_tokenizer: Any) -> AsyncIterator[Runtime]:
    """A run without an engine: none is asked. Modules that use it have one event loop."""
    config = RunConfig(engine="http://127.0.0.1:9", settings={"rollhook/bubblewrap": {"warm": 0}})
    async with Runtime(config, plugins=Plugins(entry_points=[]), tokenizer=qwen3_tokenizer) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def rollout(runtime: Runtime) -> AsyncIterator[Any]:
    """What items of one rollout are given, as far as they need it here."""
    async with AsyncExitStack() as stack:

        async def sandbox(*, packages: Sequence[str] = (), image: str | None = None) -> Sandbox:
            made = await runtime.sandbox(packages=packages)
            if image is not None:  # what one with images does, which there is none of here
                await made.write_file("given", image.encode())
            stack.push_async_callback(made.close)
            return made

        yield SimpleNamespace(shared={}, sandbox=sandbox)


@pytest_asyncio.fixture(loop_scope="module")
async def shell(rollout: Any) -> Shell:
    """A shell in an empty sandbox."""
    return Shell(await rollout.sandbox(), size=(24, 80), cwd="/app", env={"GREETING": "hi"})


MakeSession = Callable[..., Awaitable[Session]]


@pytest.fixture
def make_session(rollout: Any) -> MakeSession:
    """A factory of open sessions: `await make_session(task_name)`; `tasks`: another folder."""

    async def make(task: str, tasks: Path = TASKS) -> Session:
        config = TerminalConfig(tasks=tasks, task=task)
        session = Session(config, load_task(tasks / task), rollout)
        await session.open()
        return session

    return make
