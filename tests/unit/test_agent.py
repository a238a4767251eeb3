"""What a topology can do with one agent, beyond turns and loops."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from rollhook import (
    Agent,
    EngineError,
    LimitReached,
    Observation,
    Outcome,
    Rollout,
    Said,
    Score,
    TopologyUse,
    View,
)
from rollhook.testing import Fault, Reply
from tests.unit.acting import acted, kinds

WORDS = "word " * 20


class Wrapping(BaseModel):
    inner: TopologyUse = TopologyUse(name="single")


def call(text: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'echo', 'arguments': {'text': text}})}\n</tool_call>"


async def test_a_budget_lowers_the_rows_limits_and_never_raises_them(smollm2_tokenizer: Any) -> None:
    async def act(rollout: Rollout) -> None:
        small = rollout.agent("small", max_turns=1, max_new_tokens=3, max_context_tokens=90)
        large = rollout.agent("large", max_turns=9, max_new_tokens=50, max_context_tokens=500)
        assert (small.max_context_tokens, large.max_context_tokens) == (90, 100)
        await small.turn("one")
        with pytest.raises(LimitReached, match="max_turns"):
            await small.turn("two")
        await large.turn("one")
        await large.turn("two")
        with pytest.raises(LimitReached, match="max_turns"):
            await large.turn("three")

    limits = {"max_turns": 2, "max_new_tokens": 5, "max_context_tokens": 100}
    samples, engine = await acted(smollm2_tokenizer, ["a"] * 3, act, limits=limits)

    assert [request.sampling["max_new_tokens"] for request in engine.requests] == [3, 5, 5]
    assert kinds(samples) == [("small", "small", "truncated"), ("large", "large", "truncated")]


async def test_an_agent_knows_how_long_its_conversation_is(smollm2_tokenizer: Any) -> None:
    lengths = []

    async def act(rollout: Rollout) -> None:
        agent = rollout.agent()
        lengths.append(agent.context_tokens)
        await agent.turn("one")
        lengths.append(agent.context_tokens)
        await agent.turn("two")
        lengths.append(agent.context_tokens)

    [sample], engine = await acted(smollm2_tokenizer, ["a", WORDS], act)

    first = len(engine.requests[0].input_ids) + len(engine.sampled[0].token_ids)
    assert lengths == [0, first, len(sample.tokens)]


async def test_a_conversation_begun_anew_twice_gives_two_wipes_and_a_final(smollm2_tokenizer: Any) -> None:
    async def act(rollout: Rollout) -> None:
        agent = rollout.agent("worker", system="Work.")
        for part in ("one", "two", "three"):
            agent.restart()
            assert (list(agent.messages), agent.context_tokens) == ([], 0)
            await agent.turn(part)
            await agent.turn("more")

    samples, engine = await acted(smollm2_tokenizer, list("abcdef"), act)

    assert kinds(samples) == [
        ("worker", "wipe", "completed"),
        ("worker", "wipe", "completed"),
        ("worker", "final", "completed"),
    ]
    assert all(request.prompt.startswith("<|im_start|>system\nWork.") for request in engine.requests)
    assert [sum(sample.loss_mask or []) for sample in samples] == [4, 4, 4]
    assert [sample.metadata["rollhook_result"]["turns"] for sample in samples] == [2, 2, 2]


async def test_a_topology_can_write_its_own_loop(qwen3_tokenizer: Any) -> None:
    seen: list[Observation | None] = []

    async def act(rollout: Rollout) -> Outcome:
        agent = rollout.agent()
        turn = await agent.turn("go")
        while (answer := await agent.answer(turn, environment=rollout.environment)) and not answer.done:
            seen.append(answer)
            turn = await agent.turn(answer)
        return Outcome(response=turn.content, reward=Score(1.0))

    script = [call("hi"), "counting", "stop"]
    samples, engine = await acted(
        qwen3_tokenizer, script, act, tools="w/echo", environment="w/counter", verifier=[]
    )

    tool, text = seen
    assert tool is not None
    assert text is not None
    assert [message["content"] for message in tool.messages] == ["echo: hi"]
    assert text.text == " more "
    assert sum(sum(sample.loss_mask or []) for sample in samples) == sum(
        len(turn.token_ids) for turn in engine.sampled
    )


async def test_nothing_follows_a_turn_that_was_cut(qwen3_tokenizer: Any) -> None:
    answers = []

    async def act(rollout: Rollout) -> None:
        agent = rollout.agent(max_new_tokens=1)
        answers.append(await agent.answer(await agent.turn("go"), environment=rollout.environment))
        assert agent.truncated == "max_new_tokens"

    await acted(qwen3_tokenizer, ["one two"], act, environment="w/counter", verifier=[])

    assert answers == [None]


async def test_an_engines_error_marks_what_the_agent_said_before_as_cut_short(smollm2_tokenizer: Any) -> None:
    async def act(rollout: Rollout) -> None:
        agent = rollout.agent()
        await agent.turn("one")
        with pytest.raises(EngineError):
            await agent.turn("two")
        assert agent.truncated == "engine"

    samples, _ = await acted(smollm2_tokenizer, ["a", Reply("b", fault=Fault.status(400, times=None))], act)

    assert kinds(samples) == [("main", "main", "truncated")]
    assert samples[0].metadata["rollhook_result"]["limit"] == "engine"


async def test_an_inner_topologys_turns_go_through_before_turn_and_its_own_do_not(
    smollm2_tokenizer: Any,
) -> None:
    async def before_turn(agent: Agent, said: Said) -> Said:
        note = await agent.turn("what first?")
        assert isinstance(said, list)
        return f"{note.content}, then {len(said)} messages"

    async def act(rollout: Rollout) -> Outcome:
        return await rollout.run_topology("inner", before_turn=before_turn)

    _, engine = await acted(smollm2_tokenizer, ["rest", "done"], act, spec={"config": Wrapping})

    said = [
        request.prompt.rsplit("<|im_start|>user\n", 1)[1].split("<|im_end|>")[0]
        for request in engine.requests
    ]
    assert said == ["what first?", "rest, then 1 messages"]


async def test_of_topologies_inside_each_other_the_innermost_comes_first_before_a_turn(
    smollm2_tokenizer: Any,
) -> None:
    words = ["outer", "inner"]

    async def act(rollout: Rollout) -> Outcome:
        word = words.pop(0)

        async def before_turn(agent: Agent, said: Said) -> Said:
            return f"{said if isinstance(said, str) else 'go'} {word}"

        return await rollout.run_topology("inner", before_turn=before_turn)

    topology = {"name": "t/acting", "inner": "t/acting"}
    _, engine = await acted(smollm2_tokenizer, ["done"], act, spec={"config": Wrapping}, topology=topology)

    assert "user\ngo inner outer<|im_end|>" in engine.requests[0].prompt


async def test_in_evaluation_nothing_trains_so_a_role_may_keep_its_temperature(
    smollm2_tokenizer: Any,
) -> None:
    async def act(rollout: Rollout) -> None:
        await rollout.agent(sampling={"temperature": 1.0}).turn("go")

    [sample], engine = await acted(
        smollm2_tokenizer, ["done"], act, sampling={"temperature": 0.6}, evaluation=True
    )

    assert sample.status.value == "completed"
    assert engine.requests[0].sampling["temperature"] == 1.0


async def test_a_field_that_names_no_topology_cannot_be_run(smollm2_tokenizer: Any) -> None:
    async def act(rollout: Rollout) -> Outcome:
        return await rollout.run_topology("inner")

    [sample], _ = await acted(smollm2_tokenizer, [], act)

    error = sample.metadata["rollhook_result"]["error"]
    assert error["message"] == "t/acting: 'inner' of its configuration names no topology"


async def test_a_verifier_sees_the_conversation_of_the_agent_it_is_told(smollm2_tokenizer: Any) -> None:
    seen = []

    class Seeing:
        async def score(self, view: View) -> float:
            seen.append([message["content"] for message in view.messages])
            return 0.5

    async def act(rollout: Rollout) -> Outcome:
        first, second = rollout.agent("first"), rollout.agent("second")
        await first.turn("one")
        await second.turn("two")
        assert rollout.can_verify
        await rollout.verify("x", agent=first)
        return Outcome(reward=await rollout.verify("x"))

    samples, _ = await acted(
        smollm2_tokenizer, ["a", "b"], act, verifiers={"seeing": Seeing()}, verifier="t/seeing"
    )

    assert seen == [["one", "a"], ["two", "b"]]
    assert [sample.reward for sample in samples] == [0.5, 0.5]


async def test_a_row_without_a_verifier_cannot_verify(smollm2_tokenizer: Any) -> None:
    async def act(rollout: Rollout) -> None:
        await rollout.agent().turn("go")
        assert not rollout.can_verify

    [sample], _ = await acted(smollm2_tokenizer, ["a"], act, verifier="rollhook/majority")

    assert sample.metadata["rollhook_result"]["error"] is None
