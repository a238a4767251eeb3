"""Configurations that name one source share it, and it is gone after the last of them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rollhook_search_r1.config import SearchConfig, ToolConfig
from rollhook_search_r1.lookup import Lookups


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("search-r1")]


class OneRun:
    """A run: like the real one, it is only equal to itself."""

    seed = 0
    concurrency = 4


@pytest.fixture
def run() -> Any:
    return OneRun()


async def test_rows_with_other_bounds_share_what_is_open(corpus: Path, run: Any) -> None:
    lookups = Lookups()
    configs = [
        SearchConfig(corpus=corpus, cache=corpus.parent, topk=topk, max_turns=topk) for topk in (1, 2, 5)
    ]
    async with (
        lookups.open(configs[0], run) as one,
        lookups.open(configs[1], run) as two,
        lookups.open(ToolConfig(corpus=corpus, cache=corpus.parent), run) as tool,
    ):
        assert one.batched is two.batched is tool.batched
        assert (one.config.topk, two.config.topk, tool.config.topk) == (1, 2, 3)
        assert (await one.find("capital")).text.count("Doc ") == 1
        assert (await two.find("capital")).text.count("Doc ") == 2


async def test_the_last_to_leave_closes(corpus: Path, run: Any) -> None:
    lookups = Lookups()
    first = lookups.open(SearchConfig(corpus=corpus, cache=corpus.parent, topk=1), run)
    second = lookups.open(SearchConfig(corpus=corpus, cache=corpus.parent, topk=2), run)
    await first.__aenter__()
    lookup = await second.__aenter__()
    await first.__aexit__(None, None, None)

    assert "Lima" in (await lookup.find("Lima")).text
    assert threads() != []
    await second.__aexit__(None, None, None)
    assert threads() == []


async def test_openings_at_once_open_one_source(corpus: Path, run: Any) -> None:
    lookups = Lookups()
    leave = asyncio.Event()
    seen = []

    async def use(topk: int) -> None:
        async with lookups.open(SearchConfig(corpus=corpus, cache=corpus.parent, topk=topk), run) as lookup:
            seen.append(lookup.batched)
            await leave.wait()

    async with asyncio.TaskGroup() as group:
        for topk in range(1, 9):
            group.create_task(use(topk))
        while len(seen) < 8:
            await asyncio.sleep(0.01)
        leave.set()

    assert len(set(map(id, seen))) == 1
    assert threads() == []


async def test_runs_and_other_sources_are_apart(corpus: Path, run: Any) -> None:
    lookups = Lookups()
    config = SearchConfig(corpus=corpus, cache=corpus.parent)
    one_more: Any = OneRun()
    async with (
        lookups.open(config, run) as here,
        lookups.open(config, one_more) as there,
        lookups.open(config.model_copy(update={"max_batch": 1}), run) as other,
    ):
        assert len({id(lookup.batched) for lookup in (here, there, other)}) == 3


async def test_an_opening_that_failed_is_tried_again(corpus: Path, tmp_path: Path, run: Any) -> None:
    lookups = Lookups()
    broken = tmp_path / "broken.jsonl"
    broken.touch()
    config = SearchConfig(corpus=broken, cache=tmp_path)
    with pytest.raises(ValueError, match="no passages in 0 lines"):
        async with lookups.open(config, run):
            pass
    await asyncio.to_thread(corpus.rename, broken)

    async with lookups.open(config, run) as lookup:
        assert "Lima" in (await lookup.find("Lima")).text
