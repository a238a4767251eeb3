"""The gate: the only way from one rollout's pages to a network.

Invariant: a connection leaves only to the host and port of an allowed origin. The gate is the HTTP proxy of a
browser context, so it sees what interception of requests does not: each hop of a redirect, WebSockets, what
workers fetch. One connection carries one request, so that no second one rides past the check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from rollhook_browser.origins import Origin

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0
_CHUNK_BYTES = 64 * 1024
_HOP_HEADERS = (b"connection:", b"keep-alive:", b"proxy-")


class Gate:
    """A proxy on loopback for `allowed` origins. Use as `async with`; leaving ends every connection."""

    def __init__(self, allowed: frozenset[Origin]) -> None:
        self.url = ""
        self._allowed = allowed
        self._server: asyncio.Server | None = None
        self._live: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._live:
            task.cancel()
        if self._live:
            await asyncio.wait(self._live)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._live.add(task)
        try:
            await self._answer(reader, writer)
        except* (OSError, ValueError, EOFError, asyncio.LimitOverrunError):
            pass  # a connection that ended or spoke nonsense; the browser reports it as a network error
        finally:
            self._live.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        line, _, headers = head.partition(b"\r\n")
        method, target, _ = line.decode("latin-1").split(" ")
        origin = self._origin(method, target)
        if origin is None:
            writer.write(_REFUSAL)
            await writer.drain()
            return
        up_reader, up_writer = await asyncio.open_connection(origin.host, origin.port)
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await _until_one_ends(_pump(reader, up_writer), _pump(up_reader, writer))
            else:
                path = target[target.index("/", target.index("//") + 2) :] if target.count("/") > 2 else "/"
                up_writer.write(f"{method} {path} HTTP/1.1\r\n".encode("latin-1") + _one_hop(headers))
                await _until_one_ends(_pump(reader, up_writer), _answer_of(up_reader, writer))
        finally:
            up_writer.close()

    def _origin(self, method: str, target: str) -> Origin | None:
        """The allowed origin that a request is for; None for any other."""
        if method == "CONNECT":  # of https and of WebSockets, whatever their scheme
            asked = Origin.of(f"https://{target}")
            return next(
                (one for one in self._allowed if asked and (one.host, one.port) == (asked.host, asked.port)),
                None,
            )
        origin = Origin.of(target)
        return origin if origin in self._allowed else None


def _one_hop(headers: bytes) -> bytes:
    """Headers for the next hop, which is told to end the connection after its answer."""
    kept = [line for line in headers.split(b"\r\n") if not line.lower().startswith(_HOP_HEADERS)]
    return b"Connection: close\r\n" + b"\r\n".join(kept)


async def _answer_of(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carry one answer, telling the browser that the connection ends with it."""
    head = await source.readuntil(b"\r\n\r\n")
    line, _, headers = head.partition(b"\r\n")
    sink.write(line + b"\r\n" + _one_hop(headers))
    await _pump(source, sink)


async def _until_one_ends(up: Coroutine[Any, Any, None], down: Coroutine[Any, Any, None]) -> None:
    """Carry both ways until one side is done; a browser ends its side only when it leaves."""
    async with asyncio.TaskGroup() as group:
        ways = [group.create_task(up), group.create_task(down)]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(_CHUNK_BYTES):
            sink.write(data)
            await sink.drain()


_REFUSAL_BODY = b"Blocked: this origin is not allowed."
_REFUSAL = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_REFUSAL_BODY), _REFUSAL_BODY)
)
