"""Work ends when it is aborted, whatever it makes of its cancellation, and nothing of it is forgotten."""

from __future__ import annotations

import asyncio
import gc
import logging
from types import ModuleType
from typing import Any

import pytest

from rollhook.aborts import Aborts, abort_flag
from rollhook.errors import RolloutAborted, RolloutError


def without_engines() -> Aborts:
    return Aborts(lambda: [])


async def forever() -> None:
    await asyncio.Event().wait()


async def test_work_that_ends_by_itself_gives_its_result_or_its_error() -> None:
    async def answer() -> int:
        return 4

    async def fail() -> int:
        raise LookupError("no such thing")

    aborts = without_engines()
    assert await aborts.run(answer()) == 4
    with pytest.raises(LookupError, match="no such thing"):
        await aborts.run(fail())


async def test_a_cancellation_that_nobody_asked_for_is_a_fault_of_a_plugin() -> None:
    async def leak() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RolloutError, match="a plugin raised CancelledError by itself") as caught:
        await without_engines().run(leak())
    assert caught.value.cause_type == "CancelledError"


async def test_under_an_abort_work_does_not_begin() -> None:
    aborts = without_engines()
    await aborts.abort()
    with pytest.raises(RolloutAborted):
        await aborts.run(forever())
    aborts.lift()

    assert not aborts.in_force


async def test_a_result_that_comes_after_the_abort_does_not_count() -> None:
    begun = asyncio.Event()

    async def stubborn() -> int:
        begun.set()
        try:
            await forever()
        except asyncio.CancelledError:
            return 4
        return 5

    aborts = without_engines()
    task = asyncio.create_task(aborts.run(stubborn()))
    await begun.wait()
    await aborts.abort()
    with pytest.raises(RolloutAborted):
        await task


async def test_what_a_cancelled_callers_work_raises_is_no_loose_end(caplog: pytest.LogCaptureFixture) -> None:
    begun = asyncio.Event()

    async def spiteful() -> None:
        begun.set()
        try:
            await forever()
        except asyncio.CancelledError:
            raise LookupError("no such thing") from None

    task = asyncio.create_task(without_engines().run(spiteful()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    gc.collect()

    assert caplog.text == ""


async def test_closing_is_not_cancelled_but_not_waited_for_either() -> None:
    let_go, closed, begun = asyncio.Event(), asyncio.Event(), asyncio.Event()
    aborts = without_engines()

    async def close() -> None:
        aborts.closing()
        begun.set()
        await let_go.wait()
        closed.set()

    task = asyncio.create_task(aborts.run(close()))
    await begun.wait()
    await aborts.abort()
    with pytest.raises(RolloutAborted):
        await task
    let_go.set()
    await aborts.close()

    assert closed.is_set()


async def test_an_abort_whose_caller_is_cancelled_is_carried_out() -> None:
    aborts = without_engines()
    task = asyncio.create_task(aborts.run(forever()))
    await asyncio.sleep(0)
    aborting = asyncio.create_task(aborts.abort())
    await asyncio.sleep(0)
    aborting.cancel()

    with pytest.raises(RolloutAborted):
        async with asyncio.timeout(20):
            await task
    assert aborting.cancelled()


async def test_two_aborts_at_once_cancel_once_and_both_wait() -> None:
    cancelled = 0

    async def counting() -> None:
        nonlocal cancelled
        while cancelled < 2:
            try:
                await forever()
            except asyncio.CancelledError:
                cancelled += 1

    aborts = Aborts(lambda: [], close_grace_s=0.05)
    task = asyncio.create_task(aborts.run(counting()))
    await asyncio.sleep(0)
    async with asyncio.TaskGroup() as both:
        for _ in range(2):
            both.create_task(aborts.abort())
    with pytest.raises(RolloutAborted):
        await task
    counted = cancelled
    await aborts.close()

    assert (counted, cancelled) == (1, 2)


async def test_work_that_an_abort_came_upon_ends_also_when_it_was_lifted_since() -> None:
    seen = []
    begun, lifted = asyncio.Event(), asyncio.Event()
    aborts = without_engines()

    async def work() -> None:
        begun.set()
        await lifted.wait()
        seen.append(aborts.caller_must_end)

    async def later() -> None:
        seen.append(aborts.caller_must_end)

    task = asyncio.create_task(aborts.run(work()))
    await begun.wait()
    aborting = asyncio.create_task(aborts.abort())
    await asyncio.sleep(0)
    aborts.lift()
    lifted.set()
    await aborts.run(later())
    await asyncio.gather(task, aborting)

    assert seen == [True, False]
    assert not aborts.caller_must_end


async def test_who_waits_for_work_that_is_given_up_at_the_close_is_let_go() -> None:
    let_go, begun = asyncio.Event(), asyncio.Event()

    async def deaf() -> None:
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    aborts = Aborts(lambda: [], close_grace_s=0.05)
    task = asyncio.create_task(aborts.run(deaf()))
    await begun.wait()
    await aborts.close()
    with pytest.raises(RolloutAborted):
        async with asyncio.timeout(20):
            await task
    let_go.set()


async def test_a_flag_is_followed_only_while_work_is_done() -> None:
    up = False
    aborts = without_engines()
    aborts.watch(lambda: up)
    task = asyncio.create_task(aborts.run(forever()))
    await asyncio.sleep(0)
    up = True
    with pytest.raises(RolloutAborted):
        async with asyncio.timeout(20):
            await task
    async with asyncio.timeout(20):
        while any(other.get_name() == "rollhook watches for aborts" for other in asyncio.all_tasks()):
            await asyncio.sleep(0.01)
    up = False

    assert not aborts.in_force


async def test_an_engine_whose_abort_fails_is_told_and_does_not_keep_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        async def abort(self, session: str | None = None) -> None:
            raise OSError("no route to host")

    engine: Any = Broken()
    aborts = Aborts(lambda: [engine])
    task = asyncio.create_task(aborts.run(forever()))
    await asyncio.sleep(0)
    await aborts.abort()
    with pytest.raises(RolloutAborted):
        await task

    assert "aborting an engine's turns failed: OSError: no route to host" in caplog.text


async def test_what_does_not_end_is_given_up_at_the_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    let_go, begun = asyncio.Event(), asyncio.Event()

    async def deaf() -> None:
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    aborts = Aborts(lambda: [], close_grace_s=0.05)
    task = asyncio.create_task(aborts.run(deaf()))
    await begun.wait()
    with caplog.at_level(logging.ERROR, "rollhook.aborts"):
        await aborts.abort()
        with pytest.raises(RolloutAborted):
            await task
        await aborts.close()
    let_go.set()
    await asyncio.sleep(0)

    assert "1 rollouts were given up" in caplog.text


def test_without_slime_there_is_no_flag() -> None:
    assert abort_flag({}, None) is None
    assert abort_flag({"slime.rollout.sglang_rollout": ModuleType("empty")}, None) is None


def test_a_state_of_another_making_is_asked_for_with_the_args() -> None:
    class State:
        made: list[Any] = []

        def __init__(self, args: Any) -> None:
            self.made.append(args)
            self.aborted = args == "aborting"

    slime = ModuleType("slime.rollout.sglang_rollout")
    slime.GenerateState = State  # type: ignore[attr-defined]  # a module made here
    flag = abort_flag({slime.__name__: slime}, "aborting")

    assert flag is not None
    assert flag()
    assert State.made == ["aborting"]
