"""One real Chromium for a run, and a browser context for each rollout.

Invariant: at most one browser lives in a pool. It starts when it is first needed, a new one after the last
has died, and `close` ends it with its driver, however a start was interrupted. Nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollhook_browser.config import BrowserConfig, miniwob_folder
from rollhook_browser.site import Site

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

    from rollhook import Run

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_NOWHERE = "http://127.0.0.1:9"  # the discard port: what no context asked for goes there
_SWITCHES = (
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a browser starts. sandbox: Chromium's own."""

    program: Path
    sandbox: bool
    max_contexts: int

    @classmethod
    def of(cls, config: BrowserConfig) -> Launch:
        """Raises RuntimeError where no Chromium is installed."""
        program = config.chromium or next((Path(p) for p in map(shutil.which, _PROGRAMS) if p), None)
        if program is None:
            raise RuntimeError(
                "no Chromium is installed; try: apt-get install --no-install-recommends chromium, or set "
                "chromium to its program in the run configuration (settings: browser)"
            )
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        sandbox = not root if config.chromium_sandbox is None else config.chromium_sandbox
        return cls(program, sandbox, config.max_contexts)


class Pool:
    """The browser of a run. places: how many contexts may be open at once.

    temporary: a folder for the browser's own files, some of which it leaves there.
    """

    def __init__(self, launch: Launch, temporary: str) -> None:
        self.places = asyncio.Semaphore(launch.max_contexts)
        self.site = Site(miniwob_folder)
        self._launch = launch
        self._temporary = temporary
        self._driver: Playwright | None = None
        self._starting: asyncio.Task[Browser] | None = None

    async def context(self, **options: Any) -> BrowserContext:
        """A new context of the living browser. `options`: as of Playwright's new_context.

        Permissions are denied, downloads refused and service workers blocked.
        """
        browser = await self.browser()
        return await browser.new_context(
            accept_downloads=False, service_workers="block", permissions=[], **options
        )

    async def browser(self) -> Browser:
        """The living browser. Raises RuntimeError when none can be started."""
        if self._starting is None or _is_over(self._starting):
            self._starting = asyncio.create_task(self._start(), name="rollhook browser start")
        return await asyncio.shield(self._starting)

    async def close(self) -> None:
        """End the browser, its driver and the site; a start under way is awaited first."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
            if self._starting.exception() is None:
                await self._starting.result().close()
        await self._stop_driver()
        await self.site.close()

    async def _start(self) -> Browser:
        from playwright.async_api import Error, async_playwright

        for fresh in (self._driver is None, True):
            try:
                if self._driver is None:
                    self._driver = await async_playwright().start()
                return await self._driver.chromium.launch(
                    executable_path=self._launch.program,
                    chromium_sandbox=self._launch.sandbox,
                    proxy={"server": _NOWHERE},
                    args=list(_SWITCHES),
                    env={**os.environ, "TMPDIR": self._temporary},
                )
            except (Error, OSError) as error:
                await self._stop_driver()  # it may be what is broken: the second time with a new one
                if fresh:
                    why = str(error).partition("\n")[0]
                    raise RuntimeError(f"{self._launch.program} did not start: {why}") from error
        raise AssertionError("unreachable: the second attempt returns or raises")

    async def _stop_driver(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.stop()


def _is_over(starting: asyncio.Task[Browser]) -> bool:
    if not starting.done():
        return False
    return starting.cancelled() or starting.exception() is not None or not starting.result().is_connected()


@dataclass(frozen=True, slots=True)
class World:
    """What the rollouts of one configuration share. seed: the run's."""

    config: BrowserConfig
    pool: Pool
    seed: int


@asynccontextmanager
async def open_world(config: BrowserConfig, run: Run) -> AsyncIterator[World]:
    """An environment's `open`. Configurations of a run, one for each task of its rows, share one browser."""
    launch = Launch.of(config)
    pool = await run.share("browser/chromium", lambda: open_pool(launch), key=launch)
    yield World(config, pool, run.seed)


@asynccontextmanager
async def open_pool(launch: Launch) -> AsyncIterator[Pool]:
    """A pool whose browser runs: a run without a browser says so at its first rollout."""
    with tempfile.TemporaryDirectory(prefix="rollhook-", ignore_cleanup_errors=True) as temporary:
        pool = Pool(launch, temporary)
        try:
            await pool.browser()
            yield pool
        finally:
            await pool.close()
