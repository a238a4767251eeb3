"""`serve`: an adapter on a thread and event loop of its own, one server for many sessions.

Invariant: what is started is stopped. When `close` returns no thread, socket or engine request is left, and
what went wrong while starting is raised by `serve` itself.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from aiohttp import web

from rollhook.adapters.adapter import Adapter
from rollhook.errors import ConfigError

START_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 30.0
DRAIN_S = 2.0


class AdapterServer:
    """A running server; a context manager. url: where it listens; the adapter's `base_url` if it had none."""

    def __init__(self, adapter: Adapter, host: str, port: int) -> None:
        self.adapter = adapter
        self.url = ""
        self._host = host
        self._port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rollhook adapter", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise ConfigError(f"the adapter did not start in {START_TIMEOUT_S:g} s")
        if self._error is not None:
            self._thread.join()
            raise ConfigError(f"the adapter cannot listen on {host}:{port}: {self._error}") from self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving: requests under way are aborted, open sessions dropped. Blocks; may be repeated."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # it stopped by itself meanwhile
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runner = adapter_runner(self.adapter)
        try:
            await runner.setup()
            await web.TCPSite(runner, self._host, self._port).start()
            self.url = url_of(runner)
            self.adapter.base_url = self.adapter.base_url or self.url
        except Exception as error:  # noqa: BLE001  raised again by the thread that waits for this one
            self._error = error
        else:
            self._ready.set()
            await self._stop.wait()
        finally:
            await runner.cleanup()
            self._ready.set()


def serve(adapter: Adapter, *, host: str = "127.0.0.1", port: int = 0) -> AdapterServer:
    """Serve an adapter from a thread of its own. port: 0 takes a free one.

    `open_session` may then be called from any thread, `finish_session` and `drop_session` be awaited on any
    event loop. Close the server, or use it as a context manager. Raises ConfigError when it cannot listen.
    """
    return AdapterServer(adapter, host, port)


def adapter_runner(adapter: Adapter) -> web.AppRunner:
    """A runner of the app in which a handler ends with its client."""
    return web.AppRunner(adapter.app, access_log=None, handler_cancellation=True, shutdown_timeout=DRAIN_S)


def url_of(runner: web.AppRunner) -> str:
    """Where a started runner listens."""
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve_forever(adapter: Adapter, *, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve an adapter on the running event loop until cancelled. ready: called once with the URL.

    Raises ConfigError when it cannot listen.
    """
    runner = adapter_runner(adapter)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        adapter.base_url = adapter.base_url or url_of(runner)
        gc.freeze()  # what was loaded stays: looking through it for garbage is a fifth of the work
        ready(adapter.base_url)
        await asyncio.Event().wait()
    except OSError as error:
        raise ConfigError(f"the adapters cannot listen on {host}:{port}: {error}") from error
    finally:
        await runner.cleanup()
