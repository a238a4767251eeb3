"""Groups of rollouts in the background, across the batches of a training run.

Invariants: every group taken from the source ends in exactly one place: handed over once, back in the source,
or counted as dropped; a group is dropped only for a reason that `Batch.counts` names. Nothing that is handed
over is staler than the pace allows (see `rollhook.pace`). Nothing is left running after the scheduler's
`async with`.

Everything here happens on one event loop, so no state is locked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self

from rollhook.errors import ConfigError, GroupsFailed
from rollhook.groups import DROPPED, Batch, Finished, GroupSource, Made, Rows, Verdict
from rollhook.pace import Pace

SHOWN_CAUSES = 3
_log = logging.getLogger("rollhook.continuous")


@dataclass(slots=True)
class _Running:
    """A group under way. began: the version it began with. expired: it was ended for being too old."""

    rows: Rows
    began: int
    expired: bool = False


@dataclass(frozen=True, slots=True)
class _Ready(Generic[Made]):
    """A group that can be handed over. oldest: the version its oldest token was sampled with."""

    rows: Rows
    oldest: int
    made: Made


class ContinuousScheduler(Generic[Made]):
    """Keeps groups in flight, and hands out batches of those that are ready. Use with `async with`.

    attempt: runs one group; what it raises is a failure of that group, a ConfigError one of the run.
    batch: groups in a batch. concurrency: groups in flight at most.

    `take` gives the next batch; sampling begins with the first call and goes on between calls.
    """

    def __init__(
        self,
        source: GroupSource,
        attempt: Callable[[Rows], Awaitable[Finished[Made]]],
        *,
        pace: Pace,
        batch: int,
        concurrency: int,
    ) -> None:
        self.pace = pace
        self.version = 0
        self._source = source
        self._attempt = attempt
        self._batch = batch
        self._concurrency = concurrency
        self._max_failed = batch if pace.max_failed_groups is None else pace.max_failed_groups
        self._running: dict[asyncio.Task[Finished[Made]], _Running] = {}
        self._ready: list[_Ready[Made]] = []
        self._handed = 0
        self._waiting = False
        self._paused = False
        self._closing = False
        self._failures: Counter[tuple[int | None, int | None]] = Counter()
        self._given_up: list[tuple[Rows, str]] = []
        self._refused: list[Rows] = []
        self._counts: Counter[str] = Counter()
        self._fault: Exception | None = None
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()

    @property
    def running(self) -> int:
        """Groups in flight."""
        return len(self._running)

    @property
    def ready(self) -> int:
        """Groups that wait to be handed over."""
        return len(self._ready)

    @property
    def paused(self) -> bool:
        """Whether no group may start."""
        return self._paused

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what runs and give every group that was not handed over back to the source."""
        self._closing = True
        self._stop(ConfigError("rollouts were shut down while a call waited for its batch"))
        for task in self._running:
            task.cancel()
        try:
            await self.settled()
        finally:
            unused = [group.rows for group in self._running.values()] + [group.rows for group in self._ready]
            unused += [rows for rows, _ in self._given_up] + self._refused
            self._running.clear()
            self._ready.clear()
            if unused:
                self._source.add_samples(unused)

    async def take(self, current: Callable[[], Awaitable[int]]) -> Batch[Made]:
        """The next batch, oldest groups first, in the order in which they finished.

        current: asks for the trainer's version of the weights; asked again before the batch is handed over.
        Raises the fault of the run (a ConfigError, or what the source raised); GroupsFailed when too many
        groups failed for good; ConfigError when the source has no more groups.
        """
        async with self._turn:
            if self._paused:
                _log.warning("a call waits for a batch while rollouts are paused: resume them")
            self._waiting = True
            try:
                while True:
                    self.advance(await current())
                    await self._enough()
                    self.advance(await current())
                    if len(self._ready) >= self._batch:
                        return self._hand_over()
            finally:
                self._waiting = False

    def advance(self, version: int) -> None:
        """Say that the trainer's weights are at `version`; an older one than known changes nothing."""
        if version > self.version:
            self.version = version
            self._handed = 0
            self._expire()
            self._fill()
            self._changed.set()

    def pause(self) -> None:
        """Start no group until `resume`; what runs goes on."""
        self._paused = True

    def resume(self) -> None:
        """End a pause."""
        self._paused = False
        self._fill()
        self._changed.set()

    async def settled(self) -> None:
        """Return when nothing runs: after a pause, when running groups have ended or were aborted."""
        if self._running:
            await asyncio.wait(list(self._running))

    async def _enough(self) -> None:
        while True:
            self._raise_faults()
            if len(self._ready) >= self._batch:
                return
            self._fill()
            if self._fault is None and not self._running and not self._paused:
                raise ConfigError(
                    f"the data source has no more groups: {len(self._ready)} of {self._batch} are ready; "
                    "give it more rows, or take smaller batches"
                )
            self._changed.clear()
            if self._fault is None:
                await self._changed.wait()

    def _raise_faults(self) -> None:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        if len(self._given_up) > self._max_failed:
            failed, self._given_up = self._given_up, []
            self._put_back([rows for rows, _ in failed])
            causes = list(dict.fromkeys(cause for _, cause in failed))[:SHOWN_CAUSES]
            raise GroupsFailed(
                f"{len(failed)} groups failed {self.pace.group_retries + 1} times each; their rows are back "
                f"in the data source; causes: {'; '.join(causes)}"
            )

    def _hand_over(self) -> Batch[Made]:
        self._ready.sort(key=lambda group: group.oldest)  # stable: among equals, first finished first
        taken, self._ready = self._ready[: self._batch], self._ready[self._batch :]
        self._handed += len(taken)
        for rows, cause in self._given_up:
            _log.warning("gave up group %s: %s", rows[0].group_index, cause)
            self._counts["failed"] += 1
        self._given_up = []
        counts, self._counts = self._counts, Counter()
        self._waiting = False
        self._fill()
        return Batch(
            groups=[group.made for group in taken],
            rows=[group.rows for group in taken],
            staleness=[max(0, self.version - group.oldest) for group in taken],
            counts=counts,
        )

    def _fill(self) -> None:
        """Start as many groups as there is room for."""
        if self._paused or self._closing or self._fault or len(self._given_up) > self._max_failed:
            return
        room = self.pace.room(
            batch=self._batch,
            handed=self._handed,
            ready=len(self._ready),
            running=len(self._running),
            waiting=self._waiting,
        )
        wanted = min(room, self._concurrency - len(self._running))
        if wanted > 0:
            try:
                for rows in self._source.get_samples(wanted):
                    name = f"rollhook group {rows[0].group_index}"
                    task = asyncio.create_task(self._run(rows), name=name)
                    self._running[task] = _Running(rows, self.version)
                    task.add_done_callback(self._ended)
            except Exception as error:  # noqa: BLE001  the source is the trainer's; its fault is the caller's
                self._stop(error)

    async def _run(self, rows: Rows) -> Finished[Made]:
        """One attempt at one group. Raises only its cancellation."""
        try:
            return await self._attempt(rows)
        except ConfigError as error:
            self._stop(error)
            return Finished(Verdict.REDO)
        except Exception as error:  # noqa: BLE001  a bad group is data; this is the last place to say so
            return Finished(Verdict.FAILED, reason=f"{type(error).__name__}: {error}")

    def _ended(self, task: asyncio.Task[Finished[Made]]) -> None:
        if self._closing:
            return
        group = self._running.pop(task)
        if not task.cancelled():
            self._settle(group, task.result())
        elif group.expired:
            self._give_back_stale(group.rows)
        else:
            self._retry(group.rows, "CancelledError, and nobody cancelled it")
        self._fill()
        self._changed.set()

    def _settle(self, group: _Running, finished: Finished[Made]) -> None:
        oldest = min(finished.versions, default=group.began)
        self.advance(max(finished.versions, default=self.version))
        keep = finished.verdict is Verdict.KEEP
        if keep and self.pace.is_stale(oldest, self.version):
            self._give_back_stale(group.rows)
        elif keep and finished.made is not None:
            self._failures.pop(_key(group.rows), None)
            self._ready.append(_Ready(group.rows, oldest, finished.made))
        elif finished.verdict is Verdict.DROP:
            self._failures.pop(_key(group.rows), None)
            self._counts[DROPPED + finished.reason] += 1
        elif finished.verdict is Verdict.REDO:
            self._counts["aborted"] += 1
            self._put_back([group.rows if finished.rows is None else finished.rows])
        else:
            self._retry(group.rows, finished.reason)

    def _retry(self, rows: Rows, cause: str) -> None:
        key = _key(rows)
        self._failures[key] += 1
        if self._failures[key] > self.pace.group_retries:
            del self._failures[key]
            self._given_up.append((rows, cause))
        else:
            self._counts["retried"] += 1
            self._put_back([rows])

    def _expire(self) -> None:
        """End what is too old for the weights as they are now."""
        for task, group in self._running.items():
            if not group.expired and self.pace.is_stale(group.began, self.version):
                group.expired = True
                task.cancel()
        ready, self._ready = self._ready, []
        for waiting in ready:
            if self.pace.is_stale(waiting.oldest, self.version):
                self._give_back_stale(waiting.rows)
            else:
                self._ready.append(waiting)

    def _give_back_stale(self, rows: Rows) -> None:
        self._counts["stale"] += 1
        if self.pace.on_stale == "requeue":
            self._put_back([rows])

    def _put_back(self, groups: list[Rows]) -> None:
        """Give groups to the source. What it refuses is kept for the next time; the caller hears of it."""
        groups, self._refused = self._refused + groups, []
        try:
            self._source.add_samples(groups)
        except Exception as error:  # noqa: BLE001  the source is the trainer's; its fault is the caller's
            self._refused = groups
            self._stop(error)

    def _stop(self, fault: Exception) -> None:
        self._fault = self._fault or fault
        self._changed.set()


def _key(rows: Rows) -> tuple[int | None, int | None]:
    """What tells a group from others when it comes back from the source, maybe as a copy."""
    return rows[0].group_index, rows[0].index
