"""Opening and ending sessions over HTTP, for those who only want the endpoint (`rollhook serve --adapters`).

Invariant: none of it answers without the admin key, which no session key is.

    POST   /sessions                   {"session_id"?, "sampling"?, "max_context_tokens"?,
                                        "train_constrained"?, "routing_key"?} -> key and URLs
    POST   /sessions/{id}/finish       {"reward"?, "label"?, "metadata"?} -> {"samples": [...]}
    DELETE /sessions/{id}              -> {}
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from aiohttp import web

from rollhook.adapters.adapter import Adapter, OpenAIAdapter
from rollhook.adapters.body import Fields, read_json
from rollhook.adapters.errors import UnknownSession, WireError, bad_request
from rollhook.adapters.http import session_key
from rollhook.config import SAMPLING
from rollhook.errors import RolloutError
from rollhook.sample import Sample

_Handler = Callable[[web.Request, Fields], Awaitable[Any]]


def add_admin_routes(adapter: Adapter, admin_key: str) -> None:
    """Let whoever holds `admin_key` open and end sessions. Call it before the app is served."""
    _Admin(adapter, admin_key).add_to(adapter.app)


class _Admin:
    def __init__(self, adapter: Adapter, key: str) -> None:
        self._adapter = adapter
        self._key = key

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/sessions", self._guarded(self._open))
        app.router.add_post("/sessions/{name}/finish", self._guarded(self._finish))
        app.router.add_delete("/sessions/{name}", self._guarded(self._drop))

    def _guarded(self, handler: _Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
        @wraps(handler)
        async def checked(request: web.Request) -> web.Response:
            given = session_key(request) or ""
            if not hmac.compare_digest(given.encode(), self._key.encode()):
                raise WireError(401, "this needs the admin key", "invalid_api_key")
            raw = await request.read()
            try:
                return web.json_response(await handler(request, read_json(raw) if raw else Fields({})))
            except UnknownSession as error:
                raise WireError(404, str(error), "unknown_session") from error

        return checked

    async def _open(self, request: web.Request, body: Fields) -> dict[str, Any]:
        body.only(("session_id", "sampling", "max_context_tokens", "train_constrained", "routing_key"))
        sampling = body.object("sampling")
        if sampling:
            sampling.only(SAMPLING)
        try:
            session = self._adapter.open_session(
                body.text("session_id"),
                sampling_defaults=sampling.value if sampling else None,
                max_context_tokens=body.integer("max_context_tokens", 0) or 0,
                train_constrained=body.flag("train_constrained"),
                routing_key=body.text("routing_key"),
            )
        except RolloutError as error:
            raise bad_request(str(error), "session_id") from error
        root = self._adapter.base_url.rstrip("/")
        return {
            "session_id": session.session_id,
            "api_key": session.api_key,
            "anthropic_base_url": root,
            "openai_base_url": root + OpenAIAdapter.url_suffix,
        }

    async def _finish(self, request: web.Request, body: Fields) -> dict[str, Any]:
        body.only(("reward", "label", "metadata"))
        reward = body.get("reward")
        if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
            body.fail("reward", "must be a number")
        metadata = body.object("metadata")
        samples = await self._adapter.finish_session(
            request.match_info["name"],
            base_sample=Sample(label=body.get("label"), metadata=dict(metadata.value) if metadata else {}),
            reward=float(reward or 0.0),
        )
        return {"samples": [sample.to_dict() for sample in samples]}

    async def _drop(self, request: web.Request, body: Fields) -> dict[str, Any]:
        await self._adapter.drop_session(request.match_info["name"])
        return {}
