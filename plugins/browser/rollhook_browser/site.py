"""A folder of pages, served on loopback while a run needs them.

Invariant: it listens on loopback alone and serves files of its folder alone; started at most once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from aiohttp import web


class Site:
    """Pages over HTTP. folder: says where they are, when they are first wanted."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._lock = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._url = ""

    async def url(self) -> str:
        """Where the folder is served, without a slash at the end."""
        async with self._lock:
            if self._runner is None:
                app = web.Application()
                app.router.add_static("/", self._folder())
                self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
                await self._runner.setup()
                await web.TCPSite(self._runner, "127.0.0.1", 0).start()
                self._url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
            return self._url

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
