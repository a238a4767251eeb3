"""What topologies share: roles that a row or a run configures, and the faults of one role as data.

Invariant: a role's configuration makes an agent that trains only where it may, with a budget that lowers the
row's limits and never raises them. Cancellation and the trainer's abort are never taken for a role's fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollhook.errors import EngineError, EnvironmentFailure, LimitReached, RenderError, ToolError
from rollhook.protocols import Agent, Rollout, Tool

K = TypeVar("K", bound=str)
T = TypeVar("T")

RoleFault = LimitReached | EngineError | ToolError | EnvironmentFailure | RenderError
"""What may befall one role while the others go on."""


class RoleSampling(BaseModel):
    """Sampling parameters of a role, unitless; None: the run's. A role that trains keeps the temperature."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)
    min_p: float | None = Field(None, ge=0, le=1)


class RoleConfig(BaseModel):
    """How one role of a topology is played. Every field is bounded, so that rows may set it.

    model: one of the run's `models`; None: the policy. trained: None means that the policy's tokens train.
    system: its system prompt, before any the row has.
    tools: names of those of the row's tools it may call; None: the topology's choice.
    max_turns, max_new_tokens (of a turn), max_context_tokens: its budget, where it is below the row's limits.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = Field(None, max_length=200)
    trained: bool | None = None
    system: str | None = Field(None, max_length=20_000)
    tools: tuple[str, ...] | None = None
    sampling: RoleSampling = RoleSampling()
    max_turns: int | None = Field(None, ge=1)
    max_new_tokens: int | None = Field(None, ge=1)
    max_context_tokens: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _trains_only_the_policy(self) -> Self:
        if self.model is not None and self.trained:
            raise ValueError(f"only the policy's tokens train: the model {self.model!r} needs trained: false")
        return self

    def agent(
        self,
        rollout: Rollout,
        role: str,
        *,
        tools: Sequence[Tool] | None = None,
        own_tools: Sequence[Tool] = (),
        stop: Sequence[str] | None = None,
    ) -> Agent:
        """A new agent of this kind, called `role`.

        tools: the topology's choice where the configuration has none; None means the row's.
        own_tools: tools of the topology, which it always has. stop: as in `Rollout.agent`. Raises ValueError
        for a tool the row lacks.
        """
        trained = self.model is None if self.trained is None else self.trained
        chosen = list(rollout.tools if tools is None else tools)
        if self.tools is not None:
            known = {tool.name: tool for tool in rollout.tools}
            if missing := [name for name in self.tools if name not in known]:
                raise ValueError(
                    f"role {role!r} may call {', '.join(missing)}, but the row's tools are: "
                    f"{', '.join(known) or 'none'}"
                )
            chosen = [known[name] for name in self.tools]
        return rollout.agent(
            role,
            system=self.system,
            tools=[*chosen, *own_tools],
            model=self.model,
            sampling=self.sampling.model_dump(exclude_none=True),
            stop=stop,
            trained=trained,
            max_turns=self.max_turns,
            max_new_tokens=self.max_new_tokens,
            max_context_tokens=self.max_context_tokens,
        )


class RolesConfig(BaseModel, Generic[K]):
    """Base of a topology's configuration: `class Config(RolesConfig[Literal["solver", "judge"]])`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    roles: dict[K, RoleConfig] = Field(default_factory=dict)

    def role(self, kind: K) -> RoleConfig:
        """How this kind of role is played."""
        return self.roles.get(kind, RoleConfig())


async def settle(*tries: Awaitable[T]) -> list[T | RoleFault]:
    """Await all at once: the result of each, or the fault of the role in its place.

    Anything else that one raises (the trainer's abort, a fault of the row or the topology) ends the others.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_settled(each)) for each in tries]
    return [task.result() for task in tasks]


async def _settled(each: Awaitable[T]) -> T | RoleFault:
    try:
        return await each
    except (LimitReached, EngineError, ToolError, EnvironmentFailure, RenderError) as fault:
        return fault
