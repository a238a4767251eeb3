"""Two hundred rows of every plugin, what the model says in each, what goes wrong, and what must come of it.

Invariant: what the model says is decided by the prompt alone, so that a row that runs again goes as before;
and every fault is in the plan once at least, wherever its seed puts it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rollhook.testing import Fault, Reply, Sampled, ScriptedRequest
from rollhook.testing.replies import sample
from tests.slime.faults import BROKEN
from tests.slime.slime_types import Args, DataSource, Row

PLUGINS = Path(__file__).parents[2] / "plugins"
TASKS = PLUGINS / "terminal" / "examples" / "tasks"
LIMIT_S = 15.0
"""timeout_s of rows that hang: long enough for the first turn on a busy machine."""

Say = Callable[[ScriptedRequest], Reply | str]
Error = tuple[str, str | None, str]
"""Stage, plugin and type of what `rollhook_result` names as the cause."""


@dataclass(frozen=True)
class Outcome:
    """What came of a row. status: of all its Samples. rewards: sorted, one for each of them."""

    status: str
    rewards: tuple[float, ...] = (0.0,)
    error: Error | None = None


@dataclass(frozen=True)
class Case:
    """One row. lines: what the model says for sure, in order; a fault of the engine may hit any of them.

    held: it never ends by itself, and the trainer cancels it, or aborts.
    """

    name: str
    prompt: Any
    label: Any
    metadata: Any
    say: Say
    expected: Outcome
    lines: tuple[str, ...] = ()
    held: Literal["cancelled", "aborted"] | None = None

    @property
    def row(self) -> Row:
        return self.prompt, self.label, self.metadata


# -- rows that go well ---------------------------------------------------------------------------------------


def in_order(*lines: str) -> Say:
    """The first line that was not said yet."""

    def say(request: ScriptedRequest) -> str:
        said = request.prompt.partition("<|im_start|>assistant")[2]
        return next(line for line in lines if line not in said)

    return say


def call(tool: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def well(name: str, prompt: str, label: Any, spec: Any, *lines: str, rewards: tuple[float, ...]) -> Case:
    """A row whose model says the lines one after the other."""
    expected = Outcome("completed", rewards)
    return Case(name, prompt, label, {"rollhook": spec}, in_order(*lines), expected, lines)


def search(right: bool) -> Case:
    label = {"target": ["Canberra" if right else "Sydney"]}
    lines = ("<search>capital of Australia</search>", "<answer>Canberra</answer>")
    prompt = "What is the capital of Australia?"
    return well("search-r1", prompt, label, "search-r1", *lines, rewards=(float(right),))


def retool(right: bool) -> Case:
    lines = ("<code>\nprint(pow(7, 2024, 1000))\n</code>", "<answer>\n\\boxed{401}\n</answer>")
    label, rewards = ("401", (1.0,)) if right else ("7", (-1.0,))
    prompt = "What is the remainder when 7^2024 is divided by 1000?"
    return well("retool", prompt, label, "retool", *lines, rewards=rewards)


def terminal(right: bool) -> Case:
    solution = (TASKS / "sum-sales" / "solution" / "solve.sh").read_text() if right else "true"
    lines = (call("bash", command=solution), "Done.")
    spec = {"environment": {"name": "terminal", "task": "sum-sales"}}
    return well("terminal", "sum-sales", None, spec, *lines, rewards=(float(right),))


def browser(right: bool) -> Case:
    del right

    def say(request: ScriptedRequest) -> str:
        button = re.search(r"^\[(\d+)\] button", request.prompt.rsplit("Page: ", 1)[1], re.MULTILINE)
        assert button is not None, request.prompt
        return f'```\nclick("{button[1]}")\n```'

    spec = {"environment": {"name": "browser/miniwob", "task": "click-test", "seed": 0}}
    return Case(
        "browser", "Do the task.", None, {"rollhook": spec}, say, Outcome("completed", (1.0,)), ("any",)
    )


def calculator(right: bool) -> Case:
    lines = (call("calculator", expression="6 * 7"), "The answer is 42.")
    spec = {"tools": "calculator", "verifier": "number"}
    return well("calculator", "6 * 7?", "42" if right else "41", spec, *lines, rewards=(float(right),))


def topology(name: Any, say: Say, right: bool, agents: int, *lines: str, **spec: Any) -> Case:
    """A row of several agents that share what their answer, 42, is worth."""
    metadata = {"rollhook": {"topology": name, "verifier": "number", **spec}}
    expected = Outcome("completed", (float(right),) * agents)
    called = name if isinstance(name, str) else name["name"]
    return Case(called, "6 * 7?", "42" if right else "41", metadata, say, expected, lines)


def debate(right: bool) -> Case:
    return topology("debate", lambda request: "I say 42.", right, 3)


def best_of_n(right: bool) -> Case:
    name = {"name": "topologies/best-of-n", "candidates": 2}
    return topology(name, lambda request: "It is 42.", right, 2)


def self_refine(right: bool) -> Case:
    def say(request: ScriptedRequest) -> str:
        if "If there is nothing to change" in request.prompt:
            return "Nothing to change." if "It is 42." in request.prompt else "No: count again."
        return "It is 42." if "Feedback on your answer" in request.prompt else "It is 5."

    return topology("topologies/self-refine", say, right, 2, "It is 5.")


def orchestrator(right: bool) -> Case:
    orders = call("delegate", task="Count to 42.")

    def say(request: ScriptedRequest) -> str:
        if '"name": "delegate"' not in request.prompt:
            return "I counted."
        return "The answer is 42." if "<tool_response>" in request.prompt else orders

    return topology("topologies/orchestrator", say, right, 2, orders, "The answer is 42.")


def compact(right: bool) -> Case:
    orders = call("calculator", expression="6 * 7")

    def say(request: ScriptedRequest) -> str:
        if "Your context is nearly full" in request.prompt:
            return "It came to 42."
        return "The answer is 42." if "Summary 1" in request.prompt else orders

    name = {"name": "topologies/compact", "at_tokens": 60}
    lines = (orders, "It came to 42.", "The answer is 42.")
    return topology(name, say, right, 2, *lines, tools="calculator")


# -- faults --------------------------------------------------------------------------------------------------

ITEMS = {"tools": "faulty/use", "environment": "faulty/world", "verifier": "faulty/judge"}
SAID = (call("use"), "I am done.")


def faulty(item: str, at: str, how: str, expected: Outcome, **spec: Any) -> Case:
    """A row of the plugin `faulty` that has a tool, an environment, a verifier and a topology of it.

    item: the kind of the one that goes wrong.
    """
    wrong = {"name": {**ITEMS, "topology": "faulty/alone"}[item], "at": at, "how": how}
    metadata = {"rollhook": {**ITEMS, "topology": "faulty/alone", item: wrong, **spec}}
    return Case(f"{item}.{at} {how}", "Go on.", "", metadata, in_order(*SAID), expected, ())


def failed(stage: str, plugin: str | None, cause: str) -> Outcome:
    return Outcome("failed", error=(stage, plugin, cause))


GOOD = Outcome("completed", (1.0,))
CUT = Outcome("truncated", (1.0,))
ALONE = ("resolve", "rollhook/majority", "RowError")
"""A verifier that compares answers was given one."""
BY_ITSELF = failed("rollout", None, "CancelledError")
"""A library's own CancelledError is no cancellation; whose it was cannot be told."""


def plugin_faults() -> list[Case]:
    """Every way in which an item can go wrong."""
    tool, world, judge, alone = "faulty/use", "faulty/world", "faulty/judge", "faulty/alone"
    until_limit = {"limits": {"timeout_s": LIMIT_S}}
    nothing = failed("rollout", world, "RolloutError")
    cases = [
        faulty("tools", "call", "raise", failed("tool", tool, "OSError")),
        faulty("tools", "call", "group", failed("tool", tool, "OSError")),
        faulty("tools", "call", "junk", failed("tool", tool, "TypeError")),
        faulty("tools", "call", "exit", failed("tool", tool, "SystemExit")),
        faulty("tools", "call", "cancel", BY_ITSELF),
        faulty("tools", "call", "hang", CUT, **until_limit),
        faulty("environment", "reset", "raise", failed("environment", world, "OSError")),
        faulty("environment", "reset", "junk", failed("environment", world, "TypeError")),
        faulty("environment", "reset", "cancel", BY_ITSELF),
        faulty("environment", "reset", "hang", nothing, **until_limit),
        faulty("environment", "step", "raise", failed("environment", world, "OSError")),
        faulty("environment", "step", "junk", failed("environment", world, "TypeError")),
        faulty("environment", "step", "nan", failed("environment", world, "ValueError")),
        faulty("environment", "step", "hang", CUT, **until_limit),
        faulty("environment", "close", "raise", GOOD),
        faulty("environment", "leave", "raise", GOOD),
        faulty("verifier", "score", "raise", failed("verifier", judge, "OSError")),
        faulty("verifier", "score", "group", failed("verifier", judge, "OSError")),
        faulty("verifier", "score", "nan", failed("verifier", judge, "ValueError")),
        faulty("verifier", "score", "junk", failed("verifier", judge, "TypeError")),
        faulty("verifier", "score", "cancel", BY_ITSELF),
        faulty("verifier", "score", "hang", failed("verifier", judge, "TimeoutError")),
        faulty("topology", "run", "raise", failed("topology", alone, "OSError")),
        faulty("topology", "run", "group", failed("topology", alone, "OSError")),
        faulty("topology", "run", "junk", failed("topology", alone, "TypeError")),
        faulty("topology", "run", "nan", failed("topology", alone, "ValueError")),
        faulty("topology", "run", "cancel", BY_ITSELF),
        faulty("topology", "run", "hang", CUT, **until_limit),
        faulty("topology", "turn", "", failed("rollout", None, "RolloutError")),
        faulty("environment", "open", "hang", nothing, **until_limit),
    ]
    for item, name in {**ITEMS, "topology": alone}.items():
        cases += [
            faulty(item, "open", "raise", failed("open", name, "OSError")),
            faulty(item, "open", "junk", failed("open", name, "RuntimeError")),
            faulty(item, "open", "cancel", failed("open", name, "CancelledError")),
            faulty(item, "create", "raise", failed("open", name, "KeyError")),
            faulty(item, "create", "junk", failed("open", name, "TypeError")),
        ]
    return cases


def row_faults() -> list[Case]:
    """Rows that cannot be run as they are."""
    unread = failed("resolve", None, "RowError")
    misfit = failed("resolve", "rollhook/number", "RowError")
    number: Any = {"rollhook": {"verifier": "number"}}
    rows: list[tuple[Any, Any, Outcome]] = [
        ("6 * 7?", {"rollhook": "search-r2"}, unread),
        ("6 * 7?", {"rollhook": {"tools": f"{BROKEN}/tool"}}, unread),
        ("6 * 7?", {"rollhook": {"verifier": {"name": "number", "tolerence": 1}}}, misfit),
        ("6 * 7?", {"rollhook": 17}, unread),
        ("6 * 7?", {}, unread),
        ("6 * 7?", {"rollhook": {"limits": {"max_turns": 1}}}, unread),  # generate is fine, reward is not
        (
            "6 * 7?",
            {"rollhook": {"verifier": "majority"}},
            failed("resolve", "rollhook/majority", "RowError"),
        ),
        ("6 * 7?", None, unread),
        ("6 * 7?", "number", unread),
        (None, number, unread),
        ([], number, unread),
        ([{"content": "no role"}], number, unread),
    ]
    return [
        Case("row fault", prompt, "42", metadata, lambda request: "It is 42.", expected)
        for prompt, metadata, expected in rows
    ]


def held() -> list[Case]:
    """Rows that hold still, wherever no deadline but the rollout's own ends them, until the trainer does."""
    places = [("tools", "call"), ("environment", "open"), ("environment", "reset"), ("environment", "step")]
    places.append(("topology", "run"))
    ends: list[Case] = [faulty(item, at, "hang", Outcome("")) for item, at in places]
    hanging = Reply(SAID[0], fault=Fault.hang(after_tokens=2, times=None))
    ends.append(replace(ends[0], name="engine hang", say=lambda request: hanging))
    return [
        *(replace(case, held="cancelled") for case in ends),
        *(replace(case, held="aborted", expected=Outcome("aborted")) for case in ends),
    ]


LASTING: list[tuple[Fault, str]] = [
    (Fault.drop(None), "EngineUnavailable"),
    (Fault.status(500, None), "EngineUnavailable"),
    (Fault.status(429, None, retry_after_s=0), "EngineUnavailable"),
    (Fault.status(400, None), "EngineRejected"),
    (Fault.cut(times=None), "EngineUnavailable"),
    (Fault.missing_logprobs(None), "EngineProtocolError"),
    (Fault.nan_logprob(None), "EngineProtocolError"),
    (Fault.wrong_ids(None), "EngineProtocolError"),
    (Fault.truncated_json(None), "EngineProtocolError"),
]
PASSING = [Fault.drop(), Fault.status(500), Fault.status(429, retry_after_s=0)]


def with_engine_fault(case: Case, line: str, fault: Fault, cause: str | None) -> Case:
    """`case` whose engine fails when `line` is to be said ("any": whatever is).

    cause: the type of the error of a fault that lasts; None: it passes, and nothing comes of it.
    """

    def say(request: ScriptedRequest) -> Reply | str:
        text = case.say(request)
        return Reply(str(text), fault=fault) if line in ("any", text) else text

    expected = case.expected if cause is None else failed("engine", None, cause)
    return replace(case, name=f"{case.name}, engine {fault.kind}", say=say, expected=expected)


def with_foreign_abort(case: Case) -> Case:
    """`case` whose first turn is ended half-way at another client's word."""
    first, _, last = case.lines[0].partition(" ")

    def say(request: ScriptedRequest) -> Reply | str:
        if request.prompt.endswith(first):
            return f" {last}"
        text = case.say(request)
        return Reply(first, finish="abort") if text == case.lines[0] else text

    return replace(case, name=f"{case.name}, engine abort", say=say)


def with_endless_abort(case: Case) -> Case:
    """`case` whose engine aborts every request, before any token."""
    aborted = Reply("", finish="abort")
    expected = failed("engine", None, "EngineUnavailable")
    return replace(case, name=f"{case.name}, engine aborts", say=lambda request: aborted, expected=expected)


# -- the plan ------------------------------------------------------------------------------------------------

LIGHT = (search, calculator, debate, best_of_n, self_refine, orchestrator, compact)


def plan(seed: int, *, count: int = 200, heavy: dict[Any, int], holding: bool = True) -> list[Case]:
    """`count` cases in a random order. heavy: how many of costly kinds, by the function that makes one."""
    rng = random.Random(seed)
    bad = [*plugin_faults(), *row_faults(), *(held() if holding else [])]
    costly = [make(number % 3 > 0) for make, most in heavy.items() for number in range(most)]
    rest = count - len(bad) - len(costly)
    good = [*costly, *(LIGHT[number % len(LIGHT)](rng.random() < 0.7) for number in range(rest))]
    rng.shuffle(good)
    spoilt = iter([place for place, case in enumerate(good) if case.lines])
    for fault, cause in LASTING + LASTING:
        _spoil(good, next(spoilt), rng, fault, cause)
    for fault in PASSING * 4:
        _spoil(good, next(spoilt), rng, fault, None)
    for place, make in zip(spoilt, [with_foreign_abort] * 5 + [with_endless_abort], strict=False):
        if good[place].lines != ("any",):
            good[place] = make(good[place])
    cases = good + bad
    rng.shuffle(cases)
    return cases


def _spoil(cases: list[Case], place: int, rng: random.Random, fault: Fault, cause: str | None) -> None:
    case = cases[place]
    cases[place] = with_engine_fault(case, rng.choice(case.lines), fault, cause)


# -- what a run of the plan needs ----------------------------------------------------------------------------


class Rows(DataSource):
    """The rows of the cases, once each, with a session_id that tells the engine which one it is."""

    def __init__(self, args: Args, cases: Sequence[Case]) -> None:
        super().__init__(args, [case.row for case in cases])

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        left = len(self.rows) - self.groups + len(self.buffer)
        groups = super().get_samples(min(num_samples, left))
        for group in groups:
            for row in group:
                row.session_id = f"row-{row.index}"
        return groups


@dataclass
class Model:
    """The script of an engine that plays the cases, and the record of what it had to sample."""

    cases: Sequence[Case]
    tokenizer: Any
    sampled: dict[tuple[str, tuple[int, ...]], Sampled] = field(default_factory=dict)

    def __call__(self, request: ScriptedRequest) -> Reply:
        said = self.cases[int(request.session.removeprefix("row-"))].say(request)
        reply = Reply(said) if isinstance(said, str) else said
        key = (request.session, tuple(request.input_ids))
        self.sampled[key] = sample(reply, self.tokenizer, request.sampling, self.tokenizer.eos_token_id)
        return reply

    def turn_of(self, request: ScriptedRequest) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """The ids and log-probabilities of the turn that ended with the answer to `request`, by its parts."""
        parts = [self.sampled[request.session, tuple(request.input_ids)]]
        for (session, input_ids), part in self.sampled.items():
            behind = session == request.session and part.reason["type"] == "abort"
            if behind and [*input_ids, *part.token_ids] == list(request.input_ids):
                parts.append(part)
        return [(tuple(part.token_ids), tuple(part.log_probs)) for part in parts]
