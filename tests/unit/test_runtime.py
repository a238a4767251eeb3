"""One Runtime a loop and configuration; shared resources opened once and closed; run faults raise at once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

import rollhook
from rollhook import (
    ConfigError,
    Plugins,
    RunConfig,
    Runtime,
    Sample,
    Status,
    ToolResult,
    ToolSpec,
    VerifierSpec,
    View,
    hookimpl,
    run_rollout,
)
from rollhook.runtime import close_runtimes, loops_with_runtimes, runtime_for
from rollhook.testing import ScriptedEngine


class Config(BaseModel):
    factor: int = 1


@dataclass
class Shelf:
    """What the plugin below shares, and the log of its openings and closings."""

    log: list[str] = field(default_factory=list)
    fail: bool = False

    @asynccontextmanager
    async def open(self, config: Config, run: Any) -> AsyncIterator[int]:
        if self.fail:
            raise ConnectionError("index is down")
        task = asyncio.current_task()
        self.log.append(f"open {config.factor}")
        yield config.factor
        assert asyncio.current_task() is task
        self.log.append(f"close {config.factor}")

    def plugins(self) -> Plugins:
        @hookimpl
        def rollhook_verifiers() -> list[VerifierSpec]:
            return [VerifierSpec(name="scale", config=Config, open=self.open, create=Scale)]

        found = Plugins(entry_points=[])
        found.add("shelf", SimpleNamespace(rollhook_verifiers=rollhook_verifiers))
        return found


class Scale:
    def __init__(self, factor: int, rollout: object) -> None:
        self.factor = factor

    async def score(self, view: View) -> float:
        return float(self.factor)


def row(index: int, **config: Any) -> Sample:
    return Sample(
        index=index, prompt="q", metadata={"rollhook": {"verifier": {"name": "shelf/scale", **config}}}
    )


async def test_a_resource_is_opened_once_a_configuration_and_closed_by_the_task_that_opened_it(
    smollm2_tokenizer: Any,
) -> None:
    shelf = Shelf()
    async with ScriptedEngine(smollm2_tokenizer, lambda request: "4") as engine:
        config = RunConfig(engine=engine.url)
        async with Runtime(config, plugins=shelf.plugins(), tokenizer=smollm2_tokenizer) as runtime:
            rows = [row(0), row(1), row(2, factor=3)]
            groups = await asyncio.gather(*(run_rollout(runtime, one, {}) for one in rows))

    assert [group[0].reward for group in groups] == [1.0, 1.0, 3.0]
    assert sorted(shelf.log) == ["close 1", "close 3", "open 1", "open 3"]


async def test_a_resource_that_does_not_open_fails_its_rows_by_name_and_is_tried_again(
    smollm2_tokenizer: Any,
) -> None:
    shelf = Shelf(fail=True)
    async with ScriptedEngine(smollm2_tokenizer, lambda request: "4") as engine:
        config = RunConfig(engine=engine.url)
        async with Runtime(config, plugins=shelf.plugins(), tokenizer=smollm2_tokenizer) as runtime:
            [failed] = await run_rollout(runtime, row(0), {})
            shelf.fail = False
            [good] = await run_rollout(runtime, row(1), {})

    error = failed.metadata["rollhook_result"]["error"]
    assert re.fullmatch(r"tests/unit/test_runtime\.py:\d+ in \w+", error.pop("where"))
    assert error == {
        "stage": "open",
        "plugin": "shelf/scale",
        "type": "ConnectionError",
        "message": "shelf/scale: ConnectionError: index is down",
    }
    assert good.reward == 1.0


async def test_what_create_makes_must_be_of_its_kind(smollm2_tokenizer: Any) -> None:
    @hookimpl
    def rollhook_tools() -> list[ToolSpec]:
        not_a_tool: Any = ToolResult("no tool")
        return [ToolSpec(name="odd", create=lambda config, rollout: not_a_tool)]

    plugins = Plugins(entry_points=[])
    plugins.add("odd", SimpleNamespace(rollhook_tools=rollhook_tools))
    sample = Sample(index=0, prompt="q", metadata={"rollhook": {"tools": "odd"}})
    async with (
        ScriptedEngine(smollm2_tokenizer, ["4"]) as engine,
        Runtime(RunConfig(engine=engine.url), plugins=plugins, tokenizer=smollm2_tokenizer) as runtime,
    ):
        [failed] = await run_rollout(runtime, sample, {})

    message = failed.metadata["rollhook_result"]["error"]["message"]
    assert message == (
        "odd/odd: TypeError: create() returned ToolResult, which is no Tool: "
        "it lacks call, description, name, parameters"
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "the run names no engine"),
        ({"engine": "http://127.0.0.1:9", "retries": 0}, "http://127.0.0.1:9"),
        ({"engine": "http://127.0.0.1:9", "tokenizer": "/nowhere"}, "no tokenizer at '/nowhere'"),
        ({"engine": "http://127.0.0.1:9", "plugins": ["nobody"]}, "nobody"),
        ({"engine": "http://127.0.0.1:9", "default": {"verifier": "nobody"}}, "nobody"),
    ],
)
async def test_a_run_that_cannot_start_raises_before_any_token(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        async with Runtime(RunConfig(**config), plugins=Plugins(entry_points=[])):
            pass


@pytest.fixture
def trainer_args(smollm2_tokenizer: Any) -> Iterator[Any]:
    """What slime passes, with nothing but where the model is."""
    return SimpleNamespace(hf_checkpoint=smollm2_tokenizer.name_or_path)


async def test_generate_and_reward_work_from_a_trainers_args(
    trainer_args: Any, smollm2_tokenizer: Any
) -> None:
    async with ScriptedEngine(smollm2_tokenizer, lambda request: "4") as engine:
        host, port = engine.url.removeprefix("http://").split(":")
        trainer_args.sglang_router_ip, trainer_args.sglang_router_port = host, int(port)
        before = dict(vars(trainer_args))
        sample = Sample(index=5, prompt="2+2?", label="4", metadata={"rollhook": {"verifier": "number"}})
        params = {"temperature": 1.0, "max_new_tokens": 8}

        made = await rollhook.generate(trainer_args, sample, params)
        evaluated = await rollhook.generate(trainer_args, sample, params, evaluation=True)
        assert isinstance(made, list)
        rewards = await rollhook.reward(trainer_args, made)
        empty = await rollhook.reward(trainer_args, [])
        await close_runtimes()

    assert isinstance(evaluated, Sample)
    assert [(s.status, s.reward, s.rollout_id) for s in [*made, evaluated]] == [
        (Status.COMPLETED, 1.0, 5)
    ] * 2
    assert (rewards, empty) == ([1.0], [])
    assert vars(trainer_args) == before
    assert params == {"temperature": 1.0, "max_new_tokens": 8}


async def test_callers_at_once_share_one_runtime_and_a_failed_start_is_not_kept(
    smollm2_tokenizer: Any,
) -> None:
    bad = RunConfig(engine=None)
    for _ in range(2):
        with pytest.raises(ConfigError, match="names no engine"):
            await runtime_for(bad)
    async with ScriptedEngine(smollm2_tokenizer, []) as engine:
        good = RunConfig(engine=engine.url, tokenizer=smollm2_tokenizer.name_or_path)
        first, second = await asyncio.gather(runtime_for(good), runtime_for(good))
        await close_runtimes()

    assert first is second


def test_each_event_loop_has_its_own_runtime(smollm2_tokenizer: Any) -> None:
    async def one() -> Runtime:
        async with ScriptedEngine(smollm2_tokenizer, []) as engine:
            config = RunConfig(engine=engine.url, tokenizer=smollm2_tokenizer.name_or_path)
            runtime = await runtime_for(config)
            await close_runtimes()
            return runtime

    assert asyncio.run(one()) is not asyncio.run(one())


async def test_a_failed_opening_takes_no_later_one_with_it(smollm2_tokenizer: Any) -> None:
    """Who retries at once, while others have not heard of the failure yet, gets a runtime that is kept."""
    async with ScriptedEngine(smollm2_tokenizer, []) as engine:
        config = RunConfig(engine=engine.url, tokenizer="/nowhere")

        async def retrying() -> None:
            for _ in range(2):
                with pytest.raises(ConfigError, match="no tokenizer"):
                    await runtime_for(config)

        await asyncio.gather(retrying(), retrying(), retrying())
        before = asyncio.all_tasks()
        await close_runtimes()

    assert not [task for task in before if task.get_name() == "rollhook open the runtime"]


def test_a_loop_that_ends_closes_what_was_open_on_it(smollm2_tokenizer: Any) -> None:
    async def one() -> Runtime:
        async with ScriptedEngine(smollm2_tokenizer, []) as engine:
            return await runtime_for(RunConfig(engine=engine.url, tokenizer=smollm2_tokenizer.name_or_path))

    client: Any = asyncio.run(one()).engine

    assert client._http is None
    assert loops_with_runtimes() == []
