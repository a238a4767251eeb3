"""What each action does to a session.

Invariant: an action touches only the element of an id that is good now, in the active tab; whatever goes
wrong is an ActionError for the model, except the end of the browser.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from rollhook_browser.actions import Action, ActionError
from rollhook_browser.origins import Origin
from rollhook_browser.session import Session

if TYPE_CHECKING:
    from playwright.async_api import Locator

MAX_WAIT_MS = 10_000
_MAX_KEYS = 50


async def perform(session: Session, action: Action) -> None:
    """Do it. Raises ActionError when it could not be done, BrowserEnded when nothing can be done any more."""
    timeout_s = session.config.navigation_timeout_s + 2 * session.config.action_timeout_s
    try:
        with session.faults(action.name):
            async with asyncio.timeout(timeout_s):
                await _DOERS[action.name](session, action.arguments)
    except TimeoutError as error:
        session.check_alive(error)
        raise ActionError(f"{action.name}: the page did not answer within {timeout_s:g} s") from error


async def _element(session: Session, arguments: Mapping[str, Any]) -> Locator:
    return await session.tab.element(arguments["bid"], session.config.action_timeout_s)


async def _click(session: Session, arguments: Mapping[str, Any]) -> None:
    await (await _element(session, arguments)).click(button=arguments["button"])


async def _hover(session: Session, arguments: Mapping[str, Any]) -> None:
    await (await _element(session, arguments)).hover()


async def _fill(session: Session, arguments: Mapping[str, Any]) -> None:
    await (await _element(session, arguments)).fill(arguments["value"])


async def _press(session: Session, arguments: Mapping[str, Any]) -> None:
    if len(arguments["key_comb"]) > _MAX_KEYS:
        raise ActionError("press: key_comb is one key or a combination, such as Control+a; use fill for text")
    await (await _element(session, arguments)).press(arguments["key_comb"])


async def _select_option(session: Session, arguments: Mapping[str, Any]) -> None:
    await (await _element(session, arguments)).select_option(arguments["options"])


async def _scroll(session: Session, arguments: Mapping[str, Any]) -> None:
    await session.page.mouse.wheel(arguments["delta_x"], arguments["delta_y"])


async def _noop(session: Session, arguments: Mapping[str, Any]) -> None:
    wait_ms = max(0, min(MAX_WAIT_MS, arguments["wait_ms"]))
    if session.rules.frozen_clock:
        await session.run_clock(wait_ms)
    else:
        await asyncio.sleep(wait_ms / 1000)


async def _goto(session: Session, arguments: Mapping[str, Any]) -> None:
    url = urljoin(session.page.url, arguments["url"].strip())
    if Origin.of(url) not in session.rules.allowed:
        known = ", ".join(sorted(map(str, session.rules.allowed)))
        raise ActionError(f"goto: {url[:200]!r} is not allowed here; allowed is what is under {known}")
    await session.page.goto(url)


async def _go_back(session: Session, arguments: Mapping[str, Any]) -> None:
    del arguments
    before = session.page.url
    if await session.page.go_back() is None and session.page.url == before:
        raise ActionError("go_back: there is no page before this one")


async def _go_forward(session: Session, arguments: Mapping[str, Any]) -> None:
    del arguments
    before = session.page.url
    if await session.page.go_forward() is None and session.page.url == before:
        raise ActionError("go_forward: there is no page after this one")


async def _new_tab(session: Session, arguments: Mapping[str, Any]) -> None:
    del arguments
    await session.new_tab()


async def _tab_focus(session: Session, arguments: Mapping[str, Any]) -> None:
    index = arguments["index"]
    if not 0 <= index < len(session.tabs):
        raise ActionError(f"tab_focus: there is no tab {index}; the tabs are 0 to {len(session.tabs) - 1}")
    session.active = index
    await session.page.bring_to_front()


async def _tab_close(session: Session, arguments: Mapping[str, Any]) -> None:
    del arguments
    if len(session.tabs) == 1:
        raise ActionError("tab_close: this is the only tab, and it stays open")
    await session.page.close()


_DOERS: Mapping[str, Callable[[Session, Mapping[str, Any]], Awaitable[None]]] = {
    "click": _click,
    "hover": _hover,
    "fill": _fill,
    "press": _press,
    "select_option": _select_option,
    "scroll": _scroll,
    "noop": _noop,
    "goto": _goto,
    "go_back": _go_back,
    "go_forward": _go_forward,
    "new_tab": _new_tab,
    "tab_focus": _tab_focus,
    "tab_close": _tab_close,
}
