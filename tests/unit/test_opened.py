"""Plugin objects behind their boundary: promised types come out, or one error that names the plugin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import numpy as np
import pytest

from rollhook.errors import EnvironmentFailure, RolloutError, ToolError, TopologyError, VerifierError
from rollhook.opened import (
    OpenEnvironment,
    OpenTool,
    OpenTopology,
    OpenVerifier,
    as_score,
    close_quietly,
)
from rollhook.protocols import EnvironmentResult, Observation, Outcome, Score, ToolResult, View

VIEW = View(prompt="q", label="a", messages=[], response="r", metadata={})
NOTHING: Any = None


class Adder:
    name = "add"
    description = "Adds two integers."
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or ToolResult(str(arguments["a"] + arguments["b"]))


async def test_a_tool_gets_arguments_that_fit_its_schema() -> None:
    assert await OpenTool("calc/add", Adder()).call({"a": 1, "b": 2}) == ToolResult("3")


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ({"a": 1}, "Error: add: arguments: 'b' is a required property"),
        ({"a": 1, "b": "two"}, "Error: add: b: 'two' is not of type 'integer'"),
    ],
)
async def test_arguments_that_do_not_fit_are_answered_to_the_model(
    arguments: dict[str, Any], answer: str
) -> None:
    assert await OpenTool("calc/add", Adder()).call(arguments) == ToolResult(answer, is_error=True)


async def test_a_tool_that_raises_or_returns_something_else_fails_by_name() -> None:
    with pytest.raises(ToolError, match="calc/add: OSError: disk"):
        await OpenTool("calc/add", Adder(OSError("disk"))).call({"a": 1, "b": 2})
    with pytest.raises(
        ToolError, match=r"calc/add: TypeError: call\(\) returned str; it must return ToolResult"
    ):
        await OpenTool("calc/add", Adder("3")).call({"a": 1, "b": 2})


def test_a_schema_that_is_none_is_refused_when_the_tool_is_opened() -> None:
    broken = Adder()
    broken.parameters = {"type": "objekt"}

    with pytest.raises(ToolError, match="the parameters of tool 'add' are no JSON schema"):
        OpenTool("calc/add", broken)


class Steps:
    """Answers with the given observations in turn."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.closed = False

    async def reset(self, rollout: object) -> Any:
        return self.answers.pop(0)

    async def step(self, turn: object) -> Any:
        return self.answers.pop(0)

    async def close(self) -> None:
        self.closed = True


async def test_an_environments_rewards_add_up_and_its_facts_merge() -> None:
    world = OpenEnvironment(
        "w/w",
        Steps(
            Observation(info={"seed": 1}),
            Observation(text="go on", reward=0.25, info={"steps": 1}),
            Observation(done=True, reward=0.5, info={"steps": 2}),
        ),
    )

    await world.reset(NOTHING)
    before = world.result
    await world.step(NOTHING)
    await world.step(NOTHING)

    assert before == EnvironmentResult(reward=None, done=False, info={"seed": 1})
    assert world.result == EnvironmentResult(reward=0.75, done=True, info={"seed": 1, "steps": 2})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, r"step\(\) returned NoneType; it must return Observation"),
        (Observation(), "without messages, text or done"),
        (Observation(messages=[{"role": "user"}], text="x"), "both messages and text"),
        (
            Observation(messages=cast(Any, "well done")),
            r"TypeError: step\(\) returned messages of type str; they must be a sequence of mappings",
        ),
        (
            Observation(messages=cast(Any, ["well done"])),
            r"TypeError: step\(\) returned a message of type str; each must be a mapping",
        ),
        (Observation(done=True, info={"when": object()}), "TypeError: Object of type object is not JSON"),
        (Observation(done=True, reward=float("nan")), "the reward nan; it must be finite"),
    ],
)
async def test_a_step_that_breaks_the_contract_fails_by_name(answer: Any, message: str) -> None:
    with pytest.raises(EnvironmentFailure, match=f"w/w: .*{message}"):
        await OpenEnvironment("w/w", Steps(answer)).step(NOTHING)


async def test_an_episode_cannot_open_with_raw_text() -> None:
    with pytest.raises(EnvironmentFailure, match="an episode opens with messages"):
        await OpenEnvironment("w/w", Steps(Observation(text="x"))).reset(NOTHING)


async def test_what_an_episode_opens_with_are_messages() -> None:
    for messages, named in (("guess", "messages of type str"), ({"role": "user"}, "messages of type dict")):
        opening = Observation(messages=cast(Any, messages))
        with pytest.raises(EnvironmentFailure, match=rf"w/w: TypeError: reset\(\) returned {named}"):
            await OpenEnvironment("w/w", Steps(opening)).reset(NOTHING)


class Plain:
    """Every method that must be asynchronous, and is not."""

    name, description = "plain", "Says nothing."
    parameters: dict[str, Any] = {"type": "object"}

    def call(self, arguments: object) -> Any:
        return ToolResult("")

    def reset(self, rollout: object) -> Any:
        return Observation()

    def step(self, turn: object) -> Any:
        return Observation(done=True)

    def close(self) -> Any:
        return None

    def score(self, view: object) -> Any:
        return 1.0

    def score_group(self, views: object) -> Any:
        return [1.0]

    def run(self, rollout: object) -> Any:
        return Outcome()


@pytest.mark.parametrize(
    ("method", "use"),
    [
        ("call", lambda: OpenTool("p/p", Plain()).call({})),
        ("reset", lambda: OpenEnvironment("p/p", Plain()).reset(NOTHING)),
        ("step", lambda: OpenEnvironment("p/p", Plain()).step(NOTHING)),
        ("close", lambda: OpenEnvironment("p/p", Plain()).close()),
        ("score", lambda: OpenVerifier("p/p", Plain(), 5).score(VIEW)),
        ("score_group", lambda: OpenVerifier("p/p", Plain(), 5, group=True).score_group([VIEW])),
        ("run", lambda: OpenTopology("p/p", Plain()).run(NOTHING)),
    ],
)
async def test_a_method_that_is_not_asynchronous_is_told_so(
    method: str, use: Callable[[], Awaitable[object]]
) -> None:
    with pytest.raises(RolloutError) as caught:
        await use()

    assert str(caught.value) == f"p/p: TypeError: {method}() must be async def"


async def test_a_plain_function_that_hands_on_a_coroutine_is_asynchronous_enough() -> None:
    class Handing:
        def score(self, view: View) -> Awaitable[float]:
            return Judge(0.5).score(view)

    assert await OpenVerifier("v/v", cast(Any, Handing()), 5).score(VIEW) == Score(0.5)


class Judge:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def score(self, view: View) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer == "hang":
            await asyncio.Event().wait()
        return self.answer


@pytest.mark.parametrize("number", [True, np.float32(1.0), np.int64(1), np.bool_(True)])
async def test_whatever_is_a_number_is_a_score(number: Any) -> None:
    assert await OpenVerifier("v/v", Judge(number), 5).score(VIEW) == Score(1.0)


async def test_a_score_comes_out_as_a_score() -> None:
    assert await OpenVerifier("v/v", Judge(1), 5).score(VIEW) == Score(1.0)
    assert await OpenVerifier("v/v", Judge(Score(0.5, {"format": 1})), 5).score(VIEW) == Score(
        0.5, {"format": 1.0}
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "TypeError: the score's value is a NoneType"),
        ("0.5", "TypeError: the score's value is a str"),
        (float("inf"), "ValueError: the score's value is inf"),
        (Score(1.0, {"format": float("nan")}), "ValueError: the score's format is nan"),
        (KeyError("answer"), "KeyError: 'answer'"),
    ],
)
async def test_a_bad_score_fails_by_name(answer: Any, message: str) -> None:
    with pytest.raises(VerifierError, match=f"v/v: {message}"):
        await OpenVerifier("v/v", Judge(answer), 5).score(VIEW)


async def test_a_hung_verifier_ends_at_its_deadline() -> None:
    with pytest.raises(VerifierError, match=r"v/v: no score within 0.05 s \(verifier_timeout_s\)") as caught:
        await OpenVerifier("v/v", Judge("hang"), 0.05).score(VIEW)

    assert caught.value.cause_type == "TimeoutError"


async def test_a_verifiers_own_timeout_is_its_fault() -> None:
    with pytest.raises(VerifierError, match="v/v: TimeoutError: upstream"):
        await OpenVerifier("v/v", Judge(TimeoutError("upstream")), 5).score(VIEW)


class Runs:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def run(self, rollout: object) -> Any:
        return self.answer


async def test_a_topologys_answer_is_an_outcome() -> None:
    assert await OpenTopology("t/t", Runs(None)).run(NOTHING) == Outcome()
    assert await OpenTopology("t/t", Runs(Outcome(reward=1))).run(NOTHING) == Outcome(reward=Score(1.0))
    with pytest.raises(TopologyError, match=r"t/t: TypeError: run\(\) returned str; it must return Outcome"):
        await OpenTopology("t/t", Runs("done")).run(NOTHING)


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome(role_rewards={"a": float("nan")}), "ValueError: the score's a is nan"),
        (Outcome(role_rewards={"a": "good"}), "TypeError: the score's a is a str"),  # type: ignore[dict-item]  # the mistake under test
        (Outcome(scores={"x": object()}), "TypeError: the score's x is a object"),  # type: ignore[dict-item]  # the mistake under test
    ],
)
async def test_what_a_topology_reports_are_numbers(outcome: Outcome, message: str) -> None:
    with pytest.raises(TopologyError, match=f"t/t: {message}"):
        await OpenTopology("t/t", Runs(outcome)).run(NOTHING)


async def test_an_environment_that_does_not_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Steps):
        async def close(self) -> None:
            raise OSError("still mounted")

    await close_quietly(OpenEnvironment("w/w", Stuck()))

    assert caplog.messages == ["closing an environment failed: w/w: OSError: still mounted"]


def test_as_score_keeps_parts() -> None:
    assert as_score(Score(2, {"a": 1})) == Score(2.0, {"a": 1.0})
