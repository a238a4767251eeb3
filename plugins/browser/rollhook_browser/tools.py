"""The actions as tools: each acts in the episode of its rollout's environment.

Invariant: a tool has no state; what it does to the page is what the same action as text does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rollhook import Rollout, ToolResult
from rollhook_browser.actions import KINDS, ActionError, ActionKind, make_action
from rollhook_browser.episode import SHARED_KEY, Episode


class BrowserTool:
    """One action as a tool."""

    def __init__(self, kind: ActionKind, rollout: Rollout) -> None:
        self.name = kind.name
        self.description = kind.description
        self.parameters: Mapping[str, Any] = kind.schema
        self._rollout = rollout

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Act, and answer with the page. Raises RuntimeError where the row names no environment of ours."""
        episode: Episode | None = self._rollout.shared.get(SHARED_KEY)
        if episode is None:
            raise RuntimeError(
                f"{self.name} needs a browser to act in; name an environment of rollhook-browser beside it, "
                "for example browser-tools"
            )
        try:
            action = make_action(self.name, arguments, episode.task.kinds)
        except ActionError as error:
            episode.count_error(error)
            return ToolResult(f"Error: {error}", is_error=True)
        said = await episode.act(action)
        return ToolResult(said, is_error=said.startswith("Error: "), done=episode.done)


def maker(name: str) -> Callable[[Any, Rollout], BrowserTool]:
    """What makes the tool of one action for a rollout."""
    return partial(_make, KINDS[name])


def _make(kind: ActionKind, config: Any, rollout: Rollout) -> BrowserTool:
    del config
    return BrowserTool(kind, rollout)
