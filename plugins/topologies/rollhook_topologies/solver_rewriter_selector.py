"""`solver-rewriter-selector`: N solve, N write anew with every solution before them, one names the best.

Invariant: an answer earns what the verifier says of it, times a weight that is the same for all answers of a
rollout and depends on whether the named one is right. A selection that names no candidate is never right.

The layers are those of Wang et al., "Mixture-of-Agents Enhances Large Language Model Capabilities" (arXiv
2406.04692): each agent of a layer sees all answers of the layer before. The selection by a model is that of
Chen et al., "Universal Self-Consistency for Large Language Model Generation" (arXiv 2311.17311).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import fmean
from typing import Literal

from pydantic import Field

from rollhook import Agent, Outcome, RolesConfig, Rollout, Score, Turn, settle
from rollhook_topologies.answers import answers_of, first_answers_of, score_all
from rollhook_topologies.wording import question_of, said_by, side_by_side

REWRITE = """Here are solutions by others:

{solutions}

Weigh them, correct what is wrong in them, and write one complete solution to the question:

{question}"""

SELECT = """Question:

{question}

Proposed solutions:

{solutions}

Which one is right? Compare them, then end with one line, the number of the solution in place of N:
SELECT: N"""

SELECTED = re.compile(r"\W*SELECT:\W*([0-9]{1,3})\W*")
"""One line, so that reading stays linear in what the model wrote."""


class Config(RolesConfig[Literal["solver", "rewriter", "selector"]]):
    """candidates: N. right_weight, wrong_weight: what the scores of solvers and rewriters are multiplied by
    when the final answer is right, and when it is not. right_from: the score from which it is; unitless."""

    candidates: int = Field(3, ge=1, le=16)
    right_weight: float = Field(1.2, ge=0, le=10)
    wrong_weight: float = Field(0.8, ge=0, le=10)
    right_from: float = Field(1.0, ge=-1000, le=1000)


class SolverRewriterSelector:
    def __init__(self, config: Config, rollout: Rollout) -> None:
        if not rollout.can_verify:
            raise ValueError("it scores each answer, so the row needs a verifier (one that needs no group)")
        self.config = config

    async def run(self, rollout: Rollout) -> Outcome:
        config, numbers = self.config, range(1, self.config.candidates + 1)
        solvers = [config.role("solver").agent(rollout, f"solver_{n}") for n in numbers]
        rewriters = [config.role("rewriter").agent(rollout, f"rewriter_{n}") for n in numbers]
        selector = config.role("selector").agent(rollout, "selector", tools=[], stop=())
        question = question_of(rollout.messages)

        turns = await settle(*(a.loop(rollout.messages, environment=rollout.environment) for a in solvers))
        solutions = first_answers_of(turns)
        told = REWRITE.format(solutions=side_by_side(solutions), question=question)
        rewritten = answers_of(await settle(*(agent.loop(told) for agent in rewriters)))
        candidates = rewritten or solutions
        chosen = await _select(selector, candidates, question)

        solved = await score_all(rollout, solvers, solutions)
        rewrote = await score_all(rollout, rewriters, rewritten)
        return self._outcome(solved, rewrote, candidates, chosen, "rewriter" if rewritten else "solver")

    def _outcome(
        self,
        solved: Mapping[str, Score],
        rewrote: Mapping[str, Score],
        candidates: Mapping[int, str],
        chosen: int | None,
        kind: str,
    ) -> Outcome:
        """Without a choice the first candidate is the answer, and is worth at most 0.0."""
        scores = {role: score.value for role, score in [*solved.items(), *rewrote.items()]}
        final = min(candidates) if chosen is None else chosen
        value = scores[f"{kind}_{final}"]
        right = chosen is not None and value >= self.config.right_from
        value = value if chosen is not None else min(value, 0.0)
        weight = self.config.right_weight if right else self.config.wrong_weight
        return Outcome(
            response=candidates[final],
            reward=Score(value),
            role_rewards={**{role: weight * score for role, score in scores.items()}, "selector": value},
            scores={
                "solvers": fmean(scores[role] for role in solved),
                "rewriters": fmean(scores[role] for role in rewrote),
                "selected": float(chosen is not None),
            },
        )


async def _select(selector: Agent, candidates: Mapping[int, str], question: str) -> int | None:
    """The number that the selector names; None when it fails or names no candidate."""
    told = SELECT.format(solutions=side_by_side(candidates), question=question)
    [turn] = await settle(selector.loop(told))
    number = selected(said_by(turn)) if isinstance(turn, Turn) else None
    return number if number in candidates else None


def selected(said: str) -> int | None:
    """The number in the last line that says SELECT: N."""
    found = [match for line in said.splitlines() if (match := SELECTED.fullmatch(line))]
    return int(found[-1][1]) if found else None
