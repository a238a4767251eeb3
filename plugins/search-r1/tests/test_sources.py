"""Configurations of a run that name one source share it, and it is gone after the run."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from rollhook import Plugins, ResourceError, RunConfig, Runtime
from rollhook_search_r1.config import SearchConfig, ToolConfig
from rollhook_search_r1.lookup import open_lookup


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("search-r1")]


def a_run() -> Runtime:
    return Runtime(RunConfig(), plugins=Plugins(entry_points=[]))


def words(text: str) -> int:
    return len(text.split())


async def test_rows_with_other_bounds_and_the_tool_share_what_is_open(corpus: Path) -> None:
    configs = [
        SearchConfig(corpus=corpus, cache=corpus.parent, topk=topk, max_turns=topk) for topk in (1, 2, 5)
    ]
    async with a_run().scoring() as run:
        async with (
            open_lookup(configs[0], run) as one,
            open_lookup(configs[1], run) as two,
            open_lookup(ToolConfig(corpus=corpus, cache=corpus.parent), run) as tool,
        ):
            assert one.batched is two.batched is tool.batched
            assert (one.config.topk, two.config.topk, tool.config.topk) == (1, 2, 3)
            assert (await one.find("capital", words)).text.count("Doc ") == 1
            assert (await two.find("capital", words)).text.count("Doc ") == 2
        async with open_lookup(configs[2], run) as later:
            assert later.batched is one.batched
        open_in_the_run = threads()

    assert open_in_the_run != []
    assert threads() == []


async def test_openings_at_once_open_one_source(corpus: Path) -> None:
    async def use(run: Runtime, topk: int) -> object:
        async with open_lookup(SearchConfig(corpus=corpus, cache=corpus.parent, topk=topk), run) as lookup:
            return lookup.batched

    async with a_run().scoring() as run:
        seen = await asyncio.gather(*(use(run, topk) for topk in range(1, 9)))

    assert len(set(map(id, seen))) == 1
    assert threads() == []


async def test_runs_and_other_sources_are_apart(corpus: Path) -> None:
    config = SearchConfig(corpus=corpus, cache=corpus.parent)
    async with (
        a_run().scoring() as one_run,
        a_run().scoring() as another,
        open_lookup(config, one_run) as here,
        open_lookup(config, another) as there,
        open_lookup(config.model_copy(update={"max_batch": 1}), one_run) as other,
    ):
        assert len({id(lookup.batched) for lookup in (here, there, other)}) == 3


async def test_an_opening_that_failed_is_tried_again(corpus: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.touch()
    config = SearchConfig(corpus=broken, cache=tmp_path)
    async with a_run().scoring() as run:
        with pytest.raises(ResourceError, match=r"^search-r1/source: ValueError: .*no passages in 0 lines"):
            async with open_lookup(config, run):
                pass
        await asyncio.to_thread(corpus.rename, broken)

        async with open_lookup(config, run) as lookup:
            assert "Lima" in (await lookup.find("Lima", words)).text
