"""What the plugin `topologies` registers: six ways for agents to work together, and a game for two."""

from rollhook import Defaults, EnvironmentSpec, TopologySpec, hookimpl
from rollhook_topologies import (
    best_of_n,
    compact,
    nim,
    orchestrator,
    self_play,
    self_refine,
    solver_rewriter_selector,
)


@hookimpl
def rollhook_topologies() -> list[TopologySpec]:
    """Where roles share what they achieve they share the reward; else each role has its own."""
    return [
        TopologySpec(
            name="solver-rewriter-selector",
            config=solver_rewriter_selector.Config,
            create=solver_rewriter_selector.SolverRewriterSelector,
            credit="roles",
        ),
        TopologySpec(name="best-of-n", config=best_of_n.Config, create=best_of_n.BestOfN, credit="roles"),
        TopologySpec(name="self-play", config=self_play.Config, create=self_play.SelfPlay, credit="zero_sum"),
        TopologySpec(name="orchestrator", config=orchestrator.Config, create=orchestrator.Orchestrator),
        TopologySpec(name="self-refine", config=self_refine.Config, create=self_refine.SelfRefine),
        TopologySpec(name="compact", config=compact.Config, create=compact.Compact),
    ]


@hookimpl
def rollhook_environments() -> list[EnvironmentSpec]:
    """`nim`, which brings `self-play`."""
    defaults = Defaults(topology="topologies/self-play")
    return [EnvironmentSpec(name="nim", config=nim.Config, create=nim.Nim, defaults=defaults)]
