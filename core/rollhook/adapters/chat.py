"""OpenAI's Chat Completions: what clients send, as chat messages, and what the model said.

Invariant: thinking goes out as `reasoning_content`, beside the content, and is no condition for recognising
the turn when a client sends it back without.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.completion_usage import PromptTokensDetails

from rollhook.adapters.body import Fields
from rollhook.adapters.conversation import SystemStyle
from rollhook.adapters.errors import WireError
from rollhook.adapters.images import Images
from rollhook.adapters.protocol import TEXT_SLOT, Frames, content_of, filled, sse, text_of, to_json
from rollhook.adapters.reading import ArgumentsDelta, CallClosed, CallOpened, TurnEvent
from rollhook.adapters.sessions import Session
from rollhook.adapters.tool_choice import openai_choice
from rollhook.adapters.turns import Answer, Ask
from rollhook.parsing import TextDelta
from rollhook.protocols import Message

TEXT = frozenset({"text", "input_text", "output_text", "refusal"})
ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
UNSERVED = {
    "functions": "is the old form; use tools",
    "function_call": "is the old form; use tool_choice",
    "logprobs": "log-probabilities are kept for training and not given out here",
    "audio": "the served model writes text only",
    "web_search_options": "the served model has no web search",
    "logit_bias": "would change what the model samples, and is the run's to decide",
}
ASKED = (
    "model", "temperature", "top_p", "top_k", "min_p", "stop", "seed", "max_tokens", "max_completion_tokens",
    "frequency_penalty", "presence_penalty", "reasoning_effort", "parallel_tool_calls", "tool_choice",
    "metadata", "user", "verbosity", "service_tier", "store",
)  # fmt: skip


class Chat:
    """`POST /v1/chat/completions`."""

    path = "/v1/chat/completions"
    call_prefix = "call_"

    def __init__(self, style: SystemStyle, *, images: bool = False) -> None:
        self._style = style
        self._images = images

    def read(self, body: Fields, session: Session) -> Ask:
        """See `rollhook.adapters.protocol.Wire.read`."""
        for name, why in UNSERVED.items():
            body.refuse(name, why)
        if (body.integer("n", 1) or 1) > 1:
            body.fail("n", "only one answer can be given to a request; send the request again")
        images = Images(served=self._images)
        messages = [_message(message, images) for message in body.objects("messages")]
        if not messages:
            body.fail("messages", "must hold at least one message")
        tools = [read_tool(tool) for tool in body.objects("tools")]
        limits = [body.integer(name, 1) for name in ("max_tokens", "max_completion_tokens")]
        return Ask(
            model=body.required_text("model"),
            messages=self._style.fit(messages),
            tools=tools,
            stream=body.flag("stream"),
            max_new_tokens=min((limit for limit in limits if limit is not None), default=None),
            choice=openai_choice(body, tools),
            constraint=json_constraint(body.object("response_format"), "json_schema"),
            images=images.by_digest,
            asked={name: body.get(name) for name in ASKED if name in body},
        )

    def whole(self, body: Fields, ask: Ask, answer: Answer) -> bytes:
        """See `Wire.whole`."""
        said = answer.said
        message = ChatCompletionMessage.model_validate(
            {
                "role": "assistant",
                "content": said.content if said.content or not said.calls else None,
                "refusal": None,
                **({} if said.reasoning is None else {"reasoning_content": said.reasoning}),
                **({"tool_calls": answer.message["tool_calls"]} if said.calls else {}),
            }
        )
        choice = Choice(index=0, message=message, finish_reason=finish_reason(answer), logprobs=None)
        completion = ChatCompletion(
            id=f"chatcmpl-{answer.id}",
            object="chat.completion",
            created=int(time.time()),
            model=ask.model,
            choices=[choice],
            usage=_usage(answer),
        )
        return to_json(completion).encode()

    def frames(self, body: Fields, ask: Ask) -> Frames:
        """See `Wire.frames`."""
        options = body.object("stream_options")
        return ChatFrames(ask.model, include_usage=options is not None and options.flag("include_usage"))

    def remember(self, body: Fields, ask: Ask, answer: Answer, session: Session) -> None:
        """Nothing: a request holds its whole history."""

    def error(self, error: WireError) -> dict[str, Any]:
        """See `Wire.error`."""
        return error.openai()


class ChatFrames:
    """One streamed completion."""

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self._model = model
        self._include_usage = include_usage
        self._id = ""
        self._created = int(time.time())
        self._text_frames: dict[str, bytes] = {}

    def start(self, turn_id: str, prompt_tokens: int) -> bytes:
        """The chunk that says who speaks."""
        self._id = f"chatcmpl-{turn_id}"
        return self._chunk({"role": "assistant", "content": ""})

    def event(self, event: TurnEvent) -> bytes:
        """One delta."""
        match event:
            case TextDelta(kind=kind, text=text):
                return filled(self._text_frame("content" if kind == "content" else "reasoning_content"), text)
            case CallOpened(index=index, id=call_id, name=name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                return self._chunk({"tool_calls": [call]})
            case ArgumentsDelta(index=index, text=text):
                return self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            case CallClosed():
                return b""

    def ping(self) -> bytes:
        """A comment."""
        return b": ping\n\n"

    def end(self, answer: Answer) -> bytes:
        """The reason, the usage if asked for, and `[DONE]`."""
        last = self._chunk({}, finish_reason(answer))
        if self._include_usage:
            last += sse(to_json(self._completion_chunk([], usage=_usage(answer))))
        return last + sse("[DONE]")

    def error(self, error: WireError) -> bytes:
        """An error object in place of a chunk."""
        return sse(json.dumps(error.openai()))

    def _text_frame(self, name: str) -> bytes:
        if name not in self._text_frames:
            self._text_frames[name] = self._chunk({name: TEXT_SLOT})
        return self._text_frames[name]

    def _chunk(self, delta: dict[str, Any], reason: Any = None) -> bytes:
        choice = ChunkChoice(
            index=0, delta=ChoiceDelta.model_validate(delta), finish_reason=reason, logprobs=None
        )
        return sse(to_json(self._completion_chunk([choice])))

    def _completion_chunk(
        self, choices: Sequence[ChunkChoice], usage: CompletionUsage | None = None
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._id,
            object="chat.completion.chunk",
            created=self._created,
            model=self._model,
            choices=list(choices),
            usage=usage,
        )


def finish_reason(answer: Answer) -> Any:
    """OpenAI's word for how a turn ended."""
    if answer.finish_reason == "length":
        return "length"
    return "tool_calls" if answer.said.calls else "stop"


def read_tool(tool: Fields) -> dict[str, Any]:
    """A function tool in the form that chat templates take."""
    if tool.get("type") != "function":
        tool.fail("type", f"{tool.get('type')!r}: only function tools can be offered here")
    function = tool.object("function")
    if function is None:
        tool.fail("function", "is missing")
    return function_tool(function, function.required_text("name"))


def function_tool(function: Fields, name: str) -> dict[str, Any]:
    """A function's name, description and parameters, and nothing else that a client may change."""
    parameters = function.object("parameters")
    described = {
        "name": name,
        "description": function.text("description") or "",
        "parameters": dict(parameters.value) if parameters else {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": described}


def json_constraint(wanted: Fields | None, schema_at: str) -> dict[str, Any]:
    """The engine's parameter for a response format. schema_at: the field that holds name and schema."""
    if wanted is None or wanted.get("type") == "text":
        return {}
    if wanted.get("type") == "json_object":
        return {"json_schema": '{"type": "object"}'}
    if wanted.get("type") != "json_schema":
        wanted.fail("type", 'must be "text", "json_object" or "json_schema"')
    holder = wanted.object(schema_at) if schema_at else wanted
    schema = holder.object("schema") if holder else None
    if schema is None:
        wanted.fail("schema", "is missing")
    return {"json_schema": json.dumps(schema.value)}


def _message(message: Fields, images: Images) -> Message:
    role = message.text("role")
    if role not in ROLES:
        message.fail("role", f"must be one of {', '.join(sorted(ROLES))}, not {role!r}")
    if role in ("user", "tool"):
        made: Message = {"role": role, "content": content_of(message, "content", TEXT, images)}
    else:
        made = {"role": role, "content": text_of(message, "content", TEXT)}
    if role == "tool":
        made["tool_call_id"] = message.required_text("tool_call_id")
    if role == "assistant":
        for name in ("reasoning_content", "reasoning"):
            if isinstance(message.get(name), str):
                made["reasoning_content"] = message.get(name)
        if calls := [_tool_call(call) for call in message.objects("tool_calls")]:
            made["tool_calls"] = calls
    return made


def _tool_call(call: Fields) -> dict[str, Any]:
    function = call.object("function")
    if function is None:
        call.fail("function", "is missing")
    said = {"name": function.required_text("name"), "arguments": function.text("arguments") or "{}"}
    return {"id": call.required_text("id"), "type": "function", "function": said}


def _usage(answer: Answer) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        total_tokens=answer.prompt_tokens + answer.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=answer.cached_tokens),
    )
