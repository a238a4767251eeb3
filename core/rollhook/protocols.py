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
    info: the environment's own facts as JSON data, merged over steps into `View.environment`.
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


KilledBy = Literal["time", "memory", "files", "output"]


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command in a sandbox ended.

    exit_code: negative for a signal; None when the sandbox killed it at the limit that `killed_by` names.
    stdout, stderr: what it wrote until then.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    killed_by: KilledBy | None = None


class Process(Protocol):
    """A command that goes on running in a sandbox and ends with it. Its stdout and stderr are one stream.

    Every wait ends with TimeoutError after `timeout_s` seconds.
    """

    async def read(self, *, timeout_s: float = 30.0) -> bytes:
        """What it wrote next, at most 64 KiB; b"" once everybody who could write has ended."""
        ...

    async def write(self, data: bytes, *, timeout_s: float = 30.0) -> None:
        """To its standard input. Raises BrokenPipeError when that is closed."""
        ...

    async def wait(self, *, timeout_s: float = 30.0) -> int:
        """Its exit code, negative for a signal."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """The size of its terminal. Raises ValueError without one."""
        ...

    def kill_foreground(self) -> None:
        """Kill the process group in its terminal's foreground. Raises ValueError without a terminal."""
        ...


@runtime_checkable
class Sandbox(Protocol):
    """A place to run untrusted commands, gone with all its processes after `close`.

    Relative paths start at its working folder. Every call raises ConnectionError once the sandbox has ended.
    """

    @property
    def python(self) -> str:
        """A Python inside that can import the packages the sandbox was asked for with."""
        ...

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a command to its end. When it is killed at a limit, or this call is cancelled, everything
        inside is killed with it."""
        ...

    async def start(
        self,
        command: Sequence[str],
        *,
        terminal: tuple[int, int] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a command and leave it running. terminal: rows and columns of a PTY; None: pipes."""
        ...

    async def read_file(self, path: str) -> bytes:
        """The whole of a regular file. Raises OSError (FileNotFoundError, ...) as reading one here would."""
        ...

    async def write_file(self, path: str, data: bytes) -> None:
        """Make or replace a file, and the folders above it. Raises OSError."""
        ...

    async def snapshot(self, path: str) -> bytes:
        """A folder as a tar archive of files, folders and links, for `restore` alone. Raises OSError."""
        ...

    async def restore(self, path: str, archive: bytes) -> None:
        """Unpack a tar archive into a folder, which is made where it is missing. Raises OSError."""
        ...

    async def kill(self) -> None:
        """End every process inside; files stay."""
        ...

    async def close(self) -> None:
        """End the sandbox. May be called again."""
        ...


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
    shared: what the items of one rollout hand to each other, under keys that start with their plugin's name.
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

        model: another model of the run, by its name in the configuration's `models` (a judge, a frozen
        opponent); only the policy's tokens train, so such an agent needs trained=False.
        Raises TopologyError when the role is taken or the run has no such model.
        """
        ...

    async def verify(self, response: str | None = None) -> Score | None:
        """Score a response by the row's verifier; None when the row has none."""
        ...

    async def sandbox(self, *, packages: Sequence[str] = ()) -> Sandbox:
        """A new sandbox of the backend that the run configuration names, closed when the rollout ends.

        packages: distributions that its Python can import. Raises ConfigError where the backend cannot run.
        """
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

    async def sandbox(self, *, packages: Sequence[str] = ()) -> Sandbox:
        """A new sandbox, as `Rollout.sandbox` gives; whoever asked closes it."""
        ...
