"""Messages to token ids by the model's own chat template, at a cost that grows only with what is new.

Invariant: ids are cut from the template's own writing and only where a sampled turn ended. What follows a
turn comes from one render of a stub conversation (a user, the assistant's turn, everything newer, the
generation prompt) and starts at the end of the assistant's turn: never from a render of the new messages
alone, where default system prompts and role checks get in, nor from the difference of two renders, since a
template may write a turn differently while it is the last.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self

from rollhook.encoding import TextEncoder
from rollhook.errors import ConfigError, RenderError
from rollhook.families import turn_ends
from rollhook.proof import DeltaCheck, History, shape_of
from rollhook.protocols import Message
from rollhook.template import REASONING_FIELDS, ChatTemplate
from rollhook.wellformed import check_messages, check_tools, text_content

Policy = Literal["append", "template"]

THINK_OPENERS = ("<think>", "[THINK]")

STUB_USER = "QzStubUserQz"
STUB_BODY = "QzStubBodyQz"
STUB_CALL_ID = "QzStubId0"  # nine letters and digits, as Mistral wants


@dataclass(frozen=True, slots=True)
class Delta:
    """What is put behind a sampled turn.

    history: what the template does to the messages before, None when unchecked. other_end: the turn ended
    with another token than the template writes there; the sampled one stands.
    """

    ids: list[int]
    history: History | None
    other_end: bool


class Renderer:
    """Renders one model's conversations.

    tokenizer: a Hugging Face fast tokenizer. chat_template: Jinja text, default the tokenizer's own.
    policy: what holds where the template rewrites history: "append" keeps what was sampled and where things
    first stood, "template" forks. now: the clock that templates see, default the time of this call.
    end_of_turn_ids: the generation configuration's EOS ids; the family's own are added.
    images: whether content may hold `{"type": "image"}` parts, for a caller that sends the images along.
    Raises ConfigError without a usable tokenizer or template.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | None = None,
        policy: Policy = "append",
        now: datetime | None = None,
        end_of_turn_ids: Collection[int] = (),
        check: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        images: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.policy = policy
        self.now = now if now is not None else datetime.now().astimezone()
        self._encoder = TextEncoder(tokenizer)
        source = chat_template or _own_template(tokenizer)
        variables = {**tokenizer.special_tokens_map, **(chat_template_kwargs or {})}
        self._template = ChatTemplate(source, variables)

        added = self._encoder.added
        self._ends = turn_ends(source, added, tokenizer.eos_token)
        names = {token_id: token for token, token_id in added.items()}
        given = {names[token_id] for token_id in end_of_turn_ids if token_id in names}
        self.end_of_turn_ids = frozenset({*end_of_turn_ids, *(added[end] for end in self._ends.sampled)})
        self._think_ids = frozenset(added[opener] for opener in THINK_OPENERS if opener in added)
        self._header_ids = frozenset(added[header] for header in self._ends.headers)
        closers = sorted(self._ends.written | given, key=len, reverse=True)
        self.end_strings = frozenset(closers)
        """What the template writes at the end of an assistant's turn."""
        self._closer = re.compile("|".join(map(re.escape, closers)) or "(?!)")
        self._arguments_as_text = self._template_wants_argument_text()
        call = self._call("f", STUB_CALL_ID, "")
        self._check = DeltaCheck(self._render, STUB_BODY, call) if check else None
        self.image_place = self._find_image_place() if images else ""
        """What the template writes in an image's place; "" where it knows no images, or none are allowed."""

    @property
    def neutralised(self) -> frozenset[str]:
        """The control-token strings that stay text inside messages."""
        return self._encoder.neutralised

    def frozen_at(self, now: datetime) -> Self:
        """The same renderer with another clock; nothing is compiled or loaded again."""
        other = copy.copy(self)
        other.now = now
        return other

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The ids of a whole conversation up to where the model answers.

        Equal to `apply_chat_template(..., add_generation_prompt=True)`, except for control-token strings
        inside messages. Raises RenderError when the template cannot express them.
        """
        return self._encoder.encode(self.opening_text(messages, tools))

    def opening_text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The text that `opening` encodes."""
        if not messages:
            raise RenderError("there are no messages to render")
        check_tools(tools)
        shielded: list[Mapping[str, Any]] = [self._shielded(tool) for tool in tools]
        prepared = self._all_prepared(messages)
        text = self._render(prepared, shielded)
        self._check_images(prepared, text)
        for tool in tools:
            name = tool.get("function", tool)["name"]
            if self._encoder.shield(name) not in text:
                raise RenderError(
                    f"the chat template writes no tools: the model would never see {name!r}; "
                    "use a model whose template has tools, or none"
                )
        return text

    def writes_turn(self, text: str, message: Message) -> bool:
        """Whether a rendered text holds all that an assistant's turn said, its reasoning included."""
        parts = [message.get("content"), *(message.get(name) for name in REASONING_FIELDS)]
        said = [part.strip() for part in parts if isinstance(part, str)]
        return all(self._encoder.shield(part) in text for part in said)

    def encode(self, text: str) -> list[int]:
        """The ids of a whole rendered text."""
        return self._encoder.encode(text)

    def continuation(
        self,
        assistant: Message,
        new_messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        ended_by_eot: bool,
        end_id: int | None = None,
    ) -> list[int]:
        """The ids that follow a sampled turn: its close where it has none, the new messages, the next header.

        assistant: the parsed turn, of which only the calls' ids and names matter. tools: not written, since
        tools stay where they first stood. ended_by_eot: the turn's last sampled id ended it; end_id: that id.
        Raises RenderError when the template cannot express the calls or the messages.
        """
        return self.after(assistant, new_messages, ended_by_eot=ended_by_eot, end_id=end_id).ids

    def after(
        self,
        assistant: Message,
        new_messages: Sequence[Message],
        *,
        ended_by_eot: bool,
        end_id: int | None = None,
    ) -> Delta:
        """What `continuation` gives, with what was found out on the way."""
        turn = self._stub_turn(assistant)
        prepared = self._all_prepared(new_messages)
        text = self._render([{"role": "user", "content": STUB_USER}, turn, *prepared])
        body_end = text.find(STUB_BODY)
        if body_end < 0:
            raise RenderError(_inexpressible_turn(assistant))
        tail = text[body_end + len(STUB_BODY) :]
        self._check_images(prepared, tail)
        history = None
        if self._check is not None:
            _check_all_written(prepared, tail)
            shape = shape_of(turn.get("tool_calls", ()), prepared)
            history = self._check.prove(shape, turn, prepared, tail)
        return self._encode_tail(tail, bool(turn.get("tool_calls")), ended_by_eot, end_id, history)

    def image_places(self, ids: Sequence[int]) -> int:
        """How many images a prompt has places for."""
        place = self._encoder.encode(self.image_place)
        return sum(ids[at : at + len(place)] == place for at, first in enumerate(ids) if first == place[0])

    def raw(self, text: str) -> list[int]:
        """The ids of a text that continues the open turn, outside the template; control tokens stay text."""
        return self._encoder.encode_after_text(self._encoder.shield(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a sampled turn, control tokens included, without the id that ended it."""
        return self.text_of(ids[:-1] if ids and ids[-1] in self.end_of_turn_ids else ids)

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of any ids, control tokens included."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def starts_in_reasoning(self, prompt: Sequence[int]) -> bool:
        """Whether the prompt's end has opened a `<think>` that the model will close."""
        tail = list(prompt[-16:])
        if self._think_ids and self._think_ids.isdisjoint(tail):
            return False
        text: str = self.tokenizer.decode(tail)
        return text.rstrip().endswith(THINK_OPENERS)

    def _render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        return self._template.render(messages, tools=tools or None, now=self.now)

    def _encode_tail(
        self, tail: str, has_calls: bool, ended_by_eot: bool, end_id: int | None, history: History | None
    ) -> Delta:
        closer = self._closer.search(tail)
        if closer is None:
            if has_calls:
                raise RenderError(
                    "the chat template closes a turn with a token rollhook does not know; "
                    "pass the generation configuration's EOS ids as end_of_turn_ids"
                )
            return Delta(self._encoder.encode_after_text(tail), history, other_end=ended_by_eot)
        ids = self._encoder.encode(tail[closer.start() :])
        other_end = ended_by_eot and end_id is not None and end_id != ids[0]
        if other_end and closer.group() in self._ends.headers and end_id not in self._header_ids:
            return Delta(ids, history, other_end)  # the turn is closed, but the next message not yet opened
        return Delta(ids[1:] if ended_by_eot else ids, history, other_end)

    def _stub_turn(self, assistant: Message) -> Message:
        """The turn with a body whose end can be found: content, or the last call's arguments."""
        calls = assistant.get("tool_calls") or []
        if not calls:
            return {"role": "assistant", "content": STUB_BODY}
        bodies = [""] * (len(calls) - 1) + [STUB_BODY]
        stubs = [
            self._call(self._shielded(call["function"]["name"]), self._shielded(call["id"]), body)
            for call, body in zip(calls, bodies, strict=True)
        ]
        return {"role": "assistant", "content": "", "tool_calls": stubs}

    def _call(self, name: str, call_id: str, body: str) -> dict[str, Any]:
        arguments: Any = {"x": body}
        if self._arguments_as_text:
            arguments = json.dumps(arguments)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _template_wants_argument_text(self) -> bool:
        """Whether the template joins tool arguments as text (DeepSeek) where others want a mapping."""

        def expressible(arguments: Any) -> bool:
            function = {"name": "f", "arguments": arguments}
            call = {"id": STUB_CALL_ID, "type": "function", "function": function}
            turn = {"role": "assistant", "content": "", "tool_calls": [call]}
            try:
                self._render([{"role": "user", "content": STUB_USER}, turn])
            except RenderError:
                return False
            return True

        return not expressible({"x": "y"}) and expressible('{"x": "y"}')

    def _all_prepared(self, messages: Sequence[Message]) -> list[Message]:
        check_messages(messages)
        try:
            return [self._prepared(message, at) for at, message in enumerate(messages)]
        except RecursionError:
            raise RenderError("a message is nested too deeply to be rendered") from None

    def _prepared(self, message: Message, at: int) -> Message:
        """A message as the template wants it: text content, arguments in the family's form, all shielded.

        Shielding comes last: what JSON escapes spell is read before, so that it cannot slip through.
        """
        prepared = {**message, "content": self._content(message, at)}
        if calls := message.get("tool_calls"):
            prepared["tool_calls"] = [self._prepared_call(call, at) for call in calls]
        shielded: Message = self._shielded(prepared)
        return shielded

    def _content(self, message: Message, at: int) -> str | list[dict[str, Any]]:
        """A content as templates know it: a text, or text and image parts that say no more than that."""
        content = message.get("content")
        if not self.image_place or not isinstance(content, list) or not any(map(_is_image, content)):
            return text_content(message, at)
        return [
            {"type": "image"}
            if _is_image(part)
            else {"type": "text", "text": text_content({**message, "content": [part]}, at)}
            for part in content
        ]

    def _find_image_place(self) -> str:
        parts = [{"type": "text", "text": STUB_USER}, {"type": "image"}, {"type": "text", "text": STUB_BODY}]
        try:
            text = self._render([{"role": "user", "content": parts}])
        except RenderError:
            return ""
        place, body, _ = text.partition(STUB_USER)[2].partition(STUB_BODY)
        return place if body and any(token in place for token in self.neutralised) else ""

    def _check_images(self, prepared: Sequence[Message], text: str) -> None:
        """Raise RenderError unless each image has its place in what the template wrote of these messages."""
        images = sum(len(_images_in(message)) for message in prepared)
        if images and text.count(self.image_place) != images:
            raise RenderError(
                f"the chat template does not write all of {images} images where they stand; "
                "it may know them in other roles only"
            )

    def _prepared_call(self, call: Mapping[str, Any], at: int) -> dict[str, Any]:
        function = call["function"]
        arguments = function.get("arguments")
        if arguments is None:
            arguments = {}
        if self._arguments_as_text and not isinstance(arguments, str):
            try:
                arguments = json.dumps(arguments, ensure_ascii=False)
            except (TypeError, ValueError) as error:
                raise RenderError(
                    f"message {at} has arguments of {function['name']} that JSON cannot hold: {error}"
                ) from None
        elif not self._arguments_as_text and isinstance(arguments, str):
            arguments = _decoded(arguments)
        return {**call, "function": {**function, "arguments": arguments}}

    def _shielded(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._encoder.shield(value)
        if isinstance(value, Mapping):
            return {self._shielded(key): self._shielded(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._shielded(item) for item in value]
        return value


def _check_all_written(messages: Sequence[Message], tail: str) -> None:
    """Raise RenderError for a message that the template drops, or moves to where it cannot be appended."""
    for at, message in enumerate(messages):
        if message.get("role") == "assistant":
            continue
        for text in _texts_in(message):
            content = text.strip()
            if content in tail:
                continue
            if json.dumps(content, ensure_ascii=False)[1:-1] not in tail:  # gpt-oss, Llama: results as JSON
                raise RenderError(
                    f"the chat template does not write new message {at} ({message.get('role')}) "
                    "behind the turn it follows"
                )


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image"


def _images_in(prepared: Message) -> list[Any]:
    content = prepared["content"]
    return [] if isinstance(content, str) else [part for part in content if _is_image(part)]


def _texts_in(prepared: Message) -> list[str]:
    content = prepared["content"]
    return (
        [content] if isinstance(content, str) else [part["text"] for part in content if not _is_image(part)]
    )


def _decoded(arguments: str) -> Any:
    """Arguments given as JSON text; text that is not a JSON object stays as it is."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _inexpressible_turn(assistant: Message) -> str:
    calls = assistant.get("tool_calls") or []
    if len(calls) > 1:
        return f"the chat template does not write all of {len(calls)} tool calls made in one turn"
    if calls:
        return "the chat template does not write tool calls"
    return "the chat template does not write the assistant's turn"


def _own_template(tokenizer: Any) -> str:
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    if not template:
        raise ConfigError("the tokenizer has no chat template; name one with chat_template")
    return str(template)
