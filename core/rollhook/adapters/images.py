"""The images of a request: taken out of the messages, kept by digest, and sent to the engine beside the ids.

Invariant: no byte of an image enters a prompt or a key; a message holds its digest. Nothing is fetched: an
image is in the request itself, or the request is refused.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from rollhook.adapters.body import Fields
from rollhook.protocols import Message

IMAGE_PARTS = frozenset({"image", "image_url", "input_image"})
"""What the protocols call an image part."""
MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_DATA_URL = re.compile(r"data:(?P<type>[a-zA-Z0-9.+/-]+);base64,(?P<data>.*)", re.DOTALL)

Content = str | list[dict[str, Any]]


class Images:
    """Collects one request's images. served: whether model and engine can be shown any."""

    def __init__(self, *, served: bool) -> None:
        self.by_digest: dict[str, str] = {}
        """Data URLs."""
        self._served = served

    def part(self, part: Fields) -> dict[str, Any]:
        """An image part of any of the three protocols, as it stands in a message. Raises WireError (400)."""
        if not self._served:
            part.fail("type", f"{part.get('type')!r}: the served model takes text only")
        url = _source_url(part)
        match = _DATA_URL.fullmatch(url)
        if match is None:
            part.fail(
                "type",
                "send the image itself, as base64: no URL is fetched here, and no files are held",
            )
        if match["type"].lower() not in MEDIA_TYPES:
            part.fail("type", f"{match['type'][:50]!r} is none of {', '.join(MEDIA_TYPES)}")
        try:
            data = base64.b64decode(match["data"], validate=True)
        except (binascii.Error, ValueError):
            part.fail("type", "the image is not valid base64")
        if not data:
            part.fail("type", "the image is empty")
        digest = blake2b(data, digest_size=16).hexdigest()
        self.by_digest[digest] = f"data:{match['type'].lower()};base64,{match['data']}"
        return {"type": "image", "image": digest}


def joined(pieces: Sequence[str | dict[str, Any]], separator: str = "") -> Content:
    """Texts and image parts as one content: a text where there is no image.

    An image is given its place, `at`, in characters of text: it makes two messages differ.
    """
    parts: list[dict[str, Any]] = []
    length = 0
    for piece in pieces:
        if isinstance(piece, dict):
            parts.append({**piece, "at": length})
            continue
        if parts and parts[-1]["type"] == "text":
            piece = separator + piece  # noqa: PLW2901  what is added is longer by the separator
            parts[-1]["text"] += piece
        else:
            parts.append({"type": "text", "text": piece})
        length += len(piece)
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return [part for part in parts if part != {"type": "text", "text": ""}]


def with_text_before(text: str, content: Content) -> Content:
    """`content` with a text of its own before it."""
    if isinstance(content, str):
        return text + content
    return joined([text, *(part["text"] if part["type"] == "text" else part for part in content)])


def digests_in(messages: Sequence[Message]) -> Iterator[str]:
    """The digests of a conversation's images, in order, each as often as it stands there."""
    for message in messages:
        if isinstance(message["content"], list):
            yield from (part["image"] for part in message["content"] if part["type"] == "image")


def _source_url(part: Fields) -> str:
    """The URL of an image part: Anthropic's `source`, chat's `image_url`, Responses' `image_url` or file."""
    if "source" in part:
        source = part.object("source")
        assert source is not None
        if source.get("type") == "base64":
            return f"data:{source.required_text('media_type')};base64,{source.required_text('data')}"
        return source.text("url") or ""
    given = part.get("image_url")
    holder: Mapping[str, Any] = given if isinstance(given, dict) else {"url": given}
    return Fields(holder, part.path("image_url")).text("url") or ""
