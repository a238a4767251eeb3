"""The tool `calculator`: what the model calls, and what it is told.

Invariant: every call is answered. What the model got wrong comes back as a sentence marked as an error, never
as an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollhook import NoConfig, Rollout, ToolResult
from rollhook_calculator.arithmetic import MAX_CHARACTERS, CalculationError, calculate


class Calculator:
    """Evaluates one arithmetic expression."""

    name = "calculator"
    description = (
        "Evaluates one arithmetic expression exactly. It knows + - * / // % ** and parentheses, "
        "and the functions sqrt, abs, round, min and max."
    )
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "expression": {
                "type": "string",
                "description": f"For example (3 + 4) * 2.5; at most {MAX_CHARACTERS} characters.",
            }
        },
        "required": ["expression"],
        "additionalProperties": False,
    }

    def __init__(self, config: NoConfig, rollout: Rollout) -> None:
        del config, rollout

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """The value of `arguments["expression"]`, or a sentence that says what is wrong with it."""
        try:
            return ToolResult(calculate(arguments["expression"]))
        except CalculationError as error:
            return ToolResult(f"Error: {error}", is_error=True)
