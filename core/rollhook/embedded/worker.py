"""The one thread that runs the model, and its bridge to an event loop.

Invariant: torch and the batcher are touched only by the worker thread, which takes commands from a queue
between two steps; the event loop only ever waits for futures and snapshots. Every request handed in gets a
last snapshot or an error, also when the engine stops or a step fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from rollhook.embedded.params import GenerateRequest, InvalidRequest
from rollhook.errors import EngineError, EngineUnavailable

if TYPE_CHECKING:
    from rollhook.embedded.batcher import Batcher, Generation, Snapshot

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_STOP_DEADLINE_S = 60.0  # a step in progress is waited for; the longest is one prompt chunk


class Stream:
    """One request's snapshots, newest first: a reader that is slow skips to the latest."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changed = asyncio.Event()
        self._latest: Snapshot | None = None
        self._error: Exception | None = None

    def publish(self, item: Snapshot | Exception) -> None:
        """From the worker thread: what the reader sees next."""
        with contextlib.suppress(RuntimeError):  # the reader's loop has closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._take, item)

    def _take(self, item: Snapshot | Exception) -> None:
        if isinstance(item, Exception):
            self._error = item
        else:
            self._latest = item
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[Snapshot]:
        """Snapshots up to the one that has a finish reason. Raises what ended the request instead."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._error is not None:
                raise self._error
            if self._latest is not None:
                yield self._latest
                if self._latest.finish is not None:
                    return


class Worker:
    """Owns the thread. `start`, then `submit`, `abort`, `flush` from the event loop, then `stop`."""

    def __init__(self, load: Callable[[], Batcher]) -> None:
        """load: makes the batcher; called on the worker thread, where reading weights may block."""
        self._load = load
        self._commands: queue.SimpleQueue[Callable[[Batcher], None]] = queue.SimpleQueue()
        self._streams: dict[Generation, Stream] = {}  # the worker thread's own
        self._closing = False  # the event loop's: no command is put after the one that stops the thread
        self._stopping = False  # the worker thread's
        self._loaded: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, name="rollhook-engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether requests can be served."""
        return self._thread.is_alive() and not self._closing

    async def start(self) -> int:
        """Load the model; its context length in tokens. Raises whatever `load` raised."""
        self._thread.start()
        return await asyncio.wrap_future(self._loaded)

    async def submit(self, request: GenerateRequest, rid: str) -> Stream:
        """Queue a request. Raises InvalidRequest if it can never be served."""
        stream = Stream(asyncio.get_running_loop())

        def add(batcher: Batcher) -> None:
            self._streams[batcher.add(request, rid)] = stream

        await self._call(add)
        return stream

    def abort(self, rid: str | None) -> None:
        """End one request (None: all) before the next step. Its stream then gets its last snapshot."""
        self._commands.put(lambda batcher: self._publish(batcher, batcher.abort(rid)))

    async def flush(self) -> bool:
        """Drop the caches kept for reuse; False while requests are live."""
        return await self._call(lambda batcher: batcher.flush())

    async def stop(self) -> None:
        """End every request as aborted, and the thread. Raises EngineUnavailable if it does not end."""
        self._closing = True
        if not self._thread.is_alive():
            return

        def stop(batcher: Batcher) -> None:
            self._stopping = True
            self._publish(batcher, batcher.abort(None))

        self._commands.put(stop)
        await asyncio.to_thread(self._thread.join, _STOP_DEADLINE_S)
        if self._thread.is_alive():
            raise EngineUnavailable(
                f"the embedded engine's thread did not stop within {_STOP_DEADLINE_S:.0f} s"
            )

    async def _call(self, function: Callable[[Batcher], _T]) -> _T:
        """Run `function` on the worker thread, between two steps."""
        if not self.alive:
            raise EngineUnavailable("the embedded engine has stopped")
        answer: Future[_T] = Future()

        def command(batcher: Batcher) -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(function(batcher))
            except InvalidRequest as error:
                answer.set_exception(error)

        self._commands.put(command)
        return await asyncio.wrap_future(answer)

    def _run(self) -> None:
        if not self._loaded.set_running_or_notify_cancel():
            return
        try:
            batcher = self._load()
        except Exception as error:  # noqa: BLE001  whatever stops loading belongs to whoever awaits start()
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(batcher.context_len)
        while not self._stopping:
            self._obey(batcher)
            if not self._stopping:
                self._step(batcher)

    def _obey(self, batcher: Batcher) -> None:
        """Carry out the waiting commands; wait for one when there is nothing else to do."""
        if batcher.idle:
            self._commands.get()(batcher)
        with contextlib.suppress(queue.Empty):
            while not self._stopping:
                self._commands.get_nowait()(batcher)

    def _step(self, batcher: Batcher) -> None:
        try:
            self._publish(batcher, batcher.step())
        except Exception as error:  # noqa: BLE001  a step that fails ends its requests, not the engine
            _log.exception("a step of the embedded engine failed")
            for generation in batcher.drop_all():
                self._streams.pop(generation).publish(EngineError(f"the engine failed: {error}"))

    def _publish(self, batcher: Batcher, generations: list[Generation]) -> None:
        for generation in generations:
            if generation.finish is not None:
                self._streams.pop(generation).publish(batcher.snapshot(generation))
            elif generation.request.stream:
                self._streams[generation].publish(batcher.snapshot(generation))
