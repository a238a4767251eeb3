"""What the embedded engine gains by batching and by keeping prefixes, over HTTP, with the default model.

`engine_batch_N`: tokens per second of N requests at once; the baseline is one request at a time.
`engine_prefix_reuse`: seconds to the first token of a session's second turn; the baseline is the same turn
after the cache was flushed.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

import aiohttp

from rollhook.embedded import EmbeddedEngine

NEW_TOKENS = 32
ROUNDS = 3
PROMPT = [(131 * n) % 40000 + 100 for n in range(48)]
HISTORY_TOKENS = 1200
Measurement = dict[str, float | str]


class Client:
    """One session at one engine."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def generate(self, ids: list[int], tokens: int, seed: int) -> dict[str, Any]:
        """An answer of exactly `tokens` tokens."""
        sampling = {"max_new_tokens": tokens, "ignore_eos": True, "seed": seed}
        body = {"input_ids": ids, "return_logprob": True, "sampling_params": sampling}
        async with self._session.post(f"{self._url}/generate", json=body) as response:
            answer: dict[str, Any] = await response.json()
            return answer

    async def flush(self) -> None:
        async with self._session.post(f"{self._url}/flush_cache") as response:
            response.raise_for_status()

    async def tokens_per_s(self, at_once: int) -> float:
        """The rate at which `at_once` requests that start together are answered."""
        start = time.perf_counter()
        await asyncio.gather(*(self.generate(PROMPT, NEW_TOKENS, seed) for seed in range(at_once)))
        return at_once * NEW_TOKENS / (time.perf_counter() - start)

    async def second_turn_s(self, *, flushed: bool, seed: int) -> float:
        """Seconds to the second turn's first token, after a first turn of some length."""
        history = [seed, *((17 * n + seed) % 40000 + 100 for n in range(HISTORY_TOKENS))]
        first = await self.generate(history, 1, seed)
        if flushed:
            await self.flush()
        start = time.perf_counter()
        await self.generate([*history, *first["output_ids"], *PROMPT], 1, seed)
        return time.perf_counter() - start


def run() -> dict[str, Measurement]:
    """Every measurement of this module."""
    return asyncio.run(_run())


async def _run(dtype: str = "float32") -> dict[str, Measurement]:
    async with EmbeddedEngine(dtype=dtype) as engine, aiohttp.ClientSession() as session:
        client = Client(engine.url, session)
        await client.tokens_per_s(1)  # warm up
        # in turn, so that a machine that is busy for a while is busy for all of them
        rates = [[await client.tokens_per_s(n) for n in (1, 8, 16)] for _ in range(ROUNDS)]
        fresh = await client.second_turn_s(flushed=True, seed=1)
        reused = await client.second_turn_s(flushed=False, seed=2)
    one, eight, sixteen = (median(column) for column in zip(*rates, strict=True))
    return {
        "engine_batch_8": _measurement(eight, one, eight / one, "tokens/s"),
        "engine_batch_16": _measurement(sixteen, one, sixteen / one, "tokens/s"),
        "engine_prefix_reuse": _measurement(reused, fresh, fresh / reused, "s"),
    }


def _measurement(ours: float, baseline: float, ratio: float, unit: str) -> Measurement:
    return {"ours": ours, "baseline": baseline, "ratio": ratio, "unit": unit}
