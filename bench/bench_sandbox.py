"""What the sandbox costs: starting one, calling into it, and many rollouts in sandboxes at once.

The baseline of starting and calling is the same command as a plain subprocess of asyncio. `longest_callback`
is thread time, so other load on the machine does not count; the scripted engine runs on a thread of its own.
What was there before (a tokenizer, modules) is frozen for the garbage collector, which would go through it in
some callback or other.
`left_behind` counts processes of sandboxes after the run; in `half_cancelled`, half of the rollouts were.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from crowd import engine_on_a_thread, forget, longest_callback

from rollhook import Plugins, RunConfig, Runtime, Sample, run_rollout
from rollhook.sandbox import SandboxLimits, find_leftovers
from rollhook.sandbox.bubblewrap import Bubblewrap
from rollhook.sandbox.local import LocalSandbox
from rollhook.sandbox.pool import open_pool
from rollhook.testing import Reply, ScriptedRequest, load_tokenizer

ROUNDS, FEW_ROUNDS = 20, 7
RETOOL_ROLLOUTS, TERMINAL_ROLLOUTS = 16, 64
TASKS = Path(__file__).parents[1] / "plugins" / "terminal" / "examples" / "tasks"
SYMPY = "import numpy, sympy; print(sympy.factorint(2**64 - 1))"
CODE = "<code>\nprint(sum(range(1000)))\n</code>"
COMMAND = '<tool_call>\n{"name": "bash", "arguments": {"command": "wc -l sales.csv"}}\n</tool_call>'
TERMINAL = {"environment": {"name": "terminal", "task": "sum-sales"}}
Measurement = dict[str, float | str]


def run() -> dict[str, Measurement]:
    """Start-up and call latency against plain subprocesses; 16 retool and 64 terminal rollouts at once."""
    tokenizer = load_tokenizer("qwen3")
    results = asyncio.run(_latencies())
    results.update(asyncio.run(_first_calls(tokenizer)))
    results.update(_at_once(tokenizer, "retool", "retool", [CODE, "\\boxed{1}"], RETOOL_ROLLOUTS))
    results.update(_at_once(tokenizer, "terminal", TERMINAL, [COMMAND, "Done."], TERMINAL_ROLLOUTS))
    return results


async def _latencies() -> dict[str, Measurement]:
    launcher = Bubblewrap(SandboxLimits())
    python = [launcher.python, "-I", "-c", "pass"]
    plain_python = await _median(lambda: _subprocess([sys.executable, "-I", "-c", "pass"]))
    plain_true = await _median(lambda: _subprocess(["true"]))

    async def cold() -> None:
        sandbox = LocalSandbox(launcher, ())
        await sandbox.exec(python)
        await sandbox.close()

    started = LocalSandbox(launcher, ())
    await started.open()
    call = await _median(lambda: started.exec(["true"]))
    await started.close()
    async with open_pool(launcher, size=2) as pool:

        async def warm() -> None:
            sandbox = pool.take(())
            await sandbox.exec(python)
            spent.append(time.perf_counter() - began)
            await sandbox.close()

        spent: list[float] = []
        await pool.take(()).close()
        for _ in range(ROUNDS):
            while pool.filling:  # noqa: ASYNC110  nothing tells, and what waits is not measured
                await asyncio.sleep(0.01)
            began = time.perf_counter()
            await warm()
    first_call_cold = await _median(cold)
    return {
        "sandbox_call": _measured(call, plain_true, "ms, `true`"),
        "sandbox_cold_start_call_close": _measured(first_call_cold, plain_python, "ms, python"),
        "sandbox_warm_start_and_call": _measured(1e3 * statistics.median(spent), plain_python, "ms, python"),
    }


async def _first_calls(tokenizer: Any) -> dict[str, Measurement]:
    """The first call of a rollout that uses sympy, its interpreter from the stock or not."""
    from rollhook_retool.config import InterpreterConfig
    from rollhook_retool.interpreter import Interpreter
    from rollhook_retool.warm import Workers, open_interpreters

    async def first_call(config: InterpreterConfig, workers: Workers) -> float:
        async with AsyncExitStack() as stack:
            rollout: Any = SimpleNamespace(shared={}, at_end=stack.push_async_callback)
            while len(workers.unused) < config.warm:  # noqa: ASYNC110  nothing tells, and it is not measured
                await asyncio.sleep(0.01)
            began = time.perf_counter()
            await Interpreter.of((config, workers), rollout).run(SYMPY)
            return 1e3 * (time.perf_counter() - began)

    spent = {}
    config = RunConfig(engine="http://127.0.0.1:9")
    async with Runtime(config, plugins=Plugins(entry_points=[]), tokenizer=tokenizer) as runtime:
        for warm in (0, 1):
            async with open_interpreters(InterpreterConfig(warm=warm, timeout_s=60), runtime) as opened:
                spent[warm] = statistics.median([await first_call(*opened) for _ in range(FEW_ROUNDS)])
    plain = await _median(lambda: _subprocess([sys.executable, "-I", "-c", SYMPY]), FEW_ROUNDS)
    return {
        "retool_first_call_cold": _measured(spent[0], plain, "ms, sympy"),
        "retool_first_call_warm": _measured(spent[1], plain, "ms, sympy"),
    }


def _at_once(tokenizer: Any, name: str, spec: Any, turns: list[str], count: int) -> dict[str, Measurement]:
    entry = EntryPoint(name, f"rollhook_{name}.hooks", "rollhook.plugins")
    with engine_on_a_thread(tokenizer, _script(turns)) as url, longest_callback() as longest:
        run = partial(_rollouts, tokenizer, entry, spec, url, count=count, longest=longest)
        seconds = asyncio.run(run(cancelled=0))
        longest_ms = 1e3 * longest[0]
        left = len(find_leftovers(str(os.getpid())))
        asyncio.run(run(cancelled=count // 2))
        left_of_cancelled = len(find_leftovers(str(os.getpid())))
    return {
        f"{name}_{count}_at_once": {"ours": seconds, "unit": "s for all, one call each"},
        f"{name}_{count}_longest_callback": {"ours": longest_ms, "unit": "ms of the loop's thread"},
        f"{name}_{count}_left_behind": {"ours": left, "unit": "processes"},
        f"{name}_{count}_left_behind_half_cancelled": {"ours": left_of_cancelled, "unit": "processes"},
    }


async def _rollouts(
    tokenizer: Any,
    entry: EntryPoint,
    spec: Any,
    url: str,
    *,
    count: int,
    cancelled: int,
    longest: list[float],
) -> float:
    """Seconds of `count` rollouts at once, of which the last `cancelled` are.

    A rollout goes before, which imports the plugin and does not count in `longest`.
    """
    settings = {"terminal": {"tasks": str(TASKS)}} if entry.name == "terminal" else {}
    config = RunConfig(engine=url, tool_parser="qwen25", settings=settings, concurrency=count)
    plugins = Plugins(entry_points=[entry])
    async with Runtime(config, plugins=plugins, tokenizer=tokenizer) as runtime:

        def rollout(index: int) -> Coroutine[Any, Any, list[Sample]]:
            row = Sample(index=index, prompt="Work.", label="1", metadata={"rollhook": spec})
            return run_rollout(runtime, row, {})

        await rollout(count)
        await forget(longest)
        began = time.perf_counter()
        tasks = [asyncio.create_task(rollout(index)) for index in range(count)]
        if cancelled:
            await asyncio.wait(tasks, timeout=0.5)
        for task in tasks[count - cancelled :]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        seconds = time.perf_counter() - began
    for samples in done[: count - cancelled]:
        assert isinstance(samples, list), samples
        assert samples[0].metadata["rollhook_result"]["error"] is None, samples[0].metadata
    return seconds


def _script(turns: list[str]) -> Callable[[ScriptedRequest], Reply]:
    """Answers every session with the same turns."""
    return lambda request: Reply(turns[min(request.turn, len(turns) - 1)])


async def _subprocess(command: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    await process.communicate()


async def _median(work: Callable[[], Awaitable[object]], count: int = ROUNDS) -> float:
    """Milliseconds of the median round."""
    rounds = []
    for _ in range(count):
        began = time.perf_counter()
        await work()
        rounds.append(time.perf_counter() - began)
    return 1e3 * statistics.median(rounds)


def _measured(ours: float, baseline: float, unit: str) -> Measurement:
    return {"ours": ours, "baseline": baseline, "ratio": baseline / ours, "unit": unit}


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))  # noqa: T201  run by hand
