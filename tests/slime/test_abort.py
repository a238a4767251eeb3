"""The trainer aborts: whatever is busy, every rollout comes back ABORTED with what it had sampled."""

from __future__ import annotations

import asyncio
import logging
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import pytest

import rollhook
from rollhook import Sample, Status, run_rollout
from rollhook.generate import reward_samples
from rollhook.runtime import Runtime, close_runtimes
from rollhook.testing import Fault, Reply, ScriptedEngine
from tests.slime.holding import Holder, holding, row

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
TURNS = [CALL, "It is 4."]


@asynccontextmanager
async def begun(runtime: Runtime, sample: Sample) -> AsyncIterator[asyncio.Task[list[Sample]]]:
    """A rollout under way; one that nothing ends fails the test here."""
    async with asyncio.timeout(20):
        task = asyncio.create_task(run_rollout(runtime, sample, {}))
        yield task
        await task


def sampled_text(tokenizer: Any, sample: Sample) -> str:
    mask = sample.loss_mask or []
    response = sample.tokens[-sample.response_length :]
    return str(tokenizer.decode([token for token, bit in zip(response, mask, strict=True) if bit]))


@pytest.mark.parametrize(
    ("at", "sampled"),
    [
        ({"tools": "open"}, 0),
        ({"environment": "open"}, 0),
        ({"environment": "reset"}, 0),
        ({"tools": "call"}, 1),
        ({"environment": "step"}, 2),
        ({"topology": "run"}, 2),
        ({"verifier": "score"}, 2),
        ({"environment": "close"}, 2),
    ],
)
async def test_abort_returns_wherever_a_plugin_is_busy(
    qwen3_tokenizer: Any, at: dict[str, str], sampled: int
) -> None:
    holder = Holder()
    async with holding(qwen3_tokenizer, TURNS, holder) as (runtime, _):
        async with begun(runtime, row(**at)) as task:
            await holder.reached.wait()
            await runtime.abort()
        holder.let_go.set()
    [sample] = task.result()

    assert (sample.status, sample.reward, sample.rollout_id) == (Status.ABORTED, 0.0, 7)
    expected = "".join(f"{text}<|im_end|>" for text in TURNS[:sampled])
    assert sampled_text(qwen3_tokenizer, sample) == expected
    assert [turn["finish_reason"] for turn in sample.metadata["rollhook_result"]["unfinished"] or []] == [
        "stop"
    ] * sampled


async def test_the_turn_that_was_being_sampled_is_given_back_in_part(qwen3_tokenizer: Any) -> None:
    script = [CALL, Reply("one two three four", fault=Fault.hang(after_tokens=2))]
    async with holding(qwen3_tokenizer, script, Holder()) as (runtime, engine):
        async with begun(runtime, row()) as task:
            while len(engine.requests) < 2 or engine.in_flight == 0:
                await asyncio.sleep(0.01)
            await runtime.abort()
        [sample] = task.result()

    assert sampled_text(qwen3_tokenizer, sample) == f"{CALL}<|im_end|>one two"
    assert sample.metadata["rollhook_result"]["unfinished"][-1]["finish_reason"] == "abort"


async def test_an_engine_that_does_not_react_costs_only_its_turn(qwen3_tokenizer: Any) -> None:
    """A gateway that swallows /abort_request: the turns before are given back all the same."""

    class Deaf(ScriptedEngine):
        async def _abort_request(self, http: Any) -> Any:
            await asyncio.sleep(60)

    engine = Deaf(qwen3_tokenizer, [CALL, Reply("never", fault=Fault.hang())])
    async with (
        engine,
        Runtime(
            rollhook.RunConfig(engine=engine.url, tool_parser="qwen25"),
            plugins=Holder().plugins(),
            tokenizer=qwen3_tokenizer,
        ) as runtime,
    ):
        async with begun(runtime, row()) as task:
            while len(engine.requests) < 2 or engine.in_flight == 0:
                await asyncio.sleep(0.01)
            await runtime.abort()
        [sample] = task.result()

    assert (sample.status, sampled_text(qwen3_tokenizer, sample)) == (Status.ABORTED, f"{CALL}<|im_end|>")


async def test_a_plugin_that_swallows_its_cancellation_holds_nobody_up(
    qwen3_tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    holder = Holder(swallows=3)
    async with holding(qwen3_tokenizer, TURNS, holder) as (runtime, _):
        with caplog.at_level(logging.WARNING, "rollhook.aborts"):
            async with begun(runtime, row(tools="call")) as task:
                await holder.reached.wait()
                await runtime.abort()
        assert holder.closed == 0  # still there, and waited for below
        holder.let_go.set()
    [sample] = task.result()

    assert (sample.status, holder.closed) == (Status.ABORTED, 1)
    assert "1 aborted rollouts did not end at once" in caplog.text


async def test_a_topology_that_ignores_its_interrupted_turn_is_aborted_all_the_same(
    qwen3_tokenizer: Any,
) -> None:
    script = [Reply("one two three four", fault=Fault.hang(after_tokens=2))]
    async with holding(qwen3_tokenizer, script, Holder()) as (runtime, engine):
        async with begun(runtime, row(topology="ignore")) as task:
            while engine.in_flight == 0:
                await asyncio.sleep(0.01)
            await runtime.abort()
        [sample] = task.result()

    assert (sample.status, sample.reward) == (Status.ABORTED, 0.0)
    assert sampled_text(qwen3_tokenizer, sample) == "one two"


async def test_a_turn_given_back_is_kept_although_the_abort_was_lifted_meanwhile(
    qwen3_tokenizer: Any,
) -> None:
    script = [CALL, Reply("one two three four", fault=Fault.hang(after_tokens=2)), Reply("more")]
    async with holding(qwen3_tokenizer, script, Holder()) as (runtime, engine):
        async with begun(runtime, row()) as task:
            while len(engine.requests) < 2 or engine.in_flight == 0:
                await asyncio.sleep(0.01)
            aborting = asyncio.create_task(runtime.abort())
            await asyncio.sleep(0)
            runtime.lift_abort()
            await aborting
        [sample] = task.result()

    assert (sample.status, len(engine.requests)) == (Status.ABORTED, 2)
    assert sampled_text(qwen3_tokenizer, sample) == f"{CALL}<|im_end|>one two"


async def test_an_abort_while_rollouts_wait_for_what_they_share_ends_only_them(qwen3_tokenizer: Any) -> None:
    holder = Holder()
    async with holding(qwen3_tokenizer, TURNS, holder) as (runtime, _), asyncio.timeout(20):
        tasks = [asyncio.create_task(run_rollout(runtime, row(i, tools="open"), {})) for i in range(2)]
        await holder.reached.wait()
        await runtime.abort()
        aborted = [sample for task in tasks for sample in await task]
        runtime.lift_abort()
        holder.let_go.set()
        [late] = await run_rollout(runtime, row(tools="open"), {})

    assert [sample.status for sample in aborted] == [Status.ABORTED] * 2
    assert late.status is Status.COMPLETED


async def test_one_runtimes_abort_leaves_anothers_turns_on_the_same_engine(smollm2_tokenizer: Any) -> None:
    half = Reply("one two three", fault=Fault.hang(after_tokens=1))
    async with ScriptedEngine(smollm2_tokenizer, [half, Reply("It is 4.", delay_s=2)]) as engine:
        config = rollhook.RunConfig(engine=engine.url, default="single")
        async with (
            Runtime(config, tokenizer=smollm2_tokenizer) as one,
            Runtime(config, tokenizer=smollm2_tokenizer) as other,
        ):
            tasks = []
            for runtime in (one, other):
                tasks.append(asyncio.create_task(run_rollout(runtime, Sample(index=1, prompt="2+2?"), {})))
                async with asyncio.timeout(20):
                    while engine.in_flight < len(tasks):
                        await asyncio.sleep(0.01)
            await one.abort()
            [[aborted], [whole]] = await asyncio.gather(*tasks)

    assert (aborted.status, aborted.response) == (Status.ABORTED, "one")
    assert (whole.status, whole.response) == (Status.COMPLETED, "It is 4.")


async def test_what_begins_under_an_abort_is_aborted_at_once_until_it_is_lifted(qwen3_tokenizer: Any) -> None:
    async with holding(qwen3_tokenizer, TURNS, Holder()) as (runtime, engine):
        await runtime.abort()
        [early] = await run_rollout(runtime, row(), {})
        asked = len(engine.requests)
        runtime.lift_abort()
        [late] = await run_rollout(runtime, row(), {})

    assert (early.status, early.tokens, early.loss_mask, asked) == (Status.ABORTED, [0, 0], [0], 0)
    assert late.status is Status.COMPLETED


async def test_many_rollouts_at_different_places_end_together(qwen3_tokenizer: Any) -> None:
    places: list[dict[str, str]] = [{"tools": "call"}, {"environment": "step"}, {"verifier": "score"}, {}]

    def answer(request: Any) -> Reply:
        if "<tool_response>" in request.prompt:
            return Reply("It is 4.")
        return Reply(CALL, fault=None if request.body["sampling_params"]["top_k"] else Fault.hang())

    holder = Holder()
    async with holding(qwen3_tokenizer, answer, holder) as (runtime, engine):
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(run_rollout(runtime, row(index, **at), {"top_k": len(at)}))
                for index, at in enumerate(places * 10)
            ]
            while engine.in_flight != 10 or len(engine.requests) < 60:
                await asyncio.sleep(0.01)
            await runtime.abort()
        assert engine.in_flight == 0

    made = [task.result()[0] for task in tasks]
    assert [sample.rollout_id for sample in made] == list(range(40))
    assert {sample.status for sample in made} == {Status.ABORTED}


async def test_a_rollout_whose_caller_is_cancelled_closes_what_it_opened(qwen3_tokenizer: Any) -> None:
    holder = Holder()
    async with holding(qwen3_tokenizer, TURNS, holder) as (runtime, _):
        task = asyncio.create_task(run_rollout(runtime, row(tools="call"), {}))
        await holder.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert holder.closed == 1


async def test_aborted_scoring_is_reward_zero_and_an_aborted_sample(qwen3_tokenizer: Any) -> None:
    holder = Holder()
    finished = row(verifier="score")
    finished.tokens, finished.response_length, finished.response = [1, 2], 1, "4"
    finished.status = Status.COMPLETED
    scored = row(8)
    scored.reward = 0.5
    async with holding(qwen3_tokenizer, [], holder) as (runtime, _), asyncio.timeout(20):
        task = asyncio.create_task(reward_samples(runtime, [finished, scored]))
        await holder.reached.wait()
        await runtime.abort()
        rewards = await task

    assert rewards == [0.0, 0.5]
    assert (finished.status, scored.status) == (Status.ABORTED, Status.PENDING)


class Singleton(type):
    _instances: dict[type, Any] = {}

    def __call__(cls, *args: Any) -> Any:
        if cls not in cls._instances:
            cls._instances[cls] = super().__call__(*args)
        return cls._instances[cls]


@pytest.fixture
def slime_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Any]]:
    """The state that slime keeps for a process, under its own module's name."""

    class GenerateState(metaclass=Singleton):
        def __init__(self, args: Namespace) -> None:
            self.aborted = False

    module = ModuleType("slime.rollout.sglang_rollout")
    module.GenerateState = GenerateState  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "slime.rollout.sglang_rollout", module)
    yield GenerateState
    Singleton._instances.clear()


async def test_slimes_own_abort_is_seen_and_its_reset_lifts_it(
    smollm2_tokenizer: Any, slime_state: type[Any]
) -> None:
    replies: list[Reply | str] = [Reply("one two three", fault=Fault.hang(after_tokens=1)), "It is 4."]
    async with ScriptedEngine(smollm2_tokenizer, replies) as engine:
        args = Namespace(rollhook={"engine": engine.url, "tokenizer": smollm2_tokenizer.name_or_path})
        state = slime_state(args)
        sample = Sample(index=1, prompt="2+2?", label="4", metadata={"rollhook": {"verifier": "number"}})
        async with asyncio.timeout(20):
            task = asyncio.create_task(rollhook.generate(args, sample, {}))
            while engine.in_flight == 0:
                await asyncio.sleep(0.01)
            state.aborted = True
            [aborted] = await task  # type: ignore[misc]  # a list, by return_shape
            [at_once] = await rollhook.generate(args, sample, {})  # type: ignore[misc]  # likewise
            state.aborted = False
            [good] = await rollhook.generate(args, sample, {})  # type: ignore[misc]  # likewise
        await close_runtimes()

    assert [s.status for s in (aborted, at_once, good)] == [Status.ABORTED, Status.ABORTED, Status.COMPLETED]
    assert (sampled_text(smollm2_tokenizer, aborted), at_once.tokens) == ("one", [0, 0])


async def test_an_abort_while_the_first_call_still_opens_waits_for_nothing(
    smollm2_tokenizer: Any, slime_state: type[Any]
) -> None:
    """The engine answers its first question late; what was being opened serves the next call."""

    class Slow(ScriptedEngine):
        asked, let_go = asyncio.Event(), asyncio.Event()

        async def _info(self, http: Any) -> Any:
            self.asked.set()
            await self.let_go.wait()
            return await super()._info(http)

    kept = Sample(index=2, prompt="2+2?", status=Status.ABORTED, response_length=1)
    kept.tokens, kept.loss_mask, kept.rollout_log_probs = [1, 2], [1], [-0.5]
    turn = {"start": 1, "length": 1, "finish_reason": "abort", "matched": None, "request_id": "r"}
    counts = {"weight_versions": [], "prompt_tokens": 1, "cached_tokens": 0, "spec": {}}
    kept.metadata["rollhook_result"] = {
        "unfinished": [{**turn, **counts}],
        "clock": "2026-01-01T00:00:00+00:00",
    }
    async with Slow(smollm2_tokenizer, lambda request: "4") as engine, asyncio.timeout(20):
        args = Namespace(
            rollhook={
                "engine": engine.url,
                "default": "single",
                "return_shape": "sample",
                "partial_rollout": True,
            },
        )
        state = slime_state(args)
        calls = [
            asyncio.create_task(rollhook.generate(args, sample, {}))
            for sample in (Sample(index=1, prompt="2+2?"), kept)
        ]
        scoring = asyncio.create_task(rollhook.reward(args, [Sample(index=3, reward=0.5), Sample(index=4)]))
        await engine.asked.wait()
        state.aborted = True
        empty, again = await asyncio.gather(*calls)
        rewards = await scoring
        state.aborted = False
        engine.let_go.set()
        good = await rollhook.generate(args, Sample(index=1, prompt="2+2?"), {})
        await close_runtimes()

    assert isinstance(empty, Sample)
    assert isinstance(again, Sample)
    assert isinstance(good, Sample)
    assert [s.status for s in (empty, again, good)] == [Status.ABORTED, Status.ABORTED, Status.COMPLETED]
    assert (empty.tokens, empty.reward, empty.rollout_id) == ([0, 0], 0.0, 1)
    assert (again.tokens, again.loss_mask, again.reward) == ([1, 2], [1], 0.0)
    assert rewards == [0.5, 0.0]


async def test_a_state_that_slime_has_not_made_is_not_made_for_it(
    smollm2_tokenizer: Any, slime_state: type[Any]
) -> None:
    async with ScriptedEngine(smollm2_tokenizer, ["4"]) as engine:
        args = Namespace(rollhook={"engine": engine.url, "tokenizer": smollm2_tokenizer.name_or_path})
        await rollhook.generate(args, Sample(index=1, prompt="2+2?"), {})
        await close_runtimes()

    assert Singleton._instances == {}
