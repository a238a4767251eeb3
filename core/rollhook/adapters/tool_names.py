"""The tools of a Responses request: the functions a model sees, and what each is called on the wire.

Invariant: every name a model can write leads back to one tool of the client, with its kind and namespace.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from rollhook.adapters.body import Fields
from rollhook.adapters.chat import function_tool

CUSTOM_INPUT = "input"
"""The one argument by which a custom tool, whose input is bare text, is offered as a function."""


@dataclass(frozen=True, slots=True)
class WireTool:
    """A tool as the client names it."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None


class ToolNames:
    """tools: in OpenAI's chat form. dropped: types that only OpenAI's own servers can run."""

    def __init__(self, body: Fields) -> None:
        self.tools: list[dict[str, Any]] = []
        self.dropped: list[str] = []
        self._wire: dict[str, WireTool] = {}
        for tool in body.objects("tools"):
            self._take(tool, None)

    def wire(self, name: str) -> WireTool:
        """What a tool that the model called is to the client; a function where nobody offered it."""
        return self._wire.get(name) or WireTool("function", name)

    def _take(self, tool: Fields, namespace: str | None) -> None:
        kind = tool.get("type")
        if kind == "namespace" and namespace is None:
            for inner in tool.objects("tools"):
                self._take(inner, tool.required_text("name"))
        elif kind == "function":
            name = tool.required_text("name")
            self._offer(tool, WireTool("function", name, namespace), tool)
        elif kind == "custom":
            name = tool.required_text("name")
            self._offer(tool, WireTool("custom", name, namespace), _as_function(tool))
        elif isinstance(kind, str) and kind:
            self.dropped.append(kind)
        else:
            tool.fail("type", "is missing")

    def _offer(self, tool: Fields, wire: WireTool, function: Fields) -> None:
        name = flat_name(wire.name, wire.namespace)
        if name in self._wire:
            tool.fail("name", f"two tools are called {name!r}")
        self._wire[name] = wire
        self.tools.append(function_tool(function, name))


def flat_name(name: str, namespace: str | None) -> str:
    """What the model calls a tool of a namespace."""
    return f"{namespace}__{name}" if namespace else name


def custom_input(arguments: str) -> str:
    """The text that a model gave a custom tool; all it wrote where that is not in the one argument."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments  # the model broke off
    given = value.get(CUSTOM_INPUT)
    return given if isinstance(given, str) and len(value) == 1 else arguments


def _as_function(tool: Fields) -> Fields:
    described = tool.text("description") or ""
    form = tool.object("format")
    if form is not None and form.get("type") == "grammar":
        described += f"\n\nThe input follows this {form.text('syntax')} grammar:\n{form.text('definition')}"
    parameters = {
        "type": "object",
        "properties": {CUSTOM_INPUT: {"type": "string", "description": "The tool's whole input."}},
        "required": [CUSTOM_INPUT],
    }
    function = {"name": tool.get("name"), "description": described, "parameters": parameters}
    return Fields(function, tool.where)
