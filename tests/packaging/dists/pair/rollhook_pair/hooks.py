"""A topology, and nothing else."""

from __future__ import annotations

from rollhook import Outcome, Rollout, TopologySpec, hookimpl


class Pair:
    async def run(self, rollout: Rollout) -> Outcome:
        first = await rollout.agent("first").turn(rollout.messages)
        second = await rollout.agent("second").turn(first.content)
        return Outcome(response=second.content)


@hookimpl
def rollhook_topologies() -> list[TopologySpec]:
    return [TopologySpec(name="pair", create=lambda config, rollout: Pair())]
