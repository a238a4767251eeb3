"""The HTTP side of an adapter: keys, limits, errors in the protocol's own form, streaming, disconnects.

Invariant: every answer to a path of a protocol is in that protocol's form, also a refusal; a handler ends
with its client; and nothing of the engine but sampling can be reached from here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from aiohttp import web

from rollhook.adapters.body import Fields, read_json
from rollhook.adapters.errors import WireError, bad_request
from rollhook.adapters.protocol import Frames, Wire
from rollhook.adapters.reading import TurnEvent, merged
from rollhook.adapters.sessions import Session
from rollhook.adapters.turns import Answer, LiveTurn

ALIVE_POLL_S = 0.5
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger("rollhook.adapters")


def session_key(request: web.Request) -> str | None:
    """The key a client sent, by `x-api-key` or as a Bearer token."""
    if key := request.headers.get("x-api-key"):
        return key
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


async def body_of(request: web.Request) -> Fields:
    """The JSON object of a request. Raises WireError: 413 when it is too large, 400 when it is none."""
    try:
        return read_json(await request.read())
    except web.HTTPRequestEntityTooLarge as error:
        raise WireError(413, f"the body is too large: {error.text}", "request_too_large") from None
    except (web.HTTPException, ValueError) as error:  # a body in a broken encoding
        raise bad_request(f"the body cannot be read: {error}") from error


async def answer_turn(
    request: web.Request, wire: Wire, body: Fields, turn: LiveTurn, *, ping_s: float
) -> web.StreamResponse:
    """Sample a turn and send it, streamed or not. The turn is committed if the client is there to get it."""
    if turn.ask.stream:
        return await _Stream(request, wire, body, turn, ping_s).run()
    answer = await _whole(request, turn)
    _commit(request, wire, body, turn, answer)
    return web.Response(body=wire.whole(body, turn.ask, answer), content_type="application/json")


async def _whole(request: web.Request, turn: LiveTurn) -> Answer:
    task = turn.session.start(turn.sample())
    try:
        while not task.done():
            await asyncio.wait([task], timeout=ALIVE_POLL_S)
            _check_client(request)
        return _result(task, turn.session)
    finally:
        await _ended(task)


class _Stream:
    """One streamed answer. Nothing is sent before the first token, so that a refusal keeps its status."""

    def __init__(self, request: web.Request, wire: Wire, body: Fields, turn: LiveTurn, ping_s: float) -> None:
        self._request = request
        self._wire = wire
        self._body = body
        self._turn = turn
        self._ping_s = ping_s
        self._frames: Frames = wire.frames(body, turn.ask)
        self._response: web.StreamResponse | None = None
        self._events: asyncio.Queue[TurnEvent | None] = asyncio.Queue()

    async def run(self) -> web.StreamResponse:
        """Send everything. Raises WireError while nothing was sent; later errors become an event."""
        task = self._turn.session.start(self._turn.sample(self._events.put_nowait))
        task.add_done_callback(lambda _: self._events.put_nowait(None))
        try:
            await self._send_events()
            answer = _result(task, self._turn.session)
            response = await self._started()
            _commit(self._request, self._wire, self._body, self._turn, answer)
            await response.write(self._frames.end(answer))
        except ConnectionResetError:
            raise
        except Exception as error:
            if self._response is None:
                raise
            response = self._response
            await response.write(self._frames.error(_as_wire_error(error, self._request)))
        finally:
            await _ended(task)
        await response.write_eof()
        return response

    async def _send_events(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._ping_s):
                    events = [await self._events.get()]
            except TimeoutError:
                await (await self._started()).write(self._frames.ping())
                continue
            while not self._events.empty():
                events.append(self._events.get_nowait())
            said = merged([event for event in events if event is not None])
            if said:
                response = await self._started()
                await response.write(b"".join(map(self._frames.event, said)))
            if events[-1] is None:
                return

    async def _started(self) -> web.StreamResponse:
        if self._response is None:
            response = web.StreamResponse(
                headers={
                    "Content-Type": "text/event-stream; charset=utf-8",
                    "Cache-Control": "no-cache",
                    "X-Accel-Buffering": "no",
                }
            )
            await response.prepare(self._request)
            self._response = response
            await response.write(self._frames.start(self._turn.id, self._turn.prompt.length))
        return self._response


def _commit(request: web.Request, wire: Wire, body: Fields, turn: LiveTurn, answer: Answer) -> None:
    _check_client(request)
    turn.commit()
    wire.remember(body, turn.ask, answer, turn.session)


def _check_client(request: web.Request) -> None:
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the client went away")


def _result(task: asyncio.Task[Answer], session: Session) -> Answer:
    if task.cancelled():
        raise WireError(404, f"session {session.id!r} was closed while it sampled", "unknown_session")
    return task.result()


async def _ended(task: asyncio.Task[Answer]) -> None:
    """Leave no sampling behind: cancelling it aborts the engine's request."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    elif not task.cancelled():
        task.exception()  # it was seen, or the client that it was for went away


def guard(allowed_hosts: Iterable[str], form: Callable[[web.Request], Wire | None]) -> Any:
    """The middleware that checks the Host header and gives every error its protocol's form."""
    allowed = LOOPBACK_NAMES | {host.lower() for host in allowed_hosts}

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check_host(request, allowed)
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            missing = error.status == 404
            text = f"no {request.method} {request.path} here" if missing else error.reason
            return _refusal(WireError(error.status, text), form(request))
        except ConnectionResetError:
            raise  # the client went away: nobody is left to answer
        except Exception as error:  # noqa: BLE001  the last line: a client gets an error it can read
            return _refusal(_as_wire_error(error, request), form(request))

    return middleware


def _as_wire_error(error: Exception, request: web.Request) -> WireError:
    """The error itself, or what a client is told of a fault that nobody foresaw."""
    if isinstance(error, WireError):
        return error
    _log.error("%s %s failed", request.method, request.path, exc_info=error)
    return WireError(500, f"the adapter failed: {type(error).__name__}", "internal_error")


def _refusal(error: WireError, wire: Wire | None) -> web.Response:
    body: Mapping[str, Any] = wire.error(error) if wire else error.openai()
    return web.Response(
        text=json.dumps(body), status=error.status, headers=error.headers, content_type="application/json"
    )


def _check_host(request: web.Request, allowed: frozenset[str]) -> None:
    """On loopback, admit only its own names: a web page must not reach it through a name of its choice."""
    if not _on_loopback(request):
        return
    host = request.headers.get("Host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() not in allowed:
        raise WireError(403, f"the Host header {host[:100]!r} is not this adapter's", "wrong_host")


def _on_loopback(request: web.Request) -> bool:
    address = request.transport.get_extra_info("sockname") if request.transport else None
    if not isinstance(address, tuple) or not address:
        return False
    return _is_loopback(address[0])


@lru_cache(maxsize=64)
def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
