"""The environment `search-r1`: the model thinks, searches and answers in one open turn.

Invariant: what the environment writes continues the turn and is masked; the model's own tokens are never
touched. After `max_turns` searches or invalid actions the model speaks once more; then the episode is over.
"""

from __future__ import annotations

from collections import Counter

from rollhook import Message, Observation, Rollout, Turn
from rollhook_search_r1.config import SearchConfig
from rollhook_search_r1.lookup import RETRIEVED, Lookup, Shown
from rollhook_search_r1.protocol import CORRECTION, correction, information, instruct, read_action


class SearchR1:
    """One question's world. Several agents of one rollout may act in it: their turns are counted apart."""

    def __init__(self, lookup: Lookup[SearchConfig], rollout: Rollout) -> None:
        self._count = rollout.count_tokens
        self.config = lookup.config
        self._lookup = lookup
        self._turns: Counter[str] = Counter()
        self._counts = Counter(searches=0, invalid_actions=0, outages=0)

    async def reset(self, rollout: Rollout) -> Observation:
        """The row's messages, the protocol explained around the last user message: the question."""
        if self.config.prompt_has_instruction:
            return Observation()
        return Observation(messages=_instructed([dict(message) for message in rollout.messages]))

    async def step(self, turn: Turn) -> Observation:
        self._turns[turn.role] += 1
        action = read_action(turn.text)
        if (action and action.kind == "answer") or self._turns[turn.role] > self.config.max_turns:
            del self._turns[turn.role]
            return Observation(done=True, info=dict(self._counts))
        if action is None:
            return self._correct(turn)
        shown = await self._look_up(action.content)
        kind = None if shown.is_outage else RETRIEVED
        return Observation(text=information(shown.text), info=dict(self._counts), kind=kind)

    async def close(self) -> None:
        pass

    async def _look_up(self, query: str) -> Shown:
        self._counts["searches"] += 1
        shown = await self._lookup.find(query, self._count)
        self._counts["outages"] += shown.is_outage
        return shown

    def _correct(self, turn: Turn) -> Observation:
        self._counts["invalid_actions"] += 1
        info = dict(self._counts)
        if turn.matched is None:  # the model closed its turn: raw text would follow an end-of-turn token
            return Observation(messages=[{"role": "user", "content": CORRECTION}], info=info)
        return Observation(text=correction(), info=info)


def _instructed(messages: list[Message]) -> list[Message]:
    for message in reversed(messages):
        if message["role"] == "user":
            message["content"] = instruct(_text(message["content"]))
            return messages
    raise ValueError("the prompt has no user message to take the question from")


def _text(content: object) -> str:
    """A message's text, also where its content is a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    raise ValueError(f"the last user message's content is {type(content).__name__}, not text")
