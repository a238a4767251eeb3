"""The verifier `majority`: whether an answer is the one that most answers to the same prompt give.

Invariant: it needs no label, sees all answers to one prompt, and rewards none where no answer leads alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Literal

from rollhook.protocols import Rollout, Score, View
from rollhook.verifiers.labels import AnswerConfig
from rollhook.verifiers.multiple_choice import chosen_option
from rollhook.verifiers.text import last_number, normalise


class MajorityConfig(AnswerConfig):
    """by: what makes two answers the same: their words, their last number, or their letter."""

    by: Literal["text", "number", "choice"] = "text"


class Majority:
    """1.0 for the answer that most give, if at least two do and no other is as frequent; else 0.0.

    The part `agreement`: the share of the group that gives this answer.
    """

    def __init__(self, config: MajorityConfig, rollout: Rollout) -> None:
        del rollout
        self._config = config

    async def score_group(self, views: Sequence[View]) -> list[Score]:
        keys = [self._key(view.response) for view in views]
        counts = Counter(key for key in keys if key is not None)
        ranked = counts.most_common(2)
        leads = bool(ranked) and ranked[0][1] > max(1, ranked[1][1] if len(ranked) > 1 else 0)
        leader = ranked[0][0] if leads else None
        return [
            Score(float(key is not None and key == leader), {"agreement": counts[key] / len(views)})
            for key in keys
        ]

    def _key(self, response: str) -> Hashable | None:
        """What stands for an answer; None for one that says nothing."""
        answer = self._config.answer(response)
        if answer is None:
            return None
        if self._config.by == "text":
            return normalise(answer) or None
        if self._config.by == "choice":
            return chosen_option(answer)
        return last_number(answer)
