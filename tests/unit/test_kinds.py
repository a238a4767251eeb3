from __future__ import annotations

from typing import Any

import pytest

from rollhook.ledger import Ledger
from rollhook.protocols import Message
from rollhook.render import Renderer
from tests.unit.ledger_script import Script, said, user

SYSTEM: Message = {"role": "system", "content": "Help."}
TITLE: Message = {"role": "system", "content": "Make a title."}
TOOL = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}


@pytest.fixture
def script(qwen3_tokenizer: Any) -> Script:
    return Script(Ledger(Renderer(qwen3_tokenizer)))


def kinds(script: Script) -> list[tuple[str, int, bool]]:
    """Of each segment: its kind, how many turns it has, whether it was abandoned."""
    return [(segment.kind, segment.turns, segment.abandoned) for segment in script.ledger.segments()]


def reasons(script: Script) -> list[str]:
    return [reason for _, reason in script.ledger.forks]


def converse(script: Script, first: Message, words: list[str], tools: list[Any] | None = None) -> None:
    """A conversation under `SYSTEM`: a turn for each word."""
    history = [SYSTEM, first]
    for word in words:
        script.answer(script.ledger.extend(history, tools=tools or []), word)
        history += [said(word), user(f"after {word}?")]


def test_the_first_request_answered_twice_is_the_ledgers_role(script: Script) -> None:
    script.say([SYSTEM, user("q")], "lost")
    script.say([SYSTEM, user("q")], "kept")

    assert kinds(script) == [("main", 1, False)]
    assert reasons(script) == ["retry"]


def test_two_answers_that_were_both_gone_on_from_are_branches(script: Script) -> None:
    script.say([SYSTEM, user("q")], "one")
    script.say([SYSTEM, user("q")], "two")
    script.say([SYSTEM, user("q"), said("one"), user("x")], "three")
    script.say([SYSTEM, user("q"), said("two"), user("y")], "four")

    assert kinds(script) == [("main", 2, True), ("main", 2, False)]
    assert reasons(script) == ["retry"]


def test_an_edited_first_answer_is_a_branch(script: Script) -> None:
    script.say([SYSTEM, user("q")], "one")
    script.say([SYSTEM, user("q"), said("one"), user("x")], "two")
    script.say([SYSTEM, user("q"), said("EDIT"), user("x")], "three")
    script.say([SYSTEM, user("q"), said("EDIT"), user("x"), said("three"), user("y")], "four")

    assert kinds(script) == [("main", 2, True), ("main", 2, False)]
    assert reasons(script) == ["edited turn"]


def test_a_rewind_is_a_branch(script: Script) -> None:
    converse(script, user("q"), ["one", "two"])
    script.say([SYSTEM, user("q"), said("one"), user("other?")], "three")

    assert kinds(script) == [("main", 2, True), ("main", 2, False)]
    assert reasons(script) == ["rewind"]


def test_a_branch_of_a_replaced_history_stays_with_it(script: Script) -> None:
    script.say([SYSTEM, user("q")], "one")
    script.say([SYSTEM, user("q"), said("EDIT"), user("x")], "two")
    converse(script, user("Summary."), ["three"])

    assert [kind for kind, _, _ in kinds(script)] == ["wipe", "wipe", "final"]
    assert reasons(script) == ["edited turn", "history replaced"]


@pytest.mark.parametrize("tools", [[], [TOOL]], ids=["by its turns", "by its tools"])
def test_a_helpers_call_before_the_conversation_is_the_subagents(script: Script, tools: list[Any]) -> None:
    script.say([TITLE, user("q")], "title")
    converse(script, user("q"), ["one"] if tools else ["one", "two"], tools)

    assert [kind for kind, _, _ in kinds(script)] == ["subagent", "main"]


def test_a_summary_replaces_a_history_though_helpers_were_called_between(script: Script) -> None:
    script.say([TITLE, user("q")], "title")
    converse(script, user("q"), ["one", "two"])
    script.say([{"role": "system", "content": "Summarise."}, user("q one two")], "summary")
    converse(script, user("Summary."), ["three"])

    assert [kind for kind, _, _ in kinds(script)] == ["subagent", "wipe", "subagent", "final"]
    assert reasons(script)[-1] == "history replaced"


def test_a_long_conversation_inside_another_is_a_subagents(script: Script) -> None:
    script.say([SYSTEM, user("q")], "one")
    for word in "abc":
        script.answer(script.ledger.extend([TITLE, user(word)], tools=[TOOL]), word)
    script.say([SYSTEM, user("q"), said("one"), user("x")], "two")

    assert [kind for kind, _, _ in kinds(script)] == ["subagent", "subagent", "subagent", "main"]


def test_conversations_asked_for_at_the_same_time_replace_nothing(script: Script) -> None:
    left, right = (script.ledger.extend([SYSTEM, user(word)]) for word in ("left?", "right?"))
    script.answer(left, "left")
    script.answer(right, "right")

    assert kinds(script) == [("main", 1, False), ("main", 1, False)]
    assert reasons(script) == ["asked at the same time"]
    converse(script, user("Summary."), ["three"])
    assert [kind for kind, _, _ in kinds(script)] == ["wipe", "wipe", "final"]


@pytest.mark.parametrize("same", [True, False])
def test_turns_asked_for_at_the_same_time_are_branches(script: Script, same: bool) -> None:
    history = [SYSTEM, user("q"), said("one")]
    script.say(history[:2], "one")
    left, right = (script.ledger.extend([*history, user(word)]) for word in ("x", "x" if same else "y"))
    script.answer(left, "left")
    script.answer(right, "right")

    assert {kind for kind, _, _ in kinds(script)} == {"main"}
    assert reasons(script) == ["retry" if same else "asked at the same time"]
