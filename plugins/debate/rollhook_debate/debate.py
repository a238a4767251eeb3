"""The topology `debate`: several agents answer, read each other's answers, answer again, and vote.

Invariant: in every later round an agent is shown what each *other* agent said in the round before, and the
question again. Each agent is one conversation, so one segment, with the roles `agent_1` to `agent_N`; where a
judge decides, its ruling is another, with the role `judge`.

After Du et al., "Improving Factuality and Reasoning in Language Models through Multiagent Debate"
(arXiv 2305.14325). The judge and the early end are those of Liang et al., "Encouraging Divergent Thinking in
Large Language Models through Multi-Agent Debate" (arXiv 2305.19118).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from rollhook import Agent, LimitReached, Message, Outcome, Rollout, Score, Turn, settle
from rollhook_debate.answers import EXTRACTORS, Answer, agree, majority
from rollhook_debate.config import DebateConfig


class Debate:
    """A debate over the row's question. Agents and judge get the reward of the answer decided on."""

    def __init__(self, config: DebateConfig, rollout: Rollout) -> None:
        del rollout
        self.config = config
        self.roles = [f"agent_{number}" for number in range(1, config.agents + 1)]
        self.extract = EXTRACTORS[config.extractor]

    async def run(self, rollout: Rollout) -> Outcome:
        agents = [self.config.role("agent").agent(rollout, role) for role in self.roles]
        has_judge = self.config.decide == "judge"
        judge = self.config.role("judge").agent(rollout, "judge", tools=[], stop=()) if has_judge else None
        opening, question = self._opening(rollout.messages)

        said = await _speak(rollout, agents, [opening] * len(agents), [None] * len(agents))
        first = answers = [self.extract(text) for text in said]
        rounds = 1
        while rounds < self.config.rounds and not (self.config.stop_on_agreement and agree(answers)):
            told = [self._challenge(role, said, question) for role in self.roles]
            said = await _speak(rollout, agents, told, said)
            answers = [self.extract(text) for text in said]
            rounds += 1

        decisions = {"vote": majority(answers)}
        if judge is not None:
            [ruling] = await settle(judge.loop(self._case(said, question)))
            if isinstance(ruling, Turn):
                decisions["judge"] = self.extract(ruling.content)
        outcome = await _outcome(rollout, decisions, first)
        if self.config.stop_on_agreement:
            outcome = replace(outcome, scores={**outcome.scores, "rounds": float(rounds)})
        return outcome

    def _opening(self, messages: Sequence[Message]) -> tuple[list[Message], str]:
        """The row's messages, the answer format behind the last one; and that one's text, the question."""
        *before, last = messages
        question = "\n\n".join(part for part in (_text(last), self.config.answer_format) if part)
        return [*before, {**last, "content": question}], question

    def _challenge(self, role: str, said: Sequence[str], question: str) -> list[Message]:
        """What `role` is told in a later round. said: every agent's last answer, in agent order."""
        others = [
            f"{name} answered:\n{text.strip()}"
            for name, text in zip(self.roles, said, strict=True)
            if name != role
        ]
        if others:
            lead = "Other agents answered the same question.\n\n" + "\n\n".join(others)
            task = "Weigh them against your own, correct what was wrong, and answer the question again:"
        else:
            lead = "Look at your answer once more."
            task = "Check each step, correct what was wrong, and answer the question again:"
        return [{"role": "user", "content": f"{lead}\n\n{task}\n\n{question}"}]

    def _case(self, said: Sequence[str], question: str) -> str:
        """What the judge is told."""
        answers = [f"{name} answered:\n{text.strip()}" for name, text in zip(self.roles, said, strict=True)]
        lead = "Agents debated a question. These are their last answers.\n\n" + "\n\n".join(answers)
        return f"{lead}\n\nJudge which is right, and give the right answer to the question:\n\n{question}"


async def _speak(
    rollout: Rollout,
    agents: Sequence[Agent],
    messages: Sequence[Sequence[Message]],
    before: Sequence[str | None],
) -> list[str]:
    """One round: all agents at once. Returns what each said, in agent order. before: in the round before."""

    async def say(agent: Agent, told: Sequence[Message], last: str | None) -> str:
        """An agent that a limit cuts short stands by what it said last."""
        try:
            turn = await agent.loop(told, environment=rollout.environment)
        except LimitReached:
            if last is None:
                raise
            return last
        return turn.content if last is None or not agent.truncated else last

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(say(*each)) for each in zip(agents, messages, before, strict=True)]
    return [task.result() for task in tasks]


async def _outcome(
    rollout: Rollout, decisions: Mapping[str, Answer | None], first: Sequence[Answer | None]
) -> Outcome:
    """The last decision's score is the reward; beside it, what the agents' first answers would have earned on
    average. An answer that cannot be read scores 0.0 unseen; equal answers are verified once.
    """
    decided = list(decisions.values())[-1]
    response = decided.text if decided else ""
    if not rollout.can_verify:
        return Outcome(response=response)
    reward = (await rollout.verify(response) if decided else None) or Score(0.0)
    values = {decided.key: reward.value} if decided else {}
    for answer in (*decisions.values(), *first):
        if answer and answer.key not in values:
            score = await rollout.verify(answer.text)
            values[answer.key] = score.value if score else 0.0
    earned = {name: values[answer.key] if answer else 0.0 for name, answer in decisions.items()}
    single = fmean(values[answer.key] if answer else 0.0 for answer in first)
    return Outcome(response=response, reward=reward, scores={**earned, "single": single})


def _text(message: Message) -> str:
    """A message's text, also where its content is a list of parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
