"""The verifier `retool`: whether the last boxed answer is the label, by math-verify in a sandbox.

Invariant: only what the model wrote can answer: neither the prompt nor printed output counts. A comparison
that hangs ends within its time, and does not hold up the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from rollhook import Rollout, Run, Score, View
from rollhook_retool.config import RewardConfig
from rollhook_retool.protocol import own_words
from rollhook_retool.worker import Worker, WorkerDied

MAX_ANSWER_CHARS = 2000
_GRACE_S = 45.0
_WORKERS = 2
_BOXED = ("\\boxed{", "\\fbox{")


class Judge:
    """Comparisons of one run, each in a sandboxed process that can be killed."""

    def __init__(self, config: RewardConfig, workers: list[Worker]) -> None:
        self.config = config
        self._free: asyncio.Queue[Worker] = asyncio.Queue()
        for worker in workers:
            self._free.put_nowait(worker)

    async def is_right(self, answer: str, labels: list[str]) -> bool:
        """Whether `answer` equals one of `labels`. Raises ValueError for a label that cannot be read."""
        question = {"labels": labels, "answer": answer, "timeout_s": self.config.timeout_s}
        worker = await self._free.get()
        try:
            verdict = await worker.ask(question, timeout_s=self.config.timeout_s + _GRACE_S)
        except WorkerDied:
            return False  # an answer that ends its judge is none
        finally:
            self._free.put_nowait(worker)
        if verdict["right"] is None:
            raise ValueError(str(verdict["why"]))
        return bool(verdict["right"])


@asynccontextmanager
async def open_judge(config: RewardConfig, run: Run) -> AsyncIterator[Judge]:
    """Sandboxes with math-verify, kept for the run."""
    sandboxes = [await run.sandbox(packages=["math-verify"]) for _ in range(_WORKERS)]
    try:
        yield Judge(config, [Worker(sandbox, "judge.py") for sandbox in sandboxes])
    finally:
        for sandbox in sandboxes:
            await sandbox.close()


class MathReward:
    """`right` for an answer that equals the label, `wrong` for any other, and for none."""

    def __init__(self, judge: Judge, rollout: Rollout) -> None:
        del rollout
        self._judge = judge

    async def score(self, view: View) -> Score:
        """Score `view.response`. Raises ValueError when the row has no label that can be read."""
        labels = targets(view.label)
        answer = last_boxed(own_words(view.response))
        right = answer is not None and await self._judge.is_right(answer, labels)
        config = self._judge.config
        parts = {"right": float(right), "answered": float(answer is not None)}
        return Score(config.right if right else config.wrong, parts)


def targets(label: Any) -> list[str]:
    """The accepted answers: a value, a list of them, or that in {"ground_truth": ...} or {"answer": ...}."""
    while isinstance(label, Mapping):
        label = next((label[key] for key in ("ground_truth", "answer") if label.get(key) is not None), None)
    if hasattr(label, "tolist"):  # numpy, from Parquet
        label = label.tolist()
    answers = list(label) if isinstance(label, list | tuple) else [label]
    if not answers or any(answer is None for answer in answers):
        raise ValueError("the row has no label to compare with")
    return [_unboxed(str(answer)) for answer in answers]


def _unboxed(label: str) -> str:
    return last_boxed(label) or label.strip().strip("$").strip()


def last_boxed(text: str) -> str | None:
    """What is in the last \\boxed{...}, braces matched; None without one, or one that is too long."""
    start = max(text.rfind(opening) for opening in _BOXED)
    if start < 0:
        return None
    begin = text.index("{", start) + 1
    depth = 1
    for place in range(begin, min(len(text), begin + MAX_ANSWER_CHARS)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin:place].strip()
    return None
