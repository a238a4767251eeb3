from __future__ import annotations

import json
from typing import Any

import pytest

from rollhook import ConfigError
from rollhook.testing.replies import ScriptedRequest

NAME = "topologies/compact"
LONG = "word " * 60


def last_said(request: ScriptedRequest) -> str:
    return request.prompt.rsplit("<|im_start|>user\n", 1)[1].split("<|im_end|>")[0]


def script(*lines: str) -> Any:
    """Says the lines in order, and `a summary` where it is asked for one."""
    waiting = list(lines)

    def reply(request: ScriptedRequest) -> str:
        return "a summary" if "nearly full" in last_said(request) else waiting.pop(0)

    return reply


async def test_without_need_nothing_changes(smollm2_tokenizer: Any, player: Any) -> None:
    played = await player.play(smollm2_tokenizer, ["4"], {"name": NAME, "at_tokens": 1000})

    assert [(told.role, told.kind, told.reward, told.trained) for told in played.told] == [
        ("main", "main", 1.0, "4|")
    ]


async def test_a_full_context_is_wiped_and_the_last_one_is_final(smollm2_tokenizer: Any, player: Any) -> None:
    lines = script(LONG, LONG, "done: 4")
    row = {"name": NAME, "at_tokens": 60}
    played = await player.play(smollm2_tokenizer, lines, row, environment="world/steps")

    assert [(told.role, told.kind, told.reward, told.trained) for told in played.told] == [
        ("main", "wipe", 1.0, f"{LONG}|a summary|"),
        ("main", "wipe", 1.0, f"{LONG}|a summary|"),
        ("main", "final", 1.0, "done: 4|"),
    ]
    assert [played.result(at)["forks"] for at in range(3)] == [
        [],
        [{"turn": 0, "reason": "history replaced"}],
        [{"turn": 0, "reason": "history replaced"}],
    ]
    assert played.trained_tokens == played.sampled_tokens


async def test_what_a_user_says_is_kept_word_for_word_behind_task_and_summary(
    smollm2_tokenizer: Any, player: Any
) -> None:
    lines = script(LONG, "done: 4")
    row = {"name": NAME, "at_tokens": 60}
    played = await player.play(smollm2_tokenizer, lines, row, environment="world/steps")

    assert last_said(played.engine.requests[-1]) == (
        "What is 2 + 2?\n\nSummary 1 of your work so far:\na summary\n\nstep 1"
    )
    assert "word word" not in played.engine.requests[-1].prompt


async def test_text_for_an_open_turn_is_summed_up_in_the_old_conversation(
    smollm2_tokenizer: Any, player: Any
) -> None:
    lines = script("a", LONG, "done: 4")
    row = {"name": NAME, "at_tokens": 90}
    played = await player.play(smollm2_tokenizer, lines, row, environment="world/steps")

    assert last_said(played.engine.requests[2]).startswith(" [step 2] \n\nYour context is nearly full.")
    assert [(told.kind, told.trained) for told in played.told] == [
        ("wipe", f"a|{LONG}|a summary|"),
        ("final", "done: 4|"),
    ]
    assert [span["kind"] for span in played.result()["spans"]].count("step") == 2


async def test_in_a_tool_loop_the_results_are_summed_up_too(qwen3_tokenizer: Any, player: Any) -> None:
    look = f"<tool_call>\n{json.dumps({'name': 'look', 'arguments': {'what': LONG}})}\n</tool_call>"
    row = {"name": NAME, "at": 0.4}
    played = await player.play(
        qwen3_tokenizer, script(look, "4"), row, tools="world/look", limits={"max_context_tokens": 500}
    )

    summing_up, going_on = played.engine.requests[1:]
    assert "<tool_response>\nseen: word" in summing_up.prompt
    assert "<tool_response>" not in going_on.prompt
    assert '"name": "look"' in going_on.prompt
    assert [(told.kind, told.reward, told.trained) for told in played.told] == [
        ("wipe", 1.0, f"{look}|a summary|"),
        ("final", 1.0, "4|"),
    ]


async def test_each_agent_of_any_topology_is_compacted_and_the_inner_credit_holds(
    smollm2_tokenizer: Any, player: Any
) -> None:
    def lines(request: ScriptedRequest) -> str:
        if "nearly full" in last_said(request):
            return "a summary"
        return "4 is done" if "Summary 1" in request.prompt else LONG

    inner = {"name": "topologies/best-of-n", "candidates": 2}
    row = {"name": NAME, "at_tokens": 60, "topology": inner}
    played = await player.play(smollm2_tokenizer, lines, row, environment="world/steps")

    assert [(told.role, told.kind, told.reward) for told in played.told] == [
        ("candidate_1", "wipe", 1.0),
        ("candidate_1", "final", 1.0),
        ("candidate_2", "wipe", 1.0),
        ("candidate_2", "final", 1.0),
    ]


async def test_agents_that_a_tool_makes_are_compacted_too(qwen3_tokenizer: Any, player: Any) -> None:
    task = {"name": "delegate", "arguments": {"task": "dig"}}
    look = {"name": "look", "arguments": {"what": LONG}}

    def lines(request: ScriptedRequest) -> str:
        said = last_said(request)
        if "nearly full" in said:
            return "a summary"
        if said.startswith("dig"):
            return "found it" if "Summary 1" in said else f"<tool_call>\n{json.dumps(look)}\n</tool_call>"
        return "4" if "found it" in said else f"<tool_call>\n{json.dumps(task)}\n</tool_call>"

    inner = {"name": "topologies/orchestrator", "roles": {"orchestrator": {"tools": []}}}
    row = {"name": NAME, "at_tokens": 250, "topology": inner}
    played = await player.play(qwen3_tokenizer, lines, row, tools="world/look")

    assert [(told.role, told.kind, told.reward) for told in played.told] == [
        ("orchestrator", "orchestrator", 1.0),
        ("subagent_1", "wipe", 1.0),
        ("subagent_1", "final", 1.0),
    ]
    assert played.trained_tokens == played.sampled_tokens


async def test_inside_another_both_sum_up(smollm2_tokenizer: Any, player: Any) -> None:
    inner = {"name": NAME, "at_tokens": 10_000}
    row = {"name": NAME, "at_tokens": 60, "topology": inner}
    played = await player.play(smollm2_tokenizer, script(LONG, "done: 4"), row, environment="world/steps")

    assert [told.kind for told in played.told] == ["wipe", "final"]


async def test_an_agent_sums_up_no_more_often_than_it_may(smollm2_tokenizer: Any, player: Any) -> None:
    row = {"name": NAME, "at_tokens": 60, "max_summaries": 1}
    played = await player.play(
        smollm2_tokenizer, script(LONG, LONG, "done: 4"), row, environment="world/steps"
    )

    assert [told.kind for told in played.told] == ["wipe", "final"]


async def test_a_context_without_a_limit_fails_before_the_first_token(
    smollm2_tokenizer: Any, player: Any
) -> None:
    played = await player.play(smollm2_tokenizer, [], NAME)

    assert "set max_context_tokens or at_tokens" in played.error["message"]
    assert played.engine.requests == []


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("topologies/best-of-m", 'topology.topology: plugin "topologies" has no topology named "best-of-m"'),
        ({"name": "topologies/best-of-n", "candidates": 0}, "topology.topology.candidates: expected"),
        ({"name": "topologies/best-of-n", "candidats": 3}, "topology.topology.candidats: unknown key"),
        ({"name": NAME, "topology": "nothing"}, "topology.topology.topology: no plugin named"),
    ],
)
async def test_what_is_named_inside_is_checked_like_every_other_name(
    smollm2_tokenizer: Any, player: Any, inner: Any, message: str
) -> None:
    played = await player.play(smollm2_tokenizer, [], {"name": NAME, "topology": inner})

    assert played.error["stage"] == "resolve"
    assert message in played.error["message"]
    with pytest.raises(ConfigError, match=r"default\.topology\.topology"):
        await player.runtime(smollm2_tokenizer, [], default={"topology": {"name": NAME, "topology": inner}})
