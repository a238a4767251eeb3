"""The environment `nim`: two players take sticks in turn; who takes the last one wins. A world for self-play.

Invariant: a game ends with a reward of +1 or -1, seen from player_1's side; a move that the rules do not have
loses.
"""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field

from rollhook import Observation, Rollout, Turn
from rollhook_topologies.self_play import PLAYERS

RULES = (
    "{sticks} sticks lie on the table. In turn each player takes 1 to {most} of them. Who takes the last one "
    "wins. End each answer with the number of sticks you take."
)


class Config(BaseModel):
    """sticks: at the beginning. most: what a move may take."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sticks: int = Field(10, ge=2, le=100)
    most: int = Field(3, ge=1, le=99)


class Nim:
    """One game. A move is the last number that the player says."""

    def __init__(self, config: Config, rollout: Rollout) -> None:
        del rollout
        self.config = config
        self.left = config.sticks

    async def reset(self, rollout: Rollout) -> Observation:
        del rollout
        rules = RULES.format(sticks=self.left, most=self.config.most)
        return Observation(messages=[{"role": "user", "content": rules}])

    async def step(self, turn: Turn) -> Observation:
        numbers = re.findall(r"[0-9]+", turn.content)
        taken = int(numbers[-1][:3]) if numbers else 0
        win = 1.0 if turn.role == PLAYERS[0] else -1.0
        if not 1 <= taken <= min(self.config.most, self.left):
            return Observation(done=True, reward=-win, info={"left": self.left, "illegal": turn.role})
        self.left -= taken
        if self.left == 0:
            return Observation(done=True, reward=win, info={"left": 0})
        text = f"{turn.role} took {taken}, {self.left} left. It is your move."
        return Observation(messages=[{"role": "user", "content": text}], info={"left": self.left})

    async def close(self) -> None:
        pass
