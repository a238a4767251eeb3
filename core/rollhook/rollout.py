"""The rollout a topology is given, and what it holds: agents, opened tools, environment and verifier.

Invariant: what is opened here is closed when the rollout ends, however it ends, and `parts` holds every token
that any of its agents sampled.
"""

from __future__ import annotations

import hashlib
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from rollhook.agent import LiveAgent, TurnLimits
from rollhook.engine import Engine
from rollhook.errors import RowError, TopologyError
from rollhook.hookspecs import VerifierSpec
from rollhook.isolation import Sandbox
from rollhook.ledger import Segment
from rollhook.opened import (
    OpenEnvironment,
    OpenTool,
    OpenTopology,
    OpenVerifier,
    close_quietly,
    score_by,
)
from rollhook.parsing import NewId
from rollhook.protocols import (
    Agent,
    BeforeTurn,
    Environment,
    GroupVerifier,
    Message,
    Outcome,
    Said,
    Score,
    Tool,
    Topology,
    Turn,
    Verifier,
    View,
)
from rollhook.replay import Replay
from rollhook.resuming import Kept, ResumingEngine
from rollhook.runtime import Runtime
from rollhook.sample import Sample, Status, detached
from rollhook.served import ServedModel
from rollhook.siblings import Origin, Part
from rollhook.spec import Choice, Limits, Resolved
from rollhook.verifiers.judge import JUDGES

_T = TypeVar("_T")


@dataclass(slots=True)
class LiveRollout:
    """One rollout in progress (`rollhook.protocols.Rollout`).

    row: the trainer's Sample, which plugins never hold: they get `sample`, a copy.
    sampling: the run's parameters for every turn. session: routes all its turns to one engine.
    owner: full name of the topology, the owner of tools it makes itself. choice: that topology, as named.
    before_turn: of every agent that is made.
    opening: full name of the item that is being opened, whose fault a time-out then is.
    closing: closes what the rollout opened. clock: what chat templates take for now, all along.
    kept: what the trainer's Sample kept of an attempt that was aborted. evaluation: nothing of it trains.
    """

    runtime: Runtime
    row: Sample
    rollout_id: int
    sampling: Mapping[str, Any]
    limits: Limits = field(default_factory=Limits)
    stop: Sequence[str] = ()
    session: str = ""
    owner: str = ""
    choice: Choice | None = None
    before_turn: BeforeTurn | None = None
    deadline: float | None = None
    sample: Sample = field(init=False)
    rng: random.Random = field(init=False)
    messages: Sequence[Message] = ()
    tools: list[OpenTool] = field(default_factory=list)
    environment: OpenEnvironment | None = None
    verifiers: tuple[OpenVerifier, ...] = ()
    agents: list[LiveAgent] = field(default_factory=list)
    last_turn: Turn | None = None
    opening: str | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    clock: datetime = field(default_factory=lambda: datetime.now().astimezone())
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    kept: Kept | None = None
    evaluation: bool = False

    def __post_init__(self) -> None:
        self.sample = detached(self.row)
        self.session = getattr(self.sample, "session_id", None) or uuid.uuid4().hex
        self.rng = random.Random(f"{self.runtime.seed}/{self.rollout_id}/{self.sample.index}")
        if self.kept is not None:
            self.clock = self.kept.clock

    async def open(self, resolved: Resolved, stack: AsyncExitStack) -> OpenTopology:
        """Make what the row names, in the order tools, environment, verifier, topology.

        `stack` closes the environment, however the rollout ends. Raises RowError, ResourceError or
        EnvironmentFailure.
        """
        self.closing = stack
        self.limits, self.stop = resolved.limits, resolved.stop
        self.owner, self.choice = resolved.topology.name, resolved.topology
        self.messages = prompt_messages(self.sample)
        for choice in resolved.tools:
            self.tools.append(OpenTool(choice.name, await self._create(choice, Tool)))
        if resolved.environment is not None:
            await self._open_environment(resolved.environment, stack)
        self.verifiers = tuple([await self.open_verifier(choice) for choice in resolved.verifiers])
        topology = await self._create(resolved.topology, Topology)
        self.opening = None
        return OpenTopology(resolved.topology.name, topology)

    async def open_verifier(self, choice: Choice) -> OpenVerifier:
        """A verifier that the row names, made for this rollout."""
        assert isinstance(choice.spec, VerifierSpec)
        group, timeout_s = choice.spec.group, self.runtime.config.verifier_timeout_s
        kind: type[Verifier | GroupVerifier] = GroupVerifier if group else Verifier
        made = await self._create(choice, kind)
        return OpenVerifier(choice.name, made, timeout_s, weight=choice.weight, group=group)

    async def _create(self, choice: Choice, kind: type[_T]) -> _T:
        self.opening = choice.name
        return await self.runtime.create(choice, kind, self)

    async def _open_environment(self, choice: Choice, stack: AsyncExitStack) -> None:
        environment = await self._create(choice, Environment)
        self.environment = OpenEnvironment(choice.name, environment)
        stack.push_async_callback(close_quietly, self.environment)
        opening = await self.environment.reset(self)
        self.messages = list(opening.messages) or self.messages

    def agent(
        self,
        role: str = "main",
        *,
        system: str | None = None,
        tools: Sequence[Tool] | None = None,
        model: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        stop: Sequence[str] | None = None,
        trained: bool = True,
        max_turns: int | None = None,
        max_new_tokens: int | None = None,
        max_context_tokens: int | None = None,
    ) -> LiveAgent:
        """A new agent with an empty conversation (see `rollhook.protocols.Rollout.agent`)."""
        if any(agent.role == role for agent in self.agents):
            raise TopologyError(f"{self.owner}: the role {role!r} is taken; give every agent its own")
        served = self._served(role, model, trained=trained)
        self._check_sampling(role, sampling or {}, trained=trained and not self.evaluation)
        held = self.tools if tools is None else [self._hold(tool) for tool in tools]
        by_name = {tool.name: tool for tool in held}
        if len(by_name) < len(held):
            names = ", ".join(sorted(tool.name for tool in held))
            raise TopologyError(f"{self.owner}: two tools of agent {role!r} have one name: {names}")
        if held and self.runtime.config.tool_parser is None:
            raise RowError(
                f"tools: agent {role!r} has tools but the run has no tool parser: set tool_parser "
                "(or --tool-parser) to the model family's, for example qwen25"
            )
        schemas = [tool.schema for tool in held]
        made = LiveAgent(
            role=role,
            ledger=self.runtime.ledger(served, role=role, trained=trained, clock=self.clock),
            engine=self._engine(served, trained=trained),
            parser=partial(self.runtime.parser, schemas, self._call_ids(role)),
            tools=by_name,
            sampling=_with_stop({**self.sampling, **(sampling or {})}, self.stop if stop is None else stop),
            seed=self._turn_seed if self.runtime.config.seed is not None else None,
            limits=TurnLimits(
                self.limits.max_turns if max_turns is None else min(self.limits.max_turns, max_turns),
                _least(self.limits.max_new_tokens, max_new_tokens),
                _least(self.limits.max_context_tokens, max_context_tokens),
            ),
            session=self.session,
            on_turn=self._on_turn,
            system=system,
            trained=trained,
            before_turn=self.before_turn,
        )
        self.agents.append(made)
        return made

    async def run_topology(self, field: str, *, before_turn: BeforeTurn | None = None) -> Outcome:
        """Run the topology that `field` of the running one's configuration names.

        Raises TopologyError when it names none.
        """
        outer = self.owner, self.choice, self.before_turn
        inner = None if self.choice is None else self.choice.named.get(field)
        if inner is None:
            raise TopologyError(f"{self.owner}: {field!r} of its configuration names no topology")
        self.owner, self.choice = inner.name, inner
        self.before_turn = _in_turn(before_turn, self.before_turn)
        try:
            made = await self.runtime.create(inner, Topology, self)
            return await OpenTopology(inner.name, made).run(self)
        finally:
            self.owner, self.choice, self.before_turn = outer

    @property
    def can_verify(self) -> bool:
        """Whether `verify` gives a score."""
        return bool(self.verifiers) and not any(verifier.group for verifier in self.verifiers)

    async def verify(self, response: str | None = None, *, agent: Agent | None = None) -> Score | None:
        """Score `response` (None: the last turn's content) by the row's verifiers.

        None without any, and where one of them needs the prompt's other answers too.
        """
        if not self.can_verify:
            return None
        return await score_by(self.verifiers, self.view(self.answer(response), agent))

    def answer(self, response: str | None) -> str:
        """`response`, or where it is None the last turn's content."""
        if response is not None:
            return response
        return str(self.last_turn.message["content"]) if self.last_turn else ""

    def at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have `close` called when the rollout ends, however it ends."""
        self.closing.push_async_callback(close)

    async def sandbox(self, *, packages: Sequence[str] = (), image: str | None = None) -> Sandbox:
        """A new sandbox, closed when the rollout ends (see `rollhook.protocols.Rollout.sandbox`)."""
        made = await self.runtime.sandbox(packages=packages, image=image)
        self.at_end(made.close)
        return made

    def view(self, response: str, agent: Agent | None = None) -> View:
        """What a verifier sees of this rollout. agent: whose conversation, None: that of who spoke last."""
        speaker = agent or next(
            (a for a in self.agents if self.last_turn and a.role == self.last_turn.role), None
        )
        return View(
            prompt=self.sample.prompt,
            label=self.sample.label,
            messages=list(speaker.messages) if speaker else list(self.messages),
            response=response,
            metadata=self.sample.metadata,
            environment=self.environment.result if self.environment else None,
        )

    def count_tokens(self, text: str) -> int:
        """The policy's tokens in `text` (see `rollhook.protocols.Rollout.count_tokens`)."""
        return self.runtime.count_tokens(text)

    def event(self, kind: str, **data: Any) -> None:
        """Tell every event sink; returns at once."""
        self.runtime.events.tell(kind, self.rollout_id, data)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The row's metadata. Raises RowError when it is no mapping."""
        metadata: object = self.sample.metadata
        if not isinstance(metadata, Mapping):
            raise RowError(f"metadata: must be a mapping, got {type(metadata).__name__}")
        return metadata

    @property
    def origin(self) -> Origin:
        """The rollout as its siblings know it, with the tokens sampled so far."""
        return Origin(
            sample=self.row,
            rollout_id=self.rollout_id,
            sampled_tokens=sum(agent.ledger.sampled_tokens for agent in self.agents),
            trained_tokens=sum(agent.ledger.trained_tokens for agent in self.agents),
            environment=self.environment.result if self.environment else None,
            clock=self.clock.isoformat(timespec="seconds"),
            kept=sum((agent.ledger.kept for agent in self.agents), Counter()),
            replay=self._replay,
            resumed=None if self.kept is None else self.kept.record(),
        )

    def parts(self, limit: str | None = None) -> list[Part]:
        """Every segment sampled so far, those of agents that train first.

        limit: the name of what ended the whole rollout early, None when nothing did.
        """
        return [
            _part(agent, segment, limit)
            for agent in sorted(self.agents, key=lambda agent: not agent.trained)
            for segment in agent.ledger.segments()
        ]

    @property
    def aborted(self) -> bool:
        """Whether the trainer's abort interrupted one of its turns."""
        return any(agent.aborted for agent in self.agents)

    @property
    def _replay(self) -> Replay:
        return Replay() if self.evaluation else self.runtime.replay

    def _engine(self, served: ServedModel, *, trained: bool) -> Engine:
        """The engine of an agent: its turns are whole, and begin with what was kept of a former attempt."""
        engine = self.runtime.continuing(served.engine, self._replay if trained else Replay())
        return ResumingEngine(engine, self.kept) if trained and self.kept is not None else engine

    def _check_sampling(self, role: str, sampling: Mapping[str, Any], *, trained: bool) -> None:
        """Raise TopologyError for a temperature or top_p of its own: a trainer reckons with the run's."""
        for name in ("temperature", "top_p"):
            own, run = sampling.get(name), self.sampling.get(name, 1.0)
            if trained and own is not None and own != run:
                raise TopologyError(
                    f"{self.owner}: agent {role!r} trains, so it samples at the run's {name} {run}, not at "
                    f"{own}; drop the {name}, or make the agent with trained=False"
                )

    def _served(self, role: str, model: str | None, *, trained: bool) -> ServedModel:
        known = self.runtime.model_names
        if model is not None and model not in known:
            raise TopologyError(
                f"{self.owner}: agent {role!r} asks for the model {model!r}; beside the policy the run has: "
                f"{', '.join(known) or 'none'} (set models in the run configuration)"
            )
        served = self.runtime.model(model)
        if trained and served is not self.runtime.policy:
            raise TopologyError(
                f"{self.owner}: agent {role!r} of the model {model!r} cannot train, only the policy's tokens "
                "do; make it with trained=False"
            )
        return served

    def _hold(self, tool: Tool) -> OpenTool:
        return tool if isinstance(tool, OpenTool) else OpenTool(self.owner, tool)

    def _on_turn(self, turn: Turn) -> None:
        if turn.role not in self.shared.get(JUDGES, ()):
            self.last_turn = turn
        self.event(
            "turn", role=turn.role, index=turn.index, tokens=turn.tokens, finish_reason=turn.finish_reason
        )

    def _call_ids(self, role: str) -> NewId | None:
        """Ids for tool calls that repeat with the run's seed: some chat templates write them into prompts."""
        if self.runtime.config.seed is None:
            return None
        rng = random.Random(f"{self.runtime.seed}/{self.sample.index}/{role}/calls")
        return lambda name, place: f"{rng.getrandbits(36):09x}"  # nine characters, as Mistral's must be

    def _turn_seed(self, role: str, turn: int) -> int:
        """A seed of its own for each (run, sample, role, turn), below 2**31."""
        index = self.rollout_id if self.sample.index is None else self.sample.index
        name = f"{self.runtime.config.seed}/{index}/{self.sample.group_index}/{role}/{turn}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big") >> 1


def _part(agent: LiveAgent, segment: Segment, limit: str | None) -> Part:
    limit = limit or agent.truncated
    if limit is None and segment.finish_reason == "length":
        limit = agent.limit_at(len(segment.tokens))
    status = Status.TRUNCATED if limit else Status.COMPLETED
    response = agent.ledger.renderer.decode(segment.tokens[segment.prompt_length :])
    return Part(segment, status, response, limit)


def _in_turn(inner: BeforeTurn | None, outer: BeforeTurn | None) -> BeforeTurn | None:
    """Both, where topologies inside each other have one each: what the inner one says goes to the outer."""
    if inner is None or outer is None:
        return inner or outer

    async def both(agent: Agent, said: Said) -> Said:
        return await outer(agent, await inner(agent, said))

    return both


def _least(limit: int | None, budget: int | None) -> int | None:
    return min((each for each in (limit, budget) if each is not None), default=None)


def _with_stop(sampling: dict[str, Any], stop: Sequence[str]) -> dict[str, Any]:
    """`sampling` with `stop` beside its own stop strings."""
    own = sampling.get("stop") or []
    merged = [*([own] if isinstance(own, str) else own), *stop]
    return {**sampling, "stop": list(dict.fromkeys(merged))} if merged else sampling


def prompt_messages(sample: Sample) -> list[Message]:
    """The row's prompt as chat messages. Raises RowError for anything but a string or messages."""
    prompt: Any = sample.prompt
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if hasattr(prompt, "tolist"):
        prompt = prompt.tolist()
    if (
        isinstance(prompt, list | tuple)
        and prompt
        and all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in prompt)
    ):
        return [dict(message) for message in prompt]
    raise RowError("prompt: must be a string or a list of chat messages, each with a role and content")
