"""A turn that the engine aborts by itself goes on, exactly; only the trainer's abort is an abort."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollhook import Sample, Status, run_rollout
from rollhook.engine import Completion, SGLangClient
from rollhook.errors import EngineUnavailable, RolloutAborted
from rollhook.interruptions import ContinuingEngine
from rollhook.replay import Replay, TopP
from rollhook.testing import Fault, Reply, ScriptedEngine, scripted_log_prob
from tests.unit.worlds import running

PROMPT = [1, 9690, 198]


def ids_of(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def part(text: str, **options: Any) -> Reply:
    """What an engine gives back of a turn that somebody interrupts."""
    return Reply(text, finish="abort", **options)


async def ask(engine: ScriptedEngine, *, aborting: bool = False, **options: Any) -> Completion:
    sampling = {"max_new_tokens": 20, "min_new_tokens": 3}
    async with SGLangClient(engine.url, backoff_s=0.01) as client:
        turn = ContinuingEngine(client, lambda: aborting, pause_s=0.0, **options)
        return await turn.generate(PROMPT, sampling, session="s")


async def test_the_rest_is_asked_for_behind_the_part_and_both_versions_are_told(
    smollm2_tokenizer: Any,
) -> None:
    script = [
        part("one two", weight_version="1"),
        part("", weight_version="1"),
        Reply(" three", weight_version="2"),
    ]
    async with ScriptedEngine(smollm2_tokenizer, script) as engine:
        turn = await ask(engine)

    begun = ids_of(smollm2_tokenizer, "one two")
    rest = [*ids_of(smollm2_tokenizer, " three"), smollm2_tokenizer.eos_token_id]
    assert turn.token_ids == begun + rest
    assert turn.log_probs == [
        scripted_log_prob(place, token) for ids in (begun, rest) for place, token in enumerate(ids)
    ]
    assert (turn.finish_reason, turn.weight_versions) == ("stop", ["1", "2"])
    assert [request.input_ids for request in engine.requests] == [PROMPT, PROMPT + begun, PROMPT + begun]
    assert [request.sampling["max_new_tokens"] for request in engine.requests] == [20, 18, 18]
    assert [request.sampling["min_new_tokens"] for request in engine.requests] == [3, 1, 1]
    assert len({request.rid for request in engine.requests}) == 3


async def test_an_interrupted_turn_that_is_full_ends_by_length(smollm2_tokenizer: Any) -> None:
    text = " one" * 20
    async with ScriptedEngine(smollm2_tokenizer, [part(text), "more"]) as engine:
        turn = await ask(engine)

    assert (turn.finish_reason, len(turn.token_ids), len(engine.requests)) == ("length", 20, 1)


async def test_an_engine_that_aborts_everything_is_told(smollm2_tokenizer: Any) -> None:
    async with ScriptedEngine(smollm2_tokenizer, lambda request: part("")) as engine:
        with pytest.raises(EngineUnavailable, match="aborted 9 requests in a row before any token"):
            await ask(engine)


async def test_fail_gives_an_interrupted_turn_up(smollm2_tokenizer: Any) -> None:
    async with ScriptedEngine(smollm2_tokenizer, [part("one two")]) as engine:
        with pytest.raises(EngineUnavailable, match="aborted the turn after 2 tokens"):
            await ask(engine, interrupted="fail")


async def test_under_the_trainers_abort_nothing_is_asked(smollm2_tokenizer: Any) -> None:
    async with ScriptedEngine(smollm2_tokenizer, []) as engine:
        with pytest.raises(RolloutAborted):
            await ask(engine, aborting=True)

    assert engine.requests == []


async def test_top_p_sets_of_the_parts_are_joined_and_a_part_without_them_is_sampled_again(
    smollm2_tokenizer: Any,
) -> None:
    begun = ids_of(smollm2_tokenizer, "one two")
    rest = [*ids_of(smollm2_tokenizer, " three"), smollm2_tokenizer.eos_token_id]
    script = [
        part("one"),
        part("one two", meta={"top_p_token_ids": [*begun, 7], "top_p_token_offsets": [0, 1, 3]}),
        Reply(" three", meta={"top_p_token_ids": rest, "top_p_token_offsets": [0, 1, 2]}),
    ]
    async with ScriptedEngine(smollm2_tokenizer, script) as engine:
        turn = await ask(engine, replay=Replay(top_p=True))

    assert turn.token_ids == begun + rest
    assert turn.carried.top_p == TopP.of([*begun, 7, *rest], [0, 1, 3, 4, 5])


def row() -> Sample:
    return Sample(index=1, prompt="2+2?", label="4", metadata={"rollhook": {"verifier": "number"}})


async def test_a_weight_update_in_the_middle_of_a_turn_is_no_abort(smollm2_tokenizer: Any) -> None:
    script = [Reply("It is one more", fault=Fault.hang(after_tokens=2)), Reply(" 4.", weight_version="2")]
    async with running(smollm2_tokenizer, script) as (runtime, engine), asyncio.timeout(20):
        task = asyncio.create_task(run_rollout(runtime, row(), {}))
        while engine.in_flight == 0:
            await asyncio.sleep(0.01)
        await runtime.engine.abort()  # as another client's /abort_request, or pause_generation in abort mode
        [sample] = await task

    assert (sample.status, sample.response) == (Status.COMPLETED, "It is 4.")
    assert (sample.reward, sample.weight_versions) == (1.0, ["default", "2"])


async def test_a_turn_that_may_not_go_on_fails_and_does_not_train(smollm2_tokenizer: Any) -> None:
    async with running(smollm2_tokenizer, [part("It is")], interrupted_turns="fail") as (runtime, _):
        [sample] = await run_rollout(runtime, row(), {})

    assert (sample.status, sample.reward, sample.remove_sample) == (Status.FAILED, 0.0, True)
