"""Rollouts, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from rollhook.errors import ConfigError, DataError, PluginNotFound
from rollhook.sample import Sample, Status, certify
from rollhook.scheduler import run_rollouts


class Record:
    """What `on_done` was given."""

    def __init__(self) -> None:
        self.done: list[tuple[Sample, Sequence[Sample]]] = []

    async def __call__(self, sample: Sample, made: Sequence[Sample]) -> None:
        self.done.append((sample, made))

    @property
    def indices(self) -> list[int]:
        return sorted(sample.index or 0 for sample, _ in self.done)

    def error_of(self, index: int) -> dict[str, object]:
        (made,) = [made for sample, made in self.done if sample.index == index]
        (failed,) = made
        certify(failed)
        assert failed.status is Status.FAILED
        error: dict[str, object] = failed.metadata["rollhook_result"]["error"]
        return error


def rows(count: int) -> Iterator[Sample]:
    return (Sample(index=i) for i in range(count))


async def test_every_sample_is_done_once_whatever_the_order() -> None:
    record = Record()

    async def rollout(sample: Sample) -> list[Sample]:
        for _ in range((sample.index or 0) % 3):
            await asyncio.sleep(0)
        return [sample]

    await run_rollouts(rows(50), rollout, concurrency=7, on_done=record)

    assert record.indices == list(range(50))


async def test_at_most_so_many_run_and_no_sample_is_taken_early() -> None:
    running, peak, taken = 0, 0, 0

    def source() -> Iterator[Sample]:
        nonlocal taken
        for sample in rows(20):
            taken += 1
            yield sample

    async def rollout(sample: Sample) -> list[Sample]:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        assert taken <= (sample.index or 0) + 4
        await asyncio.sleep(0)
        running -= 1
        return [sample]

    await run_rollouts(source(), rollout, concurrency=4, on_done=Record())

    assert (peak, taken) == (4, 20)


async def test_a_rollout_that_raises_is_a_failed_sample_and_the_others_finish() -> None:
    record = Record()

    async def rollout(sample: Sample) -> list[Sample]:
        await asyncio.sleep(0)
        if sample.index == 2:
            raise KeyError("oops")
        return [] if sample.index == 3 else [sample]

    await run_rollouts(rows(6), rollout, concurrency=3, on_done=record)

    assert record.indices == list(range(6))
    assert record.error_of(2) == {
        "stage": "scheduler",
        "plugin": None,
        "type": "KeyError",
        "message": "KeyError: 'oops'",
        "where": None,
    }
    assert record.error_of(3)["message"] == "ValueError: the rollout returned no sample"


async def test_a_leaked_cancellation_does_not_lose_the_sample() -> None:
    record = Record()

    async def rollout(sample: Sample) -> list[Sample]:
        if sample.index == 1:
            raise asyncio.CancelledError("a library's own")
        return [sample]

    await run_rollouts(rows(4), rollout, concurrency=1, on_done=record)

    assert record.indices == [0, 1, 2, 3]
    assert record.error_of(1)["type"] == "CancelledError"


async def test_a_configuration_error_stops_the_run_as_itself() -> None:
    record = Record()

    async def rollout(sample: Sample) -> list[Sample]:
        if sample.index == 1:
            raise PluginNotFound("no plugin named x")
        await asyncio.Event().wait()
        return [sample]

    with pytest.raises(PluginNotFound, match="no plugin named x"):
        await run_rollouts(rows(100), rollout, concurrency=3, on_done=record)

    assert record.done == []


async def test_an_error_of_on_done_stops_the_run_as_itself() -> None:
    async def on_done(sample: Sample, made: Sequence[Sample]) -> None:
        raise DataError("disk full")

    async def rollout(sample: Sample) -> list[Sample]:
        return [sample]

    with pytest.raises(DataError, match="disk full"):
        await run_rollouts(rows(100), rollout, concurrency=3, on_done=on_done)


async def test_on_cancellation_what_has_finished_is_still_recorded() -> None:
    recording, release, cancelled = asyncio.Event(), asyncio.Event(), []
    record = Record()

    async def rollout(sample: Sample) -> list[Sample]:
        if sample.index:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(sample.index)
                raise
        return [sample]

    async def on_done(sample: Sample, made: Sequence[Sample]) -> None:
        recording.set()
        await release.wait()
        await record(sample, made)

    run = asyncio.create_task(run_rollouts(rows(100), rollout, concurrency=3, on_done=on_done))
    await recording.wait()
    run.cancel()
    await asyncio.sleep(0)
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert (record.indices, sorted(cancelled)) == ([0], [1, 2])


async def test_concurrency_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="concurrency is 0; at least one rollout must run"):
        await run_rollouts(
            rows(1), lambda sample: asyncio.sleep(0, [sample]), concurrency=0, on_done=Record()
        )
