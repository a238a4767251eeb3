"""What a run, and within bounds a row, may set.

Invariant: which program runs, what it may reach and where files go, only the run says. A row chooses a task
and bounded sizes.
"""

from __future__ import annotations

import difflib
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urljoin

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field, field_validator, model_validator

from rollhook import RunOnly
from rollhook_browser.origins import Origin


class BrowserConfig(BaseModel):
    """What every environment of this plugin has.

    chromium: the browser's program; None: the first of chromium, chromium-browser, google-chrome,
        google-chrome-stable on the PATH. Nothing is ever downloaded.
    chromium_sandbox: Chromium's own sandbox; None: on, unless run as root, where it cannot be.
    max_contexts: rollouts that hold a browser context at once; further ones wait for a place.
    viewport_width, viewport_height: in CSS pixels.
    max_observation_tokens: what one observation takes at most, in the model's tokens.
    action_timeout_s: how long an element may take until it can be acted on, and a page to be read.
    navigation_timeout_s: how long a page may take to load.
    screenshots: a folder; each observation is saved there as a PNG file beside the text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    chromium: Path | None = None
    chromium_sandbox: Annotated[bool | None, RunOnly()] = None
    max_contexts: Annotated[int, RunOnly()] = Field(8, ge=1, le=256)
    viewport_width: int = Field(1280, ge=100, le=4000)
    viewport_height: int = Field(720, ge=100, le=4000)
    max_observation_tokens: int = Field(2000, ge=100, le=100_000)
    action_timeout_s: Annotated[float, RunOnly()] = Field(3.0, gt=0, le=60)
    navigation_timeout_s: Annotated[float, RunOnly()] = Field(15.0, gt=0, le=120)
    screenshots: Path | None = None

    @field_validator("chromium")
    @classmethod
    def _is_there(cls, chromium: Path | None) -> Path | None:
        if chromium is not None and not chromium.is_file():
            raise ValueError(f"{chromium}: no such file")
        return chromium


class PagesConfig(BrowserConfig):
    """The environments `browser` and `browser-tools`: pages of the run's own choice.

    start_url: where an episode starts; its origin is always allowed.
    allowed_origins: what else may be reached, as `http://host:port`.
    start_page: the row's own start, relative to start_url and under its origin.
    max_tabs: tabs open at once. settle_ms: real milliseconds a page gets after each action.
    """

    start_url: AnyHttpUrl | None = None
    allowed_origins: tuple[AnyHttpUrl, ...] = ()
    start_page: str = Field("", max_length=2000)
    max_tabs: int = Field(8, ge=1, le=16)
    settle_ms: Annotated[int, RunOnly()] = Field(100, ge=0, le=5000)

    @model_validator(mode="after")
    def _starts_somewhere(self) -> Self:
        if self.start_url is None:
            raise ValueError("set start_url in the run configuration (settings: browser)")
        origin = Origin.of(str(self.start_url))
        if origin is None or Origin.of(self.first_url) != origin:
            raise ValueError(f"start_page {self.start_page!r} leaves {origin}; give a path under start_url")
        return self

    @property
    def first_url(self) -> str:
        """Where the row's episode starts."""
        return urljoin(str(self.start_url), self.start_page)

    @property
    def origins(self) -> frozenset[Origin]:
        """Every origin that a rollout may reach."""
        urls = [str(self.start_url), *map(str, self.allowed_origins)]
        return frozenset(origin for url in urls if (origin := Origin.of(url)) is not None)


class MiniWobConfig(BrowserConfig):
    """The environments `miniwob` and `miniwob-tools`.

    task: a page of MiniWoB++, for example `click-button`.
    seed: which instance; None: one for each prompt (`group_index`, else `index`) and the run's seed.
    action_ms: how long one action lasts on the episode's clock, which stands still otherwise.
    episode_s: how long an episode lasts on that clock; None: as the task says, mostly 10 s.
    timed_reward: the reward that shrinks with the episode's clock, instead of the task's raw one.
    """

    viewport_width: int = Field(640, ge=330, le=4000)
    viewport_height: int = Field(480, ge=220, le=4000)
    task: str = Field(max_length=100)
    seed: int | None = Field(None, ge=0, lt=2**63)
    action_ms: int = Field(250, ge=1, le=10_000)
    episode_s: float | None = Field(None, gt=0, le=3600)
    timed_reward: bool = False

    @field_validator("task")
    @classmethod
    def _is_a_task(cls, task: str) -> str:
        folder = miniwob_folder() / "miniwob"
        if re.fullmatch(r"[a-z0-9-]+", task) is None or not (folder / f"{task}.html").is_file():
            near = difflib.get_close_matches(task, [page.stem for page in folder.glob("*.html")], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"MiniWoB++ has no task {task!r}{hint}")
        return task


def miniwob_folder() -> Path:
    """Where the package `miniwob` keeps its pages; it is not imported. Raises ValueError without it."""
    found = find_spec("miniwob")
    if found is None or not found.submodule_search_locations:
        raise ValueError("MiniWoB++ is not installed; try: pip install 'rollhook-browser[miniwob]'")
    return Path(found.submodule_search_locations[0]) / "html"
