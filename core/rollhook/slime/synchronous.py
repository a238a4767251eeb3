"""`generate_rollout`: one training batch at a time, for slime's `--rollout-function-path`.

Invariant: every group drawn from the data source is in the batch, was dropped by the dynamic filter, or is
back in the data source when the call returns or raises.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rollhook.config import RunConfig
from rollhook.errors import ConfigError, first_leaf
from rollhook.groups import GroupSource, Rows
from rollhook.runtime import Runtime, runtime_for
from rollhook.slime.evaluation import evaluate
from rollhook.slime.filters import drop_metrics, drop_reason
from rollhook.slime.flags import RolloutFlags
from rollhook.slime.outputs import Made, flat, group_index, status_metrics, train_output
from rollhook.slime.runner import RolloutRunner, rows_to_redo
from rollhook.slime.thread import ROLLOUTS


def generate_rollout(args: Any, rollout_id: int, data_source: GroupSource, evaluation: bool = False) -> Any:
    """A batch of `rollout_batch_size` groups, or an evaluation: slime's `--rollout-function-path`.

    Draws `over_sampling_batch_size` groups at a time, asks the dynamic filter of each that is done, and
    aborts the rest when enough are kept: with `--partial-rollout` they go back with what they have sampled,
    else as they came (slime drops them then). Groups are sorted by index. Rows run through
    `rollhook.generate`; a row or run that names another generate function is refused.

    Returns slime's RolloutFnTrainOutput or RolloutFnEvalOutput. Raises ConfigError when the run cannot work
    as configured, before any token.
    """
    if evaluation:
        return ROLLOUTS.run(evaluate(args))

    def undo(batch: _Batch) -> None:
        data_source.add_samples(batch.rows)

    batch = ROLLOUTS.run(_collect(args, rollout_id, data_source), undo=undo)
    try:
        if batch.flags.sample_filter is not None:
            batch.flags.sample_filter(args, batch.kept)
        if batch.flags.all_samples is not None:
            batch.flags.all_samples(args, batch.everything, data_source)
    except BaseException:
        undo(batch)
        raise
    return train_output(batch.kept, batch.metrics)


@dataclass(slots=True)
class _Batch:
    """What one call collects. rows: as they came, of what is kept. everything: with what was dropped."""

    flags: RolloutFlags
    rows: list[Rows]
    kept: list[list[Made]]
    everything: list[list[Made]]
    metrics: dict[str, Any]


async def _collect(args: Any, rollout_id: int, data_source: GroupSource) -> _Batch:
    config = RunConfig.from_args(args)
    flags = RolloutFlags.from_args(args, config)
    runtime = await runtime_for(config)
    collector = _Collector(args, flags, runtime, data_source)
    try:
        async with asyncio.TaskGroup() as tasks:
            await collector.fill(tasks)
            await collector.abort_rest(resume=config.partial_rollout, rollout_id=rollout_id)
        batch = collector.batch()
    except BaseException as stopped:
        collector.give_back(everything=True)
        if not isinstance(stopped, BaseExceptionGroup):
            raise
        cause = first_leaf(stopped) or stopped
        raise cause from cause.__cause__
    collector.give_back()
    return batch


class _Collector:
    """The groups of one call: drawn, kept, dropped, left over."""

    def __init__(self, args: Any, flags: RolloutFlags, runtime: Runtime, source: GroupSource) -> None:
        self._args = args
        self._flags = flags
        self._runtime = runtime
        self._source = source
        self._runner = RolloutRunner(
            args,
            runtime,
            slots=asyncio.Semaphore(flags.concurrency),
            reward=flags.reward,
            group_rm=flags.group_rm,
        )
        self._running: dict[asyncio.Task[None], Rows] = {}
        self._finished: asyncio.Queue[tuple[Rows, list[Made]]] = asyncio.Queue()
        self._drawn = 0
        self._kept: list[tuple[Rows, list[Made]]] = []
        self._dropped: list[list[Made]] = []
        self._reasons: Counter[str] = Counter()
        self._back: list[Rows] = []

    async def fill(self, tasks: asyncio.TaskGroup) -> None:
        """Draw and run groups until a batch is kept."""
        while len(self._kept) < self._flags.groups:
            while self._candidates < self._flags.groups:
                self._draw(tasks)
            self._kept.append(await self._finished.get())
            _, made = self._kept[-1]
            scarce = self._candidates <= self._flags.groups
            reason = drop_reason(self._flags.keep, self._args, made, scarce=scarce)
            if reason is not None:
                self._dropped.append(made)
                self._kept.pop()
                self._reasons[reason] += 1

    async def abort_rest(self, *, resume: bool, rollout_id: int) -> None:
        """End what still runs. resume: what it has sampled goes back with it."""
        running = list(self._running)
        if running and resume:
            try:
                await self._runtime.abort()
                await asyncio.wait(running)
            finally:
                self._runtime.lift_abort()
        elif running:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
        while not self._finished.empty():
            rows, made = self._finished.get_nowait()
            self._back.append(rows_to_redo(rows, made, resume=resume, rollout_id=rollout_id))
        self._back += self._running.values()
        self._running.clear()

    def give_back(self, *, everything: bool = False) -> None:
        """What was drawn and is not used goes back to the data source. everything: also what is kept."""
        self._back += self._running.values()
        if everything:
            self._back += [rows for rows, _ in self._kept]
            while not self._finished.empty():
                self._back.append(self._finished.get_nowait()[0])
        if self._back:
            self._source.add_samples(self._back)

    def batch(self) -> _Batch:
        """What slime gets."""
        kept = sorted((made for _, made in self._kept), key=group_index)
        metrics = {
            **status_metrics(flat(kept)),
            **drop_metrics(self._reasons),
            "rollhook/put_back_groups": len(self._back),
        }
        rows = [rows for rows, _ in self._kept]
        return _Batch(self._flags, rows, kept, sorted(kept + self._dropped, key=group_index), metrics)

    @property
    def _candidates(self) -> int:
        """Groups that are, or may come to be, in the batch."""
        return self._drawn - len(self._dropped)

    def _draw(self, tasks: asyncio.TaskGroup) -> None:
        groups = self._source.get_samples(self._flags.over_sampling)
        if not groups:
            raise ConfigError("the data source has no more groups; give it more rows")
        self._drawn += len(groups)
        for rows in groups:
            task = tasks.create_task(self._run(rows))
            self._running[task] = rows

    async def _run(self, rows: Rows) -> None:
        made = await self._runner.run_group(rows)
        task = asyncio.current_task()
        assert task is not None
        del self._running[task]
        self._finished.put_nowait((rows, made))
