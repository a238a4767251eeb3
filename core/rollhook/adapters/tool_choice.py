"""What a client says of the calls it wants: none, any, at least one, or one of certain tools.

Invariant: a tool that is demanded is one that the request offers; what cannot be demanded of the engine is
refused and not ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollhook.adapters.body import Fields


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """looked_for: whether calls are looked for. demanded: the tools one of which must be called, () for none.

    parallel: whether several calls may be demanded at once; what the model does by itself is passed on.
    """

    looked_for: bool = True
    demanded: tuple[str, ...] = ()
    parallel: bool = True


def openai_choice(body: Fields, tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    """`tool_choice` and `parallel_tool_calls` of chat and Responses. Raises WireError (400)."""
    parallel = body.flag("parallel_tool_calls", True)
    given = body.get("tool_choice")
    if given in (None, "auto"):
        return ToolChoice(parallel=parallel)
    if given == "none":
        return ToolChoice(looked_for=False)
    if given == "required":
        return _demand(body, _names(tools), tools, parallel=parallel)
    if not isinstance(given, dict):
        body.fail("tool_choice", 'must be "auto", "none", "required" or an object')
    choice = Fields(given, body.path("tool_choice"))
    match choice.get("type"):
        case "function" | "custom" as kind:
            holder = choice.object(kind) or choice
            return _demand(body, [holder.required_text("name")], tools, parallel=parallel)
        case "allowed_tools":
            allowed = choice.object("allowed_tools") or choice
            if allowed.get("mode") != "required":
                allowed.fail("mode", 'only "required" can be kept; to offer fewer tools, send fewer')
            named = [
                (tool.object("function") or tool).required_text("name") for tool in allowed.objects("tools")
            ]
            return _demand(body, named, tools, parallel=parallel)
    return choice.fail("type", f"{choice.get('type')!r} is no choice that this adapter knows")


def anthropic_choice(body: Fields, tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    """Anthropic's `tool_choice`. Raises WireError (400)."""
    choice = body.object("tool_choice")
    if choice is None:
        return ToolChoice()
    parallel = not choice.flag("disable_parallel_tool_use")
    match choice.get("type"):
        case "auto":
            return ToolChoice(parallel=parallel)
        case "none":
            return ToolChoice(looked_for=False)
        case "any":
            return _demand(body, _names(tools), tools, parallel=parallel)
        case "tool":
            return _demand(body, [choice.required_text("name")], tools, parallel=parallel)
    return choice.fail("type", 'must be "auto", "none", "any" or "tool"')


def _demand(
    body: Fields, named: Sequence[str], tools: Sequence[Mapping[str, Any]], *, parallel: bool
) -> ToolChoice:
    offered = _names(tools)
    if not named:
        body.fail("tool_choice", "demands a call, but there are no tools")
    if unknown := [name for name in named if name not in offered]:
        body.fail("tool_choice", f"no tool named {unknown[0]!r} is offered")
    return ToolChoice(demanded=tuple(named), parallel=parallel)


def _names(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]
