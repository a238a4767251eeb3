"""The event loop that rollhook's rollout functions run on, in a thread of their own.

Invariant: there is at most one such thread in a process; it starts with the first call and ends with `close`.
slime calls rollout functions plainly and waits for them; rollouts that go on between the calls need a loop
that outlives a call. `ROLLOUTS` is module-level state for the reason that `rollhook.runtime` has a table: a
call is given `args` only, and must find what the one before it began.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, wait
from typing import Any, Generic, Protocol, TypeVar

from rollhook.errors import ConfigError
from rollhook.runtime import close_runtimes, loops_with_runtimes

CLOSE_TIMEOUT_S = 60.0
CANCEL_GRACE_S = 10.0
"""For calls that were cancelled to put back what they hold."""

_T = TypeVar("_T")


class Background(Protocol):
    """What goes on between calls."""

    async def close(self) -> None:
        """End it."""
        ...


class _Call(Generic[_T]):
    """One coroutine on the loop, and what comes of it for the thread that waits."""

    def __init__(self, work: Coroutine[Any, Any, _T]) -> None:
        self.result: Future[_T] = Future()
        self._work = work
        self._task: asyncio.Task[_T] | None = None

    def start(self, calls: set[asyncio.Task[Any]]) -> None:
        """On the loop. calls: knows of it until it ends."""
        self._task = asyncio.get_running_loop().create_task(self._work)
        calls.add(self._task)
        self._task.add_done_callback(calls.discard)
        self._task.add_done_callback(self._tell)

    def cancel(self) -> None:
        """On the loop, after `start`."""
        assert self._task is not None
        self._task.cancel()

    def _tell(self, task: asyncio.Task[_T]) -> None:
        if task.cancelled():
            self.result.set_exception(ConfigError("rollouts were shut down while a call waited for them"))
        elif (error := task.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())


class RolloutThread:
    """A thread that runs one event loop while anybody needs it.

    background: closed with it, on the loop. opening: held on the loop by who replaces `background`.
    """

    background: Background | None
    opening: asyncio.Lock

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self.background = None

    def run(self, work: Coroutine[Any, Any, _T], *, undo: Callable[[_T], None] | None = None) -> _T:
        """Run a coroutine on the loop and wait for it.

        An interrupted wait (KeyboardInterrupt) cancels it and waits CANCEL_GRACE_S for its end. undo: is
        given the result that came all the same. Raises ConfigError when the thread is closed meanwhile,
        RuntimeError on the loop itself, which would wait for ever.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "a rollout function was called from inside a rollout; call it from the trainer"
            )
        call = _Call(work)
        with self._lock:  # so that `close` finds it
            loop = self._started()
            loop.call_soon_threadsafe(call.start, self._calls)
        try:
            wait([call.result])
        except BaseException:
            if not call.result.done():
                loop.call_soon_threadsafe(call.cancel)
                wait([call.result], CANCEL_GRACE_S)
            if undo is not None and call.result.done() and call.result.exception() is None:
                undo(call.result.result())
            raise
        try:
            return call.result.result()
        finally:
            del call  # an error would hold this frame, which holds the error

    def close(self) -> None:
        """Close what runs on the loop, and end its thread. Blocks; a later call starts a new one."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._close_all(), loop).result(CLOSE_TIMEOUT_S)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(CLOSE_TIMEOUT_S)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self.opening = asyncio.Lock()
            self._thread = threading.Thread(
                target=_run_until_stopped, args=(self._loop,), name="rollhook rollouts", daemon=True
            )
            self._thread.start()
        return self._loop

    async def _close_all(self) -> None:
        background, self.background = self.background, None
        try:
            if background is not None:
                await background.close()
            await _cancel(self._calls)
        finally:
            await close_runtimes()


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """End tasks of this loop, waiting for CANCEL_GRACE_S at most."""
    ending = [task for task in tasks if task is not asyncio.current_task()]
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending, timeout=CANCEL_GRACE_S)


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_cancel(asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def shutdown() -> None:
    """Close everything that rollhook opened for a trainer, on every event loop of this process.

    Rollouts in the background end, and their rows go back to the data source; connections, embedded engines,
    sandboxes and what plugins share are closed. Await it before a loop ends that called `rollhook.generate`.
    """
    await close_runtimes()
    await asyncio.to_thread(close)


def close() -> None:
    """The same as `shutdown`, waited for: for code without an event loop.

    Raises RuntimeError on an event loop that has something to close, since it would wait for itself.
    """
    if any(loop is _current_loop() for loop in loops_with_runtimes()):
        raise RuntimeError(
            "close() was called on an event loop that rollhook runs on: await shutdown() instead"
        )
    ROLLOUTS.close()
    others = [loop for loop in loops_with_runtimes() if loop.is_running()]
    closing = [asyncio.run_coroutine_threadsafe(close_runtimes(), loop) for loop in others]
    for future in closing:
        future.result(CLOSE_TIMEOUT_S)


ROLLOUTS = RolloutThread()
