"""Groups in the background when the data source refuses them, or their end is cut short: none is lost."""

from __future__ import annotations

import asyncio

import pytest

from rollhook.groups import Finished, Rows, Verdict
from tests.unit.test_continuous import Source, at, kept, scheduler, settle


class Refusing(Source):
    """A data source that takes nothing back while it refuses."""

    refuses = True

    def add_samples(self, samples: list[Rows]) -> None:
        if self.refuses:
            raise OSError("the disk is full")
        super().add_samples(samples)


async def test_groups_that_the_source_refuses_are_kept_until_it_takes_them() -> None:
    source = Refusing()

    async def attempt(rows: Rows) -> Finished[int]:
        return kept(rows)

    async with scheduler(source, attempt, max_staleness=1) as groups:
        taken = await groups.take(at(0))
        await settle()
        assert groups.ready == 2
        with pytest.raises(OSError, match="the disk is full"):
            await groups.take(at(9))
        source.refuses = False
        taken_too = await groups.take(at(9))

    handed = taken.groups + taken_too.groups
    assert sorted(handed + list(source.came_back)) == list(range(source.given))
    assert set(source.came_back.values()) == {1}


async def test_a_source_that_answers_nothing_usable_is_a_fault_not_a_wait() -> None:
    class Nothing(Source):
        def get_samples(self, num_samples: int) -> list[Rows]:
            return super().get_samples(num_samples) if self.given < 2 else None  # type: ignore[return-value]  # what a careless source does

    async def attempt(rows: Rows) -> Finished[int]:
        await asyncio.sleep(0)
        return Finished(Verdict.DROP, reason="dull")

    async with scheduler(Nothing(), attempt, max_staleness=0) as groups:
        with pytest.raises(TypeError):
            async with asyncio.timeout(20):
                await groups.take(at(0))


async def test_a_close_that_is_cancelled_gives_groups_back_all_the_same() -> None:
    source, stuck = Source(), asyncio.Event()

    async def attempt(rows: Rows) -> Finished[int]:
        try:
            await asyncio.Event().wait()
        finally:
            await stuck.wait()
        return kept(rows)

    async def run() -> None:
        async with scheduler(source, attempt, max_staleness=0) as groups:
            groups.advance(1)
            await settle()

    closing = asyncio.create_task(run())
    for _ in range(3):
        await settle()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    stuck.set()
    await settle()

    assert source.came_back == dict.fromkeys(range(source.given), 1)
    assert source.given == 2
