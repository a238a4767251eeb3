"""Groups in the background: bounded staleness, nothing lost, faults that reach the caller."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollhook.continuous import ContinuousScheduler
from rollhook.errors import ConfigError, GroupsFailed
from rollhook.groups import Finished, Rows, Verdict
from rollhook.pace import Pace
from rollhook.sample import Sample


class Source:
    """A data source that gives new groups for ever (or `count`), those that came back first."""

    def __init__(self, count: int = 10**9) -> None:
        self.left = count
        self.given = 0
        self.returned: list[Rows] = []
        self.came_back: Counter[int] = Counter()

    def get_samples(self, num_samples: int) -> list[Rows]:
        groups, self.returned = self.returned[:num_samples], self.returned[num_samples:]
        while len(groups) < num_samples and self.left:
            self.left -= 1
            groups.append([Sample(group_index=self.given, index=self.given)])
            self.given += 1
        return groups

    def add_samples(self, samples: list[Rows]) -> None:
        self.returned += samples
        self.came_back.update(number(rows) for rows in samples)


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, asyncio.Future[None]]] = []

    async def sleep(self, duration: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._due, (self.now + duration, len(self._due) + id(woken), woken))
        await woken

    async def until(self, task: asyncio.Task[object]) -> None:
        """Let time pass until `task` is done."""
        while not task.done():
            await settle()
            if self._due and not task.done():
                self.now, _, woken = heapq.heappop(self._due)
                if not woken.done():
                    woken.set_result(None)


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


def number(rows: Rows) -> int:
    assert rows[0].index is not None
    return rows[0].index


def kept(rows: Rows) -> Finished[int]:
    return Finished(Verdict.KEEP, made=number(rows))


def scheduler(
    source: Source,
    attempt: Callable[[Rows], Awaitable[Finished[int]]],
    batch: int = 2,
    concurrency: int = 100,
    **pace: object,
) -> ContinuousScheduler[int]:
    return ContinuousScheduler(
        source, attempt, pace=Pace.model_validate(pace), batch=batch, concurrency=concurrency
    )


def at(version: int) -> Callable[[], Awaitable[int]]:
    async def current() -> int:
        return version

    return current


@dataclass(frozen=True)
class World:
    """What a simulated run is like."""

    seed: int
    max_staleness: int
    batch: int
    concurrency: int
    batches_per_version: int
    requeue: bool


worlds = st.builds(
    World,
    seed=st.integers(0, 10**6),
    max_staleness=st.integers(0, 3),
    batch=st.integers(1, 4),
    concurrency=st.integers(1, 24),
    batches_per_version=st.integers(1, 3),
    requeue=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(worlds)
def test_staleness_never_exceeds_the_maximum_whatever_the_durations(world: World) -> None:
    """A simulation: Pareto durations with infinite variance, versions that rise every few batches."""
    asyncio.run(_simulate(world))


async def _simulate(world: World) -> None:
    rng, clock, source = random.Random(world.seed), Clock(), Source()
    sampled_at: dict[int, int] = {}
    version, peak = 7, 0

    async def attempt(rows: Rows) -> Finished[int]:
        nonlocal peak
        peak = max(peak, groups.running)
        began = sampled_at[number(rows)] = version
        await clock.sleep(rng.paretovariate(1.1))
        return Finished(Verdict.KEEP, made=number(rows), versions=(began, version))

    async def current() -> int:
        return version

    handed: list[int] = []
    stale = 0
    pace = {"max_staleness": world.max_staleness, "on_stale": "requeue" if world.requeue else "drop"}
    async with scheduler(source, attempt, world.batch, world.concurrency, **pace) as groups:
        for call in range(12):
            task = asyncio.create_task(groups.take(current))
            await clock.until(task)
            taken = task.result()
            ages = [version - sampled_at[made] for made in taken.groups]
            handed += taken.groups
            stale += taken.counts["stale"]

            assert taken.staleness == ages
            assert len(ages) == world.batch
            assert max(ages) <= world.max_staleness
            if call % world.batches_per_version == world.batches_per_version - 1:
                version += 1
    if world.requeue:
        assert sorted(handed + [number(rows) for rows in source.returned]) == list(range(source.given))
    else:
        lost = source.given - len(handed) - len(source.returned)
        assert lost >= stale  # some may have been dropped since the last batch
    assert len(set(handed)) == len(handed)
    assert peak <= world.concurrency


async def test_the_slowest_group_does_not_hold_up_a_batch() -> None:
    never = asyncio.Event()

    async def attempt(rows: Rows) -> Finished[int]:
        if number(rows) == 0:
            await never.wait()
        return kept(rows)

    source = Source()
    async with scheduler(source, attempt, max_staleness=2) as groups:
        batches = [await groups.take(at(version)) for version in range(6)]

    assert [made for taken in batches for made in taken.groups] == list(range(1, 13))
    assert sum(taken.counts["stale"] for taken in batches) == 1
    assert source.came_back[0] >= 1


async def test_sampling_goes_on_between_calls_as_far_as_the_rule_allows() -> None:
    source = Source()

    async def attempt(rows: Rows) -> Finished[int]:
        return kept(rows)

    async with scheduler(source, attempt, batch=3, max_staleness=2) as groups:
        await groups.take(at(0))
        await settle()
        assert (groups.ready, source.given) == (6, 9)

        groups.advance(1)
        await settle()
        assert (groups.ready, source.given) == (9, 12)


async def test_groups_that_were_not_handed_over_go_back_when_it_closes() -> None:
    hang = asyncio.Event()
    source = Source()

    async def attempt(rows: Rows) -> Finished[int]:
        if number(rows) in (1, 4):
            await hang.wait()
        return kept(rows)

    async with scheduler(source, attempt, max_staleness=2) as groups:
        taken = await groups.take(at(0))
        await settle()

    assert sorted([*taken.groups, *map(number, source.returned)]) == list(range(source.given))
    assert groups.running == groups.ready == 0


async def test_oldest_groups_are_handed_over_first() -> None:
    gates = [asyncio.Event() for _ in range(100)]
    for n in (1, 2, 3, 4, 5):
        gates[n].set()

    async def attempt(rows: Rows) -> Finished[int]:
        await gates[number(rows)].wait()
        return kept(rows)

    async with scheduler(Source(), attempt, max_staleness=2) as groups:
        first = await groups.take(at(0))
        await settle()
        groups.advance(1)
        for gate in gates:
            gate.set()
        await settle()
        second = await groups.take(at(1))

    assert (first.groups, second.groups, second.staleness) == ([1, 2], [3, 4], [1, 1])


async def test_an_aborted_group_goes_back_as_its_attempt_says() -> None:
    source = Source()
    seen: list[str] = []

    async def attempt(rows: Rows) -> Finished[int]:
        seen.append(rows[0].response)
        if number(rows) == 0 and not rows[0].response:
            return Finished(Verdict.REDO, rows=[Sample(group_index=0, index=0, response="half")])
        return kept(rows)

    async with scheduler(source, attempt, batch=1, max_staleness=0) as groups:
        taken = await groups.take(at(0))

    assert (taken.groups, taken.counts, seen) == ([0], {"aborted": 1}, ["", "half"])


async def test_a_filtered_group_is_counted_by_reason_and_replaced() -> None:
    async def attempt(rows: Rows) -> Finished[int]:
        if number(rows) % 2:
            return Finished(Verdict.DROP, reason="all alike")
        return kept(rows)

    async with scheduler(Source(), attempt, max_staleness=0) as groups:
        taken = await groups.take(at(0))

    assert (taken.groups, taken.counts) == ([0, 2], {"dropped: all alike": 1})


async def test_a_failed_group_is_tried_again_and_then_counted() -> None:
    tries: Counter[int] = Counter()

    async def attempt(rows: Rows) -> Finished[int]:
        tries[number(rows)] += 1
        if number(rows) == 0:
            raise OSError("the judge is down")
        if number(rows) == 1 and tries[1] == 1:
            return Finished(Verdict.FAILED, reason="engine")
        return kept(rows)

    async with scheduler(Source(), attempt, max_staleness=0, group_retries=2) as groups:
        taken = await groups.take(at(0))
        taken_next = await groups.take(at(1))

    assert (tries[0], tries[1]) == (3, 2)
    assert sorted(taken.groups + taken_next.groups) == [1, 2, 3, 4]
    assert (taken.counts + taken_next.counts)["failed"] == 1
    assert (taken.counts + taken_next.counts)["retried"] == 3


async def test_too_many_failed_groups_are_an_error_that_names_causes_and_loses_no_row() -> None:
    source = Source()

    async def attempt(rows: Rows) -> Finished[int]:
        raise OSError("the engine is down")

    async with scheduler(source, attempt, max_staleness=0, group_retries=1, max_failed_groups=2) as groups:
        with pytest.raises(GroupsFailed, match=r"\d groups failed 2 times each.*OSError: the engine is down"):
            await groups.take(at(0))

    assert sorted(map(number, source.returned)) == list(range(source.given))


@pytest.mark.parametrize("call", [0, 1])
async def test_a_fault_of_the_run_reaches_the_caller_and_does_not_hang(call: int) -> None:
    calls, source = 0, Source()

    async def attempt(rows: Rows) -> Finished[int]:
        if calls == call:
            raise ConfigError("no licence")
        return kept(rows)

    async with scheduler(source, attempt, max_staleness=0) as groups:
        while calls < call:
            await groups.take(at(calls))
            calls += 1
        with pytest.raises(ConfigError, match="no licence"):
            await groups.take(at(calls))

    assert len(source.returned) == source.given - 2 * call


async def test_a_fault_goes_before_a_batch_that_is_ready() -> None:
    async def attempt(rows: Rows) -> Finished[int]:
        if number(rows) == 3:
            raise ConfigError("no licence")
        return kept(rows)

    async with scheduler(Source(), attempt, max_staleness=1) as groups:
        with pytest.raises(ConfigError, match="no licence"):
            await groups.take(at(0))


async def test_a_source_that_is_empty_or_raises_is_reported() -> None:
    class Broken(Source):
        def get_samples(self, num_samples: int) -> list[Rows]:
            raise FileNotFoundError("train.jsonl")

    async def attempt(rows: Rows) -> Finished[int]:
        return kept(rows)

    async with scheduler(Source(count=1), attempt) as groups:
        with pytest.raises(ConfigError, match="no more groups: 1 of 2 are ready"):
            await groups.take(at(0))
    async with scheduler(Broken(), attempt) as groups:
        with pytest.raises(FileNotFoundError, match=r"train\.jsonl"):
            await groups.take(at(0))


async def test_a_pause_starts_nothing_and_lets_what_runs_end() -> None:
    gate, source = asyncio.Event(), Source()

    async def attempt(rows: Rows) -> Finished[int]:
        await gate.wait()
        return kept(rows)

    async with scheduler(source, attempt, max_staleness=0) as groups:
        task = asyncio.create_task(groups.take(at(0)))
        await settle()
        groups.pause()
        gate.set()
        await groups.settled()
        taken = await task
        groups.advance(1)
        await settle()
        assert (taken.groups, groups.running, source.given) == ([0, 1], 0, 2)

        groups.resume()
        await settle()
        assert source.given == 4


async def test_a_call_that_waits_when_it_closes_is_told() -> None:
    async def attempt(rows: Rows) -> Finished[int]:
        await asyncio.Event().wait()
        return kept(rows)

    async with scheduler(Source(), attempt) as groups:
        task = asyncio.create_task(groups.take(at(0)))
        await settle()
    with pytest.raises(ConfigError, match="shut down while a call waited"):
        await task


async def test_a_version_that_rises_while_a_batch_fills_counts_too() -> None:
    """The engine's answers tell of new weights before the trainer's next call."""
    source, gate = Source(), asyncio.Event()

    async def attempt(rows: Rows) -> Finished[int]:
        if number(rows) < 2 and not source.came_back:
            return Finished(Verdict.KEEP, made=number(rows), versions=(1,))
        await gate.wait()
        return Finished(Verdict.KEEP, made=number(rows), versions=(9,))

    async with scheduler(source, attempt, batch=3, max_staleness=1) as groups:
        task = asyncio.create_task(groups.take(at(1)))
        await settle()
        assert groups.ready == 2
        gate.set()
        taken = await task

    assert taken.staleness == [0, 0, 0]
    assert {0, 1} <= set(source.came_back)
    assert taken.counts["stale"] >= 2


async def test_a_group_that_kept_tokens_from_before_it_began_is_as_stale_as_they_are() -> None:
    source = Source()

    async def attempt(rows: Rows) -> Finished[int]:
        kept_some = source.came_back[number(rows)] == 0
        return Finished(Verdict.KEEP, made=number(rows), versions=(3, 9) if kept_some else (9,))

    async with scheduler(source, attempt, max_staleness=1) as groups:
        taken = await groups.take(at(9))

    assert (taken.staleness, taken.counts["stale"]) == ([0, 0], 4)


async def test_the_version_is_asked_again_before_a_batch_is_handed_over() -> None:
    asked: list[int] = []

    async def current() -> int:
        asked.append(1 if not asked else 9)
        return asked[-1]

    async def attempt(rows: Rows) -> Finished[int]:
        return Finished(Verdict.KEEP, made=number(rows), versions=(groups.version,))

    async with scheduler(Source(), attempt, max_staleness=1) as groups:
        taken = await groups.take(current)

    assert taken.staleness == [0, 0]
    assert taken.counts["stale"] >= 2


async def test_a_cancellation_that_a_library_leaks_is_a_failure_of_its_group() -> None:
    source = Source()

    async def attempt(rows: Rows) -> Finished[int]:
        if source.came_back[0] == 0 and number(rows) == 0:
            raise asyncio.CancelledError
        return kept(rows)

    async with scheduler(source, attempt, max_staleness=0) as groups:
        taken = await groups.take(at(0))

    assert (sorted(taken.groups), taken.counts) == ([0, 1], {"retried": 1})
