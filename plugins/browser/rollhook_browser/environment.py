"""The environments: an episode in a browser, acted in by text or by tools.

Invariant: the first observation already has the page; every later one answers exactly one turn. What the
rewards of the steps sum up to is the task's own reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from rollhook import Message, Observation, Rollout, Turn
from rollhook_browser.actions import ActionError, ActionKind, read_action
from rollhook_browser.episode import OVER, SHARED_KEY, Episode
from rollhook_browser.pool import World

Form = Literal["text", "tools"]


class BrowserEnvironment:
    """One rollout's browser. form: how the model acts."""

    def __init__(self, world: World, rollout: Rollout, *, form: Form) -> None:
        self._form = form
        self._episode = rollout.shared[SHARED_KEY] = Episode(world, rollout)
        self._given = 0.0

    async def reset(self, rollout: Rollout) -> Observation:
        """The row's messages; the last user message goes on with how to act, the goal and the page."""
        goal, page = await self._episode.start()
        parts = [instruction(self._episode.task.kinds, self._form), f"Goal: {goal}" if goal else "", page]
        opening = _continued([dict(message) for message in rollout.messages], [p for p in parts if p])
        return Observation(messages=opening, reward=self._earned(), info=self._episode.info)

    async def step(self, turn: Turn) -> Observation:
        said = await self._answer(turn)
        return Observation(
            messages=[] if self._episode.done else [{"role": "user", "content": said}],
            done=self._episode.done,
            reward=self._earned(),
            info=self._episode.info,
        )

    async def close(self) -> None:
        await self._episode.close()

    async def _answer(self, turn: Turn) -> str:
        if self._episode.done:
            return OVER  # a tool ended it
        if self._form == "tools":
            return "Error: no tool was called; act by calling one of the tools"
        try:
            action = read_action(turn.content, self._episode.task.kinds)
        except ActionError as error:
            self._episode.count_error(error)
            return f"Error: {error}"
        return await self._episode.act(action)

    def _earned(self) -> float | None:
        """What the task gave since it was last asked; None where it gives nothing."""
        if self._episode.reward is None:
            return None
        earned, self._given = self._episode.reward - self._given, self._episode.reward
        return earned


def instruction(kinds: Mapping[str, ActionKind], form: Form) -> str:
    """How to act, for the model."""
    if form == "tools":
        return _TOOLS
    lines = [f"- {kind.signature}: {kind.description}" for kind in kinds.values()]
    return _TEXT.format(actions="\n".join(lines))


def _continued(messages: list[Message], parts: list[str]) -> list[Message]:
    """The messages, with `parts` as further paragraphs of the last user message."""
    added = "\n\n".join(parts)
    for message in reversed(messages):
        if message["role"] == "user":
            content = message["content"]
            if isinstance(content, list):
                message["content"] = [*content, {"type": "text", "text": added}]
            else:
                message["content"] = f"{content}\n\n{added}" if content else added
            return messages
    return [*messages, {"role": "user", "content": added}]


_SEEN = """\
The page is shown as its accessibility tree. The number in brackets before an element is its id; ids are \
good for the last observation only."""

_TEXT = f"""\
You act in a web browser. {_SEEN} In each turn think briefly, then give exactly one action in a fenced block:

```
click("12")
```

The actions:
{{actions}}"""

_TOOLS = f"You act in a web browser by calling tools, one call a turn. {_SEEN}"
