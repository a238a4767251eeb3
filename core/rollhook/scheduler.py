"""Rollouts, many at a time.

Invariant: every sample taken from `samples` reaches `on_done` exactly once, with at least one Sample, unless
the run as a whole stops; what a rollout raises ends that rollout only. At most `concurrency` rollouts exist
at any moment, and a sample is taken only when one of them is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from rollhook.errors import ConfigError, RolloutError, first_leaf
from rollhook.sample import Sample, rollout_id_of
from rollhook.siblings import Origin, failed_sample

RolloutFunction = Callable[[Sample], Awaitable[Sequence[Sample]]]
OnDone = Callable[[Sample, Sequence[Sample]], Awaitable[None]]


async def run_rollouts(
    samples: Iterable[Sample], rollout: RolloutFunction, *, concurrency: int, on_done: OnDone
) -> None:
    """Run `rollout` on every sample, and give `on_done` each sample with what became of it.

    samples: iterated on the event loop, so its next item must be cheap. on_done: called as rollouts finish,
    in any order and concurrently; a rollout that has finished is given to it also when the run is cancelled.

    Raises the ConfigError of a rollout, or whatever `on_done` raises: both stop the run.
    """
    if concurrency < 1:
        raise ConfigError(f"concurrency is {concurrency}; at least one rollout must run")
    source = iter(samples)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(_work(source, rollout, on_done))
    except BaseExceptionGroup as stopped:
        cause = first_leaf(stopped) or stopped
        raise cause from cause.__cause__


async def _work(source: Iterator[Sample], rollout: RolloutFunction, on_done: OnDone) -> None:
    for sample in source:
        made = await _attempt(sample, rollout)
        await _finish(on_done(sample, made))


async def _attempt(sample: Sample, rollout: RolloutFunction) -> Sequence[Sample]:
    try:
        made = await rollout(sample)
        return made or _failed(sample, ValueError("the rollout returned no sample"))
    except ConfigError:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled this task: a library leaked its own cancellation. Passed on, it would end the
        # task in silence, and the sample with it.
        return _failed(sample, error)
    except Exception as error:  # noqa: BLE001  a bad rollout is data; this is the last place to say so
        return _failed(sample, error)


async def _finish(recording: Awaitable[None]) -> None:
    """Await `recording`; when cancelled meanwhile, let it end first. A second cancellation stops it."""
    task = asyncio.ensure_future(recording)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


def _failed(sample: Sample, error: BaseException) -> Sequence[Sample]:
    """The FAILED Sample of a rollout that raised what no rollout should raise."""
    name = type(error).__name__
    cause = RolloutError(f"{name}: {error}", cause_type=name)
    cause.stage = "scheduler"
    return [failed_sample(Origin(sample, rollout_id_of(sample)), cause)]
