"""What the plugin `calculator` registers: one tool."""

from rollhook import ToolSpec, hookimpl
from rollhook_calculator.tool import Calculator


@hookimpl
def rollhook_tools() -> list[ToolSpec]:
    """`calculator`."""
    return [ToolSpec(name="calculator", create=Calculator)]
