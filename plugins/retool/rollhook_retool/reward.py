"""The verifier `retool`: whether the last boxed answer is the label, by the core's verifier `math`.

Invariant: only what the model wrote can answer: neither the prompt nor code nor printed output counts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from rollhook import MathConfig, MathVerifier, Rollout, Run, Score, View, open_math
from rollhook_retool.config import RewardConfig
from rollhook_retool.protocol import own_words

Opened = tuple[RewardConfig, Any]
"""The configuration, and the processes that compare."""


@asynccontextmanager
async def open_reward(config: RewardConfig, run: Run) -> AsyncIterator[Opened]:
    """The run's processes that compare; a comparison that hangs is killed."""
    async with open_math(MathConfig(timeout_s=config.timeout_s), run) as workers:
        yield config, workers


class MathReward:
    """`right` for an answer that equals the label, `wrong` for any other, and for none."""

    def __init__(self, opened: Opened, rollout: Rollout) -> None:
        self._config, workers = opened
        self._math = MathVerifier(workers, rollout)

    async def score(self, view: View) -> Score:
        """Score `view.response`. Raises ValueError when the row has no label that can be read."""
        score = await self._math.score(replace(view, response=own_words(view.response)))
        value = self._config.right if score.value else self._config.wrong
        return Score(value, {"right": score.value, **score.parts})
