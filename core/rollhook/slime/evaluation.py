"""Evaluation: the rows of slime's `eval_datasets`, each rolled out and scored, one Sample a rollout.

Invariant: nothing of training is touched: not its sampling parameters, not its data source, not its slots; no
session_id is set. Every row is read before the first token.
"""

from __future__ import annotations

import asyncio
import re
from itertools import islice
from pathlib import Path
from typing import Any

from rollhook.config import RunConfig
from rollhook.data import BadRow, Row, make_samples, read_rows
from rollhook.errors import DataError, first_leaf
from rollhook.runtime import runtime_for
from rollhook.sample import Sample, Status
from rollhook.slime.eval_flags import EvalFlags, EvalSet
from rollhook.slime.flags import rollouts_at_once
from rollhook.slime.outputs import as_trainers, eval_output
from rollhook.slime.runner import RolloutRunner

_SLICED = re.compile(r"(?P<path>.+)@\[(?P<start>\d*):(?P<stop>\d*)\]")
"""slime's way to name a part of a file: `rows.jsonl@[0:100]`."""


async def evaluate(args: Any) -> Any:
    """slime's RolloutFnEvalOutput: by data set, `rewards`, `truncated` and `samples`, sorted by index.

    Raises ConfigError, before any token, for a file or row that cannot be used.
    """
    config = RunConfig.from_args(args)
    flags = EvalFlags.from_args(args)
    rows = [await asyncio.to_thread(_read, dataset) for dataset in flags.datasets]
    runtime = await runtime_for(config)
    slots = asyncio.Semaphore(rollouts_at_once(args, config))
    running: list[list[asyncio.Task[Sample]]] = []
    try:
        async with asyncio.TaskGroup() as tasks:
            for dataset, samples in zip(flags.datasets, rows, strict=True):
                runner = RolloutRunner(args, runtime, slots=slots, reward=dataset.reward)
                running.append([tasks.create_task(runner.evaluate(s, dataset.sampling)) for s in samples])
    except BaseExceptionGroup as stopped:
        cause = first_leaf(stopped) or stopped
        raise cause from cause.__cause__
    made = [[task.result() for task in of_set] for of_set in running]
    failed = sum(sample.status.value == Status.FAILED.value for of_set in made for sample in of_set)
    names = [dataset.name for dataset in flags.datasets]
    data = {name: _report(samples, flags.reward_key) for name, samples in zip(names, made, strict=True)}
    return eval_output(data, {"rollhook/eval_failed_samples": failed})


def _read(dataset: EvalSet) -> list[Sample]:
    """The rows of a data set, each as many times as it is rolled out. Raises DataError at a bad one."""
    match = _SLICED.fullmatch(dataset.path)
    path = Path(match["path"] if match else dataset.path)
    start, stop = (int(match[end]) if match and match[end] else None for end in ("start", "stop"))
    good: list[Row] = []
    for row in islice(read_rows(path, dataset.keys), start, stop):
        if isinstance(row, BadRow):
            raise DataError(f"evaluation {dataset.name!r}: {path}, line {row.line}: {row.message}")
        good.append(row)
    samples = [as_trainers(s) for s in make_samples(good, dataset.keys, samples_per_prompt=dataset.rollouts)]
    for sample in samples:
        sample.metadata = dataset.with_overrides(sample.metadata)
    return samples


def _report(samples: list[Sample], reward_key: str | None) -> dict[str, Any]:
    def reward(sample: Sample) -> Any:
        """A FAILED sample's reward is a number also where others have named ones."""
        return sample.reward[reward_key] if reward_key and isinstance(sample.reward, dict) else sample.reward

    return {
        "rewards": [reward(sample) for sample in samples],
        "truncated": [sample.status.value == Status.TRUNCATED.value for sample in samples],
        "samples": samples,
    }
