"""`rollhook.slime.fully_async_rollout`: batches while sampling goes on, never too stale, nothing lost."""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rollhook import ConfigError, GroupsFailed
from rollhook.slime import fully_async_rollout, pause_rollouts, resume_rollouts, shutdown
from rollhook.slime.fully_async import BackgroundRun, _pause
from rollhook.slime.thread import ROLLOUTS
from rollhook.testing import Fault, Reply, ScriptedEngine, ScriptedRequest
from tests.slime.running import NUMBER, PAIR, question_of, questions, slime_run
from tests.slime.slime_types import SlimeSample, SlimeStatus

Flags = dict[str, Any]
HERE = "tests.slime.test_fully_async"


def slow(*numbers: int) -> Callable[[ScriptedRequest], Reply]:
    """A script that hardly ends for these questions."""

    def script(request: ScriptedRequest) -> Reply:
        return Reply("4 is the answer", delay_s=60.0 if question_of(request) in numbers else 0.0)

    return script


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def steps(count: int, call: Callable[[int], Awaitable[Any]], engine: ScriptedEngine) -> list[Any]:
    """`count` training steps, each of which changes the engine's weights."""
    batches = []
    for step in range(count):
        batches.append(await call(step))
        engine.weight_version = str(step + 1)
    return batches


async def test_batches_are_whole_and_no_row_is_lost_or_trained_twice(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer, rollhook={"fully_async": {"max_staleness": 2}}) as (
        trainer,
        engine,
    ):
        batches = await steps(5, lambda n: trainer.rollout(fully_async_rollout, n), engine)
        await shutdown()

    trained = [sample for batch in batches for sample in batch.samples]
    assert max(Counter(sample.index for sample in trained).values()) == 1
    assert trainer.source.unaccounted(trained) == set()
    assert len(trained) == 5 * 4


async def test_the_slowest_rollout_does_not_hold_up_a_batch_and_ends_when_it_is_too_old(
    smollm2_tokenizer: Any,
) -> None:
    async with slime_run(smollm2_tokenizer, slow(1), rollhook={"fully_async": {"max_staleness": 1}}) as (
        trainer,
        engine,
    ):
        batches = await steps(4, lambda n: trainer.rollout(fully_async_rollout, n), engine)
        returned = [group[0].group_index for group in trainer.source.returned]

    assert all(sample.group_index != 1 for batch in batches for sample in batch.samples)
    assert 1 in returned
    assert sum(batch.metrics["rollhook/stale_groups"] for batch in batches) >= 1


@pytest.mark.parametrize("on_stale", ["requeue", "drop"])
async def test_what_is_too_stale_goes_back_or_is_dropped(smollm2_tokenizer: Any, on_stale: str) -> None:
    pace = {"max_staleness": 1, "on_stale": on_stale}
    async with slime_run(smollm2_tokenizer, rollhook={"fully_async": pace}) as (trainer, engine):
        first = await trainer.rollout(fully_async_rollout, 0)
        await eventually(lambda: len(engine.sampled) == 8)
        engine.weight_version = "9"
        second = await trainer.rollout(fully_async_rollout, 1)
        early = {sample.group_index for sample in first.samples}
        aged = {group[0].group_index for group in trainer.source.returned}
        await shutdown()

    assert second.metrics["rollhook/stale_groups"] == 2
    assert second.metrics["rollhook/staleness_max"] == 0
    assert {v for sample in second.samples for v in sample.weight_versions} == {"9"}
    assert aged == ({0, 1, 2, 3} - early if on_stale == "requeue" else set())


async def test_a_group_is_as_stale_as_its_oldest_token(smollm2_tokenizer: Any) -> None:
    turns: Counter[str] = Counter()

    def two_turns(request: ScriptedRequest) -> Reply:
        turns[request.session] += 1
        first = turns[request.session] == 1
        return Reply("one!" if first else "stop", weight_version="3" if first else "5")

    rows = questions(9, {"rollhook": {"environment": "w"}})
    pace = {"max_staleness": 2}
    async with slime_run(smollm2_tokenizer, two_turns, rows, rollhook={"fully_async": pace}) as (trainer, _):
        batch = await trainer.rollout(fully_async_rollout, 0)

    assert {tuple(sample.weight_versions) for sample in batch.samples} == {("3", "5")}
    assert batch.metrics["rollhook/staleness_mean"] == batch.metrics["rollhook/staleness_max"] == 2


async def test_calls_are_counted_where_the_engine_names_no_whole_number(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer, rollhook={"fully_async": {"max_staleness": 1}}) as (
        trainer,
        engine,
    ):
        engine.weight_version = "default"
        await trainer.rollout(fully_async_rollout, 10)
        await eventually(lambda: len(engine.sampled) == 8)
        batch = await trainer.rollout(fully_async_rollout, 11)

    assert batch.metrics["rollhook/weight_version"] == 11
    assert batch.metrics["rollhook/staleness_max"] == 1


async def test_sampling_ahead_is_bounded_by_the_capacity_rule(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer, rollhook={"fully_async": {"max_staleness": 2}}) as (
        trainer,
        engine,
    ):
        await trainer.rollout(fully_async_rollout, 0)
        await eventually(lambda: len(engine.sampled) == 3 * 4)
        await asyncio.sleep(0.2)

        assert len(engine.requests) == 3 * 4


async def test_fan_out_and_a_dynamic_filter_work_in_the_background(smollm2_tokenizer: Any) -> None:
    answers = iter(["4", "4", "5", "5"] * 500)
    flags: Flags = {"dynamic_sampling_filter_path": f"{HERE}.only_even"}
    rows = questions(50, PAIR)
    async with slime_run(smollm2_tokenizer, lambda request: next(answers), rows, **flags) as (trainer, _):
        batches = [await trainer.rollout(fully_async_rollout, n) for n in range(2)]

    assert all(sample.group_index % 2 == 0 for batch in batches for sample in batch.samples)
    assert [len(batch.samples) for batch in batches] == [8, 8]
    assert sum(batch.metrics.get("rollout/dynamic_filter/drop_filtered", 0) for batch in batches) >= 2


def only_even(args: Any, group: list[Any]) -> bool:
    return bool(group[0][0].group_index % 2 == 0)


async def test_a_failed_group_goes_back_and_is_tried_again(smollm2_tokenizer: Any) -> None:
    """Both its rollouts fail at first; a group with one good rollout is trained."""
    seen: Counter[int] = Counter()

    def script(request: ScriptedRequest) -> Reply:
        number = question_of(request)
        seen[number] += 1
        fails = (number == 0 and seen[0] <= 2) or (number == 1 and seen[1] == 1)
        return Reply("4", fault=Fault.status(400, times=1) if fails else None)

    async with slime_run(smollm2_tokenizer, script, rollhook={"fully_async": {"max_staleness": 0}}) as (
        trainer,
        _,
    ):
        batch = await trainer.rollout(fully_async_rollout, 0)

    assert [group[0].group_index for group in trainer.source.returned] == [0]
    assert batch.metrics["rollhook/retried_groups"] == 1
    assert batch.metrics["rollhook/failed_samples"] == 1
    assert {sample.group_index for sample in batch.samples} == {0, 1}


async def test_failures_reach_the_caller_with_their_causes_and_lose_no_row(smollm2_tokenizer: Any) -> None:
    def down(request: ScriptedRequest) -> Reply:
        return Reply(fault=Fault.status(400, times=None, message="out of memory"))

    pace = {"max_staleness": 0, "group_retries": 1, "max_failed_groups": 1}
    async with slime_run(smollm2_tokenizer, down, rollhook={"fully_async": pace}) as (trainer, _):
        with pytest.raises(
            GroupsFailed, match=r"\d groups failed 2 times each; .* causes: engine: .*out of memory"
        ):
            await asyncio.to_thread(fully_async_rollout, trainer.args, 0, trainer.source)
        await shutdown()

    assert trainer.source.unaccounted([]) == set()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"rollhook": {"plugins": ["nobody"]}}, "nobody"),
        ({"custom_generate_function_path": "mine.generate"}, r"run rollhook\.generate, not mine\.generate"),
        ({"rollhook": {"fully_async": {"max_stalenes": 1}}}, "max_stalenes"),
        ({"group_rm": True}, "--group-rm scores one Sample for each rollout"),
    ],
)
async def test_a_fault_of_the_run_reaches_the_first_caller(
    smollm2_tokenizer: Any, flags: Flags, message: str
) -> None:
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, engine):
        with pytest.raises(ConfigError, match=message):
            await asyncio.to_thread(fully_async_rollout, trainer.args, 0, trainer.source)

        assert engine.requests == []


async def test_a_fault_that_only_a_row_reveals_reaches_the_caller_too(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        trainer.source.rows = questions(3)
        groups = trainer.source.get_samples(1)
        groups[0][0].generate_function_path = "mine.generate"
        trainer.source.add_samples(groups)
        with pytest.raises(ConfigError, match=r"not mine\.generate"):
            await asyncio.to_thread(fully_async_rollout, trainer.args, 0, trainer.source)


async def test_an_evaluation_runs_beside_it_and_from_other_event_loops(
    smollm2_tokenizer: Any, tmp_path: Any
) -> None:
    from tests.slime.test_evaluation import eval_set

    gate = asyncio.Event()

    def script(request: ScriptedRequest) -> Reply:
        return Reply("4 is right", delay_s=0.0 if "Exam" in request.prompt or gate.is_set() else 30.0)

    flags: Flags = {"eval_datasets": [eval_set(tmp_path, ["Exam: 2 + 2?"])]}
    async with slime_run(smollm2_tokenizer, script, **flags) as (trainer, engine):
        training = asyncio.create_task(trainer.rollout(fully_async_rollout, 0))
        await eventually(lambda: engine.in_flight > 0)
        report = await trainer.evaluate(fully_async_rollout, 0)
        elsewhere = SlimeSample(index=9, prompt="Exam: 2 + 2?", label="4", metadata=NUMBER)
        made = await trainer.generate_and_rm(elsewhere, {}, evaluation=True)
        assert (report["exam"]["rewards"], made.reward, training.done()) == ([1.0], 1.0, False)

        stopping = asyncio.create_task(shutdown())
        with pytest.raises(ConfigError, match="shut down while a call waited"):
            await training
        await stopping

    assert trainer.source.unaccounted([]) == set()


@pytest.mark.parametrize("on_pause", ["keep", "abort"])
async def test_a_pause_keeps_running_turns_or_aborts_them(smollm2_tokenizer: Any, on_pause: str) -> None:
    delay = [2.0 if on_pause == "keep" else 60.0]

    def script(request: ScriptedRequest) -> Reply:
        return Reply("4 is the answer", delay_s=delay[0])

    pace = {"on_pause": on_pause}
    async with slime_run(smollm2_tokenizer, script, rollhook={"fully_async": pace}) as (trainer, engine):
        training = asyncio.create_task(trainer.rollout(fully_async_rollout, 0))
        await eventually(lambda: engine.in_flight == 8)
        await asyncio.to_thread(pause_rollouts)
        if on_pause == "abort":
            assert engine.in_flight == 0
            assert len(trainer.source.buffer) == 4
        else:
            await eventually(lambda: engine.in_flight == 0)
        assert len(engine.requests) == 8
        engine.weight_version, delay[0] = "1", 0.0
        await asyncio.to_thread(resume_rollouts)
        batch = await training
        await shutdown()

    versions = {version for sample in batch.samples for version in sample.weight_versions}
    assert versions == ({"0"} if on_pause == "keep" else {"1"})
    assert trainer.source.unaccounted(batch.samples) == set()


async def test_partial_rollouts_are_resumed_after_a_pause(smollm2_tokenizer: Any) -> None:
    delay = [60.0]

    def script(request: ScriptedRequest) -> Reply:
        return Reply("4 is the answer I give", delay_s=delay[0])

    section = {"return_shape": "sample", "fully_async": {"on_pause": "abort", "max_staleness": 1}}
    flags: Flags = {"partial_rollout": True, "rollout_batch_size": 1}
    async with slime_run(smollm2_tokenizer, script, rollhook=section, **flags) as (trainer, engine):
        training = asyncio.create_task(trainer.rollout(fully_async_rollout, 4))
        await eventually(lambda: engine.in_flight == 4)
        await asyncio.to_thread(pause_rollouts)
        statuses = {sample.status for group in trainer.source.buffer for sample in group}
        delay[0] = 0.0
        await asyncio.to_thread(resume_rollouts)
        batch = await training

    assert statuses == {SlimeStatus.ABORTED}
    assert {sample.status for sample in batch.samples} == {SlimeStatus.COMPLETED}


async def never_scores(args: Any, samples: list[Any]) -> list[float]:
    await asyncio.Event().wait()
    return []


async def test_a_pause_aborts_the_trainers_own_reward_function_too(smollm2_tokenizer: Any) -> None:
    flags: Flags = {
        "custom_rm_path": f"{HERE}.never_scores",
        "rollhook": {"fully_async": {"on_pause": "abort"}},
    }
    rows = questions(9, {"rollhook": "single"})
    async with slime_run(smollm2_tokenizer, rows=rows, **flags) as (trainer, engine):
        training = asyncio.create_task(trainer.rollout(fully_async_rollout, 0))
        await eventually(lambda: len(engine.sampled) == 8)
        await asyncio.to_thread(pause_rollouts)
        assert len(trainer.source.buffer) == 4
        stopping = asyncio.create_task(shutdown())
        with pytest.raises(ConfigError, match="shut down while a call waited"):
            await training
        await stopping


async def test_an_abort_that_nobody_paused_for_puts_groups_back_once(smollm2_tokenizer: Any) -> None:
    delay = [60.0]

    def script(request: ScriptedRequest) -> Reply:
        return Reply("4 is the answer", delay_s=delay[0])

    async with slime_run(smollm2_tokenizer, script) as (trainer, engine):
        training = asyncio.create_task(trainer.rollout(fully_async_rollout, 0))
        await eventually(lambda: engine.in_flight == 8)
        run = ROLLOUTS.background
        assert isinstance(run, BackgroundRun)
        await asyncio.to_thread(ROLLOUTS.run, run.runtime.abort())
        await asyncio.sleep(0.3)
        assert len(trainer.source.returned) == 4

        delay[0] = 0.0
        run.runtime.lift_abort()
        batch = await training

    assert batch.metrics["rollhook/aborted_groups"] == 4


@pytest.mark.parametrize("partial", [False, True])
async def test_faults_pauses_and_new_weights_leave_every_row_accounted_for(
    smollm2_tokenizer: Any, partial: bool
) -> None:
    rng = random.Random(3)

    def script(request: ScriptedRequest) -> Reply:
        faults = [Fault.status(400, times=None), Fault.drop(), Fault.missing_logprobs()]
        fault = rng.choice(faults) if rng.random() < 0.12 else None
        return Reply("4 is the answer I give", delay_s=0.02 * min(100, rng.paretovariate(1.1)), fault=fault)

    rows = [*questions(20), ("Question 20: 2 + 2?", "4", {"rollhook": {"topology": "w/broken"}})]
    flags: Flags = {
        "rollhook": {
            "return_shape": "sample" if partial else "list",
            "fully_async": {"max_staleness": 2, "on_pause": "abort"},
        },
        "partial_rollout": partial,
        "sglang_server_concurrency": 12,
    }
    trained: list[Any] = []
    failed = 0
    async with slime_run(smollm2_tokenizer, script, rows, **flags) as (trainer, engine):
        for step in range(12):
            batch = await trainer.rollout(fully_async_rollout, step)
            trained += batch.samples
            failed += batch.metrics["rollhook/failed_groups"]
            assert batch.metrics["rollhook/staleness_max"] <= 2
            if step % 3 == 2:
                await asyncio.to_thread(pause_rollouts)
            engine.weight_version = str(step + 1)
            await asyncio.to_thread(resume_rollouts)
        await shutdown()

    assert max(Counter(sample.index for sample in trained).values()) == 1
    assert len(trainer.source.unaccounted(trained)) == failed * 2


async def test_a_pause_without_a_run_does_nothing(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer):
        await asyncio.to_thread(pause_rollouts)
        await asyncio.to_thread(resume_rollouts)


async def test_another_data_source_begins_another_run_and_the_first_gets_its_rows_back(
    smollm2_tokenizer: Any,
) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        first = await trainer.rollout(fully_async_rollout, 0)
        old = trainer.source
        trainer.source = type(old)(trainer.args, [("Question 7: 2 + 2?", "4", NUMBER)])
        second = await trainer.rollout(fully_async_rollout, 0)
        await shutdown()

    assert old.unaccounted(first.samples) == set()
    assert trainer.source.unaccounted(second.samples) == set()


async def test_a_pause_that_comes_before_a_new_group_has_begun_ends_it_too(smollm2_tokenizer: Any) -> None:
    """The pause is upon the loop at the moment at which groups are drawn."""
    async with slime_run(smollm2_tokenizer, rollhook={"fully_async": {"on_pause": "abort"}}) as (trainer, _):
        await trainer.rollout(fully_async_rollout, 0)
        run = ROLLOUTS.background
        assert isinstance(run, BackgroundRun)

        async def draw_and_pause() -> int:
            run.scheduler.advance(run.scheduler.version + 1)
            drawn = run.scheduler.running
            await _pause()
            return drawn

        async with asyncio.timeout(20):
            assert await asyncio.to_thread(ROLLOUTS.run, draw_and_pause()) > 0
        assert run.scheduler.running == 0


@pytest.mark.parametrize("on_pause", ["keep", "abort"])
async def test_an_evaluation_runs_while_rollouts_are_paused(
    smollm2_tokenizer: Any, tmp_path: Any, on_pause: str
) -> None:
    from tests.slime.test_evaluation import eval_set

    flags: Flags = {"eval_datasets": [eval_set(tmp_path, ["Exam: 2 + 2?"])]}
    pace = {"on_pause": on_pause}
    async with slime_run(smollm2_tokenizer, rollhook={"fully_async": pace}, **flags) as (trainer, _):
        await trainer.rollout(fully_async_rollout, 0)
        await asyncio.to_thread(pause_rollouts)
        async with asyncio.timeout(20):
            report = await trainer.evaluate(fully_async_rollout, 0)

    assert report["exam"]["rewards"] == [1.0]


async def test_flags_that_change_between_calls_hold_for_the_next_batch(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer, rollout_batch_size=2) as (trainer, _):
        first = await trainer.rollout(fully_async_rollout, 0)
        trainer.args = copy.copy(trainer.args)
        vars(trainer.args)["rollout_batch_size"] = 3
        second = await trainer.rollout(fully_async_rollout, 1)
        await shutdown()

    assert [len(batch.samples) for batch in (first, second)] == [4, 6]
    assert trainer.source.unaccounted(first.samples + second.samples) == set()


async def test_a_pause_outlasts_a_change_of_the_data_source(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, engine):
        await trainer.rollout(fully_async_rollout, 0)
        await asyncio.to_thread(pause_rollouts)
        await eventually(lambda: engine.in_flight == 0)
        asked = len(engine.requests)
        trainer.source = type(trainer.source)(trainer.args, questions(9))
        waiting = asyncio.create_task(trainer.rollout(fully_async_rollout, 1))
        await asyncio.sleep(0.3)
        assert (waiting.done(), len(engine.requests)) == (False, asked)

        await asyncio.to_thread(resume_rollouts)
        await waiting


async def test_kept_tokens_are_as_old_as_the_call_they_were_sampled_in_where_calls_are_counted(
    smollm2_tokenizer: Any,
) -> None:
    delay = [60.0]

    def script(request: ScriptedRequest) -> Reply:
        return Reply("4 is the answer I give", delay_s=delay[0])

    section = {"return_shape": "sample", "fully_async": {"on_pause": "abort", "max_staleness": 3}}
    flags: Flags = {"partial_rollout": True, "rollout_batch_size": 1}
    async with slime_run(smollm2_tokenizer, script, rollhook=section, **flags) as (trainer, engine):
        engine.weight_version = "default"
        training = asyncio.create_task(trainer.rollout(fully_async_rollout, 5))
        await eventually(lambda: engine.in_flight > 0)
        await asyncio.to_thread(pause_rollouts)
        delay[0] = 0.0
        await asyncio.to_thread(resume_rollouts)
        first = await training
        second = await trainer.rollout(fully_async_rollout, 7)

    assert first.metrics["rollhook/staleness_max"] == 0
    assert second.metrics["rollhook/staleness_max"] == 2
