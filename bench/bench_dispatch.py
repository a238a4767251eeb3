"""What dispatch costs a rollout: names to items, configuration checked, objects made.

The baseline makes the same objects by hand. `dispatch_share` is the part that dispatch takes of a one-turn
rollout on a scripted engine with zero latency: the most it can ever be, since a real engine only adds to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel, Field

from rollhook import (
    Plugins,
    RunConfig,
    Runtime,
    Sample,
    ToolResult,
    ToolSpec,
    VerifierSpec,
    View,
    hookimpl,
    run_rollout,
)
from rollhook.rollout import LiveRollout
from rollhook.spec import Resolver
from rollhook.testing import ScriptedEngine, load_tokenizer

ROLLOUTS = 300
Measurement = dict[str, float | str]


class Config(BaseModel):
    weight: float = Field(1.0, ge=0, le=10)


class Clock:
    name, description = "clock", "Tells the time."
    parameters: dict[str, Any] = {"type": "object", "properties": {}}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult("noon")


class Weighted:
    def __init__(self, config: Config, rollout: object) -> None:
        self.weight = config.weight

    async def score(self, view: View) -> float:
        return self.weight * len(view.response)


@hookimpl
def rollhook_tools() -> list[ToolSpec]:
    return [ToolSpec(name="clock", create=lambda config, rollout: Clock())]


@hookimpl
def rollhook_verifiers() -> list[VerifierSpec]:
    return [VerifierSpec(name="weighted", config=Config, create=Weighted)]


def row(index: int) -> Sample:
    spec = {
        "tools": "bench/clock",
        "verifier": {"name": "bench/weighted", "weight": 2.0},
        "topology": "single",
    }
    return Sample(index=index, prompt="What time is it?", metadata={"rollhook": spec})


def run() -> dict[str, Measurement]:
    """Microseconds of dispatch per rollout, and its share of a one-turn rollout at zero engine latency."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, Measurement]:
    plugins = Plugins(entry_points=[])
    plugins.add(
        "bench", SimpleNamespace(rollhook_tools=rollhook_tools, rollhook_verifiers=rollhook_verifiers)
    )
    tokenizer = load_tokenizer("qwen3")
    async with ScriptedEngine(tokenizer, lambda request: "noon") as engine:
        config = RunConfig(engine=engine.url, tool_parser="qwen25")
        async with Runtime(config, plugins=plugins, tokenizer=tokenizer) as runtime:
            await run_rollout(runtime, row(0), {})  # loads the plugin
            hot = await _per_rollout(lambda index: _dispatch(runtime, row(index)))
            by_hand = await _per_rollout(lambda index: _by_hand(row(index)))
            cold = _cold_resolve(runtime, config)
            whole = await _per_rollout(lambda index: run_rollout(runtime, row(index), {}))
    return {
        "dispatch_per_rollout": _measured(hot, by_hand, "us"),
        "dispatch_first_of_a_kind": {"ours": cold, "unit": "us"},
        "dispatch_share": {"ours": 100 * hot / whole, "unit": "% of a one-turn rollout, zero latency"},
    }


async def _dispatch(runtime: Runtime, sample: Sample) -> None:
    rollout = LiveRollout(runtime=runtime, row=sample, rollout_id=0, sampling={})
    async with AsyncExitStack() as stack:
        await rollout.open(runtime.resolver.resolve(sample.metadata), stack)


async def _by_hand(sample: Sample) -> None:
    del sample
    Clock()
    Weighted(Config(weight=2.0), None)


def _cold_resolve(runtime: Runtime, config: RunConfig) -> float:
    rounds = 50
    resolvers = [Resolver(runtime.registry, config) for _ in range(rounds)]
    begin = time.perf_counter()
    for resolver in resolvers:
        resolver.resolve(row(0).metadata)
    return 1e6 * (time.perf_counter() - begin) / rounds


async def _per_rollout(work: Callable[[int], Any]) -> float:
    begin = time.perf_counter()
    for index in range(ROLLOUTS):
        await work(index)
    return 1e6 * (time.perf_counter() - begin) / ROLLOUTS


def _measured(ours: float, baseline: float, unit: str) -> Measurement:
    return {"ours": ours, "baseline": baseline, "ratio": baseline / ours, "unit": unit}


if __name__ == "__main__":
    print(run())  # noqa: T201  run by hand
