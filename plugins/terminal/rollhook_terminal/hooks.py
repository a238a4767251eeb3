"""What the plugin `terminal` registers: an environment, its verifier and its three tools."""

from rollhook import Defaults, EnvironmentSpec, ToolSpec, VerifierSpec, hookimpl
from rollhook_terminal.config import TerminalConfig
from rollhook_terminal.environment import Grader, Terminal, open_task
from rollhook_terminal.tools import Bash, ReadScreen, SendKeys


@hookimpl
def rollhook_environments() -> list[EnvironmentSpec]:
    """`terminal`: brings its verifier and its tools."""
    tools = ("terminal/bash", "terminal/send_keys", "terminal/read_screen")
    defaults = Defaults(verifier="terminal", tools=tools)
    return [
        EnvironmentSpec(
            name="terminal", config=TerminalConfig, open=open_task, create=Terminal, defaults=defaults
        )
    ]


@hookimpl
def rollhook_tools() -> list[ToolSpec]:
    """`bash`, `send_keys` and `read_screen`."""
    return [
        ToolSpec(name="bash", create=Bash),
        ToolSpec(name="send_keys", create=SendKeys),
        ToolSpec(name="read_screen", create=ReadScreen),
    ]


@hookimpl
def rollhook_verifiers() -> list[VerifierSpec]:
    """`terminal`: the reward that the task's tests write."""
    return [VerifierSpec(name="terminal", create=Grader)]
