"""OpenAI's Responses: what clients send, as chat messages.

Invariant: the items of one turn become one assistant message again, whoever made their ids; our own ids, in
item ids and in `encrypted_content`, say which turn that was.
"""

from __future__ import annotations

from typing import Any

from rollhook.adapters.body import Fields
from rollhook.adapters.chat import json_constraint
from rollhook.adapters.conversation import SystemStyle
from rollhook.adapters.errors import WireError
from rollhook.adapters.images import Images
from rollhook.adapters.items import input_messages
from rollhook.adapters.protocol import Frames
from rollhook.adapters.responses_out import ResponseFrames, whole_response
from rollhook.adapters.sessions import Session
from rollhook.adapters.tool_choice import openai_choice
from rollhook.adapters.tool_names import ToolNames
from rollhook.adapters.turns import Answer, Ask
from rollhook.protocols import Message

RESPONSE_PREFIX = "resp_"
UNSERVED = {
    "background": "responses are made while the client waits",
    "conversation": "conversations are not kept; use previous_response_id",
    "prompt": "there are no stored prompts; use instructions",
    "top_logprobs": "log-probabilities are kept for training and not given out here",
}
ASKED = (
    "model", "temperature", "top_p", "max_output_tokens", "reasoning", "text", "parallel_tool_calls",
    "tool_choice", "metadata", "user", "store", "include", "truncation", "service_tier", "max_tool_calls",
    "prompt_cache_key", "client_metadata",
)  # fmt: skip


class Responses:
    """`POST /v1/responses`."""

    path = "/v1/responses"
    call_prefix = "call_"

    def __init__(self, style: SystemStyle, *, images: bool = False) -> None:
        self._style = style
        self._images = images

    def read(self, body: Fields, session: Session) -> Ask:
        """See `rollhook.adapters.protocol.Wire.read`."""
        for name, why in UNSERVED.items():
            body.refuse(name, why)
        body.flag("store")  # read again when the answer is there
        names = ToolNames(body)
        images = Images(served=self._images)
        messages = _before(body, session) + input_messages(body, images)
        if not messages:
            body.fail("input", "must hold at least one message")
        if instructions := body.text("instructions"):
            messages.insert(0, {"role": "system", "content": instructions})
        asked = {name: body.get(name) for name in ASKED if name in body}
        text = body.object("text")
        return Ask(
            model=body.text("model") or "rollhook",
            messages=self._style.fit(messages),
            tools=names.tools,
            stream=body.flag("stream"),
            max_new_tokens=body.integer("max_output_tokens", 1),
            choice=openai_choice(body, names.tools),
            constraint=json_constraint(text.object("format") if text else None, ""),
            images=images.by_digest,
            asked={**asked, "dropped_tools": names.dropped} if names.dropped else asked,
        )

    def whole(self, body: Fields, ask: Ask, answer: Answer) -> bytes:
        """See `Wire.whole`."""
        return whole_response(body, ask, answer, ToolNames(body)).encode()

    def frames(self, body: Fields, ask: Ask) -> Frames:
        """See `Wire.frames`."""
        return ResponseFrames(body, ask, ToolNames(body))

    def remember(self, body: Fields, ask: Ask, answer: Answer, session: Session) -> None:
        """What the response added to its history, unless the client keeps that itself."""
        if body.flag("store", True):
            new = [*input_messages(body, Images(served=self._images)), answer.message]
            session.responses[answer.id] = (_previous(body), new)

    def error(self, error: WireError) -> dict[str, Any]:
        """See `Wire.error`."""
        return error.openai()


def _before(body: Fields, session: Session) -> list[Message]:
    """The messages up to `previous_response_id`, without instructions, which do not carry over."""
    runs: list[list[Message]] = []
    at = _previous(body)
    while at is not None:
        if at not in session.responses:
            raise WireError(
                404,
                f"no response {RESPONSE_PREFIX}{at} is stored in this session",
                "previous_response_not_found",
                "previous_response_id",
            )
        at, messages = session.responses[at]
        runs.append(messages)
    return [message for run in reversed(runs) for message in run]


def _previous(body: Fields) -> str | None:
    given = body.text("previous_response_id")
    return given.removeprefix(RESPONSE_PREFIX) if given else None
