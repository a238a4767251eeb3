"""`orchestrator`: one agent that can hand parts of its task to subagents, which can do the same.

Invariant: a subagent is a conversation of its own, opened with nothing but its task, and answers the call
that started it: with what it said last, with the limit it reached, or with how it failed. Calls of one turn
run at once. No subagent is deeper than `depth`, and a rollout starts at most `max_subagents`.

The scheme is that of Schroeder et al., "THREAD: Thinking Deeper with Recursive Spawning" (arXiv 2405.17402):
a child thread gives back only what its parent needs.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Literal

from pydantic import Field

from rollhook import Agent, Outcome, RolesConfig, Rollout, ToolResult, Turn, settle
from rollhook_topologies.wording import said_by


class Config(RolesConfig[Literal["orchestrator", "subagent"]]):
    """depth: 1 lets only the orchestrator delegate. max_subagents: of one rollout, at all depths together."""

    depth: int = Field(1, ge=1, le=8)
    max_subagents: int = Field(16, ge=1, le=256)


class Orchestrator:
    def __init__(self, config: Config, rollout: Rollout) -> None:
        self.config = config
        self.rollout = rollout
        self.started = 0

    async def run(self, rollout: Rollout) -> Outcome:
        delegate = Delegate(self, prefix="subagent", depth=1)
        agent = self.config.role("orchestrator").agent(rollout, "orchestrator", own_tools=[delegate])
        delegate.first = delegate.subagent()  # one that cannot be made fails before the first token
        turn = await agent.loop(rollout.messages, environment=rollout.environment)
        return Outcome(response=said_by(turn), scores={"subagents": float(self.started)})


class Delegate:
    """The tool of one agent. prefix: of the roles it starts. depth: theirs; 1 below the orchestrator.
    first: the first of them, where it is made already."""

    name = "delegate"
    description = (
        "Give a part of the work to a subagent, which sees only the task you write. Call it several times in "
        "one turn to have parts done at the same time."
    )
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {
            "task": {"type": "string", "minLength": 1, "description": "All that the subagent has to know."}
        },
        "required": ["task"],
        "additionalProperties": False,
    }

    def __init__(self, team: Orchestrator, *, prefix: str, depth: int) -> None:
        self.team = team
        self.prefix = prefix
        self.depth = depth
        self.numbers = count(1)
        self.first: Agent | None = None

    def subagent(self) -> Agent:
        """A new one, which has not spoken."""
        role = f"{self.prefix}_{next(self.numbers)}"
        goes_on = self.depth < self.team.config.depth
        deeper = [Delegate(self.team, prefix=role, depth=self.depth + 1)] if goes_on else []
        kind = self.team.config.role("subagent")
        return kind.agent(self.team.rollout, role, own_tools=deeper, stop=())

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        team = self.team
        if team.started >= team.config.max_subagents:
            return ToolResult(
                f"Error: all {team.config.max_subagents} subagents were started.", is_error=True
            )
        team.started += 1
        agent, self.first = self.first or self.subagent(), None
        [turn] = await settle(agent.loop(arguments["task"]))
        if not isinstance(turn, Turn):
            return ToolResult(f"Error: the subagent failed: {turn}", is_error=True)
        if agent.truncated:
            so_far = f"The subagent was cut short at {agent.truncated}. It had said:\n{said_by(turn)}"
            return ToolResult(so_far, is_error=True)
        return ToolResult(said_by(turn))
