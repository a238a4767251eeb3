"""Anthropic's Messages: what clients send, as chat messages.

Invariant: every block reaches the model or the request is refused; none is dropped but thinking's signature,
which carries our own turn id, and the billing header that Claude Code puts into its system prompt.
"""

from __future__ import annotations

import json
from typing import Any

from rollhook.adapters.body import Fields
from rollhook.adapters.conversation import SystemStyle
from rollhook.adapters.errors import WireError
from rollhook.adapters.images import Images, joined, with_text_before
from rollhook.adapters.messages_out import MessageFrames, whole_message
from rollhook.adapters.protocol import Frames, content_of, part_text, piece_of, text_of, to_json
from rollhook.adapters.sessions import Session
from rollhook.adapters.tool_choice import anthropic_choice
from rollhook.adapters.turns import Answer, Ask
from rollhook.protocols import Message

BILLING_HEADER = "x-anthropic-billing-header:"
TEXT = frozenset({"text"})
ASKED = (
    "model", "temperature", "top_p", "top_k", "stop_sequences", "max_tokens", "thinking", "metadata",
    "tool_choice", "service_tier", "output_config", "context_management",
)  # fmt: skip


class Messages:
    """`POST /v1/messages` (and `count_tokens`)."""

    path = "/v1/messages"
    call_prefix = "toolu_"

    def __init__(self, style: SystemStyle, *, images: bool = False) -> None:
        self._style = style
        self._images = images

    def read(self, body: Fields, session: Session) -> Ask:
        """See `rollhook.adapters.protocol.Wire.read`."""
        if body.integer("max_tokens", 1) is None:
            body.fail("max_tokens", "is missing")
        return self.read_prompt(body)

    def read_prompt(self, body: Fields) -> Ask:
        """The part of a request that `count_tokens` has too."""
        dropped: list[str] = []
        tools = _tools(body, dropped)
        images = Images(served=self._images)
        messages = [*_system(body)]
        for message in body.objects("messages"):
            messages += _message(message, images)
        if not any(message["role"] != "system" for message in messages):
            body.fail("messages", "must hold at least one message")
        if messages[-1]["role"] == "assistant":
            body.fail("messages", "the last message is the assistant's; prefilled answers are not supported")
        asked = {name: body.get(name) for name in ASKED if name in body}
        return Ask(
            model=body.required_text("model"),
            messages=self._style.fit(messages),
            tools=tools,
            stream=body.flag("stream"),
            max_new_tokens=body.integer("max_tokens", 1),
            choice=anthropic_choice(body, tools),
            constraint=_constraint(body),
            images=images.by_digest,
            asked={**asked, "dropped_tools": dropped} if dropped else asked,
        )

    def whole(self, body: Fields, ask: Ask, answer: Answer) -> bytes:
        """See `Wire.whole`."""
        return to_json(whole_message(ask.model, answer)).encode()

    def frames(self, body: Fields, ask: Ask) -> Frames:
        """See `Wire.frames`."""
        return MessageFrames(ask.model)

    def remember(self, body: Fields, ask: Ask, answer: Answer, session: Session) -> None:
        """Nothing: a request holds its whole history."""

    def error(self, error: WireError) -> dict[str, Any]:
        """See `Wire.error`."""
        return error.anthropic()


def _system(body: Fields) -> list[Message]:
    if not isinstance(body.get("system"), list):
        text = body.text("system")
        return [{"role": "system", "content": text}] if text else []
    texts = [part_text(part, TEXT) for part in body.objects("system")]
    kept = [text for text in texts if not text.startswith(BILLING_HEADER)]
    return [{"role": "system", "content": "\n\n".join(kept)}] if kept else []


def _message(message: Fields, images: Images) -> list[Message]:
    """One message of the history: a user's may hold tool results, which become messages of their own."""
    role = message.get("role")
    if role == "assistant":
        return [_assistant(message)]
    if role == "system":
        return [{"role": "system", "content": text_of(message, "content", TEXT)}]
    if role != "user":
        message.fail("role", f'must be "user", "assistant" or "system", not {role!r}')
    if isinstance(message.get("content"), str):
        return [{"role": "user", "content": message.get("content")}]
    made: list[Message] = []
    pieces: list[str | dict[str, Any]] = []
    for block in message.objects("content"):
        if block.get("type") == "tool_result":
            made.append(_tool_result(block, images))
        else:
            pieces.append(_user_piece(block, images))
    if pieces:
        made.append({"role": "user", "content": joined(pieces, "\n\n")})
    if not made:
        message.fail("content", "must hold at least one block")
    return made


def _user_piece(block: Fields, images: Images) -> str | dict[str, Any]:
    if block.get("type") == "document":
        source = block.object("source")
        if source is not None and source.get("type") == "text":
            return source.text("data") or ""
    return piece_of(block, TEXT, images)


def _tool_result(block: Fields, images: Images) -> Message:
    content = content_of(block, "content", TEXT, images)
    says_so = isinstance(content, str) and "error" in content[:40].lower()
    if block.flag("is_error") and not says_so:
        content = with_text_before("Error: ", content)
    return {"role": "tool", "tool_call_id": block.required_text("tool_use_id"), "content": content}


def _assistant(message: Fields) -> Message:
    made: Message = {"role": "assistant", "content": ""}
    if isinstance(message.get("content"), str):
        return {**made, "content": message.get("content")}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in message.objects("content"):
        match block.get("type"):
            case "thinking":
                thoughts.append(block.text("thinking") or "")
                made["response_id"] = block.text("signature") or None
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_tool_use(block))
            case _:
                texts.append(part_text(block, TEXT))
    made["content"] = "".join(texts)
    if thoughts:
        made["reasoning_content"] = "\n".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    return made


def _tool_use(block: Fields) -> dict[str, Any]:
    arguments = block.object("input")
    function = {
        "name": block.required_text("name"),
        "arguments": json.dumps(arguments.value if arguments else {}, ensure_ascii=False),
    }
    return {"id": block.required_text("id"), "type": "function", "function": function}


def _tools(body: Fields, dropped: list[str]) -> list[dict[str, Any]]:
    """The client's own tools in OpenAI's form; those that Anthropic's servers run cannot be offered."""
    tools = []
    for tool in body.objects("tools"):
        name = tool.required_text("name")
        if tool.get("type") not in (None, "custom"):
            dropped.append(name)
            continue
        schema = tool.object("input_schema")
        if schema is None:
            tool.fail("input_schema", "is missing")
        function = {
            "name": name,
            "description": tool.text("description") or "",
            "parameters": dict(schema.value),
        }
        tools.append({"type": "function", "function": function})
    return tools


def _constraint(body: Fields) -> dict[str, Any]:
    """A JSON schema that the answer must follow."""
    config = body.object("output_config")
    output = (config.object("format") if config else None) or body.object("output_format")
    if output is None:
        return {}
    schema = output.object("schema")
    if output.get("type") != "json_schema" or schema is None:
        output.fail("type", 'must be "json_schema", with a schema')
    return {"json_schema": json.dumps(schema.value)}
