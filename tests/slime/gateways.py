"""A real gateway before scripted workers, and workers that can die."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import pytest

from rollhook.testing import ScriptedEngine
from rollhook.testing.replies import Script, ScriptedRequest
from tests.unit.engines import unused_port

needs_gateway = pytest.mark.skipif(
    find_spec("smg") is None and not os.environ.get("CI"),  # in CI a missing gateway is a failure
    reason="needs the SGLang Model Gateway: pip install 'smg>=1.13,<2'",
)

PROBE = "rollhook-probe"
"""What the keys of the requests begin with that a runtime sends to a gateway at its start."""


@asynccontextmanager
async def gateway(
    workers: Iterable[str], *, policy: str = "consistent_hashing", prefill: Iterable[str] = ()
) -> AsyncIterator[str]:
    """The URL of an SGLang Model Gateway before `workers`, when it serves all of them.

    prefill: with these, `workers` only decode.
    """
    decode, first = list(workers), list(prefill)
    port = unused_port()
    url = f"http://127.0.0.1:{port}"
    options = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(unused_port())]
    options += ["--policy", policy, "--log-level", "error"]
    if first:
        options += ["--pd-disaggregation"]
        options += [word for each in first for word in ("--prefill", each, str(unused_port()))]
        options += [word for each in decode for word in ("--decode", each)]
    else:
        options += ["--worker-urls", *decode]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "smg", "launch", *options, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await all_ready(url, len(decode) + len(first))
        yield url
    finally:
        process.kill()
        await process.wait()


async def all_ready(url: str, workers: int) -> None:
    """Return when the gateway at `url` has so many healthy workers."""
    async with aiohttp.ClientSession() as http, asyncio.timeout(30):
        while True:
            with suppress(aiohttp.ClientConnectionError):
                async with http.get(f"{url}/readiness") as response:
                    if (await response.json()).get("healthy_workers") == workers:
                        return
            await asyncio.sleep(0.05)


class MortalWorker:
    """A way to one engine that can be cut for good, as when its host goes down. Use it with `async with`."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.die()

    def die(self) -> None:
        """Cut every connection and refuse new ones."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = urlsplit(self.engine.url)
        inner_reader, inner_writer = await asyncio.open_connection(address.hostname, address.port)
        self._writers |= {writer, inner_writer}
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def engines(tokenizer: Any, script: Script, count: int) -> AsyncIterator[list[ScriptedEngine]]:
    """Scripted engines that all play `script`."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ScriptedEngine(tokenizer, script)) for _ in range(count)]


def asked(engine: ScriptedEngine) -> list[ScriptedRequest]:
    """What an engine was asked by rollouts, in order."""
    return [request for request in engine.requests if not request.session.startswith(PROBE)]


def homes(workers: Sequence[ScriptedEngine]) -> dict[str, set[int]]:
    """The places of the workers that each session's requests came to."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for place, worker in enumerate(workers):
        for request in asked(worker):
            found[request.session].add(place)
    return dict(found)
