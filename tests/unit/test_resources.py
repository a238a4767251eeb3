"""Shared resources: opened once by a task of their own, closed in reverse order of being ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from rollhook.errors import ResourceError
from rollhook.resources import Resources

Opening = AbstractAsyncContextManager[str]
Needs = Callable[[], Awaitable[object]]


class Log(list[str]):
    """What was opened and closed, in order."""

    def opener(self, name: str, *, needs: Needs | None = None) -> Callable[[], Opening]:
        """A context manager that gives its name. needs: awaited while it opens."""

        @asynccontextmanager
        async def opening() -> AsyncIterator[str]:
            task = asyncio.current_task()
            if needs is not None:
                await needs()
            self.append(f"open {name}")
            yield name
            assert asyncio.current_task() is task
            self.append(f"close {name}")

        return opening


async def test_who_asks_at_once_gets_one_resource_and_its_own_task_closes_it() -> None:
    log, resources = Log(), Resources()
    got = await asyncio.gather(*(resources.get("k", "p/index", log.opener("index")) for _ in range(8)))
    await resources.close()

    assert got == ["index"] * 8
    assert log == ["open index", "close index"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_was_ready_last_is_closed_first_also_where_one_was_opened_inside_another() -> None:
    log, resources = Log(), Resources()

    def inner() -> Awaitable[str]:
        return resources.get("inner", "p/inner", log.opener("inner"))

    await resources.get("outer", "p/outer", log.opener("outer", needs=inner))
    await resources.get("last", "p/last", log.opener("last"))
    await resources.close()

    assert log == ["open inner", "open outer", "open last", "close last", "close outer", "close inner"]


async def test_a_failed_opening_is_told_to_all_who_wait_and_the_next_one_is_kept_and_closed() -> None:
    log, resources = Log(), Resources()
    down = True

    async def check() -> None:
        await asyncio.sleep(0)
        if down:
            raise ConnectionError("index is down")

    def ask() -> Awaitable[str]:
        return resources.get("k", "p/index", log.opener("index", needs=check))

    async def ask_again_after_the_fault() -> str:
        nonlocal down
        with pytest.raises(ConnectionError, match="index is down"):
            await ask()
        down = False
        return await ask()

    got = await asyncio.gather(*(ask_again_after_the_fault() for _ in range(3)))
    await resources.close()

    assert got == ["index"] * 3
    assert log == ["open index", "close index"]


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_closing_cancels_what_still_opens_and_tells_who_waits(steps: int) -> None:
    """Also where the opening has not begun."""
    log, resources = Log(), Resources()
    await resources.get("good", "p/good", log.opener("good"))
    slow = log.opener("slow", needs=asyncio.Event().wait)
    waiting = asyncio.create_task(resources.get("k", "p/slow", slow))
    for _ in range(1 + steps):
        await asyncio.sleep(0)
    await resources.close()

    with pytest.raises(ResourceError, match="p/slow: opening it was cancelled"):
        await waiting
    assert log == ["open good", "close good"]


async def test_who_is_cancelled_while_it_waits_takes_nothing_from_the_others() -> None:
    log, resources = Log(), Resources()
    open_now = asyncio.Event()
    askers = [
        asyncio.create_task(resources.get("k", "p/index", log.opener("index", needs=open_now.wait)))
        for _ in range(2)
    ]
    await asyncio.sleep(0)
    askers[0].cancel()
    await asyncio.wait(askers[:1])
    open_now.set()

    assert await askers[1] == "index"
    await resources.close()
    assert log == ["open index", "close index"]


async def test_a_fault_in_closing_keeps_nothing_else_open(caplog: pytest.LogCaptureFixture) -> None:
    log, resources = Log(), Resources()

    @asynccontextmanager
    async def torn() -> AsyncIterator[None]:
        yield
        raise OSError("torn")

    await resources.get("first", "p/first", log.opener("first"))
    await resources.get("torn", "p/torn", torn)
    await resources.close()

    assert log == ["open first", "close first"]
    assert [record.getMessage() for record in caplog.records] == ["closing p/torn failed: OSError: torn"]


async def test_what_does_not_close_in_time_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    log, resources, let_go = Log(), Resources(close_grace_s=0.05), asyncio.Event()

    @asynccontextmanager
    async def deaf(*, opens: bool) -> AsyncIterator[str]:
        if opens:
            yield "deaf"
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        if not opens:
            yield "late"

    await resources.get("good", "p/good", log.opener("good"))
    await resources.get("deaf", "p/deaf", lambda: deaf(opens=True))
    waiting = asyncio.create_task(resources.get("late", "p/late", lambda: deaf(opens=False)))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(20):
        await resources.close()
    waiting.cancel()
    let_go.set()

    assert log == ["open good", "close good"]
    assert {record.getMessage() for record in caplog.records} == {
        "p/late was given up: it did not close in 0.05 s",
        "p/deaf was given up: it did not close in 0.05 s",
    }


async def test_one_that_ended_by_itself_is_opened_again() -> None:
    log, resources = Log(), Resources()
    await resources.get("k", "p/index", log.opener("index"))
    [owner] = [task for task in asyncio.all_tasks() if task.get_name() == "rollhook open p/index"]
    owner.cancel()
    await asyncio.wait([owner])
    await asyncio.sleep(0)

    assert not resources
    assert await resources.get("k", "p/index", log.opener("index")) == "index"
    await resources.close()
