"""Clients, questions and servers shared by the tests of the engine client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from rollhook.engine import Completion, SGLangClient

PROMPT = [1, 9690, 198, 2683]
SAMPLING = {"max_new_tokens": 64, "temperature": 1.0}
TEXT = "The sum is 42, ça va? 日本 😀"

STREAMED = [pytest.param(False, id="plain"), pytest.param(True, id="streamed")]


def client_of(url: str, **options: Any) -> SGLangClient:
    return SGLangClient(url, **{"backoff_s": 0.01, "request_timeout_s": 20.0} | options)


async def ask(
    client: SGLangClient, *, streamed: bool = False, session: str = "s", **options: Any
) -> Completion:
    on_delta = (lambda delta: None) if streamed else None
    return await client.generate(PROMPT, SAMPLING, session=session, on_delta=on_delta, **options)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def app_server(routes: list[web.RouteDef]) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def wire_server(answer: Callable[[], web.Response | Awaitable[web.Response]]) -> AsyncIterator[str]:
    """A server that knows /generate only and answers it with `answer()`."""

    async def generate(request: web.Request) -> web.Response:
        await request.read()
        made = answer()
        return made if isinstance(made, web.Response) else await made

    async with app_server([web.post("/generate", generate)]) as url:
        yield url


@asynccontextmanager
async def raw_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
