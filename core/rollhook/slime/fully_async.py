"""`fully_async_rollout`: sampling goes on across training batches, for slime's `--rollout-function-path`.

Invariant: there is at most one background run; it belongs to one configuration and one data source, and
closing it puts every group that was not handed over back. What is handed over, and when sampling waits, is
decided by `rollhook.continuous` and `rollhook.pace`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Self

from rollhook.config import RunConfig
from rollhook.continuous import ContinuousScheduler
from rollhook.errors import EngineError
from rollhook.groups import DROPPED, Batch, Finished, GroupSource, Rows, Verdict
from rollhook.runtime import Runtime, runtime_for
from rollhook.sample import Sample, fresh_copy
from rollhook.slime.evaluation import evaluate
from rollhook.slime.filters import drop_metrics, drop_reason
from rollhook.slime.flags import RolloutFlags
from rollhook.slime.outputs import Made, flat, group_index, status_metrics, train_output
from rollhook.slime.runner import START, RolloutRunner, failure_of, is_aborted, rows_to_redo
from rollhook.slime.thread import ROLLOUTS

Groups = Batch[list[Made]]


def fully_async_rollout(
    args: Any, rollout_id: int, data_source: GroupSource, evaluation: bool = False
) -> Any:
    """The next `rollout_batch_size` groups that are ready, or an evaluation: for `--rollout-function-path`.

    The first call starts rollouts in the background; they go on between calls, as far ahead as the run's
    `fully_async` settings allow (see `rollhook.pace`). Versions of the weights are the engine's, when it
    names them by whole numbers at the first call, as slime's do; else calls are counted. An evaluation runs
    beside them. The data source is used from rollhook's thread, also between calls. Rows run through
    `rollhook.generate`; a row or run that names another generate function is refused.

    Returns slime's RolloutFnTrainOutput, groups sorted by index, or RolloutFnEvalOutput. Raises ConfigError
    when the run cannot work as configured, GroupsFailed when too many groups failed for good.
    """
    if evaluation:
        return ROLLOUTS.run(evaluate(args))

    def undo(taken: _Taken) -> None:
        ROLLOUTS.run(_put_back(data_source, taken.rows))

    taken = ROLLOUTS.run(_take(args, rollout_id, data_source), undo=undo)
    try:
        if taken.flags.sample_filter is not None:
            taken.flags.sample_filter(args, taken.groups)
    except BaseException:
        undo(taken)
        raise
    return train_output(taken.groups, taken.metrics)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one call gets. rows: of the groups, as they came from the data source."""

    flags: RolloutFlags
    groups: list[list[Made]]
    rows: list[Rows]
    metrics: dict[str, float]


def pause_rollouts() -> None:
    """Start no rollout in the background until `resume_rollouts`: for an update of the weights.

    Running turns go on, or end at once with their rows put back, as `fully_async.on_pause` says; in the
    latter case it returns when they have ended. Evaluations run also during a pause. Without a background run
    nothing happens.
    """
    ROLLOUTS.run(_pause())


def resume_rollouts() -> None:
    """End a pause."""
    ROLLOUTS.run(_resume())


class BackgroundRun:
    """The rollouts of one configuration and data source. Made by `open`."""

    def __init__(
        self, args: Any, config: RunConfig, flags: RolloutFlags, runtime: Runtime, source: GroupSource
    ) -> None:
        self.config = config
        self.flags = flags
        self.runtime = runtime
        self.source = source
        self._args = args
        self._runner = RolloutRunner(
            args,
            runtime,
            slots=asyncio.Semaphore(flags.concurrency),
            reward=flags.reward,
            group_rm=flags.group_rm,
        )
        self.scheduler: ContinuousScheduler[list[Made]] = ContinuousScheduler(
            source,
            self._attempt,
            pace=config.fully_async,
            batch=flags.groups,
            # twice what fits: slots that a group's quick rollouts leave are taken while its slow ones run
            concurrency=max(1, 2 * flags.concurrency // flags.rollouts),
        )
        self._rollout_id = 0
        self._engine_tells = False
        self._stack = AsyncExitStack()

    @classmethod
    async def open(cls, args: Any, config: RunConfig, flags: RolloutFlags, source: GroupSource) -> Self:
        """Start a run; it samples nothing before the first `take`."""
        run = cls(args, config, flags, await runtime_for(config), source)
        run._engine_tells = await run._engine_version() is not None
        await run._stack.enter_async_context(run.scheduler)
        return run

    async def close(self) -> None:
        """End what runs, and put back what was not handed over."""
        await self._stack.aclose()

    async def take(self, rollout_id: int) -> Groups:
        """The next batch, in the trainer's call number `rollout_id`."""
        self._rollout_id = rollout_id
        return await self.scheduler.take(self._version)

    def metrics(self, batch: Groups) -> dict[str, float]:
        """What the trainer logs of a batch."""
        counts = batch.counts
        drops = {key.removeprefix(DROPPED): n for key, n in counts.items() if key.startswith(DROPPED)}
        return {
            **status_metrics(flat(batch.groups)),
            **drop_metrics(drops),
            "rollhook/weight_version": self.scheduler.version,
            "rollhook/staleness_mean": fmean(batch.staleness),
            "rollhook/staleness_max": max(batch.staleness),
            **{f"rollhook/{what}_groups": counts[what] for what in ("stale", "aborted", "retried", "failed")},
            "rollhook/ready_groups": self.scheduler.ready,
            "rollhook/running_groups": self.scheduler.running,
        }

    async def _attempt(self, rows: Rows) -> Finished[list[Made]]:
        if not await self._runner.allowed(unless=lambda: self.scheduler.paused):
            return Finished(Verdict.REDO)
        began = self._rollout_id
        kept = [self._without_stale_tokens(row) for row in rows]
        made = await self._runner.run_group(kept)
        versions = [*self._versions(kept), *self._versions(flat([made]))]
        if is_aborted(made):
            redo = rows_to_redo(rows, made, resume=self.config.partial_rollout, rollout_id=began)
            return Finished(Verdict.REDO, versions=versions, rows=redo)
        if cause := failure_of(made):
            return Finished(Verdict.FAILED, reason=cause)
        if reason := drop_reason(self.flags.keep, self._args, made):
            return Finished(Verdict.DROP, reason=reason, versions=versions)
        return Finished(Verdict.KEEP, made=made, versions=versions)

    def _without_stale_tokens(self, row: Sample) -> Sample:
        """A row of a partial rollout begins anew when what it kept could not be handed over any more."""
        oldest = min(self._versions([row]), default=self.scheduler.version)
        return fresh_copy(row) if self.config.fully_async.is_stale(oldest, self.scheduler.version) else row

    def _versions(self, samples: Sequence[Sample]) -> list[int]:
        """What these were sampled with: the engine's versions, or the calls in which aborted ones began."""
        if self._engine_tells:
            told = [_whole_number(version) for sample in samples for version in sample.weight_versions]
        else:
            told = [_whole_number((sample.metadata or {}).get(START)) for sample in samples if sample.tokens]
        return [version for version in told if version is not None]

    async def _version(self) -> int:
        version = await self._engine_version() if self._engine_tells else self._rollout_id
        return self.scheduler.version if version is None else version

    async def _engine_version(self) -> int | None:
        try:
            return _whole_number((await self.runtime.engine.model_info()).get("weight_version"))
        except EngineError:
            return None  # a gateway that does not say, or an engine that is busy with its weights


async def _take(args: Any, rollout_id: int, source: GroupSource) -> _Taken:
    config = RunConfig.from_args(args)
    flags = RolloutFlags.from_args(args, config)
    async with ROLLOUTS.opening:
        run = _background()
        if run is None or run.source is not source or run.config != config or run.flags != flags:
            paused = run is not None and run.scheduler.paused
            ROLLOUTS.background = None
            if run is not None:
                await run.close()
            run = ROLLOUTS.background = await BackgroundRun.open(args, config, flags, source)
            if paused:
                run.scheduler.pause()
    batch = await run.take(rollout_id)
    return _Taken(flags, sorted(batch.groups, key=group_index), batch.rows, run.metrics(batch))


async def _put_back(source: GroupSource, rows: list[Rows]) -> None:
    source.add_samples(rows)


async def _pause() -> None:
    run = _background()
    if run is not None:
        run.scheduler.pause()
        if run.config.fully_async.on_pause == "abort":
            try:
                await run.runtime.abort()
                await run.scheduler.settled()
            finally:  # nothing more begins; evaluations may
                run.runtime.lift_abort()


async def _resume() -> None:
    run = _background()
    if run is not None:
        run.scheduler.resume()


def _background() -> BackgroundRun | None:
    run = ROLLOUTS.background
    return run if isinstance(run, BackgroundRun) else None


def _whole_number(version: object) -> int | None:
    text = str(version)
    return int(text) if text.isascii() and text.isdigit() else None
