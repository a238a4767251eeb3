from __future__ import annotations

from typing import Any

import pytest

from rollhook.testing import Fault, Reply

NAME = "topologies/self-refine"
LOOK = '<tool_call>\n{"name": "look", "arguments": {"what": "it"}}\n</tool_call>'


async def test_an_answer_is_refined_until_the_feedback_has_nothing_to_say(
    smollm2_tokenizer: Any, player: Any
) -> None:
    lines = ["It is 5", "No: count again.", "It is 4", "Good.\n**Nothing to change.**"]
    played = await player.play(smollm2_tokenizer, lines, NAME)

    assert [(told.role, told.kind, told.reward, told.trained) for told in played.told] == [
        ("generator", "generator", 1.0, "It is 5|It is 4|"),
        ("critic", "critic", 1.0, "No: count again.|Good.\n**Nothing to change.**|"),
    ]
    assert played.scores == {"rounds": 1.0, "first": 0.0, "final": 1.0}
    assert played.trained_tokens == played.sampled_tokens


async def test_each_is_told_what_the_other_said(smollm2_tokenizer: Any, player: Any) -> None:
    lines = ["It is 5", "No: count again.", "It is 4", "nothing to change"]
    played = await player.play(smollm2_tokenizer, lines, {"name": NAME, "criteria": "Be strict."})

    critic, generator, again = (request.prompt for request in played.engine.requests[1:])
    assert "Be strict." in critic
    assert "It is 5" in critic
    assert "No: count again." in generator.rsplit("<|im_start|>user", 1)[1]
    assert "It is 4" in again.rsplit("<|im_start|>user", 1)[1]


async def test_rounds_are_the_most_refinements_there_are(smollm2_tokenizer: Any, player: Any) -> None:
    lines = ["5", "no", "6", "no", "7"]
    played = await player.play(smollm2_tokenizer, lines, {"name": NAME, "rounds": 2})

    assert len(played.engine.requests) == 5
    assert played.result()["answer"] == "7"


async def test_a_stop_line_that_is_only_mentioned_stops_nothing(smollm2_tokenizer: Any, player: Any) -> None:
    lines = ["5", "I cannot say: nothing to change", "4"]
    played = await player.play(smollm2_tokenizer, lines, {"name": NAME, "rounds": 1})

    assert played.result()["answer"] == "4"


async def test_a_critic_that_fails_leaves_the_answer_standing(smollm2_tokenizer: Any, player: Any) -> None:
    lines = ["4", Reply("no", fault=Fault.status(400, times=None))]
    played = await player.play(smollm2_tokenizer, lines, NAME)

    assert [(told.role, told.reward, told.trained) for told in played.told] == [("generator", 1.0, "4|")]


async def test_a_refinement_that_reaches_a_limit_leaves_the_answer_standing(
    smollm2_tokenizer: Any, player: Any
) -> None:
    row = {"name": NAME, "roles": {"generator": {"max_turns": 1}}}
    played = await player.play(smollm2_tokenizer, ["4", "no"], row)

    assert [(sample.reward, sample.status.value) for sample in played.samples] == [
        (1.0, "truncated"),
        (1.0, "completed"),
    ]
    assert played.result()["answer"] == "4"


@pytest.mark.parametrize(
    ("refined", "budget"),
    [("I change it to 5, since", {"max_new_tokens": 6}), (LOOK, {"max_turns": 2})],
    ids=["in its words", "in its tool calls"],
)
async def test_a_refinement_that_is_cut_short_leaves_the_answer_standing(
    qwen3_tokenizer: Any, player: Any, refined: str, budget: Any
) -> None:
    row = {"name": NAME, "roles": {"generator": budget}}
    played = await player.play(qwen3_tokenizer, ["4", "no", refined], row, tools="world/look")

    assert (played.result()["answer"], played.scores) == ("4", {"rounds": 0.0, "first": 1.0, "final": 1.0})
    assert [(sample.reward, sample.status.value) for sample in played.samples] == [
        (1.0, "truncated"),
        (1.0, "completed"),
    ]


async def test_a_stop_line_without_a_word_is_refused_with_the_row(
    smollm2_tokenizer: Any, player: Any
) -> None:
    played = await player.play(smollm2_tokenizer, [], {"name": NAME, "stop": "###"})

    assert played.error["message"].startswith("topology.stop: ")


async def test_a_row_without_a_verifier_leaves_the_reward_to_the_run(
    smollm2_tokenizer: Any, player: Any
) -> None:
    played = await player.play(smollm2_tokenizer, ["4", "nothing to change"], NAME, verifier=[])

    assert [sample.reward for sample in played.samples] == [None, None]
