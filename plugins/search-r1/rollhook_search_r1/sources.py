"""Sources of passages, open: an index or a service, behind what batches and keeps questions.

Invariant: a source is opened by the first who leases it and closed by the last who lets go, however many
configurations name it; when it is closed, so are its connections and threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp

from rollhook import Run
from rollhook_search_r1.batching import Ask, Batched
from rollhook_search_r1.config import Source
from rollhook_search_r1.dense import open_dense_index
from rollhook_search_r1.index import open_word_index
from rollhook_search_r1.protocol import Hit
from rollhook_search_r1.retrieval import RetrieveService

REQUESTS_AT_ONCE = 4
SEARCHES_AT_ONCE = {"bm25": 2, "dense": 1}  # comparing vectors already uses every core


class Index(Protocol):
    """An opened index."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]: ...


class Sources:
    """The sources that are open, each under the run and the settings that name it."""

    def __init__(self) -> None:
        self._leased: dict[tuple[Run, Source], _Leased] = {}

    @asynccontextmanager
    async def lease(self, source: Source, run: Run) -> AsyncIterator[Batched]:
        """The source, opened if it is not. Raises what opening raises."""
        key = (run, source)
        leased = self._leased.setdefault(key, _Leased())
        leased.users += 1
        try:
            async with leased.lock:
                if leased.opened is None:
                    leased.opened = await leased.stack.enter_async_context(
                        open_source(source, run.concurrency)
                    )
            yield leased.opened
        finally:
            leased.users -= 1
            if not leased.users:
                del self._leased[key]
                await leased.stack.aclose()


@dataclass(slots=True, eq=False)
class _Leased:
    """One source. lock: held while it is opened."""

    users: int = 0
    opened: Batched | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)


@asynccontextmanager
async def open_source(source: Source, connections: int) -> AsyncIterator[Batched]:
    """The index of a corpus, or connections to a service, at most so many."""
    opening = _index(source) if source.url is None else _service(source, connections)
    async with opening as (ask, at_once):
        batched = Batched(ask, at_once=at_once, max_batch=source.max_batch, kept=source.kept_queries)
        try:
            yield batched
        finally:
            await batched.close()


@asynccontextmanager
async def _service(source: Source, connections: int) -> AsyncIterator[tuple[Ask, int]]:
    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(connector=connector) as http:
        service = RetrieveService(http, str(source.url), source.timeout_s, source.retries)
        yield service.search, REQUESTS_AT_ONCE


@asynccontextmanager
async def _index(source: Source) -> AsyncIterator[tuple[Ask, int]]:
    """The index behind threads of its own: each batch is one call in one of them."""
    threads = SEARCHES_AT_ONCE[source.ranking]
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="search-r1")
    try:
        index = await loop.run_in_executor(pool, open_index, source)

        async def ask(queries: Sequence[str], topk: int) -> list[list[Hit]]:
            return await loop.run_in_executor(pool, index.search, queries, topk)

        yield ask, threads
    finally:
        await asyncio.to_thread(pool.shutdown, cancel_futures=True)


def open_index(source: Source) -> Index:
    """The index of the source's corpus, built if none is kept; blocks.

    Raises ValueError for a corpus that cannot be read, RuntimeError where a library is not installed.
    """
    assert source.corpus is not None
    if source.ranking == "dense":
        return open_dense_index(source.corpus, source.cache, source.embedder, source.device)
    return open_word_index(source.corpus, source.cache)
