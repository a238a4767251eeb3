"""What training needs of an engine's answers reaches every Sample, aligned with its tokens."""

from __future__ import annotations

import asyncio
import base64
from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from rollhook import RunConfig, Runtime, Sample, Status, run_rollout
from rollhook.sample import certify
from rollhook.testing import Fault, Reply, ScriptedEngine
from tests.slime.holding import Holder, holding, row
from tests.unit.worlds import plugins, running

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
LAYERS, EACH = 2, 3


def ids_of(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return [*ids, tokenizer.eos_token_id]


def sets_of(ids: list[int]) -> dict[str, Any]:
    """Top-p sets as the engine tells them: each sampled id, and for every other one a second."""
    sets = [[token, token + 1] if place % 2 else [token] for place, token in enumerate(ids)]
    offsets = [0]
    for kept in sets:
        offsets.append(offsets[-1] + len(kept))
    flat = array("i", [token for kept in sets for token in kept])
    return {"top_p_token_ids": base64.b64encode(flat.tobytes()).decode(), "top_p_token_offsets": offsets}


def experts_of(tokens: int) -> dict[str, Any]:
    """Routed experts of `tokens` tokens, numbered through."""
    rows = np.arange((tokens - 1) * LAYERS * EACH, dtype=np.int32)
    return {"routed_experts": base64.b64encode(rows.tobytes()).decode()}


def saying(tokenizer: Any, texts: list[str], **options: Any) -> Callable[[Any], Reply]:
    """A script whose replies carry top-p sets and experts that fit what is sampled."""
    replies = iter(texts)

    def reply(request: Any) -> Reply:
        text = next(replies)
        ids = ids_of(tokenizer, text)
        meta = {**sets_of(ids), **experts_of(len(request.input_ids) + len(ids)), **options}
        return Reply(text, meta=meta)

    return reply


def sets_in(sample: Sample) -> list[list[int]]:
    ids, offsets = sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets
    assert ids is not None
    assert offsets is not None
    return [ids[start:end] for start, end in pairwise(offsets)]


REPLAY: dict[str, Any] = {"top_p_replay": True, "routing_replay": [LAYERS, EACH]}


async def test_counts_are_summed_over_turns(qwen3_tokenizer: Any) -> None:
    meta = {"spec_verify_ct": 4, "spec_accept_token_num": 5, "spec_draft_token_num": 9, "cached_tokens": 3}
    script = [Reply(CALL, meta=meta, weight_version="1"), Reply("4", meta=meta, weight_version="2")]
    async with holding(qwen3_tokenizer, script, Holder()) as (runtime, engine):
        [sample] = await run_rollout(runtime, row(), {})

    sampled = sum(len(turn.token_ids) for turn in engine.sampled)
    assert sample.spec_info.__dict__ == {
        "spec_accept_token_num": 10,
        "spec_draft_token_num": 18,
        "spec_verify_ct": 8,
        "completion_token_num": sampled,
    }
    prompts = sum(len(request.input_ids) for request in engine.requests)
    assert sample.prefix_cache_info.__dict__ == {"cached_tokens": 6, "total_prompt_tokens": prompts}
    assert sample.weight_versions == ["1", "2"]


async def test_top_p_sets_stand_behind_sampled_tokens_and_nothing_behind_the_others(
    qwen3_tokenizer: Any,
) -> None:
    script = saying(qwen3_tokenizer, [CALL, "It is 4."])
    async with holding(qwen3_tokenizer, script, Holder(), top_p_replay=True) as (runtime, engine):
        [sample] = await run_rollout(runtime, row(), {"custom_params": {"own": 1}})

    response = sample.tokens[-sample.response_length :]
    for bit, token, kept in zip(sample.loss_mask or [], response, sets_in(sample), strict=True):
        assert kept[:1] == [token] * bit
    assert sum(map(len, sets_in(sample))) > sum(sample.loss_mask or [])
    assert [request.sampling["custom_params"] for request in engine.requests] == [
        {"own": 1, "return_top_p_token_ids": True}
    ] * 2
    assert "return_routed_experts" not in engine.requests[0].body


async def test_the_last_answer_of_a_chain_tells_every_tokens_experts(qwen3_tokenizer: Any) -> None:
    script = saying(qwen3_tokenizer, [CALL, "It is 4."])
    async with holding(qwen3_tokenizer, script, Holder(), routing_replay=[LAYERS, EACH]) as (runtime, engine):
        [sample] = await run_rollout(runtime, row(), {})

    experts = sample.rollout_routed_experts
    assert (experts.shape, experts.dtype) == ((len(sample.tokens) - 1, LAYERS, EACH), np.int32)
    assert experts.reshape(-1).tolist() == list(range(experts.size))
    assert [request.body["return_routed_experts"] for request in engine.requests] == [True, True]


@pytest.mark.parametrize(
    ("settings", "meta", "message"),
    [
        ({"top_p_replay": True}, {}, "has no top_p_token_ids and top_p_token_offsets"),
        (
            {"top_p_replay": True},
            {"top_p_token_ids": [1], "top_p_token_offsets": [0, 1]},
            "sampled 2 tokens and gave 2 top-p offsets that end at 1 for 1 ids",
        ),
        (
            {"top_p_replay": True},
            {"top_p_token_ids": [1, 2], "top_p_token_offsets": [0, 3, 2]},
            "top-p offsets go backwards",
        ),
        (
            {"top_p_replay": True},
            {"top_p_token_ids": "?", "top_p_token_offsets": [0]},
            "is no array of int32",
        ),
        ({"routing_replay": [LAYERS, EACH]}, {}, "has no routed_experts"),
        (
            {"routing_replay": [LAYERS, EACH]},
            {"routed_experts": [1, 2, 3]},
            "gave 3 routed experts from token 0",
        ),
        (
            {"routing_replay": [LAYERS, EACH]},
            {"routed_experts": [1], "routed_experts_start_len": 4},
            "gave 1 routed experts from token 4 on",
        ),
    ],
)
async def test_an_answer_without_what_the_trainer_replays_fails_the_row(
    qwen3_tokenizer: Any, settings: dict[str, Any], meta: dict[str, Any], message: str
) -> None:
    async with holding(qwen3_tokenizer, [Reply("4", meta=meta)], Holder(), **settings) as (runtime, _):
        [sample] = await run_rollout(runtime, row(), {})

    error = sample.metadata["rollhook_result"]["error"]
    assert (sample.status, error["type"]) == (Status.FAILED, "EngineProtocolError")
    assert message in error["message"]


async def test_failed_and_aborted_placeholders_carry_valid_empty_values(qwen3_tokenizer: Any) -> None:
    async with holding(qwen3_tokenizer, [], Holder(), **REPLAY) as (runtime, _):
        bad = row()
        bad.metadata = {"rollhook": {"topology": "nowhere"}}
        [failed] = await run_rollout(runtime, bad, {})
        await runtime.abort()
        [aborted] = await run_rollout(runtime, row(), {})

    assert (failed.status, aborted.status) == (Status.FAILED, Status.ABORTED)
    for sample in (failed, aborted):
        assert (sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets) == ([], [0, 0])
        assert sample.rollout_routed_experts.tolist() == [[[0] * EACH] * LAYERS]
        certify(sample)


async def test_evaluation_asks_for_nothing_to_replay(qwen3_tokenizer: Any) -> None:
    async with holding(qwen3_tokenizer, ["4"], Holder(), **REPLAY) as (runtime, engine):
        [sample] = await run_rollout(runtime, row(), {}, evaluation=True)

    assert sample.status is Status.COMPLETED
    assert "custom_params" not in engine.requests[0].sampling
    assert "return_routed_experts" not in engine.requests[0].body
    assert (sample.rollout_top_p_token_ids, sample.rollout_routed_experts) == (None, None)


async def test_a_resumed_rollout_carries_what_it_kept(qwen3_tokenizer: Any) -> None:
    call = ids_of(qwen3_tokenizer, CALL)

    def reply(request: Any) -> Reply:
        length = len(request.input_ids)
        match len(engine.requests):
            case 1:
                return Reply(CALL, meta={**sets_of(call), **experts_of(length + len(call))})
            case 2:
                part = ids_of(qwen3_tokenizer, "one two")[:2]
                meta = {**sets_of(part), **experts_of(length + 2)}
                return Reply("one two three", fault=Fault.hang(after_tokens=2), meta=meta)
        rest = ids_of(qwen3_tokenizer, " three")
        return Reply(" three", meta={**sets_of(rest), **experts_of(length + len(rest))})

    settings = {**REPLAY, "return_shape": "sample", "partial_rollout": True}
    async with holding(qwen3_tokenizer, reply, Holder(), **settings) as (runtime, engine):
        async with asyncio.timeout(20):
            task = asyncio.create_task(run_rollout(runtime, row(), {}))
            while len(engine.requests) < 2 or engine.in_flight == 0:
                await asyncio.sleep(0.01)
            await runtime.abort()
            [kept] = await task
        runtime.lift_abort()
        [made] = await run_rollout(runtime, kept, {})

    rest = sets_of(ids_of(qwen3_tokenizer, " three"))
    assert kept.status is Status.ABORTED
    assert sets_in(made)[: kept.response_length] == sets_in(kept)
    assert (
        len(made.rollout_top_p_token_ids or [])
        == len(kept.rollout_top_p_token_ids or []) + rest["top_p_token_offsets"][-1]
    )
    assert made.rollout_routed_experts.reshape(-1).tolist() == list(range(made.rollout_routed_experts.size))


async def test_a_rollout_resumed_after_its_last_turn_has_the_experts_it_kept(qwen3_tokenizer: Any) -> None:
    holder = Holder()
    settings = {**REPLAY, "return_shape": "sample", "partial_rollout": True}
    script = saying(qwen3_tokenizer, [CALL, "It is 4."])
    async with holding(qwen3_tokenizer, script, holder, **settings) as (runtime, engine):
        async with asyncio.timeout(20):
            task = asyncio.create_task(run_rollout(runtime, row(verifier="score"), {}))
            await holder.reached.wait()
            await runtime.abort()
            [kept] = await task
        runtime.lift_abort()
        holder.let_go.set()
        [made] = await run_rollout(runtime, kept, {})

    assert len(engine.requests) == 2
    assert made.tokens == kept.tokens
    assert np.array_equal(made.rollout_routed_experts, kept.rollout_routed_experts)
    assert sets_in(made) == sets_in(kept)


async def test_every_fork_has_its_own_slice(qwen3_tokenizer: Any) -> None:
    """Two conversations of one agent: two segments, each with its sets and its experts."""
    async with ScriptedEngine(qwen3_tokenizer, saying(qwen3_tokenizer, ["left", "right side"])) as engine:
        config = RunConfig(engine=engine.url, tool_parser="qwen25", **REPLAY)
        async with Runtime(config, plugins=plugins(), tokenizer=qwen3_tokenizer) as runtime:
            sample = Sample(index=1, prompt="q", metadata={"rollhook": {"topology": "w/rewarding"}})
            made = await run_rollout(runtime, sample, {})

    assert len(made) == 2
    for sample in made:
        response = sample.tokens[-sample.response_length :]
        assert [kept[0] for kept in sets_in(sample)] == response
        assert sample.rollout_routed_experts.shape == (len(sample.tokens) - 1, LAYERS, EACH)


async def test_turns_in_parts_and_a_call_cut_in_two_stay_aligned_with_what_is_replayed(
    qwen3_tokenizer: Any,
) -> None:
    """Turns that somebody else's aborts cut: the tool is called once, with the whole call."""
    half = len(CALL) // 2
    parts = iter([(CALL[:half], True), (CALL[half:], False), ("It is", True), (" 4.", False)])

    def reply(request: Any) -> Reply:
        text, cut = next(parts)
        ids = ids_of(qwen3_tokenizer, text)[: -1 if cut else None]
        meta = {**sets_of(ids), **experts_of(len(request.input_ids) + len(ids))}
        return Reply(text, meta=meta, finish="abort") if cut else Reply(text, meta=meta)

    async with holding(qwen3_tokenizer, reply, Holder(), **REPLAY) as (runtime, engine):
        [sample] = await run_rollout(runtime, row(), {})

    assert (sample.status, sample.reward, len(engine.requests)) == (Status.COMPLETED, 1.0, 4)
    response = sample.tokens[-sample.response_length :]
    for bit, token, kept in zip(sample.loss_mask or [], response, sets_in(sample), strict=True):
        assert kept[:1] == [token] * bit
    experts = sample.rollout_routed_experts
    assert experts.reshape(-1).tolist() == list(range((len(sample.tokens) - 1) * LAYERS * EACH))
    sampled = [token for turn in engine.sampled for token in turn.token_ids]
    assert [t for t, bit in zip(response, sample.loss_mask or [], strict=True) if bit] == sampled


async def test_a_judge_of_another_model_is_not_asked_for_what_nobody_replays(
    smollm2_tokenizer: Any, qwen3_tokenizer: Any
) -> None:
    sample = Sample(index=1, prompt="q", label="4")
    sample.metadata = {"rollhook": {"topology": "w/judged", "verifier": "number"}}
    async with (
        ScriptedEngine(qwen3_tokenizer, ["yes, 4"]) as judge,
        running(
            smollm2_tokenizer,
            saying(smollm2_tokenizer, ["four"]),
            models={"judge": judge.url},
            **REPLAY,
        ) as (runtime, _),
    ):
        [made] = await run_rollout(runtime, sample, {})

    assert (made.status, made.response) == (Status.COMPLETED, "four")
    [request] = judge.requests
    assert "custom_params" not in request.sampling
    assert "return_routed_experts" not in request.body


async def test_an_abort_gives_back_what_trains_and_not_what_a_judge_had_said(
    smollm2_tokenizer: Any, qwen3_tokenizer: Any
) -> None:
    sample = Sample(index=1, prompt="q", label="4")
    sample.metadata = {"rollhook": {"topology": "w/judged", "verifier": "number"}}
    hanging = Reply("yes, 4", fault=Fault.hang(after_tokens=1))
    async with (
        ScriptedEngine(qwen3_tokenizer, [hanging]) as judge,
        running(smollm2_tokenizer, ["four"], models={"judge": judge.url}) as (runtime, _),
        asyncio.timeout(20),
    ):
        task = asyncio.create_task(run_rollout(runtime, sample, {}))
        while judge.in_flight == 0:
            await asyncio.sleep(0.01)
        await runtime.abort()
        [made] = await task

    assert (made.status, made.response, made.loss_mask) == (Status.ABORTED, "four", [1, 1])


async def test_kept_turns_are_replayed_with_their_sets_and_experts(qwen3_tokenizer: Any) -> None:
    begun = ids_of(qwen3_tokenizer, "one two")[:-1]

    def reply(request: Any) -> Reply:
        text = [CALL, "one two three", " three"][request.turn]
        ids = begun if request.turn == 1 else ids_of(qwen3_tokenizer, text)
        meta = {**sets_of(ids), **experts_of(len(request.input_ids) + len(ids))}
        return Reply(text, meta=meta, fault=Fault.hang(after_tokens=2) if request.turn == 1 else None)

    partial = {**REPLAY, "return_shape": "sample", "partial_rollout": True}
    sample = row()
    sample.session_id = "s"
    async with (
        holding(qwen3_tokenizer, reply, Holder(), **partial) as (runtime, engine),
        asyncio.timeout(20),
    ):
        task = asyncio.create_task(run_rollout(runtime, sample, {}))
        while len(engine.requests) < 2 or engine.in_flight == 0:
            await asyncio.sleep(0.01)
        await runtime.abort()
        [kept] = await task
        runtime.lift_abort()
        [made] = await run_rollout(runtime, kept, {})

    assert len(engine.requests) == 3
    response = made.tokens[-made.response_length :]
    for bit, token, sets in zip(made.loss_mask or [], response, sets_in(made), strict=True):
        assert sets[:1] == [token] * bit
    experts = made.rollout_routed_experts
    assert experts.reshape(-1).tolist() == list(range((len(made.tokens) - 1) * LAYERS * EACH))
