"""What the plugin `terminal` registers: two environments, their verifier and three tools."""

from rollhook import Defaults, EnvironmentSpec, ToolSpec, VerifierSpec, hookimpl
from rollhook_terminal.config import TerminalConfig, TerminusConfig
from rollhook_terminal.environment import Grader, Terminal, open_task
from rollhook_terminal.terminus import Terminus
from rollhook_terminal.tools import Bash, ReadScreen, SendKeys


@hookimpl
def rollhook_environments() -> list[EnvironmentSpec]:
    """`terminal`, with tools, and `terminus`, in text; both bring the verifier."""
    tools = ("terminal/bash", "terminal/send_keys", "terminal/read_screen")
    return [
        EnvironmentSpec(
            name="terminal",
            config=TerminalConfig,
            open=open_task,
            create=Terminal,
            defaults=Defaults(verifier="terminal", tools=tools),
        ),
        EnvironmentSpec(
            name="terminus",
            config=TerminusConfig,
            open=open_task,
            create=Terminus,
            defaults=Defaults(verifier="terminal"),
        ),
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
