from __future__ import annotations

import asyncio
import re
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from rollhook import (
    EngineRejected,
    LimitReached,
    RoleConfig,
    RolesConfig,
    Rollout,
    RolloutAborted,
    RowError,
    settle,
)
from rollhook.roles import RoleSampling
from tests.contracts.pages import ROOT, first_column, sections, table
from tests.unit.acting import acted, kinds


class Config(RolesConfig[Literal["solver", "judge"]]):
    pass


def test_a_role_nobody_configured_is_played_by_the_policy() -> None:
    assert Config().role("judge") == RoleConfig()
    assert Config(roles={"judge": RoleConfig(max_turns=2)}).role("judge").max_turns == 2


@pytest.mark.parametrize(
    "roles",
    [
        {"jugde": {}},
        {"judge": {"sampling": {"temperature": 9}}},
        {"judge": {"sampling": {"n": 2}}},
        {"judge": {"max_turns": 0}},
        {"judge": {"model": "other", "trained": True}},
        {"judge": {"temperature": 0.5}},
    ],
)
def test_what_no_role_can_have_is_refused(roles: Any) -> None:
    with pytest.raises(ValidationError):
        Config.model_validate({"roles": roles})


def test_the_page_lists_every_key_of_a_role() -> None:
    page = sections(ROOT / "docs" / "topologies.md")["Roles"]

    assert first_column(page) == list(RoleConfig.model_fields)
    assert set(re.findall(r"`(\w+)`", next(row[1] for row in table(page) if row[0] == "sampling"))) == set(
        RoleSampling.model_fields
    )


async def test_a_configured_role_has_its_prompt_tools_sampling_and_budget(qwen3_tokenizer: Any) -> None:
    said = {
        "system": "Judge.",
        "trained": False,
        "tools": ["echo"],
        "sampling": {"temperature": 0.0, "top_k": 5},
        "max_new_tokens": 7,
    }
    role = RoleConfig.model_validate(said)

    async def act(rollout: Rollout) -> None:
        await role.agent(rollout, "judge", tools=[]).turn("one")
        await RoleConfig().agent(rollout, "solver", tools=[]).turn("two")

    samples, engine = await acted(qwen3_tokenizer, ["a", "b"], act, tools="w/echo")

    judge, solver = engine.requests
    sampling = {key: judge.sampling[key] for key in ("temperature", "top_k", "max_new_tokens")}
    assert sampling == {"temperature": 0.0, "top_k": 5, "max_new_tokens": 7}
    assert "Judge." in judge.prompt
    assert ('"name": "echo"' in judge.prompt, '"name": "echo"' in solver.prompt) == (True, False)
    assert kinds(samples) == [("solver", "solver", "completed")]


async def test_a_tool_the_row_lacks_fails_the_rollout(qwen3_tokenizer: Any) -> None:
    async def act(rollout: Rollout) -> None:
        RoleConfig(tools=("ehco",)).agent(rollout, "judge")

    [sample], _ = await acted(qwen3_tokenizer, [], act, tools="w/echo")

    message = sample.metadata["rollhook_result"]["error"]["message"]
    assert message.endswith("role 'judge' may call ehco, but the row's tools are: echo")


async def value(of: Any) -> Any:
    await asyncio.sleep(0)
    if isinstance(of, BaseException):
        raise of
    return of


async def test_what_befalls_one_role_stands_in_its_place() -> None:
    full, refused = LimitReached("max_turns"), EngineRejected("400")

    assert await settle(value(1), value(full), value(refused), value(2)) == [1, full, refused, 2]


@pytest.mark.parametrize("error", [RolloutAborted(), RowError("no"), ValueError("bug")])
async def test_what_is_no_roles_fault_ends_all(error: Exception) -> None:
    waiting = asyncio.Event()
    with pytest.raises(ExceptionGroup) as raised:
        await settle(value(error), waiting.wait())

    assert raised.value.exceptions == (error,)


async def test_cancellation_reaches_every_role() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    task = asyncio.create_task(settle(wait(), wait()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert ended == [1, 1]
