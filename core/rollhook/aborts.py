"""Abort: what a run does ends at the trainer's word, whatever it is busy with.

Invariant: `run` is left within ENGINE_GRACE_S + UNWIND_S + EXIT_GRACE_S of an abort, less than a second. Work
that will not end (plugin code that swallows its cancellation, a close that takes long) is left to itself,
known here, and waited for at the run's close.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rollhook.engine import Engine
from rollhook.errors import RolloutAborted, RolloutError

ENGINE_GRACE_S = 0.5
"""For the engines to give back the turns they were sampling."""
UNWIND_S = 0.1
"""For rollouts whose turn was given back to end by themselves."""
EXIT_GRACE_S = 0.3
"""For what was cancelled to end."""
CLOSE_GRACE_S = 10.0
POLL_S = 0.05

_T = TypeVar("_T")
_log = logging.getLogger("rollhook.aborts")


@dataclass(eq=False, slots=True)
class _Work:
    """One coroutine that an abort ends.

    left: its caller waits no more. closing: it only closes what it opened.
    """

    task: asyncio.Task[Any]
    left: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    aborted: bool = False
    closing: bool = False

    def cancel(self) -> None:
        if not self.closing:
            self.task.cancel()


class Aborts:
    """Runs what an abort ends.

    engines: those whose turns are given back first. close_grace_s: how long `close` waits for what is left.
    """

    def __init__(
        self, engines: Callable[[], Iterable[Engine]], *, close_grace_s: float = CLOSE_GRACE_S
    ) -> None:
        self._engines = engines
        self._close_grace_s = close_grace_s
        self._said = False
        self._flag: Callable[[], bool] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._live: dict[asyncio.Task[Any], _Work] = {}
        self._left: dict[asyncio.Task[Any], _Work] = {}

    @property
    def in_force(self) -> bool:
        """Whether the trainer aborts now: by `abort`, until `lift`, or by the flag that is watched."""
        return self._said or (self._flag is not None and self._flag())

    def watch(self, flag: Callable[[], bool]) -> None:
        """Abort whenever `flag` is true, and until it is not. It is asked every POLL_S while work is done."""
        self._flag = flag

    def lift(self) -> None:
        """Let work begin again after `abort`."""
        self._said = False

    async def abort(self) -> None:
        """End all work, and all that begins until `lift`; returns when every `run` was left."""
        self._said = True
        await self._end_all()

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await `work` in a task of its own.

        Raises RolloutAborted when an abort ends it or is in force, RolloutError when it is cancelled and
        nobody asked for it. A cancelled caller cancels it and waits EXIT_GRACE_S for it.
        """
        if self.in_force:
            work.close()
            raise RolloutAborted
        task = asyncio.create_task(work)
        here = self._live[task] = _Work(task)
        self._watch_while_live()
        try:
            await _either(task, here.left)
        except asyncio.CancelledError:
            here.cancel()
            await asyncio.wait([task], timeout=EXIT_GRACE_S)
            raise
        finally:
            del self._live[task]
            if not task.done():
                self._leave(here)
            elif not task.cancelled():
                task.exception()  # asyncio warns of one that nobody looked at
        if here.aborted:
            raise RolloutAborted
        if task.cancelled():
            raise RolloutError("a plugin raised CancelledError by itself", cause_type="CancelledError")
        return task.result()

    def closing(self) -> None:
        """Say that the work calling this only closes what it opened, which nothing must interrupt."""
        task = asyncio.current_task()
        for works in (self._live, self._left):
            if task in works:
                works[task].closing = True

    async def close(self) -> None:
        """Cancel what still runs, wait for it, and give up what does not end."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        works = [*self._live.values(), *self._left.values()]
        for work in works:
            work.cancel()
        if works:
            _, stuck = await asyncio.wait([work.task for work in works], timeout=self._close_grace_s)
            for task in stuck:
                task.cancel()
            if stuck:
                _log.error(
                    "%d rollouts were given up: they do not end although they were cancelled", len(stuck)
                )

    async def _end_all(self) -> None:
        live = [work for work in self._live.values() if not work.task.done()]
        if not live:
            return
        await self._end_turns()
        await asyncio.wait([work.task for work in live], timeout=UNWIND_S)
        for work in live:
            if not work.task.done():
                work.aborted = True
                work.cancel()
        _, stuck = await asyncio.wait([work.task for work in live], timeout=EXIT_GRACE_S)
        for work in live:
            if not work.left.done():
                work.left.set_result(None)
        if stuck:
            _log.warning(
                "%d aborted rollouts did not end at once: they close something, or a plugin swallows its "
                "cancellation; they are waited for when the run closes",
                len(stuck),
            )

    async def _end_turns(self) -> None:
        """Have the engines give back what they sampled. One that does not react in time is left to itself."""
        asked = [asyncio.create_task(engine.abort()) for engine in self._engines()]
        if not asked:
            return
        done, late = await asyncio.wait(asked, timeout=ENGINE_GRACE_S)
        for task in late:
            task.cancel()
            self._leave(_Work(task))
        for task in done:
            if error := task.exception():
                _log.warning("aborting an engine's turns failed: %s: %s", type(error).__name__, error)

    def _watch_while_live(self) -> None:
        if self._flag is not None and (self._watcher is None or self._watcher.done()):
            self._watcher = asyncio.create_task(self._follow_flag(), name="rollhook watches for aborts")

    async def _follow_flag(self) -> None:
        while self._live:
            if self.in_force:
                await self._end_all()
            await asyncio.sleep(POLL_S)

    def _leave(self, work: _Work) -> None:
        self._left[work.task] = work
        work.task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._left.pop(task, None)
        if not task.cancelled() and (error := task.exception()):
            _log.info("what was left to itself ended with %s: %s", type(error).__name__, error)


async def _either(*futures: asyncio.Future[Any]) -> None:
    """Return when one of them is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def abort_flag(modules: Mapping[str, Any], args: Any) -> Callable[[], bool] | None:
    """slime's own word that it aborts, None where slime does not run in this process.

    modules: sys.modules; slime is never imported. Its `GenerateState` is one object for the process, with the
    field `aborted`: true from the moment it aborts until its next batch. It is not made here, as making it
    loads a tokenizer: slime has made it before it calls anyone.
    """
    module = modules.get("slime.rollout.sglang_rollout")
    kind = getattr(module, "GenerateState", None)
    if kind is None:
        return None
    made = getattr(type(kind), "_instances", None)  # of slime's singleton metaclass
    state = made.get(kind) if isinstance(made, dict) else kind(args)
    return None if state is None else lambda: bool(getattr(state, "aborted", False))
