"""What a chat message must be, said before anything else looks at it.

Invariant: a message or tool that was checked can be matched and rendered without a TypeError; one that is
malformed is refused with a sentence that says which it is and what was found. Templates would write the keys
of a mapping, or nothing, where text belongs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollhook.errors import RenderError
from rollhook.protocols import Message

TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
"""Types of the content parts that hold text."""


def check_messages(messages: Sequence[Message]) -> None:
    """Raise RenderError for the first message that is none."""
    for at, message in enumerate(messages):
        _check_message(message, at)


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Raise RenderError for the first tool that has no name, be it under "function" or not."""
    for at, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RenderError(f"tool {at} must be a mapping with a name, not {_shown(tool)}")


def text_content(message: Message, at: int) -> str:
    """A checked message's content as one text. Raises RenderError for parts that are not text."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text")
        if not isinstance(text, str):
            raise RenderError(
                f"message {at} ({message.get('role')}) has a {part.get('type')!r} part; only text is rendered"
            )
        parts.append(text)
    return "".join(parts)


def _check_message(message: Any, at: int) -> None:
    if not isinstance(message, Mapping):
        raise RenderError(f"message {at} must be a mapping with role and content, not {_shown(message)}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RenderError(f"message {at} must have a role, not {_shown(role)}")
    where = f"message {at} ({role})"
    content = message.get("content")
    if content is None:
        if role != "assistant":
            raise RenderError(f"{where} has no content; give it a text, if need be an empty one")
    elif isinstance(content, list | tuple):
        for part in content:
            _check_part(part, where)
    elif not isinstance(content, str):
        raise RenderError(f"{where} must have a text or a list of parts as content, not {_shown(content)}")
    _check_calls(message.get("tool_calls"), where)


def _check_part(part: Any, where: str) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, Mapping):
        raise RenderError(f"{where} must have texts and mappings as content parts, not {_shown(part)}")
    kind = part.get("type", "text")
    if not isinstance(kind, str):
        raise RenderError(f"{where} has a content part whose type is no text but {_shown(kind)}")
    if kind in TEXT_PARTS and not isinstance(part.get("text"), str):
        raise RenderError(f"{where} has a {kind!r} part whose text is {_shown(part.get('text'))}")


def _check_calls(calls: Any, where: str) -> None:
    if calls is None:
        return
    if not isinstance(calls, list | tuple):
        raise RenderError(f"{where} must have a list as tool_calls, not {_shown(calls)}")
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RenderError(f"{where} has a tool call without a function and its name: {_shown(call)}")


def _shown(value: Any) -> str:
    """A value in a sentence: its type, and the beginning of what it is."""
    if value is None:
        return "None"
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 60 else shown[:57] + '...'}"
