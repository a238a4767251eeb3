"""`self-play`: two players in turn in the row's environment; what one wins the other loses.

Invariant: the two rewards sum to zero. The environment sees the moves strictly in turn and tells the players
apart by `Turn.role`; what it shows after a move, the other player is told before its own.

After Liu et al., "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn
Reinforcement Learning" (arXiv 2506.24119).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Literal

from pydantic import Field

from rollhook import Agent, LimitReached, Message, Observation, Outcome, RolesConfig, Rollout, Score, Turn
from rollhook_topologies.wording import said_by, with_note

Player = Literal["player_1", "player_2"]
PLAYERS: tuple[Player, Player] = ("player_1", "player_2")


class Config(RolesConfig[Player]):
    """moves: of both players together, at most. first: who opens. forfeit: the reward, unitless, of a player
    that a limit cuts short in its move."""

    moves: int = Field(64, ge=1, le=1000)
    first: Literal["player_1", "player_2", "random"] = "player_1"
    forfeit: float = Field(-1.0, ge=-1000, le=0)


class SelfPlay:
    def __init__(self, config: Config, rollout: Rollout) -> None:
        if rollout.environment is None:
            raise ValueError("it plays in an environment, and the row names none")
        self.config = config
        self.environment = rollout.environment

    async def run(self, rollout: Rollout) -> Outcome:
        first = rollout.rng.choice(PLAYERS) if self.config.first == "random" else self.config.first
        order = PLAYERS if first == PLAYERS[0] else PLAYERS[::-1]
        players = [self.config.role(name).agent(rollout, name) for name in order]
        told = {
            player.role: with_note(rollout.messages, f"You are {player.role}; {order[0]} moves first.")
            for player in players
        }

        value, moves, last = 0.0, 0, ""
        for player, opponent in islice(cycle([players, players[::-1]]), self.config.moves):
            turn = await _move(player, told.pop(player.role))
            if turn is None:
                return self._forfeited(player, last, moves)
            seen = await self.environment.step(turn)
            value, moves, last = value + (seen.reward or 0.0), moves + 1, said_by(turn)
            if seen.done:
                break
            told[opponent.role] = [*told.get(opponent.role, ()), *_shown(seen)]

        score = await rollout.verify(last) or Score(value)
        return _zero_sum(score, last, moves)

    def _forfeited(self, loser: Agent, last: str, moves: int) -> Outcome:
        sign = 1.0 if loser.role == PLAYERS[0] else -1.0
        return _zero_sum(Score(sign * self.config.forfeit), last, moves)


async def _move(player: Agent, told: Sequence[Message]) -> Turn | None:
    """What the player says last; None where a limit cuts it short."""
    try:
        turn = await player.loop(told)
    except LimitReached:
        return None
    return None if player.truncated else turn


def _zero_sum(first: Score, last: str, moves: int) -> Outcome:
    """The outcome in which player_1 earns `first`."""
    rewards = {"player_1": first.value, "player_2": -first.value}
    return Outcome(response=last, reward=first, role_rewards=rewards, scores={"moves": float(moves)})


def _shown(seen: Observation) -> list[Message]:
    """What a move led to, for the other player, whose turn it does not continue."""
    return list(seen.messages) if seen.text is None else [{"role": "user", "content": seen.text}]
