"""Small plugins that tests of the main path compose, and the runtime they run in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from rollhook import (
    ConfigError,
    EnvironmentSpec,
    Observation,
    Outcome,
    Plugins,
    Rollout,
    RunConfig,
    Runtime,
    Sample,
    Score,
    ToolError,
    ToolResult,
    ToolSpec,
    TopologySpec,
    Turn,
    VerifierSpec,
    View,
    hookimpl,
)
from rollhook.hookspecs import Defaults
from rollhook.testing import ScriptedEngine


class Echo:
    """A tool that answers with its argument; `crash` raises and `hang` waits for ever."""

    name = "echo"
    description = "Repeats a text."
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        if arguments["text"] == "crash":
            raise OSError("the disk is full")
        if arguments["text"] == "hang":
            await asyncio.Event().wait()
        return ToolResult(f"echo: {arguments['text']}")


class Counter:
    """An environment that answers `more` in the open turn until the model says stop; remembers closing."""

    closed = 0

    async def reset(self, rollout: Rollout) -> Observation:
        if rollout.sample.label == "hang":
            await asyncio.Event().wait()
        return Observation(messages=[{"role": "user", "content": f"count from {rollout.sample.label}"}])

    async def step(self, turn: Turn) -> Observation:
        if "boom" in turn.text:
            raise RuntimeError("the world ended")
        if "stop" in turn.text:
            return Observation(done=True, reward=0.5)
        return Observation(text=" more ", reward=0.25)

    async def close(self) -> None:
        Counter.closed += 1


class Contains:
    """1.0 when the response holds the label; special labels misbehave."""

    async def score(self, view: View) -> float | Score:
        if view.label == "hang":
            await asyncio.Event().wait()
        if view.label == "raise":
            raise LookupError("no judge")
        return float(str(view.label) in view.response)


class Episode:
    """What the environment itself gave."""

    async def score(self, view: View) -> float:
        assert view.environment is not None
        return view.environment.reward or 0.0


class Pair:
    """Two agents at once; the answer is the second one's."""

    async def run(self, rollout: Rollout) -> Outcome:
        agents = [rollout.agent(role, system=f"You are {role}.") for role in ("left", "right")]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(agent.turn(list(rollout.messages))) for agent in agents]
        return Outcome(response=tasks[1].result().content, scores={"turns": 2.0})


class Watched:
    """A trained agent and an untrained watcher."""

    async def run(self, rollout: Rollout) -> Outcome:
        answer = await rollout.agent("solver").turn(list(rollout.messages))
        await rollout.agent("watcher", trained=False).turn(f"Judge: {answer.content}")
        return Outcome(response=answer.content)


class Judged:
    """A solver, and a judge of another model of the run."""

    trained = False

    async def run(self, rollout: Rollout) -> Outcome:
        answer = await rollout.agent("solver").turn(list(rollout.messages))
        judge = rollout.agent("judge", model="judge", trained=self.trained)
        verdict = await judge.turn(f"Judge: {answer.content}")
        return Outcome(response=verdict.content)


class JudgeTrained(Judged):
    trained = True


class Rewarding:
    """Two roles, each with a reward of its own."""

    async def run(self, rollout: Rollout) -> Outcome:
        await rollout.agent("winner").turn(list(rollout.messages))
        await rollout.agent("loser").turn(list(rollout.messages))
        return Outcome(role_rewards={"winner": 1.0, "loser": -0.5})


class Stubborn:
    """Asks one agent again and again."""

    async def run(self, rollout: Rollout) -> Outcome:
        agent = rollout.agent("winner")
        while True:
            await agent.turn(list(rollout.messages))


class Misbehaved:
    """Does what the row's label says a topology must not do."""

    async def run(self, rollout: Rollout) -> Outcome:
        deed = rollout.sample.label
        if deed == "config":
            raise ConfigError("no licence")
        if deed == "cancel":
            raise asyncio.CancelledError
        if deed == "hot":
            rollout.agent("hot", sampling={"temperature": 0.1})
        rollout.sample.metadata["rollhook"] = "changed"
        agent = rollout.agent()
        try:
            await agent.loop(list(rollout.messages))
        except ToolError as error:
            return Outcome(response=str(error), reward=0.25)
        return Outcome()


class Broken:
    async def run(self, rollout: Rollout) -> Outcome:
        await rollout.agent().turn(list(rollout.messages))
        raise ValueError("topology bug")


@hookimpl
def rollhook_tools() -> list[ToolSpec]:
    return [ToolSpec(name="echo", create=lambda config, rollout: Echo())]


@hookimpl
def rollhook_environments() -> list[EnvironmentSpec]:
    return [
        EnvironmentSpec(
            name="counter", create=lambda config, rollout: Counter(), defaults=Defaults(stop=["!"])
        )
    ]


@hookimpl
def rollhook_verifiers() -> list[VerifierSpec]:
    return [
        VerifierSpec(name="contains", create=lambda config, rollout: Contains()),
        VerifierSpec(name="episode", create=lambda config, rollout: Episode()),
    ]


@hookimpl
def rollhook_topologies() -> list[TopologySpec]:
    return [
        TopologySpec(name="pair", create=lambda config, rollout: Pair()),
        TopologySpec(name="watched", create=lambda config, rollout: Watched()),
        TopologySpec(name="judged", create=lambda config, rollout: Judged()),
        TopologySpec(name="judge-trained", create=lambda config, rollout: JudgeTrained()),
        TopologySpec(name="rewarding", create=lambda config, rollout: Rewarding(), credit="roles"),
        TopologySpec(name="stubborn", create=lambda config, rollout: Stubborn(), credit="roles"),
        TopologySpec(name="misbehaved", create=lambda config, rollout: Misbehaved()),
        TopologySpec(name="broken", create=lambda config, rollout: Broken()),
    ]


def plugins() -> Plugins:
    """The items above as the plugin `w`."""
    found = Plugins(entry_points=[])
    found.add(
        "w",
        SimpleNamespace(
            rollhook_tools=rollhook_tools,
            rollhook_environments=rollhook_environments,
            rollhook_verifiers=rollhook_verifiers,
            rollhook_topologies=rollhook_topologies,
        ),
    )
    return found


@asynccontextmanager
async def running(
    tokenizer: Any, script: list[Any] | Callable[..., Any], **config: Any
) -> AsyncIterator[tuple[Runtime, ScriptedEngine]]:
    """A runtime of those plugins on a scripted engine."""
    async with ScriptedEngine(tokenizer, script) as engine:
        settings = {"engine": engine.url, "tool_parser": "qwen25", "retries": 1, **config}
        async with Runtime(RunConfig(**settings), plugins=plugins(), tokenizer=tokenizer) as runtime:
            yield runtime, engine


def row(label: Any = "4", index: int = 7, **rollhook: Any) -> Sample:
    return Sample(index=index, group_index=3, prompt="2+2?", label=label, metadata={"rollhook": rollhook})


def error_of(sample: Sample) -> dict[str, Any]:
    error: dict[str, Any] = sample.metadata["rollhook_result"]["error"]
    return error


def runtime_tokens(engine: Any) -> int:
    return sum(len(sampled.token_ids) for sampled in engine.sampled)
