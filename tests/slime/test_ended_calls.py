"""Calls of rollout functions that end in the middle: nothing is lost, nobody waits for ever."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rollhook import ConfigError, RunConfig
from rollhook.runtime import runtime_for
from rollhook.slime import fully_async_rollout, generate_rollout, shutdown
from rollhook.slime.outputs import flat
from rollhook.slime.synchronous import _collect
from rollhook.slime.thread import RolloutThread
from rollhook.testing import Reply, ScriptedRequest
from tests.slime.running import question_of, slime_run
from tests.slime.slime_types import SlimeStatus
from tests.slime.test_evaluation import eval_set
from tests.slime.test_fully_async import eventually

Flags = dict[str, Any]
HERE = "tests.slime.test_ended_calls"


@contextmanager
def rollout_thread() -> Iterator[RolloutThread]:
    thread = RolloutThread()
    try:
        yield thread
    finally:
        thread.close()


class Interrupted:
    """Work that gets this thread interrupted when it has begun, and puts something back when it ends."""

    def __init__(self, *, finishes: bool) -> None:
        self.finishes = finishes
        self.waiter = threading.get_ident()
        self.put_back: list[str] = []

    async def work(self) -> str:
        await asyncio.sleep(0.2)  # it waits by then
        signal.pthread_kill(self.waiter, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            self.put_back.append("rows")
            if not self.finishes:
                raise
        return "batch"


def test_an_interrupted_call_has_put_its_rows_back_when_it_raises() -> None:
    call, undone = Interrupted(finishes=False), list[str]()
    with rollout_thread() as thread, pytest.raises(KeyboardInterrupt):
        thread.run(call.work(), undo=undone.append)

    assert (call.put_back, undone) == (["rows"], [])


def test_a_batch_that_an_interrupted_call_does_not_get_is_undone() -> None:
    call, undone = Interrupted(finishes=True), list[str]()
    with rollout_thread() as thread, pytest.raises(KeyboardInterrupt):
        thread.run(call.work(), undo=undone.append)

    assert undone == ["batch"]


@pytest.mark.parametrize("evaluation", [False, True])
async def test_a_call_that_waits_when_rollhook_is_shut_down_is_told(
    smollm2_tokenizer: Any, tmp_path: Any, evaluation: bool
) -> None:
    def script(request: ScriptedRequest) -> Reply:
        return Reply("4", delay_s=60.0)

    flags: Flags = {"eval_datasets": [eval_set(tmp_path, ["Exam: 2 + 2?"])]}
    async with slime_run(smollm2_tokenizer, script, **flags) as (trainer, engine):
        call = asyncio.to_thread(generate_rollout, trainer.args, 0, trainer.source, evaluation=evaluation)
        waiting = asyncio.create_task(call)
        await eventually(lambda: engine.in_flight > 0)
        await shutdown()
        with pytest.raises(ConfigError, match="shut down while a call waited"):
            async with asyncio.timeout(20):
                await waiting

    assert trainer.source.unaccounted([]) == set()


def raises(args: Any, groups: list[Any], *source: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("function", [generate_rollout, fully_async_rollout])
async def test_a_batch_that_the_trainers_own_filter_fails_on_goes_back(
    smollm2_tokenizer: Any, function: Any
) -> None:
    flags: Flags = {"rollout_sample_filter_path": f"{HERE}.raises"}
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, _):
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(function, trainer.args, 0, trainer.source)
        await shutdown()

    assert trainer.source.unaccounted([]) == set()


async def test_an_interrupted_abort_of_surplus_rollouts_leaves_the_next_call_alone(
    smollm2_tokenizer: Any,
) -> None:
    """The call is interrupted while it waits for an engine that does not react to the abort."""
    delays = {0: 60.0}

    def script(request: ScriptedRequest) -> Reply:
        return Reply("4 is what I say", delay_s=delays.get(question_of(request), 0.0))

    flags: Flags = {"over_sampling_batch_size": 2, "rollout_batch_size": 1, "partial_rollout": True}
    async with slime_run(smollm2_tokenizer, script, rollhook={"return_shape": "sample"}, **flags) as (
        trainer,
        _,
    ):
        runtime = await runtime_for(RunConfig.from_args(trainer.args))
        call = asyncio.create_task(_collect(trainer.args, 0, trainer.source))
        while not runtime.aborting:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert trainer.source.unaccounted([]) == set()
        delays.clear()
        async with asyncio.timeout(20):
            batch = await _collect(trainer.args, 1, trainer.source)

    assert {sample.status.value for sample in flat(batch.kept)} == {SlimeStatus.COMPLETED.value}


async def test_two_first_calls_at_once_share_one_background_run(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        batches = await asyncio.gather(*(trainer.rollout(fully_async_rollout, 0) for _ in range(2)))
        await shutdown()

    trained = [sample for batch in batches for sample in batch.samples]
    assert len({sample.index for sample in trained}) == len(trained)
    assert trainer.source.unaccounted(trained) == set()
