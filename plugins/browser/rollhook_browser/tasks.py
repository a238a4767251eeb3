"""What a task is to an episode, and the plain one: pages, and an answer to the user.

Invariant: a task decides where an episode starts, what may be done, and when it is over with which reward; it
never reads what the model wrote beyond the action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollhook_browser.actions import KINDS, Action, ActionError, ActionKind
from rollhook_browser.config import PagesConfig
from rollhook_browser.pool import World
from rollhook_browser.session import Rules, Session


@dataclass(frozen=True, slots=True)
class Progress:
    """How an episode stands after an action. reward: for the whole episode so far, None without one."""

    done: bool = False
    reward: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """kinds: the actions that may be taken, by name."""

    @property
    def kinds(self) -> Mapping[str, ActionKind]: ...

    async def rules(self, world: World) -> Rules:
        """What holds for the session."""
        ...

    async def start(self, session: Session) -> str:
        """Bring the session to where the episode starts; returns the goal, empty where the prompt has it."""
        ...

    async def after(self, session: Session, action: Action) -> Progress:
        """Let the action take its effect, and say how the episode stands."""
        ...


class Pages:
    """Pages of the run's choice. A message to the user is the answer, and ends the episode."""

    kinds = KINDS

    def __init__(self, config: PagesConfig) -> None:
        self._config = config

    async def rules(self, world: World) -> Rules:
        del world
        config = self._config
        return Rules(config.origins, max_tabs=config.max_tabs, settle_ms=config.settle_ms)

    async def start(self, session: Session) -> str:
        """Raises RuntimeError when the first page cannot be loaded."""
        url = self._config.first_url
        try:
            with session.faults("goto"):
                await session.page.goto(url)
        except ActionError as error:
            raise RuntimeError(f"the first page, {url}, did not load: {error}") from error
        await session.settle()
        return ""

    async def after(self, session: Session, action: Action) -> Progress:
        if action.name in ("send_msg_to_user", "report_infeasible"):
            return Progress(done=True)
        await session.settle()
        return Progress()
