"""Sources of passages, open: an index or a service, behind what batches and keeps questions.

Invariant: a run opens a source once, however many items and configurations name it; when it is closed, so are
its connections and threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
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


async def shared_source(source: Source, run: Run) -> Batched:
    """The source as every item and configuration of `run` that names it shares it, open until the run ends.

    Raises ResourceError when it cannot be opened.
    """
    return await run.share("search-r1/source", lambda: open_source(source, run.concurrency), key=source)


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
