"""The verifier `math`: whether the last boxed answer equals the label, by math-verify in killable processes.

Invariant: at most `workers` processes live, all end with the run, and a comparison takes at most `timeout_s`,
also when it hangs inside C or is cancelled: then its process is killed, and another one takes its place.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rollhook.errors import ConfigError
from rollhook.hookspecs import RunOnly
from rollhook.protocols import Rollout, Run, Score, View
from rollhook.verifiers.labels import TAG, AnswerConfig, accepted

MAX_ANSWER_CHARS = 2000
"""A longer answer is none: nobody writes such, and sympy's time grows fast with length."""

_WORKER = Path(__file__).with_name("math_worker.py")
_START_TIMEOUT_S = 60.0
_GRACE_S = 2.0
_KEPT_VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")
_BOXES = ("\\boxed{", "\\fbox{")


class MathConfig(AnswerConfig):
    """How answers are compared.

    boxed: only the last \\boxed{...} answers; otherwise, where there is none, the last line does.
    timeout_s: one comparison. workers: processes of the run.

    Each configuration has processes of its own, so a row may set only what has few values.
    """

    tag: Annotated[str | None, RunOnly()] = Field(None, pattern=TAG, max_length=40)
    boxed: bool = True
    timeout_s: Annotated[float, RunOnly()] = Field(5.0, gt=0, allow_inf_nan=False)
    workers: Annotated[int, RunOnly()] = Field(2, ge=1)


class MathVerifier:
    """1.0 when the answer equals one of the labels, else 0.0; also when telling takes too long.

    A label that is no mathematics, as a word is, is compared as text.

    Parts: `answered`, whether there was an answer to compare; `timed_out`.
    """

    def __init__(self, workers: MathWorkers, rollout: Rollout) -> None:
        del rollout
        self._workers = workers

    async def score(self, view: View) -> Score:
        """Raises ValueError for a label that is missing, or cannot be read in time."""
        labels = [last_boxed(label) or label.strip().strip("$") for label in accepted(view.label)]
        found = self._find(view.response)
        if found is None:
            return Score(0.0, {"answered": 0.0, "timed_out": 0.0})
        answer, boxed = found
        verdict = await self._workers.compare(labels, answer, boxed=boxed)
        parts = {"answered": float(verdict["answered"]), "timed_out": float(verdict.get("timed_out", False))}
        return Score(float(verdict["right"]), parts)

    def _find(self, response: str) -> tuple[str, bool] | None:
        """The answer, and whether it was boxed; None without one."""
        config = self._workers.config
        text = config.answer(response)
        if text is None:
            return None
        if (boxed := last_boxed(text)) is not None:
            return boxed, True
        if config.boxed or any(box in text for box in _BOXES):
            return None
        lines = text.strip().splitlines()
        return (lines[-1], False) if lines and len(lines[-1]) <= MAX_ANSWER_CHARS else None


class MathWorkers:
    """The processes of one run. Use through `open_math`."""

    def __init__(self, config: MathConfig) -> None:
        self.config = config
        self._free: asyncio.Queue[_Worker] = asyncio.Queue()
        for _ in range(config.workers):
            self._free.put_nowait(_Worker())

    async def compare(self, labels: list[str], answer: str, *, boxed: bool) -> dict[str, Any]:
        """{"right", "answered", "timed_out"}. Raises ValueError for labels that cannot be read in time."""
        question = {"labels": labels, "answer": answer, "boxed": boxed, "timeout_s": self.config.timeout_s}
        worker = await self._free.get()
        try:
            return await worker.ask(question, timeout_s=self.config.timeout_s + _GRACE_S)
        finally:
            self._free.put_nowait(worker)

    async def close(self) -> None:
        """End all processes. Nobody may be asking any more."""
        while not self._free.empty():
            await self._free.get_nowait().end()


@asynccontextmanager
async def open_math(config: MathConfig, run: Run) -> AsyncIterator[MathWorkers]:
    """The run's processes; each starts when it is first needed. Raises ConfigError without math-verify."""
    del run
    if find_spec("math_verify") is None:
        raise ConfigError("the verifier math needs math-verify; try: pip install 'rollhook[verifiers]'")
    workers = MathWorkers(config)
    try:
        yield workers
    finally:
        await workers.close()


class _Worker:
    """One process that compares, started when asked and again after it died."""

    def __init__(self) -> None:
        self._process: Process | None = None

    async def ask(self, question: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """The verdict; of a process that died over it or took too long: not right.

        Whoever leaves early, by an error or cancelled, leaves no process behind that works on the question.
        """
        try:
            process = self._process or await self._start()
            self._process = process
            verdict = await self._exchange(process, question, timeout_s)
        except BaseException:
            await self.end()
            raise
        if verdict is None:
            await self.end()
            return {"right": False, "answered": True, "timed_out": True}
        return verdict

    async def _exchange(
        self, process: Process, question: dict[str, Any], timeout_s: float
    ) -> dict[str, Any] | None:
        """What the process says; None when it ends without a word. Raises ValueError if a label did it."""
        assert process.stdin is not None
        heard: Any = None
        try:
            async with asyncio.timeout(timeout_s):
                process.stdin.write(json.dumps(question).encode() + b"\n")
                await process.stdin.drain()
                heard = await _hear(process)
                if heard == "labels":
                    verdict = await _hear(process)
                    return verdict if isinstance(verdict, dict) else None
        except (TimeoutError, ConnectionError):
            pass
        if isinstance(heard, dict):
            return heard
        if heard == "labels":
            return None
        raise ValueError(f"the label {question['labels']!r} cannot be read as mathematics in time")

    async def _start(self) -> Process:
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", str(_WORKER), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=kept
        )
        async with asyncio.timeout(_START_TIMEOUT_S):
            if await _hear(process) != "ready":
                raise RuntimeError("the process that compares mathematics does not start")
        return process

    async def end(self) -> None:
        """Kill the process and wait until it is gone."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
            # asyncio closes the pipes of a killed process only when they are collected
            process._transport.close()  # type: ignore[attr-defined]


async def _hear(process: Process) -> Any:
    """The next line, decoded; None at the end."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    return json.loads(line) if line else None


def last_boxed(text: str) -> str | None:
    """What is in the last \\boxed{...}, braces matched; None without one, or when it is too long."""
    start = max(text.rfind(box) for box in _BOXES)
    if start < 0:
        return None
    begin = text.index("{", start) + 1
    depth = 1
    for place in range(begin, min(len(text), begin + MAX_ANSWER_CHARS)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin:place].strip()
    return None
