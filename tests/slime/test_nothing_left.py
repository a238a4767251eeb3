"""After `shutdown` nothing of a run is left: tasks, threads, processes, files, sockets, memory."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
import threading
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import rollhook.slime
from rollhook import ConfigError
from rollhook.adapters.sessions import Session
from rollhook.agent import LiveAgent
from rollhook.ledger import Ledger
from rollhook.rollout import LiveRollout
from rollhook.runtime import Runtime, loops_with_runtimes
from rollhook.slime import shutdown
from rollhook.testing import Fault, Reply
from tests.adapters.worlds import world
from tests.slime.cases import (
    PLUGINS,
    TASKS,
    Case,
    Model,
    Rows,
    browser,
    calculator,
    failed,
    faulty,
    held,
    orchestrator,
    plugin_faults,
    retool,
    search,
    terminal,
    with_engine_fault,
)
from tests.slime.faults import MODULE
from tests.slime.running import slime_run
from tests.slime.trainer import Trainer

FLAGS: dict[str, Any] = {"n_samples_per_prompt": 1, "rollout_max_response_len": 512}
SECTION: dict[str, Any] = {"modules": [MODULE], "tool_parser": "qwen25", "retries": 0}
RUN_KINDS = (Runtime, LiveRollout, LiveAgent, Ledger, Session)
GROWTH_BYTES = 1024
"""That a failed rollout may leave in a run that goes on; one that is kept takes about ten times as much."""


@dataclass(frozen=True)
class Held:
    """What this process holds. tasks: of the running loop. files: what its descriptors name, by kind."""

    tasks: int
    threads: tuple[str, ...]
    children: frozenset[str]
    files: tuple[tuple[str, int], ...]
    temporary: frozenset[str]
    loops: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        names = sorted(thread.name for thread in threading.enumerate())
        return cls(
            tasks=len(asyncio.all_tasks()),
            threads=tuple(name for name in names if not name.startswith("asyncio_")),  # the test's own pool
            children=frozenset(_children()),
            files=tuple(sorted(_files().items())),
            temporary=frozenset(path.name for path in Path(tempfile.gettempdir()).iterdir()),
            loops=len(loops_with_runtimes()),
        )


def _children() -> list[str]:
    """The living processes that descend from this one."""
    parents: dict[int, tuple[int, str]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue  # it has ended
        state, parent = rest.split()[:2]
        if state != "Z":
            parents[int(head.split()[0])] = int(parent), head

    def descends(process: int) -> bool:
        parent = parents.get(process, (0, ""))[0]
        return parent == os.getpid() or (parent in parents and descends(parent))

    return [head for process, (_, head) in parents.items() if descends(process)]


def _files() -> Counter[str]:
    """Open descriptors by what they name; sockets and pipes by their kind."""
    found: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found[str(descriptor.readlink()).partition(":[")[0]] += 1
        except OSError:
            continue  # the one that listed the folder
    return found


def alive() -> Counter[str]:
    """Objects of a run that something still refers to."""
    gc.collect()
    kinds = map(type, gc.get_objects())  # not isinstance, which asks lazy proxies for their class
    return Counter(kind.__name__ for kind in kinds if kind in RUN_KINDS)


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)


def settings(tmp_path: Path) -> dict[str, Any]:
    corpus = PLUGINS / "search-r1" / "examples" / "corpus.jsonl"
    return {
        "search-r1": {"corpus": str(corpus), "cache": str(tmp_path / "index")},
        "terminal": {"tasks": str(TASKS)},
        "rollhook/bubblewrap": {"warm": 1},
    }


async def begin(trainer: Trainer, cases: Sequence[Case]) -> list[asyncio.Task[Any]]:
    """Start every case."""
    groups = Rows(trainer.args, cases).get_samples(len(cases))
    return [asyncio.create_task(trainer.generate_and_rm_group(group)) for group in groups]


async def test_a_run_that_is_shut_down_in_the_middle_leaves_nothing(
    qwen3_tokenizer: Any, tmp_path: Path
) -> None:
    """Rollouts of all plugins are done, or failed, and as many still hold on to something."""
    # an error on closing is logged, and pytest keeps what is logged, with the frames of its traceback
    cases = [*held(), *(c for c in plugin_faults() if "hang" not in c.name and "leave" not in c.name)]
    cases += [search(right=True), calculator(right=True), orchestrator(right=True)]
    cases += [terminal(right=True), retool(right=True)] if shutil.which("bwrap") else []
    cases += [browser(right=True)] if shutil.which("chromium") else []
    section = {**SECTION, "settings": settings(tmp_path)}
    ended: list[Any] = []

    async def run_once() -> None:
        async with slime_run(qwen3_tokenizer, Model(cases, qwen3_tokenizer), rollhook=section, **FLAGS) as (
            trainer,
            _,
        ):
            running = await begin(trainer, cases)
            await asyncio.wait([task for task, case in zip(running, cases, strict=True) if not case.held])
            await shutdown()
            _, late = await asyncio.wait(running, timeout=5)
            ended.extend(running)
            assert not late

    await run_once()  # what a process opens once, by the first run of all, is no leak
    before = Held.now()
    await run_once()
    errors = [task.exception() for task in ended if not task.cancelled()]
    ended.clear()

    assert Held.now() == before
    assert not any(errors)
    assert alive() == Counter()


async def test_a_busy_fully_async_run_is_shut_down_from_another_loop_and_twice(
    qwen3_tokenizer: Any,
) -> None:
    holding = [replace(case, held=None) for case in held()]
    cases = [calculator(right=True) for _ in range(8)] + holding

    async def run_once() -> tuple[list[int], int]:
        async with slime_run(
            qwen3_tokenizer, Model(cases, qwen3_tokenizer), rollhook=SECTION, rollout_batch_size=4, **FLAGS
        ) as (trainer, _):
            trainer.source = Rows(trainer.args, cases)
            batches = [await trainer.rollout(rollhook.slime.fully_async_rollout, call) for call in range(2)]
            waiting = asyncio.create_task(trainer.rollout(rollhook.slime.fully_async_rollout, 2))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(asyncio.run, shutdown())
            await shutdown()
            with pytest.raises(ConfigError, match="shut down while a call waited"):
                await waiting
        back = [group[0].index for group in trainer.source.buffer]
        trained = [sample.index for batch in batches for sample in batch.samples]
        return sorted(trained + back), trainer.source.given

    await run_once()
    before = Held.now()
    accounted, given = await run_once()

    assert Held.now() == before
    assert accounted == list(range(given))
    assert alive() == Counter()


async def test_a_runtime_of_this_loop_is_shut_down_from_another(qwen3_tokenizer: Any) -> None:
    cases = [calculator(right=True), *(case for case in held() if case.held == "aborted")]
    model = Model(cases, qwen3_tokenizer)
    async with slime_run(qwen3_tokenizer, model, rollhook=SECTION, **FLAGS) as (trainer, _):
        running = await begin(trainer, cases)
        [siblings] = await running[0]
        assert loops_with_runtimes() == [asyncio.get_running_loop()]
        await asyncio.to_thread(asyncio.run, shutdown())
        assert loops_with_runtimes() == []
        _, late = await asyncio.wait(running, timeout=5)

    assert siblings[0].reward == 1.0
    assert not late


async def test_shutdown_of_what_never_opened_does_nothing() -> None:
    before = Held.now()
    await shutdown()
    await shutdown()
    rollhook.slime.close()

    assert Held.now() == before


def smallest_failures() -> list[Case]:
    """Rows that fail at every stage, before, in and after a turn."""
    tool, world_, judge, alone = "faulty/use", "faulty/world", "faulty/judge", "faulty/alone"
    rejected, cut = Fault.status(400, None), Fault.cut(times=None)
    return [
        faulty("tools", "call", "raise", failed("tool", tool, "OSError")),
        faulty("tools", "call", "cancel", failed("rollout", None, "CancelledError")),
        faulty("environment", "step", "raise", failed("environment", world_, "OSError")),
        faulty("environment", "reset", "raise", failed("environment", world_, "OSError")),
        faulty("verifier", "score", "nan", failed("verifier", judge, "ValueError")),
        faulty("topology", "run", "group", failed("topology", alone, "OSError")),
        faulty("environment", "open", "raise", failed("open", world_, "OSError")),
        faulty("verifier", "create", "junk", failed("open", judge, "TypeError")),
        with_engine_fault(calculator(right=True), "any", rejected, "EngineRejected"),
        with_engine_fault(calculator(right=True), "The answer is 42.", cut, "EngineUnavailable"),
    ]


async def test_a_thousand_failed_rollouts_leave_no_object_and_a_run_does_not_grow_by_them(
    qwen3_tokenizer: Any,
) -> None:
    cases = smallest_failures()
    model = Model(cases, qwen3_tokenizer)
    async with slime_run(qwen3_tokenizer, model, rollhook=SECTION, **FLAGS) as (trainer, engine):

        async def fail(times: int) -> None:
            for _ in range(times // len(cases)):
                for group in await asyncio.gather(*await begin(trainer, cases)):
                    assert [sample.status.value for sample in group[0]] == ["failed"]
            engine.requests.clear()
            engine.sampled.clear()

        await fail(100)  # caches fill up
        tracemalloc.start()
        try:
            await fail(100)
            before = _bytes_of_rollhook()
            await fail(800)
            grown = _bytes_of_rollhook() - before
        finally:
            tracemalloc.stop()
        async with asyncio.timeout(30):  # rollouts that were answered still unwind
            while alive()["LiveRollout"] > 3 * len(cases):
                await asyncio.sleep(0.05)
        live = alive()

    assert grown < 800 * GROWTH_BYTES
    assert live["LiveRollout"] <= 10 * len(
        cases
    )  # of a thousand: the newest, which the loop may still refer to
    assert alive() == Counter()


def _bytes_of_rollhook() -> int:
    """What its own modules allocated and something still refers to."""
    gc.collect()
    ours = [tracemalloc.Filter(True, "*/core/rollhook/*"), tracemalloc.Filter(False, "*/rollhook/testing/*")]
    snapshot = tracemalloc.take_snapshot().filter_traces(ours)
    return sum(statistic.size for statistic in snapshot.statistics("filename"))


async def test_a_thousand_adapter_sessions_whose_engine_fails_leave_an_empty_store(
    qwen3_tokenizer: Any,
) -> None:
    broken = Reply("x", fault=Fault.status(400, None))
    async with world(qwen3_tokenizer, lambda request: broken) as opened, aiohttp.ClientSession() as http:

        async def fail(number: int) -> int:
            session = opened.adapter.open_session()
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
            headers = {"Authorization": f"Bearer {session.api_key}"}
            url = f"{opened.url}/v1/chat/completions"
            async with http.post(url, json=body, headers=headers) as response:
                await response.read()
            end = opened.adapter.drop_session if number % 2 else opened.adapter.finish_session
            await end(session.session_id)
            return response.status

        statuses: Counter[int] = Counter()
        for start in range(0, 1000, 50):
            statuses.update(await asyncio.gather(*map(fail, range(start, start + 50))))
        left = opened.adapter.open_sessions
        live = alive()

    assert sum(statuses.values()) == 1000
    assert min(statuses) >= 400
    assert left == 0
    assert live == Counter()
