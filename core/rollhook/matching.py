"""How a message is recognised when a client sends it back.

Invariant: two messages with equal keys say the same thing. What clients change without meaning to (thinking
kept or dropped, blocks merged or split, blanks in an assistant's text, JSON written anew, `1.0` as `1`, key
order, `cache_control`, unknown fields, tool-call ids they made themselves) is not part of a key; what the
model reads is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from rollhook.errors import RenderError
from rollhook.protocols import Message
from rollhook.wellformed import TEXT_PARTS

_THINKING = re.compile(r"<think>.*?</think>|^.*?</think>", re.DOTALL)
_VOLATILE = frozenset({"cache_control", "id", "index", "signature", "encrypted_content", "citations"})
"""Keys of content parts and tools (never of what is inside them) that clients change at will."""
_REASONING_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning"})


@dataclass(frozen=True, slots=True)
class TurnIdentity:
    """What an echoed assistant turn is recognised by: any one of the three, when present on both sides.

    content: key of its normalised text and calls. call_ids: its tool-call ids, in order.
    response_id: `message["response_id"]`, which adapters carry through their wire formats.
    """

    content: bytes
    call_ids: tuple[str, ...]
    response_id: str | None

    def matches(self, other: TurnIdentity) -> bool:
        """Whether both are the same turn."""
        if self.response_id is not None and self.response_id == other.response_id:
            return True
        if self.call_ids and self.call_ids == other.call_ids:
            return True
        return self.content == other.content


def turn_identity(*messages: Message) -> TurnIdentity:
    """The identity of an assistant turn, which clients may send back as several messages in a row."""
    calls = [call for message in messages for call in message.get("tool_calls") or []]
    ids = tuple(str(call.get("id") or "") for call in calls)
    text = "".join("".join(_without_thinking(_text(message)).split()) for message in messages)
    parts = [part for message in messages for part in _other_parts(message)]
    response_ids = (message.get("response_id") for message in messages)
    return TurnIdentity(
        content=_key("assistant", text, parts, [_call(call) for call in calls]),
        call_ids=ids if all(ids) else (),
        response_id=next((found for found in response_ids if found is not None), None),
    )


def message_key(message: Message) -> bytes:
    """16 bytes that are equal for two messages that say the same."""
    if message.get("role") == "assistant":
        return turn_identity(message).content
    lines = [line.rstrip() for line in _text(message).strip().splitlines()]
    return _key(str(message.get("role")), "\n".join(lines), _other_parts(message), [])


def conversation_key(messages: Iterable[Message], tools: Sequence[Mapping[str, Any]]) -> bytes:
    """16 bytes for what makes a conversation its own: its tools and its leading system messages."""
    digest = blake2b(_canonical([_stable(tool) for tool in tools]).encode(), digest_size=16)
    for message in messages:
        if message.get("role") not in ("system", "developer"):
            break
        digest.update(message_key(message))
    return digest.digest()


def _text(message: Message) -> str:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    parts = (part if isinstance(part, str) else part.get("text", "") for part in content if _is_text(part))
    return "".join(parts)


def _without_thinking(text: str) -> str:
    return _THINKING.sub("", text) if "</think>" in text else text


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or part.get("type", "text") in TEXT_PARTS


def _other_parts(message: Message) -> list[Any]:
    """Content parts that are neither text nor reasoning: images, documents."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return []
    return [
        _stable(part) for part in content if not _is_text(part) and part.get("type") not in _REASONING_PARTS
    ]


def _call(call: Mapping[str, Any]) -> list[Any]:
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = " ".join(arguments.split())
    return [function.get("name"), arguments or {}]


def _key(role: str, text: str, parts: list[Any], calls: list[Any]) -> bytes:
    digest = blake2b(digest_size=16)
    digest.update(role.encode())
    digest.update(b"\0")
    digest.update(text.encode("utf-8", "surrogatepass"))
    if parts or calls:
        digest.update(b"\0")
        digest.update(_canonical([parts, calls]).encode())
    return digest.digest()


def _canonical(value: Any) -> str:
    try:
        return json.dumps(_with_one_kind_of_number(value), sort_keys=True, default=str)
    except RecursionError:
        raise RenderError("a message is nested too deeply to be recognised") from None


def _with_one_kind_of_number(value: Any) -> Any:
    """The value with every number as the double that JavaScript makes of it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value) + 0.0  # -0.0 is written as 0
        except OverflowError:
            return value
    if isinstance(value, Mapping):
        return {str(key): _with_one_kind_of_number(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_one_kind_of_number(item) for item in value]
    return value


def _stable(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key not in _VOLATILE}
