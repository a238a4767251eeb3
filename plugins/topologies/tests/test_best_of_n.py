from __future__ import annotations

from typing import Any

import pytest

from rollhook.testing import Fault, Reply
from rollhook.testing.replies import ScriptedRequest

NAME = "topologies/best-of-n"


@pytest.mark.parametrize(("reward", "rewards"), [("own", [0.0, 0.0, 1.0]), ("best", [1.0, 1.0, 1.0])])
async def test_every_candidate_is_scored_and_the_best_one_is_the_answer(
    smollm2_tokenizer: Any, player: Any, reward: str, rewards: list[float]
) -> None:
    row = {"name": NAME, "candidates": 3, "reward": reward}
    played = await player.play(smollm2_tokenizer, ["3", "5", "It is 4"], row)

    assert sorted((told.trained, told.reward) for told in played.told) == list(
        zip(["3|", "5|", "It is 4|"], rewards, strict=True)
    )
    assert [(told.role, told.kind) for told in played.told] == [
        (f"candidate_{number}", f"candidate_{number}") for number in (1, 2, 3)
    ]
    assert played.result()["answer"] == "It is 4"
    assert played.result()["rollout_reward"] == 1.0
    assert played.scores == {"best": 1.0, "mean": pytest.approx(1 / 3)}
    assert played.trained_tokens == played.sampled_tokens


async def test_candidates_are_in_flight_at_once(smollm2_tokenizer: Any, player: Any) -> None:
    played = await player.play(
        smollm2_tokenizer, lambda request: Reply("4", delay_s=0.2), {"name": NAME, "candidates": 6}
    )

    assert played.engine.peak_in_flight == 6


async def test_of_equally_good_candidates_the_earliest_wins(smollm2_tokenizer: Any, player: Any) -> None:
    played = await player.play(smollm2_tokenizer, ["1", "2", "3"], {"name": NAME, "candidates": 3})

    assert played.told[0].trained == f"{played.result()['answer']}|"


async def test_a_candidate_that_failed_never_wins(smollm2_tokenizer: Any, player: Any) -> None:
    waiting = ["a bad 4", "5 is done"]

    def lines(request: ScriptedRequest) -> Reply | str:
        failing = Reply("4", fault=Fault.status(400, times=None))
        return failing if "a bad 4" in request.prompt else waiting.pop(0)

    row = {"name": NAME, "candidates": 2}
    played = await player.play(smollm2_tokenizer, lines, row, environment="world/steps")

    assert sorted(
        (told.trained, told.reward, sample.status.value)
        for told, sample in zip(played.told, played.samples, strict=True)
    ) == [("5 is done|", 0.0, "completed"), ("a bad 4|", 0.0, "truncated")]
    assert played.result()["answer"] == "5 is done"


async def test_a_candidate_cut_at_its_budget_is_scored_as_it_is(smollm2_tokenizer: Any, player: Any) -> None:
    row = {"name": NAME, "candidates": 1, "roles": {"candidate": {"max_new_tokens": 2}}}
    played = await player.play(smollm2_tokenizer, ["The answer is 4"], row)

    assert played.engine.requests[0].sampling["max_new_tokens"] == 2
    assert [(sample.status.value, sample.reward) for sample in played.samples] == [("truncated", 0.0)]


async def test_a_row_without_a_verifier_fails_before_the_first_token(
    smollm2_tokenizer: Any, player: Any
) -> None:
    played = await player.play(smollm2_tokenizer, [], NAME, verifier=[])

    assert "the row needs a verifier" in played.error["message"]
    assert played.engine.requests == []
