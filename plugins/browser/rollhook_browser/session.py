"""One rollout's browser: its context, tabs, and the only network it may use.

Invariant: `close` ends the context and its gate, also when opening was interrupted. A fault of the page is an
ActionError for the model; the end of the browser is BrowserEnded, which fails the rollout.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollhook_browser.actions import ActionError
from rollhook_browser.budget import Budget
from rollhook_browser.config import BrowserConfig
from rollhook_browser.gate import Gate
from rollhook_browser.origins import Origin, elsewhere
from rollhook_browser.pool import Pool
from rollhook_browser.tabs import Ids, Tab
from rollhook_browser.tree import whole

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, Download, Page, Request, Route, WebSocket

CLOSE_TIMEOUT_S = 10.0
MAX_NOTES = 8
_LOAD_LOOK_S = 0.25
_MAX_SHOWN_CHARS = 200


class BrowserEnded(RuntimeError):
    """The browser died, or the page's process did."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for one session. allowed: the origins it may reach. frozen_clock: pages' time stands still
    unless `run_clock` moves it."""

    allowed: frozenset[Origin]
    max_tabs: int = 1
    settle_ms: int = 0
    frozen_clock: bool = False


class Session:
    """Tabs of one browser context. active: the tab that is looked at and acted on.

    blocked: how many requests were refused.
    """

    def __init__(self, pool: Pool, config: BrowserConfig, rules: Rules) -> None:
        self.config = config
        self.rules = rules
        self.tabs: list[Tab] = []
        self.active = 0
        self.blocked = 0
        self._elsewhere = elsewhere(rules.allowed)
        self._pool = pool
        self._ids = Ids()
        self._notes: list[str] = []
        self._stack = AsyncExitStack()
        self._opening: asyncio.Task[None] | None = None
        self._ended = False
        self._context: BrowserContext | None = None

    async def open(self) -> None:
        """Make the context and its first, empty tab. Waits while every place is taken.

        Raises RuntimeError when no browser can be started.
        """
        await self._pool.places.acquire()
        self._stack.callback(self._pool.places.release)
        # a task of its own: what a cancelled opening has made must still be closed
        self._opening = asyncio.create_task(self._open(), name="rollhook browser context")
        await asyncio.shield(self._opening)

    async def close(self) -> None:
        """End the context. May be called again, and while `open` is under way."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
            self._opening.exception()  # whoever awaited the opening was told
        await self._stack.aclose()

    @property
    def tab(self) -> Tab:
        """The active tab. Raises ActionError when the page has closed it, and every other."""
        if not self.tabs:
            self.check_alive(None)
            raise ActionError("no page is open any more")
        return self.tabs[self.active]

    @property
    def page(self) -> Page:
        """The active tab's page."""
        return self.tab.page

    async def new_tab(self) -> None:
        """Open an empty tab and make it the active one. Raises ActionError when no more may be opened."""
        assert self._context is not None
        if len(self.tabs) >= self.rules.max_tabs:
            raise ActionError(f"{self.rules.max_tabs} tabs are open, and no more may be; close one first")
        await self._context.new_page()

    async def run_clock(self, milliseconds: float) -> None:
        """Let frozen pages live for that long."""
        assert self._context is not None
        await self._context.clock.run_for(int(milliseconds))

    async def observe(self, budget: Budget) -> str:
        """What happened since the last observation, the tabs, and the active page's tree, within `budget`.

        The tree gets what the others leave, which is at least half.
        """
        await self._close_extra_tabs()
        if not self.tabs:
            with self.faults("the page"):
                await self.new_tab()
        notes, self._notes = self._notes, []
        parts = [whole("\n".join(notes)), whole(self._head(await self._title()))]
        told = "".join(f"{budget.part(0.24).cut(part)}\n" for part in parts if part)
        try:
            with self.faults("the page"):
                tree = (await self.tab.read(budget.without(told), self.config.action_timeout_s)).text
        except ActionError:
            tree = "(the page does not answer)"
        return told + (tree or "(the page shows nothing)")

    @contextmanager
    def faults(self, what: str) -> Iterator[None]:
        """Turn Playwright's errors into ActionError, or into BrowserEnded when nothing is left to act on."""
        from playwright.async_api import Error

        try:
            yield
        except Error as error:
            self.check_alive(error)
            raise ActionError(f"{what}: {_sentence(error)}") from error

    def check_alive(self, error: Exception | None) -> None:
        """Raise BrowserEnded, from `error`, if the browser or the active page's process has ended."""
        browser = self._context.browser if self._context is not None else None
        if self._ended or browser is None or not browser.is_connected():
            raise BrowserEnded("the browser ended in the middle of the rollout") from error
        if self.tabs and self.tab.crashed:
            raise BrowserEnded("the page's process ended in the middle of the rollout") from error

    def note(self, text: str) -> None:
        """Something the next observation says."""
        text = _cut(text)
        if text not in self._notes and len(self._notes) < MAX_NOTES:
            self._notes.append(text)

    async def settle(self) -> None:
        """Give the active page its time after an action, and wait for what it loads."""
        from playwright.async_api import Error

        await asyncio.sleep(self.rules.settle_ms / 1000)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.config.navigation_timeout_s
        # a load that failed never ends, so it is looked at again and again
        while self.tabs and loop.time() < deadline and not self.page.url.startswith("chrome-error:"):
            with suppress(Error):
                await self.page.wait_for_load_state("load", timeout=_LOAD_LOOK_S * 1000)
                return

    async def _open(self) -> None:
        gate = await self._stack.enter_async_context(Gate(self.rules.allowed))
        size = {"width": self.config.viewport_width, "height": self.config.viewport_height}
        proxy = {"server": gate.url, "bypass": "<-loopback>"}
        made = self._pool.context(viewport=size, proxy=proxy)
        context = await self._stack.enter_async_context(_closing(await made))
        self._context = context
        context.set_default_timeout(self.config.action_timeout_s * 1000)
        context.set_default_navigation_timeout(self.config.navigation_timeout_s * 1000)
        if self.rules.frozen_clock:
            await context.clock.install(time=0)
            await context.clock.pause_at(1)
        await context.route(self._elsewhere, self._abort)
        context.on("request", self._requested)
        context.on("close", self._end)
        context.on("page", self._opened)
        context.on("dialog", self._dialog)
        await context.new_page()

    async def _abort(self, route: Route) -> None:
        from playwright.async_api import Error

        with suppress(Error):  # the page is gone, and its request with it
            await route.abort("blockedbyclient")

    def _end(self, _: BrowserContext) -> None:
        self._ended = True

    def _requested(self, request: Request | WebSocket) -> None:
        """Tell of what is refused, by the route or, behind a redirect and for a WebSocket, by the gate."""
        if self._elsewhere.match(re.sub("^ws", "http", request.url)):
            self.blocked += 1
            self.note(f"Blocked: {request.url!r} is not allowed here.")

    def _opened(self, page: Page) -> None:
        self.tabs.append(Tab(page, self._ids))
        self.active = len(self.tabs) - 1
        page.on("close", self._closed)
        page.on("download", self._download)
        page.on("websocket", self._requested)

    def _closed(self, page: Page) -> None:
        at = next((place for place, tab in enumerate(self.tabs) if tab.page == page), None)
        if at is not None:
            del self.tabs[at]
            self.active = max(0, self.active - 1) if at <= self.active else self.active

    def _download(self, download: Download) -> None:
        self.note(f"Refused: the download of {download.url!r}.")

    async def _dialog(self, dialog: Dialog) -> None:
        from playwright.async_api import Error

        with suppress(Error):  # the page is gone, and its dialog with it
            if dialog.type == "beforeunload":
                await dialog.accept()
                return
            self.note(f"The page said ({dialog.type}, dismissed): {dialog.message!r}")
            await dialog.dismiss()

    async def _close_extra_tabs(self) -> None:
        while len(self.tabs) > self.rules.max_tabs:
            extra = self.tabs[-1]
            self.note(f"Closed: a tab that the page opened; {self.rules.max_tabs} may be open.")
            with self.faults("the page"):
                await extra.page.close()
            if extra in self.tabs:
                self._closed(extra.page)

    def _head(self, title: str) -> str:
        """What is open. title: the active page's."""
        if len(self.tabs) == 1:
            return f"Page: {title}{_cut(self.page.url)}"
        return "\n".join(
            f"Tab {place} (this one): {title}{_cut(tab.page.url)}"
            if place == self.active
            else f"Tab {place}: {_cut(tab.page.url)}"
            for place, tab in enumerate(self.tabs)
        )

    async def _title(self) -> str:
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(self.config.action_timeout_s):
                title = " ".join((await self.page.title()).split())
        except (Error, TimeoutError):  # it is loading or hanging; reading its tree will tell
            return ""
        return f"{title[:80]!r} " if title else ""


@asynccontextmanager
async def _closing(context: BrowserContext) -> AsyncIterator[BrowserContext]:
    from playwright.async_api import Error

    try:
        yield context
    finally:
        with suppress(Error, TimeoutError):  # of a browser that has ended
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await context.close()


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"


def _sentence(error: Exception) -> str:
    """What Playwright says, without its method's name and without the log."""
    said = whole(str(error).strip())
    first = re.sub(r"^(?:Locator|Page|Keyboard|Mouse|Frame)\.\w+: ", "", said.partition("\n")[0])
    hints = [line.strip(" -") for line in said.splitlines() if _HINT.search(line)]
    return f"{first} ({hints[-1]})" if hints else first


_HINT = re.compile(r"intercepts pointer events|is not (?:visible|enabled|stable|editable)|did not find")
