"""Samples a second of fully asynchronous rollouts against the synchronous way, and how stale they are.

Same engine, same rows, same slots for rollouts, same training step. Turns take lognormal times (median
MEDIAN_S, mean 1.6 times that, one in a hundred over 10 times), drawn for each row from one seed. The
synchronous way samples a batch, waits for its slowest rollout, and trains; the asynchronous way samples
while it trains. The engine's weight version rises with each training step. Rollouts that fell too far
behind are ended and their rows sampled again: only Samples that are handed over count.
"""

from __future__ import annotations

import asyncio
import random
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from typing import Any

from rich.console import Console

from rollhook import Sample
from rollhook.groups import Rows
from rollhook.slime import fully_async_rollout, generate_rollout, shutdown
from rollhook.testing import Reply, ScriptedEngine, ScriptedRequest, load_tokenizer

STEPS = 7
GROUPS = 8
ROLLOUTS = 4
MAX_STALENESS = 3
MEDIAN_S = 0.25
SIGMA = 1.0
TRAINING_S = 0.8
Measurement = dict[str, float | str]


class Questions:
    """Numbered rows, in groups; those that come back go out first."""

    def __init__(self) -> None:
        self.returned: list[Rows] = []
        self.groups = 0

    def get_samples(self, num_samples: int) -> list[Rows]:
        groups, self.returned = self.returned[:num_samples], self.returned[num_samples:]
        while len(groups) < num_samples:
            groups.append([self._row(self.groups, k) for k in range(ROLLOUTS)])
            self.groups += 1
        return groups

    def add_samples(self, samples: list[Rows]) -> None:
        self.returned += samples

    def _row(self, group: int, k: int) -> Sample:
        index = group * ROLLOUTS + k
        spec = {"rollhook": {"verifier": "number"}}
        return Sample(index=index, group_index=group, prompt=f"{group}: 2 + 2?", label="4", metadata=spec)


def heavy_tailed() -> Callable[[ScriptedRequest], Reply]:
    """Answers whose durations depend on the row and on how often it was asked for, not on who asks when."""
    asked: Counter[str] = Counter()

    def script(request: ScriptedRequest) -> Reply:
        asked[request.prompt] += 1
        rng = random.Random(f"{request.prompt} {asked[request.prompt]}")
        return Reply("The answer is 4", delay_s=MEDIAN_S * rng.lognormvariate(0.0, SIGMA))

    return script


def run() -> dict[str, Measurement]:
    """Samples a second of both ways, and the staleness of what the asynchronous one handed over."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, Measurement]:
    baseline, _, _ = await _train(generate_rollout)
    ours, ages, stale = await _train(fully_async_rollout)
    mean = sum(age * count for age, count in ages.items()) / ages.total()
    spread = ", ".join(f"{age}: {count / ages.total():.0%}" for age, count in sorted(ages.items()))
    Console().print(f"staleness of {ages.total()} samples, in versions: {spread}; {stale} groups fell behind")
    return {
        "fully_async_samples": {
            "ours": ours,
            "baseline": baseline,
            "ratio": ours / baseline,
            "unit": "samples/s",
        },
        "fully_async_staleness_mean": {"ours": mean, "unit": f"versions, at most {MAX_STALENESS} allowed"},
        "fully_async_staleness_max": {"ours": max(ages), "unit": "versions"},
    }


async def _train(rollout: Callable[..., Any]) -> tuple[float, Counter[int], int]:
    """Samples a second over STEPS training steps; how many were how old when they were handed over; how many
    groups were ended for being too old."""
    tokenizer, source = load_tokenizer("qwen3"), Questions()
    ages: Counter[int] = Counter()
    stale = 0
    async with ScriptedEngine(tokenizer, heavy_tailed(), weight_version="0") as engine:
        host, port = engine.url.removeprefix("http://").split(":")
        args = Namespace(
            sglang_router_ip=host,
            sglang_router_port=port,
            hf_checkpoint=tokenizer.name_or_path,
            rollout_batch_size=GROUPS,
            n_samples_per_prompt=ROLLOUTS,
            rollhook={"concurrency": GROUPS * ROLLOUTS, "fully_async": {"max_staleness": MAX_STALENESS}},
        )
        begin = time.perf_counter()
        for step in range(STEPS):
            output = await asyncio.to_thread(rollout, args, step, source)
            ages.update(
                step - int(min(sample.weight_versions, key=int))
                for group in output.samples
                for siblings in group
                for sample in siblings
            )
            stale += output.metrics.get("rollhook/stale_groups", 0)
            await asyncio.sleep(TRAINING_S)
            engine.weight_version = str(step + 1)
        seconds = time.perf_counter() - begin
        await shutdown()
    return ages.total() / seconds, ages, stale


if __name__ == "__main__":
    print(run())  # noqa: T201  run by hand
