"""Plugin items that wait for ever at a place the row names, and tell when they got there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel

from rollhook import (
    EnvironmentSpec,
    Observation,
    Plugins,
    Rollout,
    RunConfig,
    Runtime,
    Sample,
    ToolResult,
    ToolSpec,
    TopologySpec,
    Turn,
    VerifierSpec,
    View,
    hookimpl,
)
from rollhook.testing import ScriptedEngine

HELD_TEXT = "hold"


class Hold(BaseModel):
    """at: the method that waits."""

    at: str = ""


class Holder:
    """reached: somebody waits. swallows: how often a waiting method ignores that it is cancelled."""

    def __init__(self, swallows: int = 0) -> None:
        self.reached = asyncio.Event()
        self.let_go = asyncio.Event()
        self.swallows = swallows
        self.closed = 0

    async def wait(self) -> None:
        self.reached.set()
        while True:
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                if not self.swallows:
                    raise
                self.swallows -= 1
            else:
                return

    def plugins(self) -> Plugins:
        """The items as the plugin `held`: a tool, an environment, a verifier, a topology."""
        holder = self

        class Tool:
            name = "look"
            description = "Looks."
            parameters: dict[str, Any] = {"type": "object", "properties": {}}

            def __init__(self, at: str) -> None:
                self.at = at

            async def call(self, arguments: dict[str, Any]) -> ToolResult:
                if self.at == "call":
                    await holder.wait()
                return ToolResult("seen")

        class World:
            def __init__(self, at: str) -> None:
                self.at = at

            async def reset(self, rollout: Rollout) -> Observation:
                if self.at == "reset":
                    await holder.wait()
                return Observation(messages=[{"role": "user", "content": "Go."}])

            async def step(self, turn: Turn) -> Observation:
                if self.at == "step":
                    await holder.wait()
                return Observation(done=True, reward=1.0)

            async def close(self) -> None:
                if self.at == "close":
                    await holder.wait()
                holder.closed += 1

        class Judge:
            def __init__(self, at: str) -> None:
                self.at = at

            async def score(self, view: View) -> float:
                if self.at == "score":
                    await holder.wait()
                return 1.0

        class Alone:
            def __init__(self, at: str) -> None:
                self.at = at

            async def run(self, rollout: Rollout) -> None:
                agent = rollout.agent()
                try:
                    await agent.loop(rollout.messages, environment=rollout.environment)
                except Exception:
                    if self.at != "ignore":
                        raise
                if self.at == "run":
                    await holder.wait()

        @asynccontextmanager
        async def open_shared(config: Hold, run: Any) -> AsyncIterator[str]:
            if config.at == "open":
                await holder.wait()
            yield config.at

        def make(kind: type[Any]) -> Any:
            return lambda shared, rollout: kind(shared)

        @hookimpl
        def rollhook_tools() -> list[ToolSpec]:
            return [ToolSpec(name="look", config=Hold, open=open_shared, create=make(Tool))]

        @hookimpl
        def rollhook_environments() -> list[EnvironmentSpec]:
            return [EnvironmentSpec(name="world", config=Hold, open=open_shared, create=make(World))]

        @hookimpl
        def rollhook_verifiers() -> list[VerifierSpec]:
            return [VerifierSpec(name="judge", config=Hold, open=open_shared, create=make(Judge))]

        @hookimpl
        def rollhook_topologies() -> list[TopologySpec]:
            return [
                TopologySpec(name="alone", config=Hold, open=open_shared, create=make(Alone), fan_out=False)
            ]

        found = Plugins(entry_points=[])
        hooks = (rollhook_tools, rollhook_environments, rollhook_verifiers, rollhook_topologies)
        found.add("held", SimpleNamespace(**{hook.__name__: hook for hook in hooks}))
        return found


def row(index: int = 7, /, **at: str) -> Sample:
    """A row of all four items. at: where each waits, by its kind."""
    names = {"tools": "held/look", "environment": "held/world", "verifier": "held/judge"}
    named = {
        kind: {"name": name, "at": at.get(kind, "")}
        for kind, name in {**names, "topology": "held/alone"}.items()
    }
    return Sample(index=index, group_index=3, prompt="2+2?", label="4", metadata={"rollhook": {**named}})


@asynccontextmanager
async def holding(
    tokenizer: Any, script: Any, holder: Holder, **config: Any
) -> AsyncIterator[tuple[Runtime, ScriptedEngine]]:
    """A runtime of a holder's items on a scripted engine."""
    async with ScriptedEngine(tokenizer, script) as engine:
        settings = {"engine": engine.url, "tool_parser": "qwen25", "retries": 1, **config}
        async with Runtime(RunConfig(**settings), plugins=holder.plugins(), tokenizer=tokenizer) as runtime:
            yield runtime, engine
