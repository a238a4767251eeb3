"""Telling observers never blocks a rollout, never fails it, and counts what was lost."""

from __future__ import annotations

import threading

from rollhook.events import EventBus
from rollhook.protocols import Event


def test_every_sink_gets_every_event_in_order_on_another_thread() -> None:
    seen: list[tuple[str, int | None, bool]] = []
    bus = EventBus([lambda e: seen.append((e.kind, e.rollout_id, threading.current_thread().daemon))])

    bus.tell("rollout_started", 7, {})
    bus.tell("turn", 7, {"tokens": 3})
    bus.close()

    assert seen == [("rollout_started", 7, True), ("turn", 7, True)]


def test_a_full_queue_drops_and_counts() -> None:
    gate, seen = threading.Event(), []

    def slow(event: Event) -> None:
        gate.wait(10)
        seen.append(event.data["n"])

    bus = EventBus([slow], capacity=2)
    for n in range(10):
        bus.tell("turn", None, {"n": n})
    dropped = bus.dropped
    gate.set()
    bus.close()

    assert dropped in (7, 8)  # the thread may or may not have taken the first event out of the queue
    assert len(seen) == 10 - dropped


def test_a_failing_sink_is_counted_and_the_others_go_on() -> None:
    seen: list[str] = []

    def broken(event: Event) -> None:
        raise RuntimeError(event.kind)

    bus = EventBus([broken, lambda event: seen.append(event.kind)])
    bus.tell("a", None, {})
    bus.tell("b", None, {})
    bus.close()

    assert (bus.failed, seen) == (2, ["a", "b"])
