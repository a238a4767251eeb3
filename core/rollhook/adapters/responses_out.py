"""OpenAI's Responses: what the model said, whole and streamed in the official order of events.

Invariant: the items of a stream are those of its last event, and of the whole response.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseError,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseInProgressEvent,
    ResponseUsage,
)
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import BaseModel

from rollhook.adapters.body import Fields
from rollhook.adapters.errors import CONTEXT_OVERFLOW, WireError
from rollhook.adapters.output_items import OutputItems
from rollhook.adapters.protocol import NUMBER_SLOT, TEXT_SLOT, filled, sse, to_json
from rollhook.adapters.reading import ArgumentsDelta, CallOpened, TurnEvent
from rollhook.adapters.tool_names import ToolNames
from rollhook.adapters.turns import Answer, Ask
from rollhook.parsing import TextDelta


def whole_response(body: Fields, ask: Ask, answer: Answer, names: ToolNames) -> str:
    """The answer as one response, in JSON."""
    items = OutputItems(answer.id, names)
    for event in _events(answer):
        items.take(event)
    items.close()
    return to_json(_response(body, ask, answer.id, int(time.time()), items.done, answer=answer))


class ResponseFrames:
    """One streamed response."""

    def __init__(self, body: Fields, ask: Ask, names: ToolNames) -> None:
        self._body = body
        self._ask = ask
        self._names = names
        self._created = int(time.time())
        self._id = ""
        self._items = OutputItems("", names)
        self._sequence = 0
        self._growing: str | None = None  # the item whose next delta `_delta_frame` is
        self._delta_frame = b""

    def start(self, turn_id: str, prompt_tokens: int) -> bytes:
        """`response.created` and `response.in_progress`."""
        self._id = turn_id
        self._items = OutputItems(turn_id, self._names)
        response = self._response("in_progress")
        return self._send(
            [
                ResponseCreatedEvent(type="response.created", response=response, sequence_number=0),
                ResponseInProgressEvent(type="response.in_progress", response=response, sequence_number=0),
            ]
        )

    def event(self, event: TurnEvent) -> bytes:
        """What opens, grows or ends an item."""
        growing = self._items.growing(event)
        if isinstance(event, TextDelta | ArgumentsDelta) and growing == self._growing is not None:
            self._items.grow(event)
            self._sequence += 1
            return filled(self._delta_frame, event.text, self._sequence - 1)
        made: Sequence[Any] = self._items.take(event)
        sent = self._send(made)
        self._growing = self._items.growing(event)
        if self._growing is not None:
            delta = made[-1]
            delta.delta, delta.sequence_number = TEXT_SLOT, NUMBER_SLOT
            self._delta_frame = sse(to_json(delta), delta.type)
        return sent

    def ping(self) -> bytes:
        """A comment."""
        return b": ping\n\n"

    def end(self, answer: Answer) -> bytes:
        """The last item's end, and `response.completed` or `response.incomplete`."""
        last = self._send(self._items.close())
        response = _response(self._body, self._ask, self._id, self._created, self._items.done, answer=answer)
        event: BaseModel
        if answer.finish_reason == "length":
            event = ResponseIncompleteEvent(type="response.incomplete", response=response, sequence_number=0)
        else:
            event = ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)
        return last + self._send([event])

    def error(self, error: WireError) -> bytes:
        """`response.failed`, by which Codex knows, and `error`, by which the SDK raises."""
        response = self._response("failed")
        code: Any = error.code if error.code == CONTEXT_OVERFLOW else "server_error"
        response.error = ResponseError.model_construct(code=code, message=error.message)
        failed = self._send(
            [ResponseFailedEvent(type="response.failed", response=response, sequence_number=0)]
        )
        told = {
            "type": "error",
            "code": error.code,
            "message": error.message,
            "param": error.param,
            "sequence_number": self._sequence,
            **error.openai(),
        }
        return failed + sse(json.dumps(told), "error")

    def _response(self, status: str) -> Response:
        return _response(self._body, self._ask, self._id, self._created, self._items.done, status=status)

    def _send(self, events: Sequence[Any]) -> bytes:
        sent = []
        for event in events:
            event.sequence_number = self._sequence
            self._sequence += 1
            sent.append(sse(to_json(event), event.type))
        return b"".join(sent)


def _events(answer: Answer) -> list[TurnEvent]:
    """A finished turn as it would have been streamed."""
    said = answer.said
    events: list[TurnEvent] = []
    if said.reasoning is not None:
        events.append(TextDelta("reasoning", said.reasoning))
    if said.content:
        events.append(TextDelta("content", said.content))
    for call in said.calls:
        opened = CallOpened(call.index, call.id, call.name)
        events += [opened, ArgumentsDelta(call.index, call.arguments), call]
    return events


def _response(
    body: Fields,
    ask: Ask,
    turn_id: str,
    created: int,
    output: Sequence[BaseModel],
    *,
    answer: Answer | None = None,
    status: str = "completed",
) -> Response:
    incomplete = answer is not None and answer.finish_reason == "length"
    metadata = body.get("metadata")
    return Response.model_construct(
        **{
            "id": f"resp_{turn_id}",
            "object": "response",
            "created_at": created,
            "status": "incomplete" if incomplete else status,
            "model": ask.model,
            "output": list(output),
            "error": None,
            "incomplete_details": IncompleteDetails(reason="max_output_tokens") if incomplete else None,
            "instructions": body.text("instructions"),
            "metadata": metadata if _is_text_mapping(metadata) else {},
            "parallel_tool_calls": body.flag("parallel_tool_calls", True),
            "previous_response_id": body.text("previous_response_id"),
            "temperature": None,
            "top_p": None,
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": [],
            "max_output_tokens": ask.max_new_tokens,
            "usage": None if answer is None else _usage(answer),
        }
    )


def _is_text_mapping(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _usage(answer: Answer) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=answer.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=answer.cached_tokens, cache_write_tokens=0),
        output_tokens=answer.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=answer.reasoning_tokens),
        total_tokens=answer.prompt_tokens + answer.completion_tokens,
    )
