"""The items of a Responses request's input, as chat messages.

Invariant: reasoning, text and calls that stand together are one assistant turn, unless their ids say that
they are two.
"""

from __future__ import annotations

import json
import re
from typing import Any

from rollhook.adapters.body import Fields
from rollhook.adapters.images import Images
from rollhook.adapters.protocol import content_of, text_of
from rollhook.adapters.tool_names import CUSTOM_INPUT, flat_name
from rollhook.protocols import Message

TEXT = frozenset({"input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text"})
ENCRYPTED_PREFIX = "rollhook."
_OUR_ID = re.compile(r"(?:rs|msg|fc|ctc)_([0-9a-f]{24})(?:_\d+)?")


def input_messages(body: Fields, images: Images) -> list[Message]:
    """The input as chat messages. Raises WireError (400) for items the model cannot be shown."""
    if isinstance(body.get("input"), str):
        return [{"role": "user", "content": body.get("input")}]
    reader = _Items(images)
    for item in body.objects("input"):
        reader.take(item)
    return reader.messages


class _Items:
    def __init__(self, images: Images) -> None:
        self.messages: list[Message] = []
        self._images = images
        self._turn: Message | None = None  # the assistant's, still open for more items

    def take(self, item: Fields) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        match kind:
            case "message":
                self._message(item)
            case "reasoning":
                self._reasoning(item)
            case "function_call":
                self._call(item, item.text("arguments") or "{}")
            case "custom_tool_call":
                self._call(item, json.dumps({CUSTOM_INPUT: item.text("input") or ""}, ensure_ascii=False))
            case "function_call_output" | "custom_tool_call_output":
                content = content_of(item, "output", TEXT, self._images)
                self._other(
                    {"role": "tool", "tool_call_id": item.required_text("call_id"), "content": content}
                )
            case _:
                item.fail("type", f"{kind!r} is not an item type this adapter can show the model")

    def _message(self, item: Fields) -> None:
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            item.fail("role", f"must be user, assistant, system or developer, not {role!r}")
        if role == "assistant":
            self._assistant(item)["content"] += text_of(item, "content", TEXT)
        elif role == "user":
            self._other({"role": role, "content": content_of(item, "content", TEXT, self._images)})
        else:
            self._other({"role": role, "content": text_of(item, "content", TEXT)})

    def _reasoning(self, item: Fields) -> None:
        turn = self._assistant(item)
        thought = text_of(item, "content", TEXT) or text_of(item, "summary", TEXT)
        if thought:
            turn["reasoning_content"] = turn.get("reasoning_content", "") + thought

    def _call(self, item: Fields, arguments: str) -> None:
        name = flat_name(item.required_text("name"), item.text("namespace"))
        call: dict[str, Any] = {
            "id": item.required_text("call_id"),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        self._assistant(item).setdefault("tool_calls", []).append(call)

    def _assistant(self, item: Fields) -> Message:
        """The open assistant turn, or a new one where the item belongs to another."""
        known = _turn_id(item)
        open_id = self._turn.get("response_id") if self._turn else None
        if self._turn is None or (known and open_id and known != open_id):
            self._turn = {"role": "assistant", "content": ""}
            self.messages.append(self._turn)
        if known:
            self._turn["response_id"] = known
        return self._turn

    def _other(self, message: Message) -> None:
        self._turn = None
        self.messages.append(message)


def encrypted_content(turn_id: str) -> str:
    """What a reasoning item carries for us: the turn it belongs to."""
    return ENCRYPTED_PREFIX + turn_id


def _turn_id(item: Fields) -> str | None:
    """The turn an item says it belongs to, None where its ids are not ours."""
    encrypted = item.text("encrypted_content") or ""
    if encrypted.startswith(ENCRYPTED_PREFIX):
        return encrypted.removeprefix(ENCRYPTED_PREFIX)
    match = _OUR_ID.fullmatch(item.text("id") or "")
    return match.group(1) if match else None
