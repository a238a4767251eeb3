"""The tool `code_interpreter`: the same interpreter for models that call functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollhook import Rollout, ToolResult
from rollhook_retool.interpreter import Interpreter
from rollhook_retool.warm import Opened


class CodeInterpreter:
    """Runs Python; state lasts through the rollout."""

    name = "code_interpreter"
    description = (
        "Runs Python code and returns what it printed, and the value of a last expression. Variables, "
        "functions and imports stay from call to call. numpy and sympy can be imported. There is no network."
    )
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The code, as it would stand in a file."}},
        "required": ["code"],
        "additionalProperties": False,
    }

    def __init__(self, opened: Opened, rollout: Rollout) -> None:
        self._python = Interpreter.of(opened, rollout)

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """What `arguments["code"]` printed."""
        return ToolResult(await self._python.run(arguments["code"]))
