"""Hooks of a plugin `faulty`, whose items go wrong at the method and in the way that a row names.

    {"environment": {"name": "faulty/world", "at": "reset", "how": "raise"}}

A run that loads it says `modules: ["faulty=tests.slime.faults"]`, as users do with hooks of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rollhook import (
    EnvironmentSpec,
    Observation,
    Outcome,
    Rollout,
    Score,
    ToolResult,
    ToolSpec,
    TopologySpec,
    Turn,
    VerifierSpec,
    View,
    hookimpl,
)

MODULE = "faulty=tests.slime.faults"
BROKEN = "broken"


class Wrong(BaseModel):
    """at: the method that goes wrong; none does when empty. how: see `go_wrong`."""

    at: str = ""
    how: str = "raise"


async def go_wrong(how: str) -> Any:
    """Raise, wait for ever, or return what no method of any item may return."""
    match how:
        case "raise":
            raise OSError("the disk is full")
        case "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(go_wrong("raise"))
        case "cancel":
            raise asyncio.CancelledError  # as a library does whose own task was cancelled
        case "exit":
            raise SystemExit(3)  # as a library does that was written for the command line
        case "hang":
            await asyncio.Event().wait()
        case "nan":
            return float("nan")
    return "junk"


class Item:
    """What all items share: they go wrong as told."""

    def __init__(self, wrong: Wrong, rollout: Rollout) -> None:
        del rollout
        self.wrong = wrong

    async def wrong_in(self, method: str) -> Any:
        """None, unless `method` is to go wrong."""
        return await go_wrong(self.wrong.how) if self.wrong.at == method else None


class Use(Item):
    name = "use"
    description = "Does nothing."
    parameters: dict[str, Any] = {"type": "object", "properties": {}}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        return await self.wrong_in("call") or ToolResult("used")


class World(Item):
    """Gives 1.0 for the first turn that uses no tool."""

    async def reset(self, rollout: Rollout) -> Observation:
        return await self.wrong_in("reset") or Observation()

    async def step(self, turn: Turn) -> Observation:
        junk = await self.wrong_in("step")
        if isinstance(junk, float):
            return Observation(done=True, reward=junk)
        return junk or Observation(done=True, reward=1.0)

    async def close(self) -> None:
        await self.wrong_in("close")


class Judge(Item):
    async def score(self, view: View) -> float | Score:
        junk: float | None = await self.wrong_in("score")
        return 1.0 if junk is None else junk


class Alone(Item):
    async def run(self, rollout: Rollout) -> Outcome:
        if self.wrong.at == "turn":  # it never takes one
            return Outcome()
        await rollout.agent().loop(rollout.messages, environment=rollout.environment)
        junk = await self.wrong_in("run")
        if isinstance(junk, float):
            return Outcome(reward=junk)
        return junk or Outcome()


@asynccontextmanager
async def open_shared(wrong: Wrong, run: object) -> AsyncIterator[Wrong]:
    """What the rollouts of one configuration share: nothing, but it can fail to open, and to close."""
    del run
    if wrong.at == "open" and await go_wrong(wrong.how):
        return
    yield wrong
    if wrong.at == "leave":
        await go_wrong(wrong.how)


def _create(kind: Callable[[Wrong, Rollout], Any]) -> Callable[[Wrong, Rollout], Any]:
    def create(wrong: Wrong, rollout: Rollout) -> Any:
        if wrong.at == "create" and wrong.how == "raise":
            raise KeyError("no licence")
        return object() if wrong.at == "create" else kind(wrong, rollout)

    return create


@hookimpl
def rollhook_tools() -> list[ToolSpec]:
    return [ToolSpec(name="use", config=Wrong, open=open_shared, create=_create(Use))]


@hookimpl
def rollhook_environments() -> list[EnvironmentSpec]:
    return [EnvironmentSpec(name="world", config=Wrong, open=open_shared, create=_create(World))]


@hookimpl
def rollhook_verifiers() -> list[VerifierSpec]:
    return [VerifierSpec(name="judge", config=Wrong, open=open_shared, create=_create(Judge))]


@hookimpl
def rollhook_topologies() -> list[TopologySpec]:
    return [TopologySpec(name="alone", config=Wrong, open=open_shared, create=_create(Alone), fan_out=False)]


def install_broken(directory: Path) -> None:
    """Write a distribution into `directory`, which stands on `sys.path`, whose plugin cannot be imported."""
    info = directory / "rollhook_broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rollhook-broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rollhook.plugins]\n{BROKEN} = rollhook_broken_hooks\n")
    (directory / "rollhook_broken_hooks.py").write_text("import a_package_that_is_not_there\n")
