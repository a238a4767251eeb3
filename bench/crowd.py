"""Many rollouts at once on a scripted engine, and what of them is left when half were cancelled."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from asyncio.events import Handle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollhook import Runtime, Sample, run_rollout
from rollhook.testing import ScriptedEngine

CANCEL_AFTER_S = 60.0


@contextmanager
def engine_on_a_thread(tokenizer: Any, script: Any) -> Iterator[str]:
    """The URL of a scripted engine whose own callbacks run on another thread than what is measured."""
    url: list[str] = []
    ready, finished = threading.Event(), threading.Event()

    async def serve() -> None:
        async with ScriptedEngine(tokenizer, script) as engine:
            url.append(engine.url)
            ready.set()
            await asyncio.to_thread(finished.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield url[0]
    finally:
        finished.set()
        thread.join()


@contextmanager
def longest_callback() -> Iterator[list[float]]:
    """In the list's one place, the seconds of the longest callback that this thread's loop runs meanwhile.

    Of the thread's own time: on a busy machine the clock on the wall tells of others.
    """
    longest = [0.0]
    owner, plain = threading.get_ident(), Handle._run

    def timed(handle: Handle) -> None:
        if threading.get_ident() != owner:
            plain(handle)
            return
        started = time.thread_time()
        plain(handle)
        longest[0] = max(longest[0], time.thread_time() - started)

    setattr(Handle, "_run", timed)  # noqa: B010  the loop tells of slow callbacks only in debug mode
    try:
        yield longest
    finally:
        setattr(Handle, "_run", plain)  # noqa: B010  as above


async def forget(longest: list[float]) -> None:
    """Begin anew, without what was set up until now: neither its callbacks nor its garbage."""
    gc.collect()
    gc.freeze()
    await asyncio.sleep(0)  # the collection was a callback's, too
    longest[0] = 0.0


async def all_of(runtime: Runtime, rows: Sequence[Sample]) -> float:
    """Run the rows at once; returns the seconds until the last has ended, each with reward 1."""
    started = time.perf_counter()
    done = await asyncio.gather(*(run_rollout(runtime, row, {}) for row in rows))
    seconds = time.perf_counter() - started
    _check(done)
    return seconds


async def half_of(runtime: Runtime, rows: Sequence[Sample], until: Callable[[], bool]) -> None:
    """Run the rows at once and cancel every second one when `until` says so; the others get reward 1."""
    tasks = [asyncio.create_task(run_rollout(runtime, row, {})) for row in rows]
    async with asyncio.timeout(CANCEL_AFTER_S):
        while not until():  # noqa: ASYNC110  what it waits for happens on the engine's thread
            await asyncio.sleep(0.005)
    for task in tasks[1::2]:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks[1::2])
    _check([task.result() for task in tasks[::2]])


def descendants() -> set[tuple[int, str]]:
    """The living processes that this one started, directly or not: id and start time."""
    parents: dict[int, tuple[int, str, str]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue  # it has ended
        fields = rest.split()
        parents[int(head.split()[0])] = int(fields[1]), fields[19], fields[0]
    found = set()
    for process, (_, started, state) in parents.items():
        above = process
        while above in parents and above != os.getpid():
            above = parents[above][0]
        if above == os.getpid() and process != above and state != "Z":
            found.add((process, started))
    return found


def alive(processes: set[tuple[int, str]]) -> set[tuple[int, str]]:
    """Those that still run, whoever has adopted them."""
    return {one for one in processes if _started(one[0]) == one[1]}


def _started(process: int) -> str | None:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _check(done: Sequence[Sequence[Sample]]) -> None:
    for [sample] in done:
        assert sample.reward == 1.0, (sample.metadata or {})["rollhook_result"]["error"]
