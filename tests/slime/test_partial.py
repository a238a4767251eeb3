"""Partial rollouts: an aborted Sample goes on from the tokens it kept, with the right mask."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest

from rollhook import Sample, Status, run_rollout
from rollhook.runtime import Runtime
from rollhook.siblings import mark_aborted
from rollhook.testing import Fault, Reply, ScriptedEngine, scripted_log_prob
from tests.slime.holding import Holder, holding, row
from tests.unit.worlds import running

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
PARTIAL: dict[str, Any] = {"return_shape": "sample", "partial_rollout": True}
HALF = Reply("one two three four", fault=Fault.hang(after_tokens=2))


def ids_of(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


async def aborted_when(
    runtime: Runtime, sample: Sample, reached: Callable[[], bool], **sampling: Any
) -> Sample:
    """`sample`, aborted once `reached`, as slime puts it back."""
    async with asyncio.timeout(20):
        task = asyncio.create_task(run_rollout(runtime, sample, sampling))
        while not reached():
            await asyncio.sleep(0.01)
        await runtime.abort()
        [made] = await task
    runtime.lift_abort()
    assert made.status is Status.ABORTED
    made.metadata["start_rollout_id"] = 3
    return made


def waits_for(engine: ScriptedEngine, requests: int) -> Callable[[], bool]:
    return lambda: len(engine.requests) == requests and engine.in_flight == 1


def trained(tokenizer: Any, sample: Sample) -> str:
    response = sample.tokens[-sample.response_length :]
    bits = sample.loss_mask or []
    return str(tokenizer.decode([token for token, bit in zip(response, bits, strict=True) if bit]))


async def test_finished_turns_are_kept_and_the_unfinished_one_is_continued_in_one_request(
    qwen3_tokenizer: Any,
) -> None:
    script = [CALL, HALF, Reply(" three four", weight_version="2")]
    async with holding(qwen3_tokenizer, script, Holder(), **PARTIAL) as (runtime, engine):
        kept = await aborted_when(runtime, row(), waits_for(engine, 2), max_new_tokens=40)
        before = copy.deepcopy(kept)
        [made] = await run_rollout(runtime, kept, {"max_new_tokens": 40})

    assert kept == before  # the row is the trainer's
    assert len(engine.requests) == 3
    last = engine.requests[2]
    part = ids_of(qwen3_tokenizer, "one two")
    assert last.input_ids == kept.tokens
    assert last.sampling["max_new_tokens"] == 40 - len(part)
    rest = [*ids_of(qwen3_tokenizer, " three four"), qwen3_tokenizer.eos_token_id]
    assert made.tokens == kept.tokens + rest
    assert (made.loss_mask or [])[: len(kept.loss_mask or [])] == kept.loss_mask
    assert made.rollout_log_probs == (kept.rollout_log_probs or []) + [
        scripted_log_prob(i, t) for i, t in enumerate(rest)
    ]
    assert trained(qwen3_tokenizer, made) == f"{CALL}<|im_end|>one two three four<|im_end|>"
    assert made.weight_versions == ["default", "default", "2"]
    assert (made.status, made.reward, made.metadata["start_rollout_id"]) == (Status.COMPLETED, 1.0, 3)
    result = made.metadata["rollhook_result"]
    assert result["resumed"] == {
        "turns": 2,
        "tokens": len(ids_of(qwen3_tokenizer, CALL)) + 1 + len(part),
        "continued": True,
        "dropped_tokens": 0,
    }
    assert (result["unfinished"], result["turns"]) == (None, 2)


async def test_masked_kept_tokens_do_not_train_and_the_rest_does(qwen3_tokenizer: Any) -> None:
    script = [CALL, HALF, " three four"]
    settings = {**PARTIAL, "mask_kept_tokens": True}
    async with holding(qwen3_tokenizer, script, Holder(), **settings) as (runtime, engine):
        kept = await aborted_when(runtime, row(), waits_for(engine, 2))
        kept.loss_mask = [0] * kept.response_length  # as slime does before it calls
        [made] = await run_rollout(runtime, kept, {})

    assert trained(qwen3_tokenizer, made) == " three four<|im_end|>"
    assert (made.rollout_log_probs or [])[: kept.response_length] == [0.0] * kept.response_length
    assert (made.status, made.reward) == (Status.COMPLETED, 1.0)


@pytest.mark.parametrize("place", ["tools", "environment", "verifier"])
async def test_a_rollout_aborted_between_turns_samples_only_what_is_missing(
    qwen3_tokenizer: Any, place: str
) -> None:
    at = {"tools": "call", "environment": "step", "verifier": "score"}
    holder = Holder()
    async with holding(qwen3_tokenizer, [CALL, "It is 4."], holder, **PARTIAL) as (runtime, engine):
        kept = await aborted_when(runtime, row(**{place: at[place]}), holder.reached.is_set)
        holder.let_go.set()
        [made] = await run_rollout(runtime, kept, {})

    assert len(engine.requests) == 2
    assert (made.status, made.reward) == (Status.COMPLETED, 1.0)
    assert made.tokens[: len(kept.tokens)] == kept.tokens
    assert trained(qwen3_tokenizer, made) == f"{CALL}<|im_end|>It is 4.<|im_end|>"


async def test_kept_turns_behind_another_answer_of_a_tool_are_dropped_and_counted(
    qwen3_tokenizer: Any,
) -> None:
    async with holding(qwen3_tokenizer, [CALL, HALF, "It is 5."], Holder(), **PARTIAL) as (runtime, engine):
        kept = await aborted_when(runtime, row(), waits_for(engine, 2))
        observation = next(
            span
            for span in kept.metadata["rollhook_result"]["spans"]
            if span["kind"] == "messages" and span["start"] > 0
        )
        kept.tokens[observation["start"] + 1] += 1  # as if the tool had said something else then
        [made] = await run_rollout(runtime, kept, {})

    assert trained(qwen3_tokenizer, made) == f"{CALL}<|im_end|>It is 5.<|im_end|>"
    assert made.metadata["rollhook_result"]["resumed"] == {
        "turns": 1,
        "tokens": len(ids_of(qwen3_tokenizer, CALL)) + 1,
        "continued": False,
        "dropped_tokens": len(ids_of(qwen3_tokenizer, "one two")),
    }


async def test_what_is_aborted_again_keeps_all_it_had(qwen3_tokenizer: Any) -> None:
    holder = Holder()
    async with holding(qwen3_tokenizer, [CALL, HALF, HALF], holder, **PARTIAL) as (runtime, engine):
        kept = await aborted_when(runtime, row(), waits_for(engine, 2))
        await runtime.abort()
        [at_once] = await run_rollout(runtime, kept, {})
        runtime.lift_abort()
        kept.metadata["rollhook"]["tools"]["at"] = "call"
        while_replaying = await aborted_when(runtime, kept, holder.reached.is_set)
        kept.metadata["rollhook"]["tools"]["at"] = ""
        longer = await aborted_when(runtime, kept, waits_for(engine, 3))

    for again in (at_once, while_replaying):
        assert (again.tokens, again.loss_mask) == (kept.tokens, kept.loss_mask)
        assert (again.status, again.reward) == (Status.ABORTED, 0.0)
        assert (
            again.metadata["rollhook_result"]["unfinished"] == kept.metadata["rollhook_result"]["unfinished"]
        )
    assert longer.tokens == kept.tokens + ids_of(qwen3_tokenizer, "one two")
    assert [turn["length"] for turn in longer.metadata["rollhook_result"]["unfinished"]] == [
        len(ids_of(qwen3_tokenizer, CALL)) + 1,
        4,
    ]


async def test_a_kept_turn_that_is_full_ends_by_length_without_a_request(qwen3_tokenizer: Any) -> None:
    async with holding(qwen3_tokenizer, [CALL, HALF], Holder(), **PARTIAL) as (runtime, engine):
        kept = await aborted_when(runtime, row(), waits_for(engine, 2))
        [made] = await run_rollout(runtime, kept, {"max_new_tokens": 2})

    assert len(engine.requests) == 2
    assert (made.status, made.tokens) == (Status.TRUNCATED, kept.tokens)


async def test_evaluation_and_runs_without_partial_rollouts_start_clean(qwen3_tokenizer: Any) -> None:
    async with holding(qwen3_tokenizer, [CALL, HALF, "4", "4"], Holder(), **PARTIAL) as (runtime, engine):
        kept = await aborted_when(runtime, row(), waits_for(engine, 2))
        [evaluated] = await run_rollout(runtime, kept, {}, evaluation=True)
    async with holding(qwen3_tokenizer, ["4"], Holder(), return_shape="sample") as (runtime, _):
        [clean] = await run_rollout(runtime, kept, {})

    for sample in (evaluated, clean):
        assert trained(qwen3_tokenizer, sample) == "4<|im_end|>"
        assert sample.metadata["rollhook_result"]["resumed"] is None


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.TRUNCATED])
async def test_a_finished_sample_that_comes_back_with_its_group_is_kept(
    qwen3_tokenizer: Any, status: Status
) -> None:
    async with holding(qwen3_tokenizer, ["4"], Holder(), **PARTIAL) as (runtime, engine):
        [done] = await run_rollout(runtime, row(), {})
        done.status = status
        [again] = await run_rollout(runtime, done, {})

    assert again is done
    assert (again.reward, len(engine.requests)) == (1.0, 1)


async def test_the_routing_key_survives_a_requeue_and_is_fresh_where_there_is_none(
    qwen3_tokenizer: Any,
) -> None:
    script = [CALL, HALF, Reply(" three", fault=Fault.drop()), "4", "4"]
    async with holding(qwen3_tokenizer, script, Holder(), **PARTIAL) as (runtime, engine):
        sample = row()
        sample.session_id = "s1"
        kept = await aborted_when(runtime, sample, waits_for(engine, 2))
        await run_rollout(runtime, kept, {})
        trainers = [request.session for request in engine.requests]
        for _ in range(2):
            await run_rollout(runtime, row(), {}, evaluation=True)
        fresh = [request.session for request in engine.requests[len(trainers) :]]

    assert trainers == ["s1"] * 4  # with the attempt that was dropped
    assert len({*fresh, "s1", ""}) == 4


async def test_text_in_an_open_turn_and_stop_strings_are_as_they_were(smollm2_tokenizer: Any) -> None:
    """An environment that continues the open turn, as search does: spans of text between sampled ones."""
    script = ["one!", Reply("two three!", fault=Fault.hang(after_tokens=1)), " three!", "stop"]
    sample = Sample(index=1, prompt="q", label="4", metadata={"rollhook": {"environment": "w"}})
    async with running(smollm2_tokenizer, script, **PARTIAL) as (runtime, engine):
        kept = await aborted_when(runtime, sample, waits_for(engine, 2))
        [made] = await run_rollout(runtime, kept, {})

    assert made.response == "one! more two three! more stop"
    assert trained(smollm2_tokenizer, made) == "one!two three!stop<|im_end|>"
    assert (made.status, made.reward) == (
        Status.COMPLETED,
        1.0,
    )  # 0.25 + 0.25 + 0.5: each step was taken once


@pytest.mark.parametrize(
    "damage",
    [
        {"rollout_log_probs": None},
        {"loss_mask": [1]},
        {"tokens": [1, 2]},
        {"status": Status.FAILED},
    ],
)
async def test_a_sample_that_lost_something_starts_clean(
    qwen3_tokenizer: Any, damage: dict[str, Any]
) -> None:
    async with holding(qwen3_tokenizer, [CALL, HALF, "4"], Holder(), **PARTIAL) as (runtime, engine):
        kept = await aborted_when(runtime, row(), waits_for(engine, 2))
        for name, value in damage.items():
            setattr(kept, name, value)
        [made] = await run_rollout(runtime, kept, {})

    assert trained(qwen3_tokenizer, made) == "4<|im_end|>"
    assert made.metadata["rollhook_result"]["resumed"] is None


FORGED = {
    "start": 2,
    "length": 2,
    "finish_reason": "stop",
    "matched": None,
    "request_id": "r",
    "weight_versions": ["1"],
    "prompt_tokens": 2,
    "cached_tokens": 0,
    "spec": {"accepted": 0, "drafted": 0, "verified": 0, "sampled": 0},
}


@pytest.mark.parametrize(
    "result",
    [
        "abc",
        [1],
        {"unfinished": "abc", "clock": "2026-01-01T00:00:00+00:00"},
        {"unfinished": [{"start": 2}], "clock": "2026-01-01T00:00:00+00:00"},
        {"unfinished": [], "clock": "2026-01-01T00:00:00+00:00"},
        {"unfinished": [FORGED], "clock": "noon"},
        {"unfinished": [{**FORGED, "start": 1}], "clock": "2026-01-01T00:00:00+00:00"},
        {"unfinished": [{**FORGED, "start": 3}], "clock": "2026-01-01T00:00:00+00:00"},
        {"unfinished": [{**FORGED, "length": 9}], "clock": "2026-01-01T00:00:00+00:00"},
        {"unfinished": [{**FORGED, "length": -1}], "clock": "2026-01-01T00:00:00+00:00"},
        {"unfinished": [FORGED, FORGED], "clock": "2026-01-01T00:00:00+00:00"},
        {"unfinished": [{**FORGED, "length": 4}], "clock": "2026-01-01T00:00:00+00:00"},
    ],
)
@pytest.mark.parametrize("fresh", [True, False])
async def test_what_a_data_file_says_in_our_name_is_not_believed(
    qwen3_tokenizer: Any, result: Any, fresh: bool
) -> None:
    """Also beside the tokens of somebody else's aborted Sample, of which the last but one was not sampled."""
    sample = row()
    sample.metadata["rollhook_result"] = result
    if not fresh:
        sample.status, sample.tokens, sample.response_length = Status.ABORTED, [1, 2, 3, 4, 5, 6], 4
        sample.loss_mask, sample.rollout_log_probs = [1, 1, 0, 1], [-0.1, -0.1, 0.0, -0.1]
    async with holding(qwen3_tokenizer, ["4"], Holder(), **PARTIAL) as (runtime, _):
        [made] = await run_rollout(runtime, sample, {})

    assert trained(qwen3_tokenizer, made) == "4<|im_end|>"
    assert made.metadata["rollhook_result"]["resumed"] is None


async def test_a_finished_sample_of_masked_partial_rollouts_is_masked_as_all_that_is_old(
    qwen3_tokenizer: Any,
) -> None:
    settings = {**PARTIAL, "mask_kept_tokens": True}
    async with holding(qwen3_tokenizer, ["4"], Holder(), **settings) as (runtime, _):
        [done] = await run_rollout(runtime, row(), {})
        before = copy.deepcopy(done)
        [again] = await run_rollout(runtime, done, {})

    assert done == before
    assert (again.tokens, again.status, again.reward) == (done.tokens, Status.COMPLETED, 1.0)
    assert (again.loss_mask, again.rollout_log_probs) == ([0, 0], [0.0, 0.0])


async def test_a_finished_rollout_whose_scoring_was_aborted_is_not_sampled_again(
    qwen3_tokenizer: Any,
) -> None:
    """Where another reward function than the row's verifier scores it."""
    unscored = row()
    for kind in ("verifier", "environment"):
        del unscored.metadata["rollhook"][kind]
    async with holding(qwen3_tokenizer, [CALL, "It is 4."], Holder(), **PARTIAL) as (runtime, engine):
        [done] = await run_rollout(runtime, unscored, {})
        before = copy.deepcopy(done)
        mark_aborted(done)
        [again] = await run_rollout(runtime, done, {})

    assert (before.reward, len(engine.requests)) == (None, 2)
    assert (again.tokens, again.loss_mask, again.status) == (before.tokens, before.loss_mask, before.status)
    assert again.rollout_log_probs == before.rollout_log_probs


@pytest.mark.parametrize("tokens", range(5))
async def test_wherever_a_turn_was_cut_the_resumed_rollout_is_the_one_that_was_never_aborted(
    qwen3_tokenizer: Any, tokens: int
) -> None:
    answer = ids_of(qwen3_tokenizer, "one two three four")
    cut = Reply(token_ids=answer, fault=Fault.hang(after_tokens=tokens))
    once = [CALL, Reply(token_ids=answer)]
    async with holding(qwen3_tokenizer, once, Holder(), return_shape="sample") as (runtime, _):
        [whole] = await run_rollout(runtime, row(), {})
    script = [CALL, cut, Reply(token_ids=answer[tokens:])]
    async with holding(qwen3_tokenizer, script, Holder(), **PARTIAL) as (runtime, engine):
        kept = await aborted_when(runtime, row(), waits_for(engine, 2))
        [made] = await run_rollout(runtime, kept, {})

    assert (made.tokens, made.loss_mask, made.response) == (whole.tokens, whole.loss_mask, whole.response)
