"""Finished Samples and their scores; several verifiers summed by weight; groups."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rollhook import RunConfig, Runtime, Sample, Score, run_rollout
from rollhook.errors import RolloutError
from rollhook.generate import reward_samples
from rollhook.items import SpecError
from rollhook.scoring import score_samples
from rollhook.testing import ScriptedEngine
from tests.unit.verifiers.world import scored, values

TWO = [{"name": "number", "weight": 0.9}, {"name": "format", "tags": ["answer"], "weight": 0.1}]


async def test_several_verifiers_are_summed_by_weight_with_a_part_for_each() -> None:
    right, plain, wrong = await scored(TWO, "<answer>4</answer>", "4", "5")

    assert right == Score(1.0, {"number": 1.0, "format": 1.0, "format.answer": 1.0})
    assert plain == Score(0.9, {"number": 1.0, "format": 0.0, "format.answer": 0.0})
    assert wrong == Score(0.0, {"number": 0.0, "format": 0.0, "format.answer": 0.0})


async def test_one_verifier_with_a_weight_is_scaled_and_without_one_left_as_it_is() -> None:
    [scaled] = await scored({"name": "number", "weight": -2}, "4")
    [same] = await scored(["f1"], "4 or so")

    assert scaled == Score(-2.0, {"number": 1.0})
    assert isinstance(same, Score)
    assert set(same.parts) == {"precision", "recall"}


@pytest.mark.parametrize(
    ("verifier", "message"),
    [
        ([{"name": "number"}, {"name": "numbr"}], r'verifier\[1\]: .*did you mean "number"\?'),
        (["number", "rollhook/number"], r"verifier\[1\]: names rollhook/number a second time"),
        ([{"name": "number", "weight": "heavy"}], r"verifier\[0\].weight: expected a valid number"),
        ([{"name": "number", "weight": math.inf}], r"verifier\[0\].weight: expected a finite number"),
        ([{"name": "number", "wieght": 1}], r"verifier.wieght: unknown key"),
        ([{"weight": 1}], r"verifier\[0\].name: is required"),
        (
            ["number", {"name": "judge", "url": "http://127.0.0.1"}],
            r'verifier\[1\].url: a row may not set "url"',
        ),
        ([], "the row names none"),
    ],
)
async def test_what_is_wrong_with_a_list_is_told_by_its_place(verifier: Any, message: str) -> None:
    [error] = await scored(verifier, "4", settings={"judge": {"model": "m"}})

    assert isinstance(error, RolloutError)
    with pytest.raises(RolloutError, match=message):
        raise error


async def test_one_failing_verifier_fails_the_row_and_is_named() -> None:
    [error] = await scored(["f1", "number"], "4", label="no number")

    assert isinstance(error, RolloutError)
    assert (error.plugin, error.stage) == ("rollhook/number", "verifier")


async def test_a_row_may_turn_an_inherited_verifier_off() -> None:
    config = RunConfig(default={"verifier": "number"})
    resolver = Runtime(config).resolver

    assert [choice.name for choice in resolver.resolve({}).verifiers] == ["rollhook/number"]
    assert resolver.resolve({"rollhook": {"verifier": []}}).verifiers == ()


async def test_a_live_rollout_is_scored_by_all_of_them(smollm2_tokenizer: Any) -> None:
    row = Sample(index=0, prompt="2 + 2?", label="4", metadata={"rollhook": {"verifier": TWO}})
    async with ScriptedEngine(smollm2_tokenizer, ["It is 4."]) as engine:
        config = RunConfig(engine=engine.url)
        async with Runtime(config, tokenizer=smollm2_tokenizer) as runtime:
            [sample] = await run_rollout(runtime, row, {})
            [again] = await score_samples(runtime, [sample])

    assert sample.reward == 0.9
    assert sample.metadata["rollhook_result"]["scores"] == {
        "number": 1.0,
        "format": 0.0,
        "format.answer": 0.0,
    }
    assert again == Score(0.9, sample.metadata["rollhook_result"]["scores"])


async def test_a_groups_verifier_leaves_live_rewards_open_until_the_group_is_there(
    smollm2_tokenizer: Any,
) -> None:
    verifier = [{"name": "majority", "by": "number", "weight": 0.5}, {"name": "number", "weight": 0.5}]
    rows = [
        Sample(
            index=i, group_index=0, prompt="2 + 2?", label="4", metadata={"rollhook": {"verifier": verifier}}
        )
        for i in range(3)
    ]
    async with (
        ScriptedEngine(smollm2_tokenizer, ["4", "It is 4.", "5"]) as engine,
        Runtime(RunConfig(engine=engine.url), tokenizer=smollm2_tokenizer) as runtime,
    ):
        samples = [(await run_rollout(runtime, row, {}))[0] for row in rows]
        open_rewards = [sample.reward for sample in samples]
        rewards = await reward_samples(runtime, samples)

    assert open_rewards == [None, None, None]
    assert rewards == [1.0, 1.0, 0.0]


async def test_groups_are_told_apart_and_siblings_are_one_answer() -> None:
    def said(group: int, rollout: int, text: str) -> Sample:
        metadata = {"rollhook": {"verifier": "majority"}}
        return Sample(group_index=group, rollout_id=rollout, prompt="q", response=text, metadata=metadata)

    samples = [said(0, 0, "a b"), said(0, 0, "a b"), said(0, 1, "c"), said(1, 2, "c"), said(1, 3, "c")]
    async with Runtime(RunConfig()).scoring() as runtime:
        results = await score_samples(runtime, samples)

    assert values(results) == [0.0, 0.0, 0.0, 1.0, 1.0]


async def test_a_row_that_cannot_be_resolved_takes_no_score_from_others() -> None:
    good = Sample(index=0, response="4", label="4", metadata={"rollhook": {"verifier": "number"}})
    bad = Sample(index=1, response="4", label="4", metadata={"rollhook": {"verifier": "nobody"}})
    async with Runtime(RunConfig()).scoring() as runtime:
        first, second = await score_samples(runtime, [good, bad])

    assert first == Score(1.0)
    assert isinstance(second, SpecError)


async def test_one_verifier_for_all_is_configured_as_the_row_does_where_it_names_it() -> None:
    rows = [
        Sample(
            index=0,
            response="<a>4</a>",
            label="4",
            metadata={"rollhook": {"verifier": {"name": "exact_match", "tag": "a", "weight": 5}}},
        ),
        Sample(index=1, response="4", label="4"),
    ]
    async with Runtime(RunConfig()).scoring() as runtime:
        by = runtime.resolver.choose("verifier", "exact_match")
        results = await score_samples(runtime, rows, by=by)

    assert values(results) == [1.0, 1.0]


@pytest.mark.parametrize(
    "result",
    [
        "abc",
        ["answer"],
        {"answer": ["4"], "environment": "won", "credit": "all"},
        {"environment": {"reward": 1.0}, "credit": {"share": 9}},
    ],
)
async def test_a_record_that_is_none_of_ours_is_scored_as_if_it_were_not_there(result: Any) -> None:
    """Samples of another generate function: a data file may hold anything under our name."""
    metadata = {"rollhook": {"verifier": "number"}, "rollhook_result": result}
    sample = Sample(index=1, rollout_id=1, prompt="2+2?", label="4", response="4", metadata=metadata)
    bad = Sample(index=2, rollout_id=2, prompt="q", metadata={"rollhook_result": result})
    bad.tokens, bad.response_length = [1, 2], 1
    async with Runtime(RunConfig()).scoring() as runtime:
        assert await reward_samples(runtime, [sample, bad]) == [1.0, 0.0]
    assert bad.remove_sample
