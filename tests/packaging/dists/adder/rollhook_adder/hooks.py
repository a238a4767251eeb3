"""A tool, and nothing else."""

from __future__ import annotations

from typing import Any

from rollhook import Rollout, ToolResult, ToolSpec, hookimpl


class Adder:
    name = "add"
    description = "Adds two numbers."
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    }

    def __init__(self, config: object, rollout: Rollout) -> None:
        pass

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult(str(arguments["a"] + arguments["b"]))


@hookimpl
def rollhook_tools() -> list[ToolSpec]:
    return [ToolSpec(name="adder", create=Adder)]
