"""Limits of a rollout: what ends it, and what it then came to."""

from __future__ import annotations

from typing import Any

import pytest

from rollhook import Rollout, Status, run_rollout
from rollhook.testing import Reply
from tests.unit.acting import acted
from tests.unit.worlds import error_of, row, running, runtime_tokens


@pytest.mark.parametrize(
    ("limits", "script", "texts"),
    [
        ({"max_new_tokens": 2}, ["one two three four"], 1),
        ({"max_turns": 2}, ["one!", "two!", "three!"], 2),
        ({"max_context_tokens": 55}, ["one!", "two!"] * 20, None),
        ({"max_context_tokens": 55}, ["one two three four " * 20], None),
    ],
)
async def test_a_limit_ends_a_rollout_as_truncated_and_still_scored(
    smollm2_tokenizer: Any, limits: dict[str, Any], script: list[str], texts: int | None
) -> None:
    async with running(smollm2_tokenizer, script) as (runtime, engine):
        [sample] = await run_rollout(
            runtime, row(label="o", environment="w", verifier="w/contains", limits=limits), {}
        )

    assert (sample.status, sample.reward) == (Status.TRUNCATED, 1.0)
    assert [sample.metadata["rollhook_result"]["limit"]] == list(limits)
    assert sum(sample.loss_mask or []) == runtime_tokens(engine)
    if texts is not None:
        assert len(engine.requests) == texts
    else:
        assert len(sample.tokens) <= 55


async def test_the_wall_clock_ends_a_rollout_as_truncated(smollm2_tokenizer: Any) -> None:
    script = ["one!", Reply("two!", delay_s=60)]
    async with running(smollm2_tokenizer, script) as (runtime, engine):
        [sample] = await run_rollout(runtime, row(environment="w", limits={"timeout_s": 1.0}), {})

    assert (sample.status, sample.response, sample.reward) == (Status.TRUNCATED, "one!", 0.25)
    assert sample.metadata["rollhook_result"]["limit"] == "timeout_s"
    assert engine.in_flight == 0


async def test_an_environment_that_never_resets_is_named(smollm2_tokenizer: Any) -> None:
    async with running(smollm2_tokenizer, []) as (runtime, _):
        [sample] = await run_rollout(
            runtime, row(label="hang", environment="w", limits={"timeout_s": 0.3}), {}
        )

    assert (error_of(sample)["plugin"], sample.status) == ("w/counter", Status.FAILED)
    assert "w/counter: nothing was sampled: the rollout reached timeout_s" in error_of(sample)["message"]


async def test_a_prompt_that_leaves_no_room_fails_and_says_so(smollm2_tokenizer: Any) -> None:
    async with running(smollm2_tokenizer, ["4"]) as (runtime, engine):
        [sample] = await run_rollout(runtime, row(limits={"max_context_tokens": 5}), {})

    assert error_of(sample)["message"] == "nothing was sampled: the rollout reached max_context_tokens"
    assert engine.requests == []


async def test_a_limit_that_keeps_roles_from_their_rewards_is_no_failure(smollm2_tokenizer: Any) -> None:
    stubborn = row(topology="w/stubborn", verifier="number", limits={"max_turns": 2})
    async with running(smollm2_tokenizer, ["4"] * 2) as (runtime, _):
        [sample] = await run_rollout(runtime, stubborn, {})

    assert (sample.status, sample.reward) == (Status.TRUNCATED, 1.0)


async def test_of_several_agents_cut_short_by_a_limit_none_had_the_last_word(
    smollm2_tokenizer: Any,
) -> None:
    async def act(rollout: Rollout) -> None:
        await rollout.agent("solver", max_turns=1).turn("2 + 2?")
        critic = rollout.agent("critic", max_turns=1)
        await critic.turn("Is it right?")
        await critic.turn("Are you sure?")

    samples, _ = await acted(smollm2_tokenizer, ["5", "None of it."], act, verifier="w/contains")

    assert [(s.status, s.reward) for s in samples] == [(Status.TRUNCATED, 0.0)] * 2
    assert samples[0].metadata["rollhook_result"]["answer"] == ""


async def test_roles_that_a_limit_kept_from_their_rewards_earned_nothing_where_nobody_else_scores(
    smollm2_tokenizer: Any,
) -> None:
    stubborn = row(topology="w/stubborn", limits={"max_turns": 2})
    async with running(smollm2_tokenizer, ["4"] * 2) as (runtime, _):
        samples = await run_rollout(runtime, stubborn, {})

    assert [(s.status, s.reward) for s in samples] == [(Status.TRUNCATED, 0.0)]
    assert samples[0].metadata["rollhook_result"]["rollout_reward"] == 0.0


@pytest.mark.parametrize(
    ("sampling", "limits", "sent"),
    [
        ({}, {}, 1024),
        ({"max_new_tokens": 4096}, {}, 4096),
        ({"max_new_tokens": 4096}, {"max_new_tokens": 64}, 64),
        ({"max_new_tokens": 32}, {"max_new_tokens": 64}, 32),
    ],
)
async def test_a_turn_is_as_long_as_the_trainer_asks_and_the_limit_allows(
    smollm2_tokenizer: Any, sampling: dict[str, Any], limits: dict[str, Any], sent: int
) -> None:
    async with running(smollm2_tokenizer, ["4"]) as (runtime, engine):
        await run_rollout(runtime, row(verifier="number", limits=limits), sampling)

    assert engine.requests[0].sampling["max_new_tokens"] == sent


async def test_evaluation_has_its_own_context_limit(smollm2_tokenizer: Any) -> None:
    config = {"limits": {"max_context_tokens": 5}, "eval_max_context_tokens": 200}
    async with running(smollm2_tokenizer, ["4"], **config) as (runtime, _):
        [trained] = await run_rollout(runtime, row(verifier="number"), {})
        [evaluated] = await run_rollout(runtime, row(verifier="number"), {}, evaluation=True)

    assert (trained.status, evaluated.status) == (Status.FAILED, Status.COMPLETED)
