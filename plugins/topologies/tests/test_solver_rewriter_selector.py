from __future__ import annotations

from typing import Any

import pytest

from rollhook import Status
from rollhook.testing import Fault, Reply
from rollhook.testing.replies import ScriptedRequest
from rollhook_topologies.solver_rewriter_selector import selected

NAME = "topologies/solver-rewriter-selector"


def script(solver: list[str], rewriter: list[str], selector: str) -> Any:
    """Each role by what its prompt asks; which solver gets which line is up to the network."""
    solutions, rewrites = list(solver), list(rewriter)

    def reply(request: ScriptedRequest) -> Reply | str:
        if "end with one line, the number" in request.prompt:
            return selector
        return (rewrites if "solutions by others" in request.prompt else solutions).pop(0)

    return reply


async def test_each_role_is_one_segment_weighed_by_a_right_final_answer(
    smollm2_tokenizer: Any, player: Any
) -> None:
    lines = script(["It is 4."] * 2, ["So 4!"] * 2, "Both.\nSELECT: 2")
    played = await player.play(smollm2_tokenizer, lines, {"name": NAME, "candidates": 2})

    assert [(told.role, told.kind, told.reward, told.trained) for told in played.told] == [
        ("solver_1", "solver_1", 1.2, "It is 4.|"),
        ("solver_2", "solver_2", 1.2, "It is 4.|"),
        ("rewriter_1", "rewriter_1", 1.2, "So 4!|"),
        ("rewriter_2", "rewriter_2", 1.2, "So 4!|"),
        ("selector", "selector", 1.0, "Both.\nSELECT: 2|"),
    ]
    assert played.scores == {"solvers": 1.0, "rewriters": 1.0, "selected": 1.0}
    assert played.result()["rollout_reward"] == 1.0
    assert {sample.rollout_id for sample in played.samples} == {5}
    assert played.trained_tokens == played.sampled_tokens


async def test_a_wrong_final_answer_weighs_right_ones_less(smollm2_tokenizer: Any, player: Any) -> None:
    lines = script(["It is 4."] * 2, ["So 5!"] * 2, "SELECT: 1")
    row = {"name": NAME, "candidates": 2, "wrong_weight": 0.5}
    played = await player.play(smollm2_tokenizer, lines, row)

    assert [told.reward for told in played.told] == [0.5, 0.5, 0.0, 0.0, 0.0]


async def test_rewriters_see_all_solutions_and_the_selector_all_rewrites(
    smollm2_tokenizer: Any, player: Any
) -> None:
    lines = script(["left 3", "right 4"], ["one 4", "two 4"], "SELECT: 1")
    played = await player.play(smollm2_tokenizer, lines, {"name": NAME, "candidates": 2})

    rewriting = [request.prompt for request in played.engine.requests[2:4]]
    [selecting] = [request.prompt for request in played.engine.requests[4:]]
    assert all("left 3" in prompt and "right 4" in prompt for prompt in rewriting)
    assert "one 4" in selecting
    assert "two 4" in selecting
    assert "left 3" not in selecting


async def test_solvers_are_in_flight_at_once(smollm2_tokenizer: Any, player: Any) -> None:
    played = await player.play(
        smollm2_tokenizer, lambda request: Reply("4", delay_s=0.2), {"name": NAME, "candidates": 5}
    )

    assert played.engine.peak_in_flight == 5
    assert len(played.engine.requests) == 11


@pytest.mark.parametrize("selection", ["the second", "SELECT: 9", "SELECT: 0", "", "SELECT: one"])
async def test_a_selection_that_names_no_candidate_is_never_right(
    smollm2_tokenizer: Any, player: Any, selection: str
) -> None:
    lines = script(["4"] * 2, ["4"] * 2, selection)
    played = await player.play(smollm2_tokenizer, lines, {"name": NAME, "candidates": 2})

    assert [told.reward for told in played.told] == [0.8, 0.8, 0.8, 0.8, 0.0]
    assert played.result()["rollout_reward"] == 0.0
    assert (played.result()["answer"], played.scores["selected"]) == ("4", 0.0)


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("SELECT: 2", 2),
        ("So\n**SELECT: 3**\n", 3),
        ("SELECT: 1\nno,\nSELECT: 2.", 2),
        ("SELECT: [1]", 1),
        ("I SELECT: 2", None),
        ("SELECT: 1 or 2", None),
        ("SELECT: 1000", None),
        ("\n" * 200_000, None),
    ],
)
def test_the_last_line_that_selects_counts(said: str, number: int | None) -> None:
    assert selected(said) == number


async def test_solvers_that_fail_are_left_out_and_earn_nothing(smollm2_tokenizer: Any, player: Any) -> None:
    solutions = ["a bad 4", "4 is done"]

    def lines(request: ScriptedRequest) -> Reply | str:
        if "SELECT" in request.prompt:
            return "SELECT: 1"
        if "a bad 4" in request.prompt:
            return Reply("4", fault=Fault.status(400, times=None))
        return "so 4" if "solutions by others" in request.prompt else solutions.pop(0)

    row = {"name": NAME, "candidates": 2}
    played = await player.play(smollm2_tokenizer, lines, row, environment="world/steps")

    assert sorted((told.trained, told.reward) for told in played.told) == [
        ("4 is done|", 1.2),
        ("SELECT: 1|", 1.0),
        ("a bad 4|", 0.0),
        ("so 4|", 1.2),
        ("so 4|", 1.2),
    ]
    rewriting = next(r.prompt for r in played.engine.requests if "solutions by others" in r.prompt)
    assert "4 is done" in rewriting
    assert rewriting.count("Solution ") == 1


async def test_when_all_solvers_fail_the_rollout_does_with_the_engines_cause(
    smollm2_tokenizer: Any, player: Any
) -> None:
    fault = Fault.status(400, times=None)
    played = await player.play(smollm2_tokenizer, lambda request: Reply("4", fault=fault), NAME)

    assert played.samples[0].status is Status.FAILED
    assert (played.error["stage"], played.error["type"]) == ("engine", "EngineRejected")


async def test_without_rewrites_the_selector_chooses_among_the_solutions(
    smollm2_tokenizer: Any, player: Any
) -> None:
    def lines(request: ScriptedRequest) -> Reply | str:
        if "SELECT" in request.prompt:
            return "SELECT: 2"
        failing = Reply("4", fault=Fault.status(400, times=None))
        return failing if "solutions by others" in request.prompt else "4"

    played = await player.play(smollm2_tokenizer, lines, {"name": NAME, "candidates": 2})

    assert [(told.role, told.reward) for told in played.told] == [
        ("solver_1", 1.2),
        ("solver_2", 1.2),
        ("selector", 1.0),
    ]


async def test_a_selector_of_another_model_trains_nothing(smollm2_tokenizer: Any, player: Any) -> None:
    row = {"name": NAME, "candidates": 2, "roles": {"selector": {"model": "judge"}}}
    played = await player.play(smollm2_tokenizer, ["4"] * 4, row, models={"judge": ["SELECT: 1"]})

    assert [told.role for told in played.told] == ["solver_1", "solver_2", "rewriter_1", "rewriter_2"]
    assert played.result()["rollout_reward"] == 1.0


async def test_a_row_without_a_verifier_fails_before_the_first_token(
    smollm2_tokenizer: Any, player: Any
) -> None:
    played = await player.play(smollm2_tokenizer, [], NAME, verifier=[])

    assert played.samples[0].status is Status.FAILED
    assert "the row needs a verifier" in played.error["message"]
    assert played.engine.requests == []


async def test_in_evaluation_one_sample_carries_the_final_answers_score(
    smollm2_tokenizer: Any, player: Any
) -> None:
    lines = script(["5"] * 2, ["4"] * 2, "SELECT: 1")
    played = await player.play(smollm2_tokenizer, lines, {"name": NAME, "candidates": 2}, evaluation=True)

    assert [sample.reward for sample in played.samples] == [1.0]
