"""What the plugin `search-r1` registers: an environment, its verifier and the tool `search`."""

from rollhook import Defaults, EnvironmentSpec, ToolSpec, VerifierSpec, hookimpl
from rollhook_search_r1.config import RewardConfig, SearchConfig, ToolConfig
from rollhook_search_r1.environment import SearchR1
from rollhook_search_r1.lookup import open_lookup
from rollhook_search_r1.protocol import STOP_STRINGS
from rollhook_search_r1.reward import ExactMatchReward
from rollhook_search_r1.tool import Search


@hookimpl
def rollhook_environments() -> list[EnvironmentSpec]:
    """`search-r1`: brings its verifier, its stop strings and the paper's bound on a turn's length."""
    defaults = Defaults(verifier="search-r1", stop=STOP_STRINGS, limits={"max_new_tokens": 500})
    return [
        EnvironmentSpec(
            name="search-r1", config=SearchConfig, open=open_lookup, create=SearchR1, defaults=defaults
        )
    ]


@hookimpl
def rollhook_tools() -> list[ToolSpec]:
    """`search`."""
    return [ToolSpec(name="search", config=ToolConfig, open=open_lookup, create=Search)]


@hookimpl
def rollhook_verifiers() -> list[VerifierSpec]:
    """`search-r1`: exact match of the last answer, with or without the paper's levels for form."""
    return [VerifierSpec(name="search-r1", config=RewardConfig, create=ExactMatchReward)]
