"""Anthropic's Messages: what the model said, whole and streamed.

Invariant: the blocks of a stream join to those of the whole message; one block is open at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from anthropic.types import (
    InputJSONDelta,
    Message,
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawContentBlockStopEvent,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStopEvent,
    SignatureDelta,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    Usage,
)
from anthropic.types import TextDelta as TextBlockDelta
from anthropic.types.message_delta_usage import MessageDeltaUsage
from anthropic.types.raw_message_delta_event import Delta as MessageDelta

from rollhook.adapters.errors import WireError
from rollhook.adapters.protocol import TEXT_SLOT, filled, sse, to_json
from rollhook.adapters.reading import ArgumentsDelta, CallClosed, CallOpened, TurnEvent
from rollhook.adapters.turns import Answer
from rollhook.parsing import TextDelta

_DELTAS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        "text": lambda: TextBlockDelta(type="text_delta", text=TEXT_SLOT),
        "thinking": lambda: ThinkingDelta(type="thinking_delta", thinking=TEXT_SLOT),
        "tool_use": lambda: InputJSONDelta(type="input_json_delta", partial_json=TEXT_SLOT),
    }
)
PING = sse('{"type": "ping"}', "ping")


def whole_message(model: str, answer: Answer) -> Message:
    """The answer as one message."""
    said = answer.said
    content: list[Any] = []
    if said.reasoning is not None:
        content.append(ThinkingBlock(type="thinking", thinking=said.reasoning, signature=answer.id))
    if said.content:
        content.append(TextBlock(type="text", text=said.content, citations=None))
    content += [
        ToolUseBlock(type="tool_use", id=call.id, name=call.name, input=json.loads(call.arguments))
        for call in said.calls
    ]
    reason = _stop_reason(answer)
    return Message(
        id=f"msg_{answer.id}",
        type="message",
        role="assistant",
        model=model,
        content=content,
        stop_reason=reason,
        stop_sequence=answer.matched if reason == "stop_sequence" else None,
        usage=_usage(answer),
    )


class MessageFrames:
    """One streamed message."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._id = ""
        self._index = -1
        self._open: str | None = None
        self._delta_frame = b""  # of the open block

    def start(self, turn_id: str, prompt_tokens: int) -> bytes:
        """`message_start`."""
        self._id = turn_id
        message = Message(
            id=f"msg_{turn_id}",
            type="message",
            role="assistant",
            model=self._model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=Usage(input_tokens=prompt_tokens, output_tokens=0),
        )
        event = RawMessageStartEvent(type="message_start", message=message)
        return sse(to_json(event), event.type)

    def event(self, event: TurnEvent) -> bytes:
        """A block's start, delta or stop, with the stop of the block before where one is open."""
        match event:
            case TextDelta(kind="content", text=text):
                head = self._switch("text", TextBlock(type="text", text="", citations=None))
                return head + filled(self._delta_frame, text)
            case TextDelta(text=text):
                head = self._switch("thinking", ThinkingBlock(type="thinking", thinking="", signature=""))
                return head + filled(self._delta_frame, text)
            case CallOpened(id=call_id, name=name):
                block = ToolUseBlock(type="tool_use", id=call_id, name=name, input={})
                return self._close() + self._start("tool_use", block)
            case ArgumentsDelta(text=text):
                return filled(self._delta_frame, text)
            case CallClosed():
                return self._close()

    def ping(self) -> bytes:
        """`ping`."""
        return PING

    def end(self, answer: Answer) -> bytes:
        """The last block's stop, `message_delta` and `message_stop`."""
        reason = _stop_reason(answer)
        usage = _usage(answer)
        delta = RawMessageDeltaEvent(
            type="message_delta",
            delta=MessageDelta(
                stop_reason=reason, stop_sequence=answer.matched if reason == "stop_sequence" else None
            ),
            usage=MessageDeltaUsage(
                input_tokens=usage.input_tokens,
                cache_read_input_tokens=usage.cache_read_input_tokens,
                cache_creation_input_tokens=usage.cache_creation_input_tokens,
                output_tokens=usage.output_tokens,
            ),
        )
        stop = RawMessageStopEvent(type="message_stop")
        return self._close() + sse(to_json(delta), delta.type) + sse(to_json(stop), stop.type)

    def error(self, error: WireError) -> bytes:
        """`error`."""
        return sse(json.dumps(error.anthropic()), "error")

    def _switch(self, kind: str, block: Any) -> bytes:
        return b"" if self._open == kind else self._close() + self._start(kind, block)

    def _start(self, kind: str, block: Any) -> bytes:
        self._index += 1
        self._open = kind
        self._delta_frame = self._delta(_DELTAS[kind]())
        event = RawContentBlockStartEvent(type="content_block_start", index=self._index, content_block=block)
        return sse(to_json(event), event.type)

    def _delta(self, delta: Any) -> bytes:
        event = RawContentBlockDeltaEvent(type="content_block_delta", index=self._index, delta=delta)
        return sse(to_json(event), event.type)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signature = b""
        if self._open == "thinking":
            signature = self._delta(SignatureDelta(type="signature_delta", signature=self._id))
        self._open = None
        event = RawContentBlockStopEvent(type="content_block_stop", index=self._index)
        return signature + sse(to_json(event), event.type)


def _stop_reason(answer: Answer) -> StopReason:
    if answer.finish_reason == "length":
        return "max_tokens"
    if answer.said.calls:
        return "tool_use"
    return "stop_sequence" if answer.matched else "end_turn"


def _usage(answer: Answer) -> Usage:
    return Usage(
        input_tokens=max(0, answer.prompt_tokens - answer.cached_tokens),
        cache_read_input_tokens=answer.cached_tokens,
        cache_creation_input_tokens=0,
        output_tokens=answer.completion_tokens,
    )
