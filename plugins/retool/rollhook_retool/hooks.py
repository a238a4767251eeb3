"""What the plugin `retool` registers: an environment, its verifier and the tool `code_interpreter`."""

from rollhook import Defaults, EnvironmentSpec, ToolSpec, VerifierSpec, hookimpl
from rollhook_retool.config import EnvironmentConfig, InterpreterConfig, RewardConfig
from rollhook_retool.environment import Retool
from rollhook_retool.protocol import STOP_STRINGS
from rollhook_retool.reward import MathReward, open_reward
from rollhook_retool.tool import CodeInterpreter
from rollhook_retool.warm import open_interpreters


@hookimpl
def rollhook_environments() -> list[EnvironmentSpec]:
    """`retool`: brings its verifier and its stop string."""
    defaults = Defaults(verifier="retool", stop=STOP_STRINGS)
    return [
        EnvironmentSpec(
            name="retool", config=EnvironmentConfig, open=open_interpreters, create=Retool, defaults=defaults
        )
    ]


@hookimpl
def rollhook_tools() -> list[ToolSpec]:
    """`code_interpreter`."""
    return [
        ToolSpec(
            name="code_interpreter", config=InterpreterConfig, open=open_interpreters, create=CodeInterpreter
        )
    ]


@hookimpl
def rollhook_verifiers() -> list[VerifierSpec]:
    """`retool`: +1 for a right boxed answer, -1 for any other."""
    return [VerifierSpec(name="retool", config=RewardConfig, open=open_reward, create=MathReward)]
