"""Errors as a client of an adapter sees them: a status, a sentence, and whether trying again can help.

Invariant: an official SDK raises its own exception class for each of them, and retries none that must fail
again: `x-should-retry` says so, which the openai and anthropic SDKs obey.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rollhook.errors import EngineRejected, RenderError, RollhookError, RolloutError

CONTEXT_OVERFLOW = "context_length_exceeded"
"""The code by which OpenAI's clients know that a prompt is too long."""

_ANTHROPIC_TYPES: Mapping[int, str] = MappingProxyType(
    {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
    }
)

_ENGINE_OVERFLOW = ("context length", "maximum allowed length", "longer than the model", "max_req_input_len")


class UnknownSession(RolloutError):
    """No session of this name is open: it was never opened, or it was finished, dropped or idle too long."""

    stage = "adapter"


@dataclass(slots=True)
class WireError(Exception):
    """What a request is refused with. code, param: for OpenAI's clients. retry: the same may succeed soon."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry: bool = False

    def __str__(self) -> str:
        return self.message

    @property
    def headers(self) -> dict[str, str]:
        """What keeps an SDK from retrying in vain, or asks it to."""
        return {"x-should-retry": "true" if self.retry else "false"}

    def anthropic(self) -> dict[str, Any]:
        """The body in Anthropic's form."""
        kind = _ANTHROPIC_TYPES.get(self.status) or (
            "invalid_request_error" if self.status < 500 else "api_error"
        )
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def openai(self) -> dict[str, Any]:
        """The body in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None) -> WireError:
    """400: this request can never succeed."""
    return WireError(400, message, "invalid_request", param)


def too_long(prompt_tokens: int, limit: int) -> WireError:
    """400 in the words by which Claude Code, and the code by which Codex, knows to compact its history."""
    message = f"prompt is too long: {prompt_tokens} tokens > {limit} maximum"
    return WireError(400, message, CONTEXT_OVERFLOW, "messages")


def as_wire_error(error: RollhookError) -> WireError:
    """What a fault of the engine or of rendering is to the client."""
    message = str(error)
    if isinstance(error, EngineRejected):
        if any(words in message.lower() for words in _ENGINE_OVERFLOW):
            return WireError(400, f"prompt is too long: {message}", CONTEXT_OVERFLOW, "messages")
        return bad_request(f"the engine refused the request: {message}")
    if isinstance(error, RenderError):
        return bad_request(message, "messages")
    # the engine's client has tried again for as long as that made sense
    return WireError(503, f"the engine gave no usable answer: {message}", "engine_unavailable")
