"""One rollout of a topology of this plugin on a scripted engine, and small things to act with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from rollhook import (
    Defaults,
    EnvironmentSpec,
    Observation,
    Plugins,
    Rollout,
    RunConfig,
    Runtime,
    Sample,
    ToolResult,
    ToolSpec,
    Turn,
    hookimpl,
    run_rollout,
)
from rollhook.testing import Reply, ScriptedEngine
from rollhook.testing.replies import ScriptedRequest

ENTRY_POINT = EntryPoint("topologies", "rollhook_topologies.hooks", "rollhook.plugins")
QUESTION = "What is 2 + 2?"

Script = Callable[[ScriptedRequest], Reply | str] | Sequence[Reply | str]


class Steps:
    """Answers every turn, in turn as messages and into the open turn, until one says `done`."""

    def __init__(self, config: object, rollout: Rollout) -> None:
        self.steps = 0

    async def reset(self, rollout: Rollout) -> Observation:
        return Observation()

    async def step(self, turn: Turn) -> Observation:
        self.steps += 1
        if "done" in turn.text:
            return Observation(done=True)
        if self.steps % 2:
            return Observation(messages=[{"role": "user", "content": f"step {self.steps}"}], kind="step")
        return Observation(text=f" [step {self.steps}] ", kind="step")

    async def close(self) -> None:
        pass


class Look:
    name = "look"
    description = "Looks something up."
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {"what": {"type": "string"}},
        "required": ["what"],
    }

    def __init__(self, config: object, rollout: Rollout) -> None:
        pass

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult(f"seen: {arguments['what']}")


class World:
    """The items above, as the plugin `world`."""

    @hookimpl
    def rollhook_environments(self) -> list[EnvironmentSpec]:
        return [EnvironmentSpec(name="steps", create=Steps, defaults=Defaults(stop="</step>"))]

    @hookimpl
    def rollhook_tools(self) -> list[ToolSpec]:
        return [ToolSpec(name="look", create=Look)]


@dataclass(frozen=True)
class Told:
    """What a rollout's sample says, in the form tests compare. trained: the text under mask 1."""

    role: str
    kind: str
    reward: Any
    trained: str


@dataclass(frozen=True)
class Played:
    """One rollout: its samples, and the engine of the policy with all it was asked."""

    samples: list[Sample]
    engine: ScriptedEngine
    tokenizer: Any

    @property
    def told(self) -> list[Told]:
        return [
            Told(self.result(at)["role"], self.result(at)["kind"], sample.reward, self.trained(sample))
            for at, sample in enumerate(self.samples)
        ]

    @property
    def scores(self) -> dict[str, float]:
        scores: dict[str, float] = self.result()["scores"]
        return scores

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.result()["error"]
        return error

    def result(self, at: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.samples[at].metadata["rollhook_result"]
        return found

    def trained(self, sample: Sample) -> str:
        assert sample.loss_mask is not None
        assert sample.rollout_log_probs is not None
        response = sample.tokens[-sample.response_length :]
        pairs = zip(response, sample.loss_mask, sample.rollout_log_probs, strict=True)
        kept = [(token, log_prob) for token, mask, log_prob in pairs if mask]
        assert all(log_prob < 0.0 for _, log_prob in kept)
        text: str = self.tokenizer.decode([token for token, _ in kept])
        return text.replace("<|im_end|>", "|")

    @property
    def trained_tokens(self) -> int:
        return sum(sum(sample.loss_mask or []) for sample in self.samples)

    @property
    def sampled_tokens(self) -> int:
        return sum(len(turn.token_ids) for turn in self.engine.sampled)


class Player:
    """Opens runs whose engine says what the script says."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack

    async def runtime(
        self, tokenizer: Any, script: Script, *, models: dict[str, Script] | None = None, **config: Any
    ) -> tuple[Runtime, ScriptedEngine]:
        engine = await self.stack.enter_async_context(ScriptedEngine(tokenizer, script))
        urls = {}
        for name, lines in (models or {}).items():
            urls[name] = (await self.stack.enter_async_context(ScriptedEngine(tokenizer, lines))).url
        settings = {"engine": engine.url, "retries": 0, "models": urls, **config}
        return await self.enter(tokenizer=tokenizer, **settings), engine

    async def enter(self, *, tokenizer: Any = None, **config: Any) -> Runtime:
        """A run with this plugin and the items above."""
        plugins = Plugins(entry_points=[ENTRY_POINT])
        plugins.add("world", World())
        settings = RunConfig(**{"seed": 1, "tool_parser": "qwen25", **config})
        run = Runtime(settings, plugins=plugins, tokenizer=tokenizer)
        return await self.stack.enter_async_context(run)

    async def play(
        self,
        tokenizer: Any,
        script: Script,
        topology: str | dict[str, Any],
        *,
        prompt: Any = QUESTION,
        label: str = "4",
        models: dict[str, Script] | None = None,
        evaluation: bool = False,
        **row: Any,
    ) -> Played:
        """One rollout. row: the rest of what it says."""
        runtime, engine = await self.runtime(tokenizer, script, models=models)
        spec = {"topology": topology, "verifier": "number", **row}
        sample = Sample(index=5, prompt=prompt, label=label, metadata={"rollhook": spec})
        samples = await run_rollout(runtime, sample, {"temperature": 1.0}, evaluation=evaluation)
        return Played(samples, engine, tokenizer)


@pytest.fixture
async def player() -> Any:
    async with AsyncExitStack() as stack:
        yield Player(stack)
