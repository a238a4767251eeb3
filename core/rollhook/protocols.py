"""What plugins implement and what they are given: protocols and the data that passes between them.

Invariant: nothing here does work. A hook returns specs (`rollhook.hookspecs`); a spec makes the objects
described here; every asynchronous step of a rollout is one of their methods.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from rollhook.isolation import Sandbox
from rollhook.sample import Sample

_T = TypeVar("_T")

Message = dict[str, Any]
"""One chat message in OpenAI's form: role, content, and tool_calls, tool_call_id, reasoning_content."""

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call the model made. `id` is unique within its rollout."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn, as the model sampled it.

    text: everything it wrote, without the end-of-turn token; after an observation that continued the
        open turn, only what came since.
    content: the text without reasoning and tool calls. reasoning: None when there was none.
    matched: the stop string that ended it, None otherwise; `text` may go a few characters beyond it, to the
        end of the token that completed it.
    tokens: how many were sampled. message: the whole turn so far, as a chat message.
    call_errors: a sentence for each tool call that could not be read; such a call stays in `content`.
    """

    role: str
    index: int
    text: str
    content: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    matched: str | None
    tokens: int
    message: Message
    call_errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answers. `is_error` marks an answer that tells the model what it did wrong.

    kind: what its tokens are called in `rollhook_result["spans"]`, for example "retrieved"; None: "messages".
    done: the episode is over: the model is not shown the results of this turn, and nothing more is sampled.
    """

    content: str
    is_error: bool = False
    kind: str | None = None
    done: bool = False


@runtime_checkable
class Tool(Protocol):
    """A function the model can call.

    name: what the model calls it. parameters: a JSON schema of type "object", checked before each call.
    Raising from `call` fails the rollout; what the model should see is a ToolResult.
    """

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...

    async def call(self, arguments: dict[str, Any]) -> ToolResult: ...


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment shows the model next.

    messages: chat messages that follow the turn. text: raw text that continues the open turn instead
    (give one or the other). done: the episode is over and nothing more is sampled.
    reward: this step's reward, unitless; a rollout's environment reward is their sum.
    info: the environment's own facts as JSON data, merged over steps into `View.environment`.
    kind: what the tokens of `text`, or of each of `messages` (one name for all, or one a message), are called
        in `rollhook_result["spans"]`; None: "text", "messages". Those of the opening are "prompt".
    """

    messages: Sequence[Message] = ()
    text: str | None = None
    done: bool = False
    reward: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    kind: str | Sequence[str | None] | None = None


@runtime_checkable
class Environment(Protocol):
    """The world one rollout acts in.

    `reset` gives the messages the conversation opens with; an Observation without messages means the
    row's own prompt. `step` is called after every turn without tool calls, and after one in which a tool
    ended the episode, for what it came to. `close` is always called, also on cancellation.
    """

    async def reset(self, rollout: Rollout) -> Observation: ...

    async def step(self, turn: Turn) -> Observation: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EnvironmentResult:
    """What an environment said of a finished episode. reward: summed over steps, None if it gave none."""

    reward: float | None = None
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """What a verifier sees, alike for a live rollout and for a finished Sample.

    prompt and label are the row's; response is the text to judge, never the prompt; messages the whole
    conversation that led to it; environment is None where no environment ran.
    """

    prompt: str | list[Message]
    label: Any
    messages: Sequence[Message]
    response: str
    metadata: Mapping[str, Any]
    environment: EnvironmentResult | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """A reward with named parts. value: the reward, unitless; parts: what it was made of, for the record."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class Verifier(Protocol):
    """Scores one answer. Must return a finite number (or a Score) for any response whatever."""

    async def score(self, view: View) -> float | Score: ...


@runtime_checkable
class GroupVerifier(Protocol):
    """Scores all answers to one prompt together, as agreement or rank do. Its VerifierSpec says `group=True`.

    Returns a score for each view, in order. A rollout ends before its neighbours do, so its own reward stays
    None; `rollhook.reward` with the list of a whole group, and `rollhook verify`, ask for it.
    """

    async def score_group(self, views: Sequence[View]) -> Sequence[float | Score]: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a topology's run came to.

    response: the rollout's answer, which the row's verifier scores; None: the last turn's content.
    reward: set by a topology that scored itself; None: ask the verifier.
    role_rewards: reward by role, for the credits "roles" and "zero_sum".
    scores: named numbers for the record (`rollhook_result["scores"]`).
    """

    response: str | None = None
    reward: float | Score | None = None
    role_rewards: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class Topology(Protocol):
    """Who talks to whom. None means: the last turn is the answer, the row's verifier scores it."""

    async def run(self, rollout: Rollout) -> Outcome | None: ...


Said = str | Sequence[Message] | Observation
"""What an agent can be told: one user message, messages, or what followed its last turn."""


class Agent(Protocol):
    """One participant of a rollout, with a conversation of its own.

    context_tokens: the length of its conversation, prompts and answers. max_context_tokens: what it may grow
    to; None: as far as the engine goes. truncated: what ended its last turn or loop early, the name of a
    limit or the stage of an error; None when nothing did.
    """

    @property
    def role(self) -> str: ...

    @property
    def messages(self) -> Sequence[Message]: ...

    @property
    def context_tokens(self) -> int: ...

    @property
    def max_context_tokens(self) -> int | None: ...

    @property
    def truncated(self) -> str | None: ...

    async def turn(self, said: Said) -> Turn:
        """Say something to the agent (a string is one user message) and sample its answer.

        Raises LimitReached when nothing may be sampled.
        """
        ...

    async def answer(self, turn: Turn, *, environment: Environment | None = None) -> Observation | None:
        """What follows the agent's last turn, to be said next: the results of its tool calls, else what the
        environment shows. None when nothing follows, as after a turn that was cut at a limit."""
        ...

    async def loop(self, said: Said, *, environment: Environment | None = None) -> Turn:
        """Turns until the agent neither calls a tool nor is answered by the environment.

        What `answer` gives is said between turns. Returns the last turn; reaching a limit ends the loop and
        marks the agent's samples TRUNCATED.
        """
        ...

    def restart(self) -> None:
        """Forget the conversation: the next turn opens a new one under the agent's system prompt and tools.

        What was sampled stays and trains, as a segment of kind "wipe"; the last conversation's is "final".
        Open it with other words than before: the same ones again are a retry, of which one answer trains.
        """
        ...


BeforeTurn = Callable[[Agent, Said], Awaitable[Said]]
"""Gets an agent and what it is about to be told; returns what it is told instead. May take turns itself."""


class Rollout(Protocol):
    """What a topology (and an environment's `reset`, and every spec's `create`) is given.

    sample: the row as it came, not to be written to. messages: how the conversation opens: the
    environment's first observation, else the row's prompt. deadline: when the wall-clock limit ends it, in
    `asyncio` loop time, None without limit. rng: seeded by run seed, rollout and sample index.
    shared: what the items of one rollout hand to each other, under keys that start with their plugin's name.
    can_verify: whether `verify` gives a score: the row has verifiers, and none of them sees whole groups.
    """

    @property
    def sample(self) -> Sample: ...

    @property
    def messages(self) -> Sequence[Message]: ...

    @property
    def environment(self) -> Environment | None: ...

    @property
    def tools(self) -> Sequence[Tool]: ...

    @property
    def deadline(self) -> float | None: ...

    @property
    def rng(self) -> random.Random: ...

    @property
    def shared(self) -> dict[str, Any]: ...

    @property
    def can_verify(self) -> bool: ...

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
    ) -> Agent:
        """A new agent; also tools may make them. tools: None means the row's. sampling: overrides for this
        agent's turns. stop: stop strings beside the run's; None: those of the environment, so give () to an
        agent that does not act in it. max_turns, max_new_tokens, max_context_tokens: its budget, where below
        the limits.

        model: another model of the run, by its name in the configuration's `models` (a judge, a frozen
        opponent); only the policy's tokens train, so such an agent needs trained=False.
        Raises TopologyError when the role is taken or the run has no such model.
        """
        ...

    async def verify(self, response: str | None = None, *, agent: Agent | None = None) -> Score | None:
        """Score a response by the row's verifier; None when the row has none (see `can_verify`).

        response: None means the last turn's content. agent: whose conversation the verifier sees; None: the
        one of the agent that spoke last.
        """
        ...

    async def run_topology(self, field: str, *, before_turn: BeforeTurn | None = None) -> Outcome:
        """Run the topology that `field` of this topology's configuration names (a `TopologyUse`).

        before_turn: called before each turn of its agents; where topologies stand inside each other, the
        innermost one's first. Returns its Outcome. One runs at a time.
        """
        ...

    def at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have `close` called when the rollout ends, however it ends; what was asked for last comes first."""
        ...

    async def sandbox(self, *, packages: Sequence[str] = (), image: str | None = None) -> Sandbox:
        """A new sandbox of the backend that the run configuration names, closed when the rollout ends.

        packages: distributions that its Python can import. image: a container image to run, None for the
        backend's own. Raises ConfigError where the backend cannot run, ResourceError where it has no images.
        """
        ...

    def count_tokens(self, text: str) -> int:
        """How many of the policy's tokens a text takes, alone. Raises RuntimeError without a model."""
        ...

    def event(self, kind: str, **data: Any) -> None:
        """Tell every event sink. Never blocks: a full queue drops the event and counts it."""
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in a run. time_s: seconds since the epoch."""

    kind: str
    time_s: float
    rollout_id: int | None
    data: Mapping[str, Any]


class Run(Protocol):
    """What a spec's `open` is given: the run as a whole. seed: the run's."""

    @property
    def seed(self) -> int: ...

    @property
    def concurrency(self) -> int: ...

    async def sandbox(self, *, packages: Sequence[str] = (), image: str | None = None) -> Sandbox:
        """A new sandbox, as `Rollout.sandbox` gives; whoever asked closes it."""
        ...

    async def share(
        self,
        name: str,
        opener: Callable[[], AbstractAsyncContextManager[_T]],
        *,
        key: Hashable = None,
    ) -> _T:
        """What `opener()` opens, once in the run for each (name, key), whichever items ask for it.

        name: `plugin/thing`, which errors name. It is closed after everything that was ready later, when the
        run ends. Raises ResourceError when opening fails; who asks next tries again.
        """
        ...
