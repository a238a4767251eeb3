"""What agents that were asked the same thing answered, and what each answer is worth.

Invariant: answers go by their agent's number, from 1; an agent that failed has none, and is never worth more
than 0.0 nor more than the worst answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from rollhook import Agent, Rollout, Score, Turn
from rollhook_topologies.wording import said_by


def answers_of(turns: Sequence[Turn | Exception]) -> dict[int, str]:
    """The answers among turns and faults, as `settle` gives them."""
    return {number: said_by(turn) for number, turn in enumerate(turns, start=1) if isinstance(turn, Turn)}


def first_answers_of(turns: Sequence[Turn | Exception]) -> dict[int, str]:
    """The same, where there is nothing to go on with if all failed: then raises the first one's fault."""
    answers = answers_of(turns)
    if not answers:
        raise next(fault for fault in turns if isinstance(fault, Exception))
    return answers


async def score_all(
    rollout: Rollout, agents: Sequence[Agent], answers: Mapping[int, str]
) -> dict[str, Score]:
    """What the row's verifier says of each agent's answer, by role."""

    async def score(number: int) -> Score:
        made = await rollout.verify(answers[number], agent=agents[number - 1])
        assert made is not None  # topologies that score answers ask `can_verify` first
        return made

    async with asyncio.TaskGroup() as group:
        tasks = {number: group.create_task(score(number)) for number in answers}
    scores = {number: task.result() for number, task in tasks.items()}
    without = Score(min([0.0, *(score.value for score in scores.values())]))
    return {agent.role: scores.get(number, without) for number, agent in enumerate(agents, start=1)}
