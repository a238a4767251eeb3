"""`compact`: another topology, whose agents go on from summaries of their own when their contexts fill up.

Invariant: every token stays in the conversation in which it was sampled. One that was summed up is a segment
of kind "wipe", the one that its agent ends with is "final"; an agent never summed up is as it would be.
A new conversation opens as the first one did, with the summary behind that.

After Wu et al., "ReSum: Unlocking Long-Horizon Search Intelligence via Context Summarization" (arXiv
2509.13313), which also gives every segment the whole rollout's advantage.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from rollhook import Agent, Message, Observation, Outcome, Rollout, Said, TopologyUse
from rollhook_topologies.wording import said_by, text_of, with_note

SUMMARISE = """Your context is nearly full. Write a summary from which you can go on without the rest:
what you found out, what you tried, what is left to do. It is all you will keep beside the task."""


class Config(BaseModel):
    """topology: what is run. at: the share of an agent's context limit from which it is summed up; at_tokens:
    the same in tokens, goes first. max_summaries: of one agent. prompt: what asks for a summary."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topology: TopologyUse = TopologyUse(name="single")
    at: float = Field(0.6, gt=0, lt=1)
    at_tokens: int | None = Field(None, ge=1)
    max_summaries: int = Field(16, ge=1, le=1000)
    prompt: str = Field(SUMMARISE, min_length=1, max_length=4000)


class Compact:
    def __init__(self, config: Config, rollout: Rollout) -> None:
        del rollout
        self.config = config
        self.openings: dict[str, list[Message]] = {}
        self.summaries: dict[str, int] = {}

    async def run(self, rollout: Rollout) -> Outcome:
        return await rollout.run_topology("topology", before_turn=self.before_turn)

    async def before_turn(self, agent: Agent, said: Said) -> Said:
        """What `agent` is told next: `said`, or, where its context is full, all that it needs to go on."""
        full_at = self._full_at(agent)
        if not agent.messages:
            self.openings[agent.role] = _messages(said)
        elif agent.context_tokens >= full_at:
            number = self.summaries.get(agent.role, 0) + 1
            if number <= self.config.max_summaries:
                self.summaries[agent.role] = number
                return await self._summed_up(agent, said, number)
        return said

    def _full_at(self, agent: Agent) -> float:
        if self.config.at_tokens is not None:
            return self.config.at_tokens
        if agent.max_context_tokens is None:
            raise ValueError("nothing says how long a context may be: set max_context_tokens or at_tokens")
        return self.config.at * agent.max_context_tokens

    async def _summed_up(self, agent: Agent, said: Said, number: int) -> list[Message]:
        """Have the agent sum up, and begin anew.

        What a user says is repeated there word for word. Tool results and text for an open turn belong to the
        old conversation: the summary is asked for behind them.
        """
        pending, ask = _messages(said), self.config.prompt
        continues = isinstance(said, Observation) and said.text is not None
        is_users = not continues and all(message["role"] == "user" for message in pending)
        asked = Observation([{"role": "user", "content": ask}])
        if not is_users:
            asked = Observation(with_note(pending, ask), kind=getattr(said, "kind", None))
        summary = said_by(await agent.turn(asked)).strip()
        agent.restart()
        note = f"Summary {number} of your work so far:\n{summary}"
        if is_users:
            note = "\n\n".join([note, *map(text_of, pending)])
        return with_note(self.openings[agent.role], note)


def _messages(said: Said) -> list[Message]:
    if isinstance(said, Observation):
        return list(said.messages) if said.text is None else [{"role": "user", "content": said.text}]
    return [{"role": "user", "content": said}] if isinstance(said, str) else list(said)
