"""Plugin objects as a rollout holds them: each behind its boundary, its answers checked.

Invariant: whatever plugin code raises or returns, the core sees either a value of the promised type or one
RolloutError that names the plugin.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, SupportsFloat, TypeVar

from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import validator_for

from rollhook.errors import (
    EnvironmentFailure,
    RolloutError,
    ToolError,
    TopologyError,
    VerifierError,
    boundary,
)
from rollhook.names import BUILTIN_PLUGIN
from rollhook.protocols import (
    Environment,
    EnvironmentResult,
    GroupVerifier,
    Observation,
    Outcome,
    Rollout,
    Score,
    Tool,
    ToolResult,
    Topology,
    Turn,
    Verifier,
    View,
)

_T = TypeVar("_T")
_CLOSE_TIMEOUT_S = 30.0
_log = logging.getLogger("rollhook.opened")


class OpenTool:
    """A tool (`rollhook.protocols.Tool`) with its owner's full name and its schema checked once."""

    def __init__(self, owner: str, tool: Tool) -> None:
        self.owner = owner
        self.tool = tool
        self.name = tool.name
        self.description = tool.description
        self.parameters: Mapping[str, Any] = dict(tool.parameters)
        try:
            self._validator = _validator(json.dumps(self.parameters))
        except (TypeError, SchemaError) as error:
            why = error.message if isinstance(error, SchemaError) else error
            raise ToolError(
                f"{owner}: the parameters of tool {self.name!r} are no JSON schema: {why}", plugin=owner
            ) from error

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as chat templates and OpenAI clients know it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Call the tool, or answer why its arguments do not fit its schema."""
        if error := best_match(self._validator.iter_errors(arguments)):
            where = error.json_path.removeprefix("$").lstrip(".") or "arguments"
            return ToolResult(f"Error: {self.name}: {where}: {error.message}", is_error=True)
        async with boundary(ToolError, self.owner):
            return _expect(await _awaitable(self.tool.call(arguments), "call"), ToolResult, "call")


class OpenEnvironment:
    """An environment (`rollhook.protocols.Environment`) that sums its rewards and merges its facts."""

    def __init__(self, owner: str, environment: Environment) -> None:
        self.owner = owner
        self.environment = environment
        self._rewards: list[float] = []
        self._info: dict[str, Any] = {}
        self._done = False

    async def reset(self, rollout: Rollout) -> Observation:
        async with boundary(EnvironmentFailure, self.owner):
            seen = _expect(await _awaitable(self.environment.reset(rollout), "reset"), Observation, "reset")
            _check_messages(seen.messages, "reset")
            if seen.text is not None:
                raise ValueError("reset() returned raw text; an episode opens with messages")
            json.dumps(dict(seen.info), allow_nan=False)
        return self._record(seen)

    async def step(self, turn: Turn) -> Observation:
        async with boundary(EnvironmentFailure, self.owner):
            seen = _expect(await _awaitable(self.environment.step(turn), "step"), Observation, "step")
            _check_messages(seen.messages, "step")
            if seen.messages and seen.text is not None:
                raise ValueError("step() returned both messages and text; give one of them")
            if not (seen.done or seen.messages or seen.text is not None):
                raise ValueError("step() returned an Observation without messages, text or done")
            json.dumps(dict(seen.info), allow_nan=False)  # it travels with the Sample
            if seen.reward is not None and not math.isfinite(seen.reward):
                raise ValueError(f"step() returned the reward {seen.reward}; it must be finite")
        return self._record(seen)

    async def close(self) -> None:
        async with boundary(EnvironmentFailure, self.owner), asyncio.timeout(_CLOSE_TIMEOUT_S):
            await _awaitable(self.environment.close(), "close")

    @property
    def result(self) -> EnvironmentResult:
        """What the episode came to so far."""
        total = sum(self._rewards) if self._rewards else None
        return EnvironmentResult(reward=total, done=self._done, info=dict(self._info))

    def _record(self, seen: Observation) -> Observation:
        if seen.reward is not None:
            self._rewards.append(float(seen.reward))
        self._info.update(seen.info)
        self._done = self._done or seen.done
        return seen


@dataclass(frozen=True, slots=True)
class OpenVerifier:
    """A verifier behind its boundary and deadline.

    timeout_s bounds one call. weight: in the sum of several. group: it scores a prompt's answers together.
    """

    owner: str
    verifier: Verifier | GroupVerifier
    timeout_s: float
    weight: float = 1.0
    group: bool = False

    async def score(self, view: View) -> Score:
        """The verifier's answer as a Score with a finite value. Raises VerifierError, naming the verifier."""
        assert isinstance(self.verifier, Verifier)
        async with self._deadline():
            return as_score(await _awaitable(self.verifier.score(view), "score"))

    async def score_group(self, views: Sequence[View]) -> list[Score]:
        """The same for all answers to one prompt, in their order."""
        assert isinstance(self.verifier, GroupVerifier)
        async with self._deadline():
            given = await _awaitable(self.verifier.score_group(views), "score_group")
            scores = [as_score(score) for score in given]
            if len(scores) != len(views):
                raise ValueError(f"score_group() returned {len(scores)} scores for {len(views)} answers")
            return scores

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.timeout_s) as limit, boundary(VerifierError, self.owner):
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise VerifierError(
                f"{self.owner}: no score within {self.timeout_s:g} s (verifier_timeout_s)",
                plugin=self.owner,
                cause_type="TimeoutError",
            ) from error


async def score_by(verifiers: Sequence[OpenVerifier], view: View) -> Score:
    """The weighted sum of what all of them say, asked at once. The first VerifierError ends the others."""
    async with boundary(VerifierError, None), asyncio.TaskGroup() as group:
        tasks = [group.create_task(verifier.score(view)) for verifier in verifiers]
    return weighted_sum([(verifier, task.result()) for verifier, task in zip(verifiers, tasks, strict=True)])


def weighted_sum(scores: Sequence[tuple[OpenVerifier, Score]]) -> Score:
    """One score of several: the sum of weight times value; what each gave is in the parts, under its name.

    The only one with weight 1 is the sum itself. Built-in verifiers are named without `rollhook/`.
    """
    if len(scores) == 1 and scores[0][0].weight == 1.0:
        return scores[0][1]
    parts: dict[str, float] = {}
    for verifier, score in scores:
        name = verifier.owner.removeprefix(f"{BUILTIN_PLUGIN}/")
        parts[name] = score.value
        parts.update({f"{name}.{part}": value for part, value in score.parts.items()})
    return as_score(Score(sum(verifier.weight * score.value for verifier, score in scores), parts))


@dataclass(frozen=True, slots=True)
class OpenTopology:
    """A topology behind its boundary."""

    owner: str
    topology: Topology

    async def run(self, rollout: Rollout) -> Outcome:
        async with boundary(TopologyError, self.owner):
            outcome = await _awaitable(self.topology.run(rollout), "run")
            if outcome is None:
                return Outcome()
            _expect(outcome, Outcome, "run")
            own = None if outcome.reward is None else as_score(outcome.reward)
            roles = as_score(Score(0.0, outcome.role_rewards)).parts
            return replace(
                outcome, reward=own, role_rewards=roles, scores=as_score(Score(0.0, outcome.scores)).parts
            )


def _awaitable(returned: Awaitable[_T], method: str) -> Awaitable[_T]:
    if not inspect.isawaitable(returned):
        raise TypeError(f"{method}() must be async def")
    return returned


def _check_messages(messages: object, method: str) -> None:
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        kind = type(messages).__name__
        raise TypeError(f"{method}() returned messages of type {kind}; they must be a sequence of mappings")
    for message in messages:
        if not isinstance(message, Mapping):
            kind = type(message).__name__
            raise TypeError(f"{method}() returned a message of type {kind}; each must be a mapping")


def _expect(value: object, kind: type[_T], method: str) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"{method}() returned {type(value).__name__}; it must return {kind.__name__}")
    return value


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    """A validator for a schema as JSON text. Checking one takes a millisecond, so each is checked once."""
    parameters = json.loads(schema)
    kind = validator_for(parameters)
    kind.check_schema(parameters)
    return kind(parameters)


async def close_quietly(environment: OpenEnvironment) -> None:
    """Close, and log what went wrong instead of raising: a finished rollout stays finished."""
    try:
        await environment.close()
    except RolloutError as error:
        _log.warning("closing an environment failed: %s", error)


def as_score(value: float | Score) -> Score:
    """A number or a Score as a Score of floats: bools, NumPy's and torch's scalars count as numbers.

    Raises TypeError for what is no number, ValueError for one that is not finite.
    """
    score = value if isinstance(value, Score) else Score(value)
    parts = {name: _finite(part, name) for name, part in score.parts.items()}
    return Score(_finite(score.value, "value"), parts)


def _finite(number: object, name: str) -> float:
    if isinstance(number, str) or not isinstance(number, SupportsFloat):
        raise TypeError(f"the score's {name} is a {type(number).__name__}; it must be a number")
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"the score's {name} is {value}; it must be finite")
    return value
