from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rollhook import Sample, run_rollout
from rollhook.testing import Fault, Reply
from rollhook.testing.replies import ScriptedRequest

NAME = "topologies/orchestrator"


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def delegate(*tasks: str) -> str:
    return "\n".join(call("delegate", task=task) for task in tasks)


def asked(request: ScriptedRequest) -> str:
    """What a conversation opens with."""
    return request.prompt.split("<|im_start|>user\n", 1)[1].split("<|im_end|>")[0]


def results(request: ScriptedRequest) -> list[str]:
    return [part.split("\n</tool_response>")[0] for part in request.prompt.split("<tool_response>\n")[1:]]


def script(orders: str, answers: dict[str, Reply | str]) -> Any:
    """An orchestrator that gives `orders` and then says 4, and subagents that answer their tasks."""

    def reply(request: ScriptedRequest) -> Reply | str:
        task = asked(request)
        if task in answers:
            return answers[task]
        return "The answer is 4." if results(request) else orders

    return reply


async def test_subagents_are_segments_of_their_own_that_share_the_reward(
    qwen3_tokenizer: Any, player: Any
) -> None:
    orders = delegate("count left", "count right")
    lines = script(orders, {"count left": "two left", "count right": "two right"})
    played = await player.play(qwen3_tokenizer, lines, NAME)

    assert [(told.role, told.kind, told.reward, told.trained) for told in played.told] == [
        ("orchestrator", "orchestrator", 1.0, f"{orders}|The answer is 4.|"),
        ("subagent_1", "subagent_1", 1.0, "two left|"),
        ("subagent_2", "subagent_2", 1.0, "two right|"),
    ]
    assert results(played.engine.requests[-1]) == ["two left", "two right"]
    assert played.scores == {"subagents": 2.0}
    assert played.trained_tokens == played.sampled_tokens


async def test_the_calls_of_one_turn_run_at_once(qwen3_tokenizer: Any, player: Any) -> None:
    tasks = [f"task {number}" for number in range(4)]
    lines = script(delegate(*tasks), {task: Reply("done", delay_s=0.2) for task in tasks})
    played = await player.play(qwen3_tokenizer, lines, NAME)

    assert played.engine.peak_in_flight == 4


async def test_a_subagent_has_its_own_prompt_tools_and_budget(qwen3_tokenizer: Any, player: Any) -> None:
    def lines(request: ScriptedRequest) -> Reply | str:
        if asked(request) == "find it":
            return "it is there" if results(request) else call("look", what="it")
        return "4" if results(request) else delegate("find it")

    subagent = {"system": "You find things.", "tools": ["look"], "max_new_tokens": 40, "max_turns": 2}
    row = {"name": NAME, "roles": {"subagent": subagent, "orchestrator": {"tools": []}}}
    played = await player.play(qwen3_tokenizer, lines, row, tools="world/look")

    first, below, _, last = played.engine.requests
    assert "You find things." not in first.prompt
    assert "You find things." in below.prompt
    assert ('"name": "look"' in first.prompt, '"name": "delegate"' in first.prompt) == (False, True)
    assert ('"name": "look"' in below.prompt, '"name": "delegate"' in below.prompt) == (True, False)
    assert below.sampling["max_new_tokens"] == 40
    assert results(last) == ["it is there"]


async def test_a_subagents_limit_is_an_answer(qwen3_tokenizer: Any, player: Any) -> None:
    lines = script(delegate("look"), {"look": "I will " + call("look", what="it")})
    row = {"name": NAME, "roles": {"subagent": {"max_turns": 1}}}
    played = await player.play(qwen3_tokenizer, lines, row, tools="world/look")

    assert results(played.engine.requests[-1]) == [
        "The subagent was cut short at max_turns. It had said:\nI will"
    ]
    assert [(told.role, told.reward) for told in played.told] == [("orchestrator", 1.0), ("subagent_1", 1.0)]
    assert [sample.status.value for sample in played.samples] == ["completed", "truncated"]


async def test_a_subagents_failure_is_an_answer_and_the_others_go_on(
    qwen3_tokenizer: Any, player: Any
) -> None:
    broken = Reply("x", fault=Fault.status(400, times=None))
    lines = script(delegate("break", "work"), {"break": broken, "work": "two"})
    played = await player.play(qwen3_tokenizer, lines, NAME)

    failed, worked = results(played.engine.requests[-1])
    assert failed.startswith("Error: the subagent failed: ")
    assert worked == "two"
    assert [told.role for told in played.told] == ["orchestrator", "subagent_2"]


async def test_a_subagent_may_delegate_down_to_the_depth_limit(qwen3_tokenizer: Any, player: Any) -> None:
    def lines(request: ScriptedRequest) -> str:
        below = {"down": "deeper", "deeper": "deepest"}.get(asked(request), "down")
        if '"name": "delegate"' not in request.prompt or results(request):
            return "4"
        return delegate(below)

    played = await player.play(qwen3_tokenizer, lines, {"name": NAME, "depth": 2})

    assert [told.role for told in played.told] == ["orchestrator", "subagent_1", "subagent_1_1"]
    deepest = next(request for request in played.engine.requests if asked(request) == "deeper")
    assert '"name": "delegate"' not in deepest.prompt


async def test_a_rollout_starts_no_more_subagents_than_it_may(qwen3_tokenizer: Any, player: Any) -> None:
    lines = script(delegate("a", "b", "c"), dict.fromkeys("abc", "ok"))
    played = await player.play(qwen3_tokenizer, lines, {"name": NAME, "max_subagents": 2})

    assert results(played.engine.requests[-1]) == ["ok", "ok", "Error: all 2 subagents were started."]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("subagent", "message"),
    [
        ({"tools": ["nope"]}, "role 'subagent_1' may call nope"),
        ({"sampling": {"temperature": 0.2}}, "agent 'subagent_1' trains"),
    ],
)
async def test_subagents_that_cannot_be_made_fail_before_the_first_token(
    qwen3_tokenizer: Any, player: Any, depth: int, subagent: Any, message: str
) -> None:
    row = {"name": NAME, "depth": depth, "roles": {"subagent": subagent}}
    played = await player.play(qwen3_tokenizer, [], row)

    assert message in played.error["message"]
    assert played.engine.requests == []


async def test_untrained_subagents_give_no_samples(qwen3_tokenizer: Any, player: Any) -> None:
    lines = script(delegate("a"), {"a": "ok"})
    played = await player.play(
        qwen3_tokenizer, lines, {"name": NAME, "roles": {"subagent": {"trained": False}}}
    )

    assert [told.role for told in played.told] == ["orchestrator"]


async def test_at_the_rollouts_deadline_its_subagents_end_and_what_they_said_stays(
    qwen3_tokenizer: Any, player: Any
) -> None:
    def lines(request: ScriptedRequest) -> Reply | str:
        if asked(request) == "hang":
            return Reply("never", fault=Fault.hang(times=None))
        return "done" if asked(request) == "work" else delegate("work", "hang")

    played = await player.play(qwen3_tokenizer, lines, NAME, limits={"timeout_s": 2.0})
    async with asyncio.timeout(10):
        while played.engine.in_flight:
            await asyncio.sleep(0.01)

    assert [(told.role, told.trained) for told in played.told] == [
        ("orchestrator", f"{delegate('work', 'hang')}|"),
        ("subagent_1", "done|"),
    ]
    assert {sample.status.value for sample in played.samples} == {"truncated"}


async def test_of_64_rollouts_with_4_subagents_each_a_third_cancelled_nothing_is_left(
    qwen3_tokenizer: Any, player: Any
) -> None:
    tasks = [f"part {number}" for number in range(4)]
    gate = asyncio.Event()

    def lines(request: ScriptedRequest) -> Reply | str:
        if asked(request) in tasks:
            if asked(request) == tasks[-1]:
                gate.set()
            return Reply("two", delay_s=0.3)
        return "The answer is 4." if results(request) else delegate(*tasks)

    runtime, engine = await player.runtime(qwen3_tokenizer, lines)
    before = asyncio.all_tasks()
    rows = [
        Sample(
            index=n,
            prompt=f"{n} + {n}?",
            label="4",
            metadata={"rollhook": {"topology": NAME, "verifier": "number"}},
        )
        for n in range(64)
    ]
    rollouts = [asyncio.create_task(run_rollout(runtime, row, {})) for row in rows]
    await gate.wait()
    cancelled = rollouts[::3]
    for task in cancelled:
        task.cancel()
    ended = await asyncio.gather(*rollouts, return_exceptions=True)
    async with asyncio.timeout(30):
        while engine.in_flight or asyncio.all_tasks() - before:
            await asyncio.sleep(0.01)

    finished = [samples for samples in ended if not isinstance(samples, BaseException)]
    assert len(cancelled) == 22
    assert sum(isinstance(end, asyncio.CancelledError) for end in ended) == 22
    assert len(finished) == 42
    for samples in finished:
        roles = [sample.metadata["rollhook_result"]["role"] for sample in samples]
        assert roles == ["orchestrator", "subagent_1", "subagent_2", "subagent_3", "subagent_4"]
        assert [(sample.reward, sample.status.value) for sample in samples] == [(1.0, "completed")] * 5
