"""One episode: actions in, what the model reads out, and what it was worth.

Invariant: actions come one after another, also when a turn makes several at once, and none is taken once the
episode is over. Text and tools are two ways to the same `act`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from rollhook import Rollout
from rollhook_browser.actions import Action, ActionError
from rollhook_browser.budget import Budget
from rollhook_browser.config import MiniWobConfig, PagesConfig
from rollhook_browser.miniwob import MiniWob
from rollhook_browser.perform import perform
from rollhook_browser.pool import World
from rollhook_browser.session import Session
from rollhook_browser.tabs import StaleElement
from rollhook_browser.tasks import Pages, Task

SHARED_KEY = "browser"
OVER = "The episode is over; no further action is taken."


class Episode:
    """What one rollout does in its browser.

    reward: the task's for the whole episode so far, None where it gives none. message: the last one sent to
    the user. infeasible: the reason given, None while none was.
    """

    def __init__(self, world: World, rollout: Rollout) -> None:
        self.task: Task = _task_of(world, rollout)
        self.done = False
        self.reward: float | None = None
        self.message: str | None = None
        self.infeasible: str | None = None
        self._world = world
        self._budget = Budget(world.config.max_observation_tokens, rollout.count_tokens)
        self._session: Session | None = None
        self._lock = asyncio.Lock()
        self._counts = Counter(actions=0, errors=0, stale=0)
        self._info: dict[str, Any] = {}
        folder = world.config.screenshots
        self._shots = None if folder is None else folder / f"{rollout.sample.index}-{uuid.uuid4().hex[:8]}"
        self._shot = 0

    async def start(self) -> tuple[str, str]:
        """Open the browser; returns the goal and the first observation."""
        config = self._world.config
        self._session = Session(self._world.pool, config, await self.task.rules(self._world))
        await self._session.open()
        goal = await self.task.start(self._session)
        if isinstance(self.task, MiniWob):
            self.reward = 0.0
        return goal, await self._observe(self._session)

    async def act(self, action: Action) -> str:
        """Take the action; returns what the model reads next, which for a fault says what was wrong."""
        async with self._lock:
            if self.done:
                return OVER
            self._counts["actions"] += 1
            try:
                return await self._take(self.session, action)
            except ActionError as error:
                self.count_error(error)
                return f"Error: {error}\n\n{await self._observe(self.session)}"

    def count_error(self, error: ActionError) -> None:
        """An action that was not taken, for the record."""
        self._counts["errors"] += 1
        self._counts["stale"] += isinstance(error, StaleElement)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> Session:
        """Its browser session. Raises RuntimeError before `start`."""
        if self._session is None:
            raise RuntimeError("the episode has not started")
        return self._session

    @property
    def info(self) -> dict[str, Any]:
        """The episode's facts, as JSON data."""
        said = {"message": self.message, "infeasible": self.infeasible}
        blocked = 0 if self._session is None else self._session.blocked
        return {**self._counts, "blocked": blocked, **said, **self._info}

    async def _take(self, session: Session, action: Action) -> str:
        match action.name:
            case "send_msg_to_user":
                self.message = action.arguments["text"]
            case "report_infeasible":
                self.infeasible = action.arguments["reason"]
            case _:
                await perform(session, action)
        with session.faults(action.name):
            progress = await self.task.after(session, action)
        self.done, self.reward = progress.done, progress.reward
        self._info.update(progress.info)
        return OVER if self.done else await self._observe(session)

    async def _observe(self, session: Session) -> str:
        seen = await session.observe(self._budget)
        if session.tabs:
            self._info["url"] = session.page.url
        if self._shots is not None:
            await self._save_screenshot(session, self._shots)
        return seen

    async def _save_screenshot(self, session: Session, folder: Path) -> None:
        with session.faults("screenshot"):
            image = await session.page.screenshot()
        path = folder / f"{self._shot:03}.png"
        self._shot += 1
        await asyncio.to_thread(_write, path, image)
        self._info["screenshots"] = str(folder)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _task_of(world: World, rollout: Rollout) -> Task:
    match world.config:
        case MiniWobConfig() as config:
            return MiniWob.of(config, world, rollout)
        case PagesConfig() as config:
            return Pages(config)
    raise TypeError(f"no task goes with a {type(world.config).__name__}")
