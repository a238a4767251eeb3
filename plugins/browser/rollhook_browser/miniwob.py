"""MiniWoB++ (arXiv 1802.08802) as a task: its pages, seeds, reward and episode clock.

Invariant: the episode's clock moves only while an action lasts, `action_ms` at a time, never while a model
thinks; so an instance, an episode's time and its reward depend on seed and actions alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from rollhook import Rollout
from rollhook_browser.actions import KINDS, NAVIGATION, Action
from rollhook_browser.config import MiniWobConfig
from rollhook_browser.origins import Origin
from rollhook_browser.pool import World
from rollhook_browser.session import Rules, Session
from rollhook_browser.tasks import Progress

LEFT_REWARD = -1.0


class MiniWob:
    """One episode of one task. The page itself says when it is over and what it was worth.

    seed: decides the instance.
    """

    kinds = {name: kind for name, kind in KINDS.items() if name not in NAVIGATION}

    def __init__(self, config: MiniWobConfig, seed: str) -> None:
        self._config = config
        self.seed = seed
        self._site = ""

    @classmethod
    def of(cls, config: MiniWobConfig, world: World, rollout: Rollout) -> MiniWob:
        """The task with its row's seed, else one that the samples of a group share."""
        if config.seed is not None:
            return cls(config, str(config.seed))
        sample = rollout.sample
        group = sample.index if sample.group_index is None else sample.group_index
        return cls(config, f"{world.seed}/{group}")

    async def rules(self, world: World) -> Rules:
        self._site = await world.pool.site.url()
        origin = Origin.of(self._site)
        assert origin is not None
        return Rules(frozenset({origin}), frozen_clock=True)

    async def start(self, session: Session) -> str:
        """Load the page and start its episode; returns what the page asks for."""
        page = session.page
        await page.add_init_script(f"({_BEFORE})({_js(self.seed)})")
        await page.goto(f"{self._site}/miniwob/{self._config.task}.html")
        limit_s = self._config.episode_s
        limit_ms = None if limit_s is None else limit_s * 1000
        async with asyncio.timeout(self._config.navigation_timeout_s):
            goal: str = await page.evaluate(_START, [self.seed, limit_ms])
            while not await page.evaluate("WOB_TASK_READY"):
                await session.run_clock(self._config.action_ms)
        return goal

    async def after(self, session: Session, action: Action) -> Progress:
        if action.name == "report_infeasible":
            return Progress(done=True, reward=0.0, info={"reason": "reported as infeasible"})
        if action.name != "noop":  # which has moved the clock itself
            await session.run_clock(self._config.action_ms)
        await session.settle()
        async with asyncio.timeout(self._config.navigation_timeout_s):
            state: Mapping[str, Any] | None = await session.page.evaluate(_STATE) if session.tabs else None
        if state is None:
            reason = "the task's page was left"
            return Progress(done=True, reward=LEFT_REWARD, info={"reason": reason})
        if not state["done"]:
            return Progress(reward=0.0)
        raw, timed = float(state["raw"]), float(state["timed"])
        info = {"raw_reward": raw, "timed_reward": timed, "reason": state["reason"]}
        return Progress(done=True, reward=timed if self._config.timed_reward else raw, info=info)


def _js(text: str) -> str:
    """A string of digits and slashes as JavaScript."""
    return f"'{text}'"


# Some pages draw numbers while they load, before they can be seeded. Many targets are bare spans or shapes:
# a pointer cursor, and a role in running text, tell the tree, and so the model, that they listen to clicks.
_BEFORE = """seed => {
  let state = 0;
  for (const c of seed) state = (Math.imul(state, 31) + c.charCodeAt(0)) | 0;
  Math.random = () => {
    state = (state + 0x6D2B79F5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const listen = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (kind, ...rest) {
    const inside = this instanceof Element && this !== document.body;
    if (inside && ['click', 'mousedown', 'mouseup'].includes(kind)) {
      this.style.cursor = 'pointer';
      if (this.tagName === 'SPAN' && !this.hasAttribute('role')) this.setAttribute('role', 'button');
    }
    return listen.call(this, kind, ...rest);
  };
}"""
_START = """([seed, limit]) => {
  Math.seedrandom(seed);
  if (limit !== null) core.EPISODE_MAX_TIME = limit;
  core.startEpisodeReal();
  core.hideDisplay();
  window.rollhookEpisode = true;
  return core.getUtterance();
}"""
_STATE = """() => !window.rollhookEpisode ? null : {
  done: WOB_DONE_GLOBAL, raw: WOB_RAW_REWARD_GLOBAL, timed: WOB_REWARD_GLOBAL,
  reason: WOB_REWARD_REASON == null ? null : String(WOB_REWARD_REASON),
}"""
