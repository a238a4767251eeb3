"""The progress of a run on standard error: a bar on a terminal, now and then a line anywhere else.

Invariant: standard output stays free for the summary; what is printed above the bar is never overwritten.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from rollhook.cli.figures import Totals, number

_LINE_EVERY_S = 10.0


class RunProgress:
    """Shows how far a run is. total: how many rollouts there will be, those done earlier included."""

    def __init__(self, totals: Totals, total: int) -> None:
        self._total = total
        self._totals = totals
        self._sampled_before = totals.sampled
        self._started_s = time.monotonic()
        self._next_line_s = self._started_s + _LINE_EVERY_S
        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("rollouts"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total, completed=totals.rollouts, numbers=self._numbers())

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self) -> None:
        """Start the clock: the first rollout begins."""
        self._started_s = time.monotonic()
        self._next_line_s = self._started_s + _LINE_EVERY_S

    def update(self) -> None:
        """Show what the totals have become."""
        if self._console.is_terminal:
            self._bar.update(self._task, completed=self._totals.rollouts, numbers=self._numbers())
        elif time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + _LINE_EVERY_S
            self.say(f"{self._totals.rollouts} of {self._total} rollouts, {self._numbers()}")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(Text(line), soft_wrap=True)

    def _numbers(self) -> str:
        rate = (self._totals.sampled - self._sampled_before) / max(time.monotonic() - self._started_s, 1e-3)
        reward = number(self._totals.mean_reward)
        return f"{rate:.0f} tokens/s, mean reward {reward}, {self._totals.failed} failed"
