"""Events: what a run tells its observers.

Invariant: telling never blocks and never fails a rollout. Each sink has a bounded queue and a thread of its
own; a full queue drops the event and counts it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from rollhook.hookspecs import EventSink
from rollhook.protocols import Event

_log = logging.getLogger("rollhook.events")


class _Worker:
    """One sink behind its queue. `None` in the queue ends the thread."""

    def __init__(self, sink: EventSink, capacity: int) -> None:
        self.sink = sink
        self.queue: queue.Queue[Event | None] = queue.Queue(capacity)
        self.dropped = 0
        self.failed = 0
        self.thread = threading.Thread(target=self._work, name="rollhook-events", daemon=True)
        self.thread.start()

    def put(self, event: Event) -> None:
        try:
            self.queue.put_nowait(event)
        except queue.Full:
            self.dropped += 1

    def _work(self) -> None:
        while (event := self.queue.get()) is not None:
            try:
                self.sink(event)
            except Exception:  # noqa: BLE001  an observer's fault is counted, never the rollout's
                self.failed += 1
                if self.failed == 1:
                    _log.exception("event sink %r failed; later failures are only counted", self.sink)

    def close(self, timeout_s: float) -> None:
        try:
            self.queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self.thread.join(timeout_s)


class EventBus:
    """Hands each event to every sink, off the event loop."""

    def __init__(self, sinks: Sequence[EventSink], *, capacity: int = 10_000) -> None:
        self._workers = [_Worker(sink, capacity) for sink in sinks]

    def tell(self, kind: str, rollout_id: int | None, data: dict[str, Any]) -> None:
        """Queue one event for every sink; returns at once."""
        if not self._workers:
            return
        event = Event(kind=kind, time_s=time.time(), rollout_id=rollout_id, data=data)
        for worker in self._workers:
            worker.put(event)

    @property
    def dropped(self) -> int:
        """Events lost to full queues."""
        return sum(worker.dropped for worker in self._workers)

    @property
    def failed(self) -> int:
        """Events whose sink raised."""
        return sum(worker.failed for worker in self._workers)

    def close(self, timeout_s: float = 5.0) -> None:
        """Deliver what is queued and end the threads; blocks at most `timeout_s` a sink."""
        for worker in self._workers:
            worker.close(timeout_s)
