"""`single`, the one built-in topology: one agent takes the conversation to its end."""

from __future__ import annotations

from rollhook.protocols import Outcome, Rollout


class Single:
    """One agent answers the row's messages, with the row's tools and environment."""

    async def run(self, rollout: Rollout) -> Outcome | None:
        agent = rollout.agent()
        await agent.loop(rollout.messages, environment=rollout.environment)
        return None
