"""Messages in the shape that the served model's chat template can write.

Invariant: what a client says reaches the model: a system message is never dropped because a template knows
none, or knows it only at the start. The result for a message depends on nothing that a later turn changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollhook.adapters.images import with_text_before
from rollhook.errors import RenderError
from rollhook.protocols import Message
from rollhook.render import Renderer

_MARK = "QzSystemMarkQz"


@dataclass(frozen=True, slots=True)
class SystemStyle:
    """Where a template writes system messages: at the start, and later in a conversation."""

    leading: bool
    later: bool

    @classmethod
    def of(cls, renderer: Renderer) -> SystemStyle:
        """Found out by trying."""
        user, system = {"role": "user", "content": "x"}, {"role": "system", "content": _MARK}
        answer = {"role": "assistant", "content": "y"}
        return cls(
            leading=_writes(renderer, [system, user]),
            later=_writes(renderer, [user, answer, system]) and _writes(renderer, [user, system]),
        )

    def fit(self, messages: Sequence[Message]) -> list[Message]:
        """`messages` as the template can write them; developer messages are system messages."""
        start = 0
        while start < len(messages) and _is_system(messages[start]):
            start += 1
        fitted: list[Message] = []
        if start:
            text = "\n\n".join(message["content"] for message in messages[:start])
            fitted.append({"role": "system" if self.leading else "user", "content": text})
        for message in messages[start:]:
            if _is_system(message):
                fitted.append({"role": "system" if self.later else "user", "content": message["content"]})
            else:
                fitted.append(message)
        if not self.leading and len(fitted) > 1 and start and fitted[1]["role"] == "user":
            first, second = fitted[:2]
            together = with_text_before(f"{first['content']}\n\n", second["content"])
            fitted[:2] = [{"role": "user", "content": together}]
        return _with_tool_names(fitted)


def _is_system(message: Message) -> bool:
    return message["role"] in ("system", "developer")


def _writes(renderer: Renderer, messages: Sequence[Message]) -> bool:
    try:
        return _MARK in renderer.opening_text(messages)
    except RenderError:
        return False


def _with_tool_names(messages: Sequence[Message]) -> list[Message]:
    """Tool results with the name of the tool, which some templates write and no client sends."""
    names: dict[str, str] = {}
    named = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and (name := names.get(message["tool_call_id"])):
            message = {**message, "name": name}  # noqa: PLW2901  a copy: the client's message stays as it is
        named.append(message)
    return named
