"""The verifiers: what the task itself says, and the answer sent to the user.

Invariant: nothing the model writes in its turns is read; only what the episode recorded counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollhook import NoConfig, Rollout, Score, View
from rollhook_browser.episode import SHARED_KEY, Episode


class TaskReward:
    """MiniWoB++'s own reward; 0.0 for an episode that did not come to its end."""

    def __init__(self, config: NoConfig, rollout: Rollout) -> None:
        del config
        self._shared = rollout.shared

    async def score(self, view: View) -> Score:
        info = _facts(self._shared, view)
        recorded = view.environment.reward if view.environment else None
        episode = self._shared.get(SHARED_KEY)
        reward = episode.reward if isinstance(episode, Episode) else recorded
        parts = {key: info[key] for key in ("raw_reward", "timed_reward") if key in info}
        return Score(reward or 0.0, parts)


class AnswerReward:
    """1.0 when the message to the user is the label, apart from case and space; else 0.0.

    A label is a text, a number or a list of them, each right; {"infeasible": true} asks for
    report_infeasible.
    """

    def __init__(self, config: NoConfig, rollout: Rollout) -> None:
        del config
        self._shared = rollout.shared

    async def score(self, view: View) -> Score:
        """Raises ValueError when the row has no label to compare with."""
        info = _facts(self._shared, view)
        message, infeasible = info.get("message"), info.get("infeasible")
        parts = {"answered": float(message is not None), "infeasible": float(infeasible is not None)}
        if isinstance(view.label, Mapping) and view.label.get("infeasible") is True:
            return Score(float(infeasible is not None), parts)
        right = message is not None and _plain(message) in {_plain(one) for one in _answers(view.label)}
        return Score(float(right and infeasible is None), parts)


def _facts(shared: Mapping[str, Any], view: View) -> Mapping[str, Any]:
    """The live episode's, which may be newer than what the environment last said; else the recorded ones."""
    episode = shared.get(SHARED_KEY)
    if isinstance(episode, Episode):
        return episode.info
    return view.environment.info if view.environment else {}


def _answers(label: Any) -> list[Any]:
    if hasattr(label, "tolist"):  # numpy, from Parquet
        label = label.tolist()
    answers = list(label) if isinstance(label, list | tuple) else [label]
    if not answers or any(not isinstance(answer, str | int | float) for answer in answers):
        raise ValueError(f"the label {label!r:.100} is no text, number or list of them to compare with")
    return answers


def _plain(text: Any) -> str:
    return " ".join(str(text).casefold().split())
