"""The hooks a plugin may implement, and the specs they return.

Invariant: a hook takes no arguments, is a plain function, does no work, and returns a list of specs. Each is
called once, when the run first needs its plugin.

A whole plugin (`my_plugin/hooks.py`, with the entry point `my-plugin = "my_plugin.hooks"` in the group
`rollhook.plugins`):

    from pydantic import BaseModel, Field
    from rollhook import ToolResult, ToolSpec, hookimpl

    class Config(BaseModel):
        sides: int = Field(6, ge=2, le=100)

    class Dice:
        name, description = "dice", "Throws one die."
        parameters = {"type": "object", "properties": {}}

        def __init__(self, config, rollout):
            self.sides, self.rng = config.sides, rollout.rng

        async def call(self, arguments):
            return ToolResult(str(self.rng.randint(1, self.sides)))

    @hookimpl
    def rollhook_tools():
        return [ToolSpec(name="dice", config=Config, create=Dice)]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import pluggy
from pydantic import BaseModel, ConfigDict

from rollhook.isolation import Sandbox
from rollhook.protocols import (
    Environment,
    Event,
    GroupVerifier,
    Message,
    Rollout,
    Run,
    Tool,
    Topology,
    Verifier,
)

T_co = TypeVar("T_co", covariant=True)

hookspec = pluggy.HookspecMarker("rollhook")
hookimpl = pluggy.HookimplMarker("rollhook")

WholeCredit = Literal["broadcast", "split", "split_segments"]
Credit = Literal["broadcast", "split", "split_segments", "roles", "zero_sum"]
EventSink = Callable[[Event], None]
Normalizer = Callable[[Message], Message]


class NoConfig(BaseModel):
    """The configuration of an item that has none: any key is refused."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class RunOnly:
    """Marks a configuration field that a data row may not set: `Annotated[str, RunOnly()]`.

    Fields that hold paths, URLs or secrets by type or by name are run-only without it.
    """


@dataclass(frozen=True, slots=True)
class RowMay:
    """Marks a configuration field that a row may set although its name looks like a path, URL or secret."""


@dataclass(frozen=True, kw_only=True)
class ItemSpec(Generic[T_co]):
    """One item of a plugin.

    name: the item's name; the full name is `plugin/name`.
    config: a pydantic model, checked before the first token; rows may set its bounded settings.
    open: `open(config, run)`, an async context manager for what one run shares (an index, a browser);
        entered once per (name, config), left at the run's end. None: the resource is the config itself.
    create: `create(resource, rollout)`, plain and quick: the object that one rollout owns.
    """

    name: str
    create: Callable[[Any, Rollout], T_co]
    config: type[BaseModel] = NoConfig
    open: Callable[[Any, Run], AbstractAsyncContextManager[Any]] | None = None


@dataclass(frozen=True, kw_only=True)
class ToolSpec(ItemSpec[Tool]):
    """A tool the model can call."""


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What an environment brings along unless the row or the run says otherwise.

    verifier, topology, tools: as in a row's metadata (a bare name, or a mapping with `name`).
    limits: as in a row's. stop: stop strings for every agent that acts in the environment.
    """

    verifier: str | dict[str, Any] | None = None
    topology: str | dict[str, Any] | None = None
    tools: Sequence[str | dict[str, Any]] = ()
    limits: dict[str, Any] = field(default_factory=dict)
    stop: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class EnvironmentSpec(ItemSpec[Environment]):
    """A world to act in. `defaults`: what it brings along."""

    defaults: Defaults = field(default_factory=Defaults)


@dataclass(frozen=True, kw_only=True)
class VerifierSpec(ItemSpec[Verifier | GroupVerifier]):
    """A scorer of answers. group: `create` makes a GroupVerifier, which sees all answers to one prompt."""

    group: bool = False


@dataclass(frozen=True, kw_only=True)
class TopologySpec(ItemSpec[Topology]):
    """A way for agents to work together.

    credit: how a rollout's reward reaches its siblings (docs/credit.md: which one for which loss).
        `broadcast` gives each the full reward (for losses that average over a rollout, or over tokens).
        `split` shares it by trained tokens, `split_segments` evenly (for losses that average over each sample
        and sum over samples). `roles` gives each role its own from `Outcome.role_rewards`, where every
        trained role must stand. `zero_sum` reads them as the results of a contest between the roles named
        there, such as 1 for the winner and -1 for the loser, and gives each role its own minus their mean.
        A run's `credit` overrides the first three, and never the last two. A topology whose configuration
        names another (`TopologyUse`) has that one's credit and weights instead of its own.
    role_weights: for `roles` and `zero_sum`, what a role's reward and advantage are multiplied by, at least
        0, by role or pattern (`solver_*`); 1.0 for others. A run's `role_weights` go first.
    fan_out: whether a rollout makes several samples by design; such topologies need `return_shape: list`.
    """

    credit: Credit = "broadcast"
    role_weights: Mapping[str, float] = field(default_factory=dict)
    fan_out: bool = True


@dataclass(frozen=True, kw_only=True)
class SandboxSpec(ItemSpec[Sandbox]):
    """A backend that runs untrusted commands. Chosen by the run configuration, never by a row.

    create: `create(resource, packages)`, plain and quick: a sandbox whose Python can import these
        distributions. It starts at the latest when it is first used.
    from_image: `from_image(resource, packages, image)`, the same of a container image; None: there are none.
    """

    create: Callable[[Any, Sequence[str]], Sandbox]  # type: ignore[assignment]  # a run may own one, too
    from_image: Callable[[Any, Sequence[str], str], Sandbox] | None = None


class HookSpecs:
    """The hooks. None of them has to be implemented; each is called at most once a run."""

    @hookspec
    def rollhook_tools(self) -> list[ToolSpec]:  # type: ignore[empty-body]  # a specification
        """Tools. Called when a row or the run first names the plugin."""

    @hookspec
    def rollhook_environments(self) -> list[EnvironmentSpec]:  # type: ignore[empty-body]  # a specification
        """Environments. Called when a row or the run first names the plugin."""

    @hookspec
    def rollhook_verifiers(self) -> list[VerifierSpec]:  # type: ignore[empty-body]  # a specification
        """Verifiers. Called when a row or the run first names the plugin."""

    @hookspec
    def rollhook_topologies(self) -> list[TopologySpec]:  # type: ignore[empty-body]  # a specification
        """Topologies. Called when a row or the run first names the plugin."""

    @hookspec
    def rollhook_sandboxes(self) -> list[SandboxSpec]:  # type: ignore[empty-body]  # a specification
        """Sandbox backends. Called when the run configuration names the plugin."""

    @hookspec
    def rollhook_events(self) -> list[EventSink]:  # type: ignore[empty-body]  # a specification
        """Event sinks: callables that take one Event, on a thread of their own behind a bounded queue."""

    @hookspec
    def rollhook_normalizers(self) -> list[Normalizer]:  # type: ignore[empty-body]  # a specification
        """Message normalizers: applied to messages a client echoes before they are matched with turns."""
