"""What plugins implement and what they are given: protocols and the data that passes between them.

Invariant: nothing here does work. A hook returns specs (`rollhook.hookspecs`); a spec makes the objects
described here; every asynchronous step of a rollout is one of their methods.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from rollhook.sample import Sample

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
    """What a tool answers. `is_error` marks an answer that tells the model what it did wrong."""

    content: str
    is_error: bool = False


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
    info: the environment's own facts, merged over steps into `View.environment`.
    """

    messages: Sequence[Message] = ()
    text: str | None = None
    done: bool = False
    reward: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Environment(Protocol):
    """The world one rollout acts in.

    `reset` gives the messages the conversation opens with; an Observation without messages means the
    row's own prompt. `step` is called after every turn without tool calls. `close` is always called,
    also on cancellation.
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a topology's run came to.

    response: the rollout's answer, which the row's verifier scores; None: the last turn's content.
    reward: set by a topology that scored itself; None: ask the verifier.
    role_rewards: reward by role, for credit "roles".
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


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended. exit_code: None when it was killed at its time limit."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False


@runtime_checkable
class Sandbox(Protocol):
    """A place to run untrusted commands, gone with all its processes after `close`."""

    async def exec(
        self, command: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0
    ) -> ExecResult: ...

    async def read_file(self, path: str) -> bytes: ...

    async def write_file(self, path: str, data: bytes) -> None: ...

    async def close(self) -> None: ...


class Agent(Protocol):
    """One participant of a rollout, with a conversation of its own."""

    @property
    def role(self) -> str: ...

    @property
    def messages(self) -> Sequence[Message]: ...

    async def turn(self, messages: str | Sequence[Message]) -> Turn:
        """Say `messages` (a string is one user message) to the agent and sample its answer."""
        ...

    async def loop(
        self, messages: str | Sequence[Message], *, environment: Environment | None = None
    ) -> Turn:
        """Turns until the agent neither calls a tool nor is answered by the environment.

        Tool results and observations are fed back between turns. Returns the last turn; reaching a limit
        ends the loop and marks the rollout TRUNCATED.
        """
        ...


class Rollout(Protocol):
    """What a topology (and an environment's `reset`, and every spec's `create`) is given.

    sample: the row as it came, not to be written to. messages: how the conversation opens: the
    environment's first observation, else the row's prompt. deadline: when the wall-clock limit ends it, in
    `asyncio` loop time, None without limit. rng: seeded by run seed, rollout and sample index.
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

    def agent(
        self,
        role: str = "main",
        *,
        system: str | None = None,
        tools: Sequence[Tool] | None = None,
        model: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        trained: bool = True,
    ) -> Agent:
        """A new agent. tools: None means the row's. sampling: overrides for this agent's turns.

        Raises TopologyError when the role is taken.
        """
        ...

    async def verify(self, response: str | None = None) -> Score | None:
        """Score a response by the row's verifier; None when the row has none."""
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
