"""What parsing gives: text, reasoning, calls, and the calls that could not be read.

Invariant: nothing the model wrote is lost. What is neither reasoning nor a whole call stays in `content`,
a call that cannot be read among it, and is flagged so that the model can be told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollhook.parsing.arguments import converted
from rollhook.protocols import ToolCall


@dataclass(frozen=True, slots=True)
class BrokenCall:
    """A call the parser could not read. text: as written. error: a sentence that helps the model."""

    text: str
    error: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that became certain. The deltas of one kind join to the final text of that kind."""

    kind: Literal["content", "reasoning"]
    text: str


Event = TextDelta | ToolCall | BrokenCall


@dataclass(frozen=True, slots=True)
class Parsed:
    """One assistant turn.

    content: the text outside reasoning and calls. reasoning: None when there was none.
    tool_calls, broken_calls: in the order written.
    """

    content: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    broken_calls: tuple[BrokenCall, ...]


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as a family writes it. call_id: where the family writes one."""

    name: str
    arguments: dict[str, Any]
    call_id: str | None = None


class BrokenSyntax(Exception):
    """A call that cannot be read, with the sentence for the model. Never leaves the package."""


class NotACall(Exception):
    """What looked like a call is text, and not a mistake. Never leaves the package."""


class ToolSchemas:
    """The parameters' schemas of the tools on offer, by name.

    tools: in OpenAI's form, or bare functions.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [tool.get("function", tool) for tool in tools]
        self._parameters = {function["name"]: function.get("parameters") or {} for function in functions}

    def parameters(self, name: str) -> Mapping[str, Any]:
        """The schema of a tool's arguments, {} for a tool nobody offers."""
        schema: Mapping[str, Any] = self._parameters.get(name, {})
        return schema

    def typed(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """`arguments` with values in the schema's types where they can be read as such."""
        properties = self.parameters(name).get("properties")
        if not isinstance(properties, Mapping):
            return arguments
        return {key: converted(value, properties.get(key)) for key, value in arguments.items()}
