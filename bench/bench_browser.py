"""What a browser costs: rollouts on MiniWoB++ that share one, against a browser for each.

    python bench/bench_browser.py

`browser_rollouts`: 8 rollouts at once, of two turns each; the baseline gives each a run of its own, and so a
browser. `browser_longest_callback`: the event loop's longest callback during ours, of its thread's time.
`browser_left_behind`: of 8 at once every second one is cancelled while its model thinks; contexts after that,
and tasks and processes after the run.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import AsyncExitStack
from importlib.metadata import EntryPoint
from statistics import median

from crowd import alive, all_of, descendants, engine_on_a_thread, forget, half_of, longest_callback

from rollhook import Plugins, RunConfig, Runtime, Sample
from rollhook.testing import Reply, ScriptedRequest, load_tokenizer
from rollhook_browser.config import MiniWobConfig
from rollhook_browser.pool import Launch, open_pool

ROLLOUTS = 8
ROUNDS = 2
ENTRY_POINT = EntryPoint("browser", "rollhook_browser.hooks", "rollhook.plugins")

Measurement = dict[str, float | str]


def run() -> dict[str, Measurement]:
    """Every measurement of this module."""
    tokenizer, model = load_tokenizer("smollm2"), Model()
    with engine_on_a_thread(tokenizer, model) as url, longest_callback() as longest:

        def runtime() -> Runtime:
            config = RunConfig(engine=url, concurrency=ROLLOUTS)
            return Runtime(config, plugins=Plugins(entry_points=[ENTRY_POINT]), tokenizer=tokenizer)

        asyncio.run(_warm_up(runtime()))
        ours, callbacks, apart = [], [], []
        for _ in range(ROUNDS):
            ours.append(asyncio.run(_sharing(runtime(), longest)))
            callbacks.append(longest[0])
            apart.append(asyncio.run(_apart([runtime() for _ in range(ROLLOUTS)])))
        left, processes = asyncio.run(_half_cancelled(runtime(), model))
    left += len(alive(processes))
    size = f"{ROLLOUTS} rollouts at once"
    rates = [ROLLOUTS / median(seconds) for seconds in (ours, apart)]
    return {
        "browser_rollouts": {
            "ours": rates[0],
            "baseline": rates[1],
            "ratio": rates[0] / rates[1],
            "unit": f"rollouts/s, {size}",
        },
        "browser_longest_callback": {"ours": 1e3 * median(callbacks), "unit": f"ms, {size}"},
        "browser_left_behind": {
            "ours": left,
            "unit": f"contexts, tasks and processes, {size}, half cancelled",
        },
    }


class Model:
    """Looks, then clicks the button. thinking: how many were told to think, which takes a minute."""

    def __init__(self) -> None:
        self.thinking = 0

    def __call__(self, request: ScriptedRequest) -> Reply:
        if request.turn == 0:
            return Reply("Action: noop(1)")
        button = re.search(r"\[(\d+)\] button", request.prompt.rsplit("Page: ", 1)[1])
        assert button is not None, request.prompt
        thinks = "Think well." in request.prompt
        self.thinking += thinks
        return Reply(f'Action: click("{button[1]}")', delay_s=60.0 if thinks else 0.0)


def _rows(*, slow: bool = False) -> list[Sample]:
    """One row a rollout. slow: the model of every second one thinks for long."""
    environment = {"name": "browser/miniwob", "task": "click-test"}
    return [
        Sample(
            index=index,
            prompt="Think well." if slow and index % 2 else "Act.",
            metadata={"rollhook": {"environment": environment}},
        )
        for index in range(ROLLOUTS)
    ]


async def _warm_up(run: Runtime) -> None:
    async with run as runtime:
        await all_of(runtime, _rows()[:1])


async def _sharing(run: Runtime, longest: list[float]) -> float:
    async with run as runtime:
        await forget(longest)
        return await all_of(runtime, _rows())


async def _apart(runs: list[Runtime]) -> float:
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        runtimes = [await stack.enter_async_context(run) for run in runs]
        pairs = zip(runtimes, _rows(), strict=True)
        tasks = [group.create_task(all_of(runtime, [row])) for runtime, row in pairs]
    return max(task.result() for task in tasks)


async def _half_cancelled(run: Runtime, model: Model) -> tuple[int, set[tuple[int, str]]]:
    """How many contexts and tasks are left when the rollouts have ended, and the processes of the run."""
    launch = Launch.of(MiniWobConfig(task="click-test"))
    async with run as runtime:
        await half_of(runtime, _rows(slow=True), lambda: model.thinking == ROLLOUTS // 2)
        pool = await runtime.share("browser/chromium", lambda: open_pool(launch), key=launch)
        contexts = len((await pool.browser()).contexts)
        processes = descendants()
    return contexts + len(asyncio.all_tasks()) - 1, processes


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(), indent=2) + "\n")
