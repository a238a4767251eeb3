"""The output items of one response, made event by event.

Invariant: an item is added, grows and is done before the next is added; `done` holds them in order.
"""

from __future__ import annotations

from typing import Any

from openai.types.responses import (
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCustomToolCall,
    ResponseCustomToolCallInputDeltaEvent,
    ResponseCustomToolCallInputDoneEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
    ResponseReasoningTextDeltaEvent,
    ResponseReasoningTextDoneEvent,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
)
from openai.types.responses.response_content_part_added_event import PartReasoningText as AddedReasoning
from openai.types.responses.response_content_part_done_event import PartReasoningText as DoneReasoning
from openai.types.responses.response_reasoning_item import Content as ReasoningContent
from pydantic import BaseModel

from rollhook.adapters.items import encrypted_content
from rollhook.adapters.reading import ArgumentsDelta, CallClosed, CallOpened, TurnEvent
from rollhook.adapters.tool_names import ToolNames, custom_input
from rollhook.parsing import TextDelta

Item = ResponseOutputMessage | ResponseReasoningItem | ResponseFunctionToolCall | ResponseCustomToolCall


class OutputItems:
    """Takes a turn's events and gives the wire's. Sequence numbers are the caller's to set."""

    def __init__(self, turn_id: str, names: ToolNames) -> None:
        self.done: list[Item] = []
        self._turn_id = turn_id
        self._names = names
        self._kind: str | None = None  # of the text item that is open
        self._item_id = ""
        self._text: list[str] = []
        self._counts: dict[str, int] = {}

    def take(self, event: TurnEvent) -> list[BaseModel]:
        """The events that one step of the turn makes."""
        match event:
            case TextDelta(kind=kind, text=text):
                opened = [] if self._kind == kind else [*self.close(), *self._open_text(kind)]
                self._text.append(text)
                return [*opened, self._text_delta(text)]
            case CallOpened():
                return [*self.close(), *self._open_call(event)]
            case ArgumentsDelta(text=text):
                if self._item_id.startswith("ctc_"):
                    return []  # a custom tool's input is known once its JSON is whole
                delta = ResponseFunctionCallArgumentsDeltaEvent(
                    type="response.function_call_arguments.delta", delta=text, **self._place()
                )
                return [delta]
            case CallClosed():
                return self._close_call(event)

    def growing(self, event: TurnEvent) -> str | None:
        """The id of the item that `event` only makes longer; None where it does something else."""
        match event:
            case TextDelta(kind=kind) if kind == self._kind:
                return self._item_id
            case ArgumentsDelta() if self._item_id.startswith("fc_"):
                return self._item_id
        return None

    def grow(self, event: TurnEvent) -> None:
        """Take an event that only makes the open item longer, without making the wire's event of it."""
        if isinstance(event, TextDelta):
            self._text.append(event.text)

    def close(self) -> list[BaseModel]:
        """End the text item that is open."""
        kind, self._kind = self._kind, None
        if kind is None:
            return []
        text = "".join(self._text)
        place = {**self._place(), "content_index": 0}
        if kind == "content":
            part = _output_text(text)
            item: Item = self._message("completed", [part])
            closing: list[BaseModel] = [
                ResponseTextDoneEvent(type="response.output_text.done", text=text, logprobs=[], **place),
                ResponseContentPartDoneEvent(type="response.content_part.done", part=part, **place),
            ]
        else:
            item = self._reasoning("completed", [ReasoningContent(type="reasoning_text", text=text)])
            done = DoneReasoning(type="reasoning_text", text=text)
            closing = [
                ResponseReasoningTextDoneEvent(type="response.reasoning_text.done", text=text, **place),
                ResponseContentPartDoneEvent(type="response.content_part.done", part=done, **place),
            ]
        return [*closing, self._item_done(item)]

    def _open_text(self, kind: str) -> list[BaseModel]:
        self._kind = kind
        self._text = []
        self._item_id = self._new_id("msg" if kind == "content" else "rs")
        item: Item
        part: Any
        if kind == "content":
            item, part = self._message("in_progress", []), _output_text("")
        else:
            item, part = self._reasoning("in_progress", []), AddedReasoning(type="reasoning_text", text="")
        added = ResponseContentPartAddedEvent(
            type="response.content_part.added", part=part, content_index=0, **self._place()
        )
        return [self._item_added(item), added]

    def _text_delta(self, text: str) -> BaseModel:
        place = {**self._place(), "content_index": 0, "delta": text}
        if self._kind == "content":
            return ResponseTextDeltaEvent(type="response.output_text.delta", logprobs=[], **place)
        return ResponseReasoningTextDeltaEvent(type="response.reasoning_text.delta", **place)

    def _open_call(self, call: CallOpened) -> list[BaseModel]:
        custom = self._names.wire(call.name).kind == "custom"
        self._item_id = self._new_id("ctc" if custom else "fc")
        return [self._item_added(self._call(call, "", "in_progress"))]

    def _close_call(self, call: CallClosed) -> list[BaseModel]:
        item = self._call(call, call.arguments, "completed")
        closing: list[BaseModel]
        if isinstance(item, ResponseCustomToolCall):
            closing = [
                ResponseCustomToolCallInputDeltaEvent(
                    type="response.custom_tool_call_input.delta", delta=item.input, **self._place()
                ),
                ResponseCustomToolCallInputDoneEvent(
                    type="response.custom_tool_call_input.done", input=item.input, **self._place()
                ),
            ]
        else:
            closing = [
                ResponseFunctionCallArgumentsDoneEvent(
                    type="response.function_call_arguments.done",
                    arguments=call.arguments,
                    name=item.name,
                    **self._place(),
                )
            ]
        return [*closing, self._item_done(item)]

    def _call(
        self, call: CallOpened | CallClosed, arguments: str, status: Any
    ) -> ResponseFunctionToolCall | ResponseCustomToolCall:
        wire = self._names.wire(call.name)
        namespace = {} if wire.namespace is None else {"namespace": wire.namespace}
        if wire.kind == "custom":
            return ResponseCustomToolCall(
                type="custom_tool_call",
                id=self._item_id,
                call_id=call.id,
                name=wire.name,
                input=custom_input(arguments) if arguments else "",
                **namespace,
            )
        return ResponseFunctionToolCall(
            type="function_call",
            id=self._item_id,
            call_id=call.id,
            name=wire.name,
            arguments=arguments,
            status=status,
            **namespace,
        )

    def _message(self, status: Any, parts: list[Any]) -> ResponseOutputMessage:
        return ResponseOutputMessage(
            type="message", id=self._item_id, role="assistant", status=status, content=parts
        )

    def _reasoning(self, status: Any, parts: list[ReasoningContent]) -> ResponseReasoningItem:
        return ResponseReasoningItem(
            type="reasoning",
            id=self._item_id,
            summary=[],
            content=parts,
            encrypted_content=encrypted_content(self._turn_id),
            status=status,
        )

    def _item_added(self, item: Item) -> BaseModel:
        return ResponseOutputItemAddedEvent(
            type="response.output_item.added", item=item, output_index=len(self.done), sequence_number=0
        )

    def _item_done(self, item: Item) -> BaseModel:
        done = ResponseOutputItemDoneEvent(
            type="response.output_item.done", item=item, output_index=len(self.done), sequence_number=0
        )
        self.done.append(item)
        return done

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": len(self.done), "sequence_number": 0}

    def _new_id(self, prefix: str) -> str:
        count = self._counts.get(prefix, 0)
        self._counts[prefix] = count + 1
        return f"{prefix}_{self._turn_id}" + (f"_{count}" if count else "")


def _output_text(text: str) -> ResponseOutputText:
    return ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=[])
