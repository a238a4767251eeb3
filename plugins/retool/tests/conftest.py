"""An interpreter in a real sandbox of a real run."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from rollhook import Plugins, RunConfig, Runtime
from rollhook_retool.config import InterpreterConfig
from rollhook_retool.interpreter import Interpreter
from rollhook_retool.warm import open_interpreters

MakeInterpreter = Callable[..., Awaitable[Interpreter]]


@pytest.fixture(autouse=True)
def _needs_bubblewrap() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: apt-get install --no-install-recommends bubblewrap")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(qwen3_tokenizer: Any) -> AsyncIterator[Runtime]:
    """A run without an engine: none is asked. Modules that use it have one event loop."""
    limits = {"warm": 0, "disk_mb": 64, "file_mb": 16, "processes": 24, "memory_mb": 512}
    config = RunConfig(engine="http://127.0.0.1:9", settings={"rollhook/bubblewrap": limits})
    async with Runtime(config, plugins=Plugins(entry_points=[]), tokenizer=qwen3_tokenizer) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def make_interpreter(runtime: Runtime) -> AsyncIterator[MakeInterpreter]:
    """A factory: `await make_interpreter(timeout_s=2, ...)`. Packages: none unless said; none in stock."""
    async with AsyncExitStack() as stack:

        async def make(**settings: Any) -> Interpreter:
            config = InterpreterConfig(**{"packages": (), "warm": 0, **settings})
            opened = await stack.enter_async_context(open_interpreters(config, runtime))
            rollout: Any = SimpleNamespace(shared={}, at_end=stack.push_async_callback)
            return Interpreter.of(opened, rollout)

        yield make


@pytest_asyncio.fixture(loop_scope="module")
async def python(make_interpreter: MakeInterpreter) -> Interpreter:
    """An interpreter with the standard library alone."""
    return await make_interpreter(timeout_s=5)
