"""An environment that brings a verifier of its own."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from rollhook import (
    Defaults,
    EnvironmentSpec,
    Observation,
    Rollout,
    Turn,
    VerifierSpec,
    View,
    hookimpl,
)


class Config(BaseModel):
    beds: int = 1
    map_file: Path | None = None


class Garden:
    def __init__(self, config: Config, rollout: Rollout) -> None:
        self.beds = config.beds

    async def reset(self, rollout: Rollout) -> Observation:
        return Observation()

    async def step(self, turn: Turn) -> Observation:
        return Observation(done=True, reward=float(self.beds))

    async def close(self) -> None:
        pass


class Ripe:
    def __init__(self, config: object, rollout: Rollout) -> None:
        pass

    async def score(self, view: View) -> float:
        return float("ripe" in view.response)


@hookimpl
def rollhook_environments() -> list[EnvironmentSpec]:
    defaults = Defaults(verifier="garden/ripe")
    return [EnvironmentSpec(name="garden", create=Garden, config=Config, defaults=defaults)]


@hookimpl
def rollhook_verifiers() -> list[VerifierSpec]:
    return [VerifierSpec(name="ripe", create=Ripe)]
