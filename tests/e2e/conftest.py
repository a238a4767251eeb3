"""What the command-line tests share: an engine in a thread of its own, and the command, in process or not."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rollhook.cli import main
from rollhook.testing import ScriptedEngine

ServeScript = Callable[..., ScriptedEngine]
Rollhook = Callable[..., Result]


@pytest.fixture
def serve(smollm2_tokenizer: Any) -> Iterator[ServeScript]:
    """Starts scripted engines that answer while the test itself blocks in a command."""
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(engine_thread(smollm2_tokenizer, script))


@contextmanager
def engine_thread(tokenizer: Any, script: Any) -> Iterator[ScriptedEngine]:
    ready: Future[tuple[ScriptedEngine, Callable[[], object]]] = Future()

    async def work() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with ScriptedEngine(tokenizer, script) as engine:
            ready.set_result((engine, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    engine, stop = ready.result(timeout=30)
    try:
        yield engine
    finally:
        stop()
        thread.join(timeout=30)


@pytest.fixture
def rollhook() -> Rollhook:
    """The command, run in this process: `rollhook("check", path).exit_code`."""

    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@contextmanager
def rollhook_process(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The command as a process of its own, killed at the end if it still runs."""
    command = [sys.executable, "-m", "rollhook", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def write_rows(path: Path, *rows: dict[str, Any] | str) -> Path:
    """A JSON Lines file; a string is a line as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path
