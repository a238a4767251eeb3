"""Tabs and the ids of what they show.

Invariant: an id is given to one element of one document, never again to another, and is good only while the
last observation shows it. Before an element is acted on, the page is read once more: it must still hold the
same element, of the same role and name, or the id is stale.

Playwright names elements by refs that keep to an element while its role and name stay; a new document begins
anew with the same refs, so a ref counts only together with the documents it was read in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from rollhook_browser.actions import ActionError
from rollhook_browser.budget import Budget
from rollhook_browser.tree import Node, Rendered, read_tree, render

if TYPE_CHECKING:
    from playwright.async_api import Frame, Locator, Page

_READS = 3


class StaleElement(ActionError):
    """The id named an element that is no longer there, or no longer what it was."""


class Ids:
    """The ids of one rollout, over all its tabs. last: the newest, 0 before the first."""

    def __init__(self) -> None:
        self.last = 0

    def new(self) -> int:
        self.last += 1
        return self.last


class _Documents(NamedTuple):
    """Counts of what a tab has loaded: into the tab, and into frames of its page."""

    main: int
    inner: int

    def of(self, ref: str) -> _Documents:
        """Those that matter for a ref: an element outside frames does not change with them."""
        return self if ref.startswith("f") else _Documents(self.main, 0)


class Tab:
    """One page."""

    def __init__(self, page: Page, ids: Ids) -> None:
        self.page = page
        self.crashed = False
        self._ids = ids
        self._documents = _Documents(0, 0)
        self._known: dict[tuple[_Documents, str], int] = {}
        self._shown: dict[str, tuple[_Documents, str]] = {}
        page.on("framenavigated", self._navigated)
        page.on("crash", self._crash)

    async def read(self, budget: Budget, timeout_s: float) -> Rendered:
        """What the page shows now; from here on only its ids are good.

        Raises Playwright's TimeoutError when the page does not answer.
        """
        self._shown.clear()
        documents, nodes = await self._tree(timeout_s)

        def number(ref: str) -> int:
            key = documents.of(ref), ref
            if key not in self._known:
                self._known[key] = self._ids.new()
            return self._known[key]

        size = self.page.viewport_size or {"width": 0, "height": 0}
        rendered = render(nodes, number, budget=budget, viewport_height=size["height"])
        self._shown = {str(number(ref)): (documents.of(ref), ref) for ref in rendered.shown}
        return rendered

    async def element(self, bid: str, timeout_s: float) -> Locator:
        """The element of an id in the last observation.

        Raises ActionError for an id that was never shown, StaleElement for one that is not good any more.
        """
        if bid not in self._shown:
            if 0 < int(bid) <= self._ids.last:
                raise StaleElement(f"element [{bid}] is stale: it is not in the last observation")
            raise ActionError(f"there is no element [{bid}]; take a number of the last observation")
        shown, ref = self._shown[bid]
        documents, nodes = await self._tree(timeout_s)
        if documents.of(ref) != shown or all(node.ref != ref for node in _all(nodes)):
            raise StaleElement(f"element [{bid}] is stale: the page has changed since it was shown")
        return self.page.locator(f"aria-ref={ref}")

    async def _tree(self, timeout_s: float) -> tuple[_Documents, list[Node]]:
        """The page's tree, and the documents that it is sure to be of."""
        for _ in range(_READS):
            before = self._documents
            snapshot = await self.page.aria_snapshot(mode="ai", boxes=True, timeout=timeout_s * 1000)
            if before == self._documents:
                return before, await asyncio.to_thread(read_tree, snapshot)  # a large one takes a while
        return self._documents, []  # it never stops loading: nothing can be acted on

    def _navigated(self, frame: Frame) -> None:
        main, inner = self._documents
        if frame == self.page.main_frame:
            self._documents = _Documents(main + 1, inner)
            self._known.clear()
        else:
            self._documents = _Documents(main, inner + 1)

    def _crash(self, _: Page) -> None:
        self.crashed = True


def _all(nodes: Iterable[Node]) -> Iterator[Node]:
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children
