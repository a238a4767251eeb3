"""`rollhook.slime.generate_rollout`: one batch at a time, of lists and partial rollouts too."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from rollhook import ConfigError, Sample
from rollhook.runtime import loops_with_runtimes
from rollhook.slime import close, generate_rollout, shutdown
from rollhook.slime.outputs import TrainOutput, flat
from rollhook.testing import Reply, ScriptedRequest
from tests.slime.running import NUMBER, PAIR, question_of, questions, slime_run
from tests.slime.slime_types import SlimeStatus

Flags = dict[str, Any]


def right_after(seconds: float, *slow: int) -> Any:
    """A script that answers at once, and questions in `slow` after `seconds`."""

    def script(request: ScriptedRequest) -> Reply:
        return Reply("4 is the answer", delay_s=seconds if question_of(request) in slow else 0.0)

    return script


async def test_a_batch_has_all_groups_sorted_by_index(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer, rollout_batch_size=4) as (trainer, _):
        batch = await trainer.rollout(generate_rollout, 0)

    assert [sample.index for sample in batch.samples] == list(range(8))
    assert [sample.reward for sample in batch.samples] == [1.0] * 8
    assert batch.metrics["rollhook/samples"] == 8
    assert batch.metrics["rollhook/failed_samples"] == 0


@pytest.mark.parametrize("shape", ["list", "sample"])
async def test_every_rollout_has_the_shape_the_run_declares(smollm2_tokenizer: Any, shape: str) -> None:
    async with slime_run(smollm2_tokenizer, rollhook={"return_shape": shape}) as (trainer, _):
        output = await asyncio.to_thread(generate_rollout, trainer.args, 0, trainer.source)

    assert {type(item).__name__ for group in output.samples for item in group} == {
        "list" if shape == "list" else "SlimeSample"
    }


async def test_fan_out_is_trained_under_one_rollout_id(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer, rows=questions(9, PAIR)) as (trainer, _):
        batch = await trainer.rollout(generate_rollout, 0)

    assert Counter(sample.rollout_id for sample in batch.samples) == dict.fromkeys(range(4), 2)


async def test_groups_that_are_not_needed_end_at_once_and_go_back_as_they_came(
    smollm2_tokenizer: Any,
) -> None:
    flags: Flags = {"rollout_batch_size": 2, "over_sampling_batch_size": 4}
    async with slime_run(smollm2_tokenizer, right_after(60, 0, 1), **flags) as (trainer, engine):
        batch = await trainer.rollout(generate_rollout, 0)
        assert engine.in_flight == 0

    assert {sample.group_index for sample in batch.samples} == {2, 3}
    assert [group[0].group_index for group in trainer.source.returned] == [0, 1]
    assert all(s.tokens == [] and s.status is SlimeStatus.PENDING for s in trainer.source.returned[0])
    assert batch.metrics["rollhook/put_back_groups"] == 2
    assert trainer.source.unaccounted(batch.samples) == set()


async def test_partial_rollouts_go_back_with_what_they_sampled_and_are_resumed(
    smollm2_tokenizer: Any,
) -> None:
    delays = {0: 60.0}

    def script(request: ScriptedRequest) -> Reply:
        return Reply("4 is what I say", delay_s=delays.get(question_of(request), 0.0))

    flags: Flags = {"over_sampling_batch_size": 2, "rollout_batch_size": 1, "partial_rollout": True}
    async with slime_run(smollm2_tokenizer, script, rollhook={"return_shape": "sample"}, **flags) as (
        trainer,
        engine,
    ):
        first = await trainer.rollout(generate_rollout, 5)
        [group] = trainer.source.returned
        assert {sample.status for sample in group} == {SlimeStatus.ABORTED}
        delays.clear()
        second = await trainer.rollout(generate_rollout, 6)
        sessions = {request.session for request in engine.requests if question_of(request) == 0}

    assert {s.group_index for s in first.samples} == {1}
    assert {s.group_index for s in second.samples} == {0}
    assert {s.status for s in second.samples} == {SlimeStatus.COMPLETED}
    assert sessions == {s.session_id for s in second.samples}


async def uneven(args: Any, samples: list[Any]) -> list[float]:
    """A reward function of the trainer's that takes lists."""
    return [float(sample.index) for sample in samples]


async def one_by_one(args: Any, sample: Any) -> float:
    return 0.5


async def broken(args: Any, samples: Any) -> list[float]:
    raise LookupError("no reward model")


async def forgetful(args: Any, samples: list[Any]) -> list[float]:
    return []


async def unscoring(args: Any, samples: list[Any]) -> list[float]:
    return [float("nan")] * len(samples)


HERE = "tests.slime.test_generate_rollout"
BARE: dict[str, Any] = {"rollhook": "single"}


async def test_the_trainers_reward_function_scores_what_generate_left_unscored(
    smollm2_tokenizer: Any,
) -> None:
    for shape, function, rewards in (
        ("list", "uneven", [0.0, 1.0, 2.0, 3.0]),
        ("sample", "one_by_one", [0.5] * 4),
    ):
        async with slime_run(
            smollm2_tokenizer,
            rows=questions(9, BARE),
            rollhook={"return_shape": shape},
            custom_rm_path=f"{HERE}.{function}",
        ) as (trainer, _):
            batch = await trainer.rollout(generate_rollout, 0)

        assert [sample.reward for sample in batch.samples] == rewards


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("broken", "tests.slime.test_generate_rollout.broken: LookupError: no reward model"),
        ("forgetful", "ValueError: 0 rewards came back for 1 samples"),
        ("unscoring", "ValueError: a reward is nan"),
    ],
)
async def test_a_reward_function_that_fails_fails_its_rollouts(
    smollm2_tokenizer: Any, function: str, message: str
) -> None:
    flags: Flags = {"custom_rm_path": f"{HERE}.{function}"}
    async with slime_run(smollm2_tokenizer, rows=questions(9, BARE), **flags) as (trainer, _):
        batch = await trainer.rollout(generate_rollout, 0)

    assert batch.metrics["rollhook/failed_samples"] == 4
    assert message in batch.samples[0].metadata["rollhook_result"]["error"]["message"]


async def test_a_group_reward_sees_the_whole_group_once(smollm2_tokenizer: Any) -> None:
    async with slime_run(
        smollm2_tokenizer,
        rows=questions(9, BARE),
        rollhook={"return_shape": "sample"},
        group_rm=True,
        custom_rm_path=f"{HERE}.uneven",
    ) as (trainer, _):
        batch = await trainer.rollout(generate_rollout, 0)

    assert [sample.reward for sample in batch.samples] == [0.0, 1.0, 2.0, 3.0]


def only_even(args: Any, group: list[Any]) -> bool:
    first = group[0][0] if isinstance(group[0], list) else group[0]
    return bool(first.group_index % 2 == 0)


class Verdict:
    """slime's DynamicFilterOutput."""

    def __init__(self, keep: bool, reason: str | None, insufficient: bool = False) -> None:
        self.keep, self.reason, self.keep_when_insufficient = keep, reason, insufficient


def only_even_with_reason(args: Any, group: list[Any]) -> Verdict:
    return Verdict(only_even(args, group), "odd")


def none_but_when_scarce(args: Any, group: list[Any]) -> Verdict:
    return Verdict(False, "never", insufficient=True)


@pytest.mark.parametrize(("rule", "reason"), [("only_even", "filtered"), ("only_even_with_reason", "odd")])
async def test_the_dynamic_filter_drops_groups_and_counts_why(
    smollm2_tokenizer: Any, rule: str, reason: str
) -> None:
    flags: Flags = {"rollout_batch_size": 3, "dynamic_sampling_filter_path": f"{HERE}.{rule}"}
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, _):
        batch = await trainer.rollout(generate_rollout, 0)

    assert all(sample.group_index % 2 == 0 for sample in batch.samples)
    assert batch.metrics[f"rollout/dynamic_filter/drop_{reason}"] >= 2


async def test_a_filter_may_keep_a_group_for_want_of_others(smollm2_tokenizer: Any) -> None:
    flags: Flags = {"dynamic_sampling_filter_path": f"{HERE}.none_but_when_scarce"}
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, engine):
        await trainer.rollout(generate_rollout, 0)

        assert len(engine.requests) == 4


async def test_rollhooks_own_filter_works_on_lists(smollm2_tokenizer: Any) -> None:
    answers = iter(["4", "5"] * 50)
    flags: Flags = {
        "dynamic_sampling_filter_path": "rollhook.slime.keep_informative",
        "rollout_batch_size": 2,
    }
    async with slime_run(smollm2_tokenizer, lambda request: next(answers), **flags) as (trainer, _):
        batch = await trainer.rollout(generate_rollout, 0)

    assert sorted(sample.reward for sample in batch.samples[:2]) == [0.0, 1.0]


SEEN: list[Any] = []


def note_batch(args: Any, groups: list[Any]) -> None:
    SEEN.append(("batch", len(groups)))


def note_all(args: Any, groups: list[Any], source: Any) -> None:
    SEEN.append(("all", len(groups), source.groups))


async def test_the_trainers_other_hooks_see_the_batch_and_everything(smollm2_tokenizer: Any) -> None:
    SEEN.clear()
    flags: Flags = {
        "rollout_sample_filter_path": f"{HERE}.note_batch",
        "rollout_all_samples_process_path": f"{HERE}.note_all",
        "dynamic_sampling_filter_path": f"{HERE}.only_even",
        "rollout_batch_size": 1,
        "over_sampling_batch_size": 1,
    }
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, _):
        await trainer.rollout(generate_rollout, 0)
        await trainer.rollout(generate_rollout, 1)

    assert SEEN == [("batch", 1), ("all", 1, 1), ("batch", 1), ("all", 2, 3)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"custom_generate_function_path": "mine.generate"}, r"run rollhook\.generate, not mine\.generate"),
        ({"custom_rm_path": "nowhere.at.all"}, "--custom-rm-path nowhere.at.all: No module named 'nowhere'"),
        (
            {"dynamic_sampling_filter_path": f"{HERE}.HERE"},
            "--dynamic-sampling-filter-path .* cannot be called",
        ),
        ({"rollout_batch_size": None}, "set --rollout-batch-size"),
        ({"rollhook": {"plugins": ["nobody"]}}, "nobody"),
    ],
)
async def test_a_fault_of_the_run_stops_the_first_call_before_any_token(
    smollm2_tokenizer: Any, flags: dict[str, Any], message: str
) -> None:
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, engine):
        with pytest.raises(ConfigError, match=message):
            await asyncio.to_thread(generate_rollout, trainer.args, 0, trainer.source)

        assert engine.requests == []


async def test_a_fault_inside_a_batch_loses_no_row(smollm2_tokenizer: Any) -> None:
    flags: Flags = {"dynamic_sampling_filter_path": f"{HERE}.raises", "rollout_batch_size": 3}
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, _):
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(generate_rollout, trainer.args, 0, trainer.source)

        assert trainer.source.unaccounted([]) == set()


def raises(args: Any, group: list[Any]) -> bool:
    raise ZeroDivisionError


class Finite:
    """A data source without slime that gives rollhook's own Samples, `left` of them."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.returned: list[Any] = []

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        count, self.left = min(self.left, num_samples), max(0, self.left - num_samples)
        return [[Sample(index=i, prompt="2 + 2?", label="4", metadata=dict(NUMBER))] for i in range(count)]

    def add_samples(self, samples: list[list[Sample]]) -> None:
        self.returned += samples


async def test_without_slime_the_outputs_and_samples_are_rollhooks_own(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer, slime_is_loaded=False, n_samples_per_prompt=1) as (trainer, _):
        output = await asyncio.to_thread(generate_rollout, trainer.args, 0, Finite(9))

    assert type(output) is TrainOutput
    assert {type(sample) for sample in flat(output.samples)} == {Sample}


async def test_a_data_source_without_more_rows_is_reported_and_gets_its_rows_back(
    smollm2_tokenizer: Any,
) -> None:
    source = Finite(1)
    async with slime_run(smollm2_tokenizer, n_samples_per_prompt=1) as (trainer, _):
        with pytest.raises(ConfigError, match="the data source has no more groups"):
            await asyncio.to_thread(generate_rollout, trainer.args, 0, source)

    assert [row.index for [row] in source.returned] == [0]


async def test_at_most_as_many_rollouts_run_as_slimes_servers_take(smollm2_tokenizer: Any) -> None:
    flags: Flags = {
        "sglang_server_concurrency": 2,
        "rollout_num_gpus": 3,
        "rollout_num_gpus_per_engine": 1,
        "rollout_batch_size": 6,
    }
    script = right_after(0.02, *range(50))
    async with slime_run(smollm2_tokenizer, script, **flags) as (trainer, engine):
        await trainer.rollout(generate_rollout, 0)
        peak = engine.peak_in_flight
    async with slime_run(smollm2_tokenizer, script, rollhook={"concurrency": 3}, **flags) as (
        trainer,
        engine,
    ):
        await trainer.rollout(generate_rollout, 0)
        lower = engine.peak_in_flight

    assert (peak, lower) == (6, 3)


async def test_shutdown_and_close_end_the_thread_and_a_later_call_starts_anew(smollm2_tokenizer: Any) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "rollhook rollouts"]

    async with slime_run(smollm2_tokenizer) as (trainer, _):
        await trainer.rollout(generate_rollout, 0)
        assert len(threads()) == 1
        await shutdown()
        assert threads() == []

        await trainer.rollout(generate_rollout, 1)
        await asyncio.to_thread(close)
        assert (threads(), loops_with_runtimes()) == ([], [])


async def test_one_call_closes_the_runtimes_of_other_loops_too(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        await trainer.stock_rollout(0)
        await trainer.rollout(generate_rollout, 0)
        assert len(loops_with_runtimes()) == 2
        with pytest.raises(RuntimeError, match=r"await shutdown\(\) instead"):
            close()
        await asyncio.to_thread(close)

        assert loops_with_runtimes() == []


async def test_a_rollout_function_refuses_to_be_called_from_inside_a_rollout(smollm2_tokenizer: Any) -> None:
    flags: Flags = {"dynamic_sampling_filter_path": f"{HERE}.calls_itself"}
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, _):
        with pytest.raises(RuntimeError, match="called from inside a rollout"):
            await asyncio.to_thread(generate_rollout, trainer.args, 0, trainer.source)


def calls_itself(args: Any, group: list[Any]) -> bool:
    return bool(generate_rollout(args, 0, Finite(9)))
