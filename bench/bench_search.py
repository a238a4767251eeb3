"""What retrieval costs: the embedded index and what stands before it, against what one would do without them.

    python bench/bench_search.py [PASSAGES]

`search_index` to `search_rate`: the index by words over short passages, 100,000 unless PASSAGES (or the
variable SEARCH_PASSAGES) says otherwise; the baseline is bm25s with its files memory-mapped. Each is measured
in a process of its own. `search_crowd`: 64 rollouts that each ask 16 queries, half of them asked by another
too; the baseline asks the same index in a thread for each query. `search_longest_callback`: the event loop's
longest callback during that, of its thread's time, against searching on the event loop. `search_rollouts`: 64
whole rollouts of the environment at once, of three turns each. `search_rollouts_longest_callback`,
`search_left_behind`: of 64 at once every second one is cancelled in the middle: the longest callback, and the
tasks and threads after the run.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import EntryPoint
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from crowd import all_of, engine_on_a_thread, forget, half_of, longest_callback

from rollhook import Plugins, RunConfig, Runtime, Sample
from rollhook.testing import ScriptedRequest, load_tokenizer
from rollhook_search_r1.config import Source
from rollhook_search_r1.corpus import read_corpus
from rollhook_search_r1.index import open_word_index
from rollhook_search_r1.sources import open_source

PASSAGES = 100_000
WORDS = 20_000
WORDS_PER_PASSAGE = 12
WORDS_PER_QUERY = 5
QUERIES = 1000
TOPK = 3
ROUNDS = 3
ROLLOUTS = 64
QUERIES_PER_ROLLOUT = 16
SEARCHES = 2
ENTRY_POINT = EntryPoint("search-r1", "rollhook_search_r1.hooks", "rollhook.plugins")

Measurement = dict[str, float | str]
Search = Callable[[str], object]


def run(passages: int | None = None) -> dict[str, Measurement]:
    """Every measurement of this module."""
    passages = passages or int(os.environ.get("SEARCH_PASSAGES", PASSAGES))
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        _write_corpus(corpus, passages)
        ours, baseline = (_measured(engine, corpus) for engine in ("ours", "bm25s"))
        size = f"{passages:,} passages"
        return {
            "search_index": _less(ours["index_s"], baseline["index_s"], f"s, {size}"),
            "search_open": _less(1e3 * ours["open_s"], 1e3 * baseline["open_s"], f"ms, {size}, kept"),
            "search_memory": _less(
                ours["heap_mb"], baseline["heap_mb"], f"MB of heap, {size}, after queries"
            ),
            "search_disk": _less(ours["disk_mb"], baseline["disk_mb"], f"MB, {size}"),
            "search_rate": _more(
                ours["queries_per_s"], baseline["queries_per_s"], f"queries/s, {size}, 1 thread"
            ),
            **asyncio.run(_crowd(corpus)),
            **_rollouts(corpus),
        }


def _write_corpus(path: Path, passages: int) -> None:
    """Short passages of words that are drawn as in language: the n-th most frequent in proportion to 1/n."""
    rng = random.Random(0)
    words = [f"w{n}" for n in range(WORDS)]
    weights = list(accumulate(1 / (n + 1) for n in range(WORDS)))
    with path.open("w", encoding="utf-8") as file:
        for number in range(passages):
            text = " ".join(rng.choices(words, cum_weights=weights, k=WORDS_PER_PASSAGE))
            file.write(json.dumps({"id": number, "title": f"Entry {number}", "text": text}) + "\n")


def _queries(count: int) -> list[str]:
    """Queries of words, frequent and rare ones alike."""
    rng = random.Random(1)
    return [" ".join(f"w{int(WORDS ** rng.random())}" for _ in range(WORDS_PER_QUERY)) for _ in range(count)]


def _measured(engine: str, corpus: Path) -> dict[str, float]:
    """Index, open and query in a new process, so that memory is this engine's alone."""
    command = [sys.executable, __file__, "--measure", engine, str(corpus)]
    answer = subprocess.run(command, check=False, capture_output=True, text=True)  # bm25s draws progress bars
    if answer.returncode:
        raise RuntimeError(f"measuring {engine} failed:\n{answer.stderr}")
    figures: dict[str, float] = json.loads(answer.stdout)
    return figures


def _measure(engine: str, corpus: Path) -> dict[str, float]:
    place = corpus.parent / engine
    place.mkdir()
    opened = {"ours": _open_ours, "bm25s": _open_bm25s}[engine]
    started = time.perf_counter()
    if os.fork() == 0:  # what building leaves in memory is not what a run holds
        opened(corpus, place)
        os._exit(0)
    assert os.wait()[1] == 0
    built = time.perf_counter()
    before = _heap_mb()
    search = opened(corpus, place)
    ready = time.perf_counter()
    for query in _queries(QUERIES):
        search(query)
    done = time.perf_counter()
    return {
        "index_s": built - started,
        "open_s": ready - built,
        "heap_mb": _heap_mb() - before,
        "disk_mb": sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) / 2**20,
        "queries_per_s": QUERIES / (done - ready),
    }


def _open_ours(corpus: Path, place: Path) -> Search:
    index = open_word_index(corpus, place)
    return lambda query: index.search([query], TOPK)


def _open_bm25s(corpus: Path, place: Path) -> Search:
    bm25s: Any = importlib.import_module("bm25s")  # it ships no types
    if not any(place.iterdir()):
        texts = [passage.contents for passage in read_corpus(corpus)]
        made = bm25s.BM25(corpus=texts)
        made.index(bm25s.tokenize(texts, stopwords=None, show_progress=False), show_progress=False)
        made.save(place)
    index = bm25s.BM25.load(place, load_corpus=True, mmap=True)

    def search(query: str) -> object:
        tokens = bm25s.tokenize(query, stopwords=None, show_progress=False)
        return index.retrieve(tokens, k=TOPK, show_progress=False)

    return search


def _heap_mb() -> float:
    """Memory of this process that no file backs."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return float(status.split("RssAnon:")[1].split()[0]) / 1024


def _rollouts(corpus: Path) -> dict[str, Measurement]:
    """Whole rollouts at once, and half of them cancelled."""
    tokenizer, model = load_tokenizer("smollm2"), Searcher()
    settings = {"search-r1": {"corpus": str(corpus), "cache": str(corpus.parent / "ours")}}
    with engine_on_a_thread(tokenizer, model) as url, longest_callback() as longest:

        def runtime() -> Runtime:
            config = RunConfig(engine=url, concurrency=ROLLOUTS, settings=settings)
            return Runtime(config, plugins=Plugins(entry_points=[ENTRY_POINT]), tokenizer=tokenizer)

        async def play() -> float:
            async with runtime() as run:
                await all_of(run, _rows()[:1])  # it opens the index
                return await all_of(run, _rows())

        async def cancel_half() -> int:
            async with runtime() as run:
                await all_of(run, _rows()[:1])
                model.answered = 0
                await forget(longest)
                await half_of(run, _rows(), lambda: model.answered > ROLLOUTS)
            return len(asyncio.all_tasks()) - 1

        rounds = [asyncio.run(play()) for _ in range(ROUNDS)]
        left = asyncio.run(cancel_half())
    left += sum(thread.name.startswith("search-r1") for thread in threading.enumerate())
    size = f"{ROLLOUTS} rollouts at once"
    return {
        "search_rollouts": {
            "ours": ROLLOUTS / median(rounds),
            "unit": f"rollouts/s, {size}, 2 searches each",
        },
        "search_rollouts_longest_callback": {"ours": 1e3 * longest[0], "unit": f"ms, {size}, half cancelled"},
        "search_left_behind": {"ours": left, "unit": f"tasks and threads, {size}, half cancelled"},
    }


class Searcher:
    """Searches twice, then answers. answered: how many turns it has spoken."""

    def __init__(self) -> None:
        self.answered = 0

    def __call__(self, request: ScriptedRequest) -> str:
        self.answered += 1
        asked = re.search(r"Rollout (\d+) asks", request.prompt)
        assert asked is not None
        if request.turn < SEARCHES:
            return f"<think>so</think><search>w{asked[1]} w{request.turn}</search>"
        return "<think>so</think><answer>it</answer>"


def _rows() -> list[Sample]:
    return [
        Sample(
            index=index,
            prompt=f"Rollout {index} asks.",
            label="it",
            metadata={"rollhook": "search-r1"},
        )
        for index in range(ROLLOUTS)
    ]


async def _crowd(corpus: Path) -> dict[str, Measurement]:
    """Many rollouts at one index."""
    asked = _asked_by_pairs()
    index = await asyncio.to_thread(open_word_index, corpus, corpus.parent / "ours")

    async def in_a_thread(query: str) -> None:
        await asyncio.to_thread(index.search, [query], TOPK)

    async def on_the_loop(query: str) -> None:
        index.search([query], TOPK)
        await asyncio.sleep(0)

    rounds = []
    for _ in range(ROUNDS):  # in turn, so that a machine that is busy for a while is busy for all of them
        blocking = await _play(asked, on_the_loop)
        threads = await _play(asked, in_a_thread)
        async with open_source(Source(corpus=corpus, cache=corpus.parent / "ours"), ROLLOUTS) as batched:
            ours = await _play(asked, lambda query: batched.find(query, TOPK))
        rounds.append((blocking[1], threads[0], ours[0], ours[1]))
    blocking_callback_s, threads_s, ours_s, ours_callback_s = map(median, zip(*rounds, strict=True))
    total = ROLLOUTS * QUERIES_PER_ROLLOUT
    return {
        "search_crowd": _more(total / ours_s, total / threads_s, "queries/s, 64 rollouts at once"),
        "search_longest_callback": _less(
            1e3 * ours_callback_s, 1e3 * blocking_callback_s, "ms, 64 rollouts at once"
        ),
    }


def _asked_by_pairs() -> list[list[str]]:
    """The queries of each rollout; rollouts come in pairs that have the first half of them in common."""
    half = QUERIES_PER_ROLLOUT // 2
    queries = _queries(ROLLOUTS * half * 3 // 2)
    asked = []
    for start in range(0, len(queries), 3 * half):
        common, *own = (queries[start + n * half : start + (n + 1) * half] for n in range(3))
        asked += [common + mine for mine in own]
    return asked


async def _play(
    asked: Sequence[Sequence[str]], search: Callable[[str], Awaitable[object]]
) -> tuple[float, float]:
    """Seconds until every rollout has asked its queries one after the other, and the longest callback's."""

    async def rollout(queries: Sequence[str]) -> None:
        for query in queries:
            await search(query)

    started = time.perf_counter()
    with longest_callback() as longest:
        async with asyncio.TaskGroup() as group:
            for queries in asked:
                group.create_task(rollout(queries))
    return time.perf_counter() - started, longest[0]


def _less(ours: float, baseline: float, unit: str) -> Measurement:
    return {"ours": ours, "baseline": baseline, "ratio": baseline / max(ours, 1e-9), "unit": unit}


def _more(ours: float, baseline: float, unit: str) -> Measurement:
    return {"ours": ours, "baseline": baseline, "ratio": ours / baseline, "unit": unit}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        sys.stdout.write(json.dumps(_measure(sys.argv[2], Path(sys.argv[3]))))
    else:
        sys.stdout.write(json.dumps(run(int(sys.argv[1]) if sys.argv[1:] else None), indent=2) + "\n")
