"""What tools and environments say: its name reaches the spans, and it may end the episode."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rollhook import (
    EnvironmentSpec,
    Observation,
    Plugins,
    Rollout,
    RunConfig,
    Runtime,
    Sample,
    Status,
    ToolResult,
    ToolSpec,
    Turn,
    hookimpl,
    run_rollout,
)
from rollhook.testing import ScriptedEngine


class Find:
    """A tool that finds what it is asked for; `end` ends the episode."""

    description = "Finds."
    parameters: dict[str, Any] = {"type": "object"}

    def __init__(self, name: str, kind: str | None) -> None:
        self.name = name
        self.kind = kind

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        what = arguments["what"]
        return ToolResult(f"here is {what}", kind=self.kind, done=what == "end")


class World:
    """Answers "text" in the open turn, "messages" by two messages, and everything else by the end."""

    def __init__(self, rollout: Rollout) -> None:
        self.count = rollout.count_tokens
        self.steps = 0

    async def reset(self, rollout: Rollout) -> Observation:
        return Observation(kind="ignored")

    async def step(self, turn: Turn) -> Observation:
        self.steps += 1
        if "text" in turn.text:
            return Observation(text=" <seen> ", kind="page")
        if "messages" in turn.text:
            said = [{"role": "user", "content": f"{place} page"} for place in ("first", "second")]
            return Observation(messages=said, kind="page" if "all" in turn.text else [None, "page"])
        return Observation(done=True, reward=0.5, info={"steps": self.steps, "tokens": self.count("a b")})

    async def close(self) -> None:
        pass


@hookimpl
def rollhook_tools() -> list[ToolSpec]:
    return [
        ToolSpec(name="find", create=lambda config, rollout: Find("find", "retrieved")),
        ToolSpec(name="plain", create=lambda config, rollout: Find("plain", None)),
    ]


@hookimpl
def rollhook_environments() -> list[EnvironmentSpec]:
    return [EnvironmentSpec(name="world", create=lambda config, rollout: World(rollout))]


@asynccontextmanager
async def running(tokenizer: Any, script: list[str]) -> AsyncIterator[tuple[Runtime, ScriptedEngine]]:
    plugins = Plugins(entry_points=[])
    hooks = {"rollhook_tools": rollhook_tools, "rollhook_environments": rollhook_environments}
    plugins.add("w", SimpleNamespace(**hooks))
    async with ScriptedEngine(tokenizer, script) as engine:
        config = RunConfig(engine=engine.url, tool_parser="qwen25")
        async with Runtime(config, plugins=plugins, tokenizer=tokenizer) as runtime:
            yield runtime, engine


async def rollout(tokenizer: Any, *script: str, **row: Any) -> tuple[Sample, ScriptedEngine]:
    async with running(tokenizer, list(script)) as (runtime, engine):
        [sample] = await run_rollout(runtime, Sample(index=0, prompt="q", metadata={"rollhook": row}), {})
    return sample, engine


def call(name: str, what: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'what': what}})}\n</tool_call>"


def spans(tokenizer: Any, sample: Sample) -> list[tuple[str, str]]:
    """Kind and text of each span behind the prompt."""
    found = sample.metadata["rollhook_result"]["spans"][1:]
    return [
        (s["kind"], tokenizer.decode(sample.tokens[s["start"] : s["start"] + s["length"]])) for s in found
    ]


HEAD = "<|im_end|>\n<|im_start|>assistant\n"


async def test_of_two_tools_answers_the_named_one_is_its_own_tokens(qwen3_tokenizer: Any) -> None:
    sample, _ = await rollout(
        qwen3_tokenizer, call("plain", "a") + call("find", "b"), "done", tools=["w/find", "w/plain"]
    )

    [before, named, after] = spans(qwen3_tokenizer, sample)
    assert before[0] == after[0] == "messages"
    assert "here is a" in before[1]
    assert named == ("retrieved", "here is b")
    assert after[1] == "\n</tool_response>" + HEAD


@pytest.mark.parametrize(
    ("asked", "kinds"),
    [
        ("text!", ["page"]),
        ("messages!", ["messages", "page", "messages"]),
        ("messages, all", ["messages", "page", "messages", "page", "messages"]),
    ],
)
async def test_an_environment_names_what_it_shows(
    smollm2_tokenizer: Any, asked: str, kinds: list[str]
) -> None:
    sample, _ = await rollout(smollm2_tokenizer, asked, "end", environment="w/world")

    made = spans(smollm2_tokenizer, sample)
    assert [kind for kind, _ in made] == kinds
    shown = [text for kind, text in made if kind == "page"]
    assert shown == {"t": [" <seen> "], "m": ["first page", "second page"]}[asked[0]][-len(shown) :]


async def test_a_tool_ends_the_episode_and_the_environment_says_what_it_came_to(qwen3_tokenizer: Any) -> None:
    sample, engine = await rollout(
        qwen3_tokenizer,
        call("find", "a"),
        call("plain", "b") + call("find", "end"),
        environment="w/world",
        tools=["w/find", "w/plain"],
    )

    assert len(engine.requests) == 2
    assert sample.status is Status.COMPLETED
    assert sample.metadata["rollhook_result"]["environment"] == {
        "reward": 0.5,
        "done": True,
        "info": {"steps": 1, "tokens": 2},
    }
    assert (sample.loss_mask or [0])[-1] == 1


async def test_without_a_model_tokens_cannot_be_counted() -> None:
    async with Runtime(RunConfig(), plugins=Plugins(entry_points=[])).scoring() as runtime:
        with pytest.raises(RuntimeError, match="tokens cannot be counted here"):
            runtime.count_tokens("text")
