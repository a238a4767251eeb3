"""What a protocol module is to the HTTP layer: requests in, bodies and frames out, no I/O of its own.

Invariant: everything a protocol says on the wire is made from the official SDK's own types, so a field that
a client's library would not know cannot be sent by mistake.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from pydantic import BaseModel

from rollhook.adapters.body import Fields
from rollhook.adapters.errors import WireError
from rollhook.adapters.images import IMAGE_PARTS, Content, Images, joined
from rollhook.adapters.reading import TurnEvent
from rollhook.adapters.sessions import Session
from rollhook.adapters.turns import Answer, Ask

TEXT_SLOT = "QzTextSlotQz"
NUMBER_SLOT = 987_654_321_012
_TEXT_IN_JSON = json.dumps(TEXT_SLOT).encode()
_NUMBER_IN_JSON = b"%d" % NUMBER_SLOT


class Frames(Protocol):
    """One streamed answer as server-sent events, in the protocol's own order."""

    def start(self, turn_id: str, prompt_tokens: int) -> bytes:
        """What comes before anything was sampled."""
        ...

    def event(self, event: TurnEvent) -> bytes:
        """What the model just said."""
        ...

    def ping(self) -> bytes:
        """What keeps the connection alive and means nothing."""
        ...

    def end(self, answer: Answer) -> bytes:
        """What comes after the last token."""
        ...

    def error(self, error: WireError) -> bytes:
        """What tells a client in the middle of a stream that it will get no more."""
        ...


class Wire(Protocol):
    """One protocol. path: of its POST. call_prefix: how ids of tool calls begin."""

    path: str
    call_prefix: str

    def read(self, body: Fields, session: Session) -> Ask:
        """What a request asks for. Raises WireError (400) for what cannot be served as asked."""
        ...

    def whole(self, body: Fields, ask: Ask, answer: Answer) -> bytes:
        """The JSON of an answer that is not streamed."""
        ...

    def frames(self, body: Fields, ask: Ask) -> Frames:
        """How to stream one answer."""
        ...

    def remember(self, body: Fields, ask: Ask, answer: Answer, session: Session) -> None:
        """Keep what later requests may refer to; called when the turn is committed."""
        ...

    def error(self, error: WireError) -> dict[str, Any]:
        """The JSON of a refusal."""
        ...


def to_json(model: BaseModel) -> str:
    """A wire object as JSON: the fields that were set, null where null was set."""
    return model.model_dump_json(exclude_unset=True, by_alias=True)


def sse(data: str, event: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {data}\n\n".encode()


def filled(frame: bytes, text: str, number: int | None = None) -> bytes:
    """A frame made with TEXT_SLOT (and NUMBER_SLOT), with what belongs there: cheap enough for each token."""
    if number is not None:
        frame = frame.replace(_NUMBER_IN_JSON, b"%d" % number, 1)
    return frame.replace(_TEXT_IN_JSON, json.dumps(text, ensure_ascii=False).encode(), 1)


def text_of(fields: Fields, name: str, text_types: frozenset[str]) -> str:
    """A content that is a string or a list of text parts. Raises WireError (400) for images and the rest."""
    content = fields.get(name)
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part_text(part, text_types) for part in fields.objects(name))


def content_of(fields: Fields, name: str, text_types: frozenset[str], images: Images) -> Content:
    """As `text_of`, where images may stand too."""
    if not isinstance(fields.get(name), list):
        return text_of(fields, name, text_types)
    return joined([piece_of(part, text_types, images) for part in fields.objects(name)])


def piece_of(part: Fields, text_types: frozenset[str], images: Images) -> str | dict[str, Any]:
    """One content part: its text, or an image. Raises WireError (400) for a part the engine cannot take."""
    return images.part(part) if part.text("type") in IMAGE_PARTS else part_text(part, text_types)


def part_text(part: Fields, text_types: frozenset[str]) -> str:
    """The text of one content part. Raises WireError (400) for any other."""
    kind = part.text("type")
    if kind in text_types:
        return part.text("text") or ""
    return part.fail("type", f"{kind!r} cannot be shown to the model here, only text")
