"""Abort: what a run does ends at the trainer's word, whatever it is busy with.

Invariant: `run` is left within ENGINE_GRACE_S + UNWIND_S + EXIT_GRACE_S of an abort, less than a second. Work
that will not end (plugin code that swallows its cancellation, a close that takes long) is left to itself,
known here, and waited for at the run's close.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
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


class _Work:
    """One coroutine that an abort ends, in a task of its own.

    ending: an abort has come upon it. aborted: it was cancelled therefore. left: its caller waits no more.
    closing: it only closes what it opened.
    """

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        context = copy_context()
        context.run(_CURRENT.set, self)
        self.task = asyncio.create_task(work, context=context)
        self.left = asyncio.get_running_loop().create_future()
        self.ending = False
        self.aborted = False
        self.closing = False

    def cancel(self) -> None:
        if not self.closing:
            self.task.cancel()

    def leave(self) -> None:
        if not self.left.done():
            self.left.set_result(None)


_CURRENT: ContextVar[_Work | None] = ContextVar("the work that this code belongs to", default=None)


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
        self._endings: set[asyncio.Task[None]] = set()
        self._live: set[_Work] = set()
        self._left: set[_Work] = set()

    @property
    def in_force(self) -> bool:
        """Whether the trainer aborts now: by `abort`, until `lift`, or by the flag that is watched."""
        return self._said or (self._flag is not None and self._flag())

    @property
    def caller_must_end(self) -> bool:
        """Whether an abort is in force, or came upon the work that asks and was lifted since."""
        work = _CURRENT.get()
        return self.in_force or (work is not None and work.ending)

    def watch(self, flag: Callable[[], bool]) -> None:
        """Abort whenever `flag` is true, and until it is not. It is asked every POLL_S while work is done."""
        self._flag = flag

    def lift(self) -> None:
        """Let work begin again after `abort`. What an abort has come upon ends all the same."""
        self._said = False

    async def abort(self) -> None:
        """End all work, and all that begins until `lift`; returns when every `run` was left.

        A caller that is cancelled only stops waiting for it.
        """
        self._said = True
        self._end_live()
        if self._endings:
            await asyncio.wait(self._endings)

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await `work` in a task of its own.

        Raises RolloutAborted when an abort ends it or is in force, RolloutError when it is cancelled and
        nobody asked for it. A cancelled caller cancels it and waits EXIT_GRACE_S for it.
        """
        if self.in_force:
            work.close()
            raise RolloutAborted
        here = _Work(work)
        task = here.task
        self._live.add(here)
        self._watch_while_live()
        try:
            await _either(task, here.left)
        except asyncio.CancelledError:
            here.cancel()
            await asyncio.wait([task], timeout=EXIT_GRACE_S)
            raise
        finally:
            self._live.discard(here)
            if not task.done():
                self._leave(here)
            elif not task.cancelled():
                task.exception()  # asyncio warns of one that nobody looked at
        if here.aborted:
            raise RolloutAborted
        if task.cancelled():
            raise RolloutError("a plugin raised CancelledError by itself", cause_type="CancelledError")
        result: _T = task.result()
        return result

    def closing(self) -> None:
        """Say that the work calling this only closes what it opened, which nothing must interrupt."""
        if work := _CURRENT.get():
            work.closing = True

    async def close(self) -> None:
        """Cancel what still runs, wait for it, and give up what does not end."""
        helpers = [*self._endings, *([self._watcher] if self._watcher else [])]
        for helper in helpers:
            helper.cancel()
        if helpers:
            await asyncio.wait(helpers)
        works = [*self._live, *self._left]
        for work in works:
            work.aborted = True
            work.cancel()
        if works:
            await asyncio.wait([work.task for work in works], timeout=self._close_grace_s)
        stuck = [work for work in works if not work.task.done()]
        for work in stuck:
            work.task.cancel()
            work.leave()
        if stuck:
            _log.error("%d rollouts were given up: they do not end although they were cancelled", len(stuck))

    def _end_live(self) -> None:
        """Begin to end what is live, each work once."""
        works = [work for work in self._live if not work.ending]
        if not works:
            return
        for work in works:
            work.ending = True
        ending = asyncio.create_task(self._end(works), name="rollhook ends aborted work")
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _end(self, works: Sequence[_Work]) -> None:
        await self._end_turns()
        tasks = [work.task for work in works]
        await asyncio.wait(tasks, timeout=UNWIND_S)
        for work in works:
            if not work.task.done():
                work.aborted = True
                work.cancel()
        _, stuck = await asyncio.wait(tasks, timeout=EXIT_GRACE_S)
        for work in works:
            work.leave()
        if stuck:
            _log.warning(
                "%d aborted rollouts did not end at once: they close something, or a plugin swallows its "
                "cancellation; they are waited for when the run closes",
                len(stuck),
            )

    async def _end_turns(self) -> None:
        """Have the engines give back what they sampled. One that does not react in time is left to itself."""
        asked = [_Work(engine.abort()) for engine in self._engines()]
        if not asked:
            return
        await asyncio.wait([work.task for work in asked], timeout=ENGINE_GRACE_S)
        for work in asked:
            if not work.task.done():
                work.cancel()
                self._leave(work)
            elif not work.task.cancelled() and (error := work.task.exception()):
                _log.warning("aborting an engine's turns failed: %s: %s", type(error).__name__, error)

    def _watch_while_live(self) -> None:
        if self._flag is not None and (self._watcher is None or self._watcher.done()):
            self._watcher = asyncio.create_task(self._follow_flag(), name="rollhook watches for aborts")

    async def _follow_flag(self) -> None:
        while self._live:
            if self.in_force:
                self._end_live()
            await asyncio.sleep(POLL_S)

    def _leave(self, work: _Work) -> None:
        self._left.add(work)
        work.task.add_done_callback(partial(self._forget, work))

    def _forget(self, work: _Work, task: asyncio.Task[Any]) -> None:
        self._left.discard(work)
        if not task.cancelled() and (error := task.exception()):
            _log.info("what was left to itself ended with %s: %s", type(error).__name__, error)


async def unless(flag: Callable[[], bool] | None, work: Coroutine[Any, Any, _T]) -> _T:
    """Await `work` while `flag`, asked every POLL_S, is not true. Raises RolloutAborted when it is."""
    task = asyncio.create_task(work)
    try:
        while flag is not None and not task.done():
            if flag():
                raise RolloutAborted
            await asyncio.wait([task], timeout=POLL_S)
        return await task
    finally:
        task.cancel()


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
