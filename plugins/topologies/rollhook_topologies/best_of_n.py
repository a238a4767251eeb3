"""`best-of-n`: N agents answer alone, a verifier scores every answer, the best one is the rollout's.

Invariant: the winner is a candidate with the highest score, of several the earliest; one that failed never
wins.

After Cobbe et al., "Training Verifiers to Solve Math Word Problems" (arXiv 2110.14168).
"""

from __future__ import annotations

from statistics import fmean
from typing import Literal

from pydantic import Field

from rollhook import Outcome, RolesConfig, Rollout, settle
from rollhook_topologies.answers import first_answers_of, score_all


class Config(RolesConfig[Literal["candidate"]]):
    """candidates: N. reward: what each candidate gets, its own score or the best one's."""

    candidates: int = Field(4, ge=1, le=32)
    reward: Literal["own", "best"] = "own"


class BestOfN:
    def __init__(self, config: Config, rollout: Rollout) -> None:
        if not rollout.can_verify:
            raise ValueError("it chooses by score, so the row needs a verifier (one that needs no group)")
        self.config = config

    async def run(self, rollout: Rollout) -> Outcome:
        numbers = range(1, self.config.candidates + 1)
        agents = [self.config.role("candidate").agent(rollout, f"candidate_{n}") for n in numbers]

        turns = await settle(*(a.loop(rollout.messages, environment=rollout.environment) for a in agents))
        answers = first_answers_of(turns)
        scores = await score_all(rollout, agents, answers)

        winner = max(answers, key=lambda number: scores[f"candidate_{number}"].value)
        best = scores[f"candidate_{winner}"]
        own = {role: score.value for role, score in scores.items()}
        return Outcome(
            response=answers[winner],
            reward=best,
            role_rewards=own if self.config.reward == "own" else dict.fromkeys(own, best.value),
            scores={"best": best.value, "mean": fmean(own.values())},
        )
