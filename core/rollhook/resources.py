"""What a run shares: each thing opened once, by a task of its own, and closed at the run's end.

Invariant: a resource is entered and left inside one task, so that context managers bound to a task (browsers,
cancel scopes) work; an event loop that ends by cancelling its tasks, as `asyncio.run` does, so closes them
too. What was ready later is closed first: nothing outlives what it was made with. An opening that failed is
told to everybody who waits for it, and is not kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from rollhook.errors import ResourceError

CLOSE_GRACE_S = 10.0

_T = TypeVar("_T")
_log = logging.getLogger("rollhook.resources")


class Resources:
    """The resources of one run, by key. close_grace_s: how long each may take to close."""

    def __init__(self, *, close_grace_s: float = CLOSE_GRACE_S) -> None:
        self._close_grace_s = close_grace_s
        self._known: dict[Hashable, _Resource] = {}  # those that are ready in the order in which they were

    def __bool__(self) -> bool:
        """Whether anything is open, or opens."""
        return bool(self._known)

    async def get(
        self, key: Hashable, name: str, opener: Callable[[], AbstractAsyncContextManager[_T]]
    ) -> _T:
        """What `opener`'s context manager gives, entered by the first who asks for `key`.

        name: what it is, for people. Raises what entering raises, ResourceError where it is cancelled.
        """
        resource = self._known.get(key)
        if resource is None:
            resource = self._known[key] = _Resource(name)
            resource.task = asyncio.create_task(
                self._own(key, resource, opener),
                name=f"rollhook open {name}",
                context=Context(),  # of no rollout, so that an abort of the first who asks ends only that one
            )
            resource.task.add_done_callback(partial(self._ended, key, resource))
        opened: _T = await asyncio.shield(resource.ready)
        return opened

    async def close(self) -> None:
        """Leave every context manager, the last one that was ready first; what still opens is cancelled."""
        opening = [resource for resource in self._known.values() if not resource.ready.done()]
        for resource in opening:
            resource.task.cancel()
        await self._wait_for(opening)
        while self._known:
            key, resource = next(reversed(self._known.items()))
            resource.closing.set()
            await self._wait_for([resource])
            self._known.pop(key, None)

    async def _wait_for(self, resources: Sequence[_Resource]) -> None:
        """Wait until these are closed; give up those that take too long."""
        if resources:
            await asyncio.wait([resource.task for resource in resources], timeout=self._close_grace_s)
        for resource in resources:
            if not resource.task.done():
                resource.task.cancel()
                _log.error("%s was given up: it did not close in %g s", resource.name, self._close_grace_s)

    async def _own(
        self, key: Hashable, resource: _Resource, opener: Callable[[], AbstractAsyncContextManager[Any]]
    ) -> None:
        try:
            async with opener() as opened:
                self._known[key] = self._known.pop(key)
                resource.ready.set_result(opened)
                await resource.closing.wait()
        except Exception as error:
            if not resource.ready.done():
                raise
            _log.warning("closing %s failed: %s: %s", resource.name, type(error).__name__, error)

    def _ended(self, key: Hashable, resource: _Resource, task: asyncio.Task[None]) -> None:
        """Forget it, and tell whoever waits that nothing was opened; also where the task never began."""
        if self._known.get(key) is resource:
            del self._known[key]
        if resource.ready.done():
            return
        message = f"{resource.name}: opening it was cancelled"
        cancelled = ResourceError(message, plugin=resource.name, cause_type="CancelledError")
        error = cancelled if task.cancelled() else task.exception()
        resource.ready.set_exception(error or cancelled)
        resource.ready.exception()  # seen: whoever asked may have been cancelled meanwhile


@dataclass(slots=True, eq=False)
class _Resource:
    """One opened thing. ready: gets what was opened, or why it could not be. task: holds it open."""

    name: str
    ready: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] = field(init=False)
