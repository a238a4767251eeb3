"""What the plugin `debate` registers: one topology."""

from rollhook import TopologySpec, hookimpl
from rollhook_debate.config import DebateConfig
from rollhook_debate.debate import Debate


@hookimpl
def rollhook_topologies() -> list[TopologySpec]:
    """`debate`: its agents share one reward."""
    return [TopologySpec(name="debate", config=DebateConfig, create=Debate, credit="broadcast")]
