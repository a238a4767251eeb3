from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rollhook.ledger import Ledger
from rollhook.protocols import Message
from rollhook.render import Renderer
from tests.unit.ledger_script import Script, said, user

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "search", "arguments": {"query": "who", "topk": 3, "id": 7}},
}
CALLING = {
    "role": "assistant",
    "content": "Let me look.",
    "reasoning_content": "Hm.",
    "tool_calls": [CALL],
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "Ann\nBob"}


def with_arguments(arguments: Any, **call: Any) -> Message:
    return {
        **CALLING,
        "tool_calls": [{**CALL, "function": {"name": "search", "arguments": arguments}, **call}],
    }


ECHOES: dict[str, Callable[[], list[Message]]] = {
    "as it was": lambda: [user("who?"), CALLING, RESULT],
    "thinking dropped": lambda: [
        user("who?"),
        {key: value for key, value in CALLING.items() if key != "reasoning_content"},
        RESULT,
    ],
    "thinking in the text": lambda: [
        user("who?"),
        {**CALLING, "content": "<think>\nHm.\n</think>\n\nLet me look."},
        RESULT,
    ],
    "thinking as a block": lambda: [
        user("who?"),
        {
            **CALLING,
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "Let me look."},
            ],
        },
        RESULT,
    ],
    "other whitespace": lambda: [user("who?\n"), {**CALLING, "content": " Let  me\nlook. "}, RESULT],
    "arguments as JSON": lambda: [
        user("who?"),
        with_arguments('{ "id":7, "topk": 3,\n "query": "who"}'),
        RESULT,
    ],
    "keys in another order": lambda: [
        dict(reversed(user("who?").items())),
        dict(reversed(CALLING.items())),
        dict(reversed(RESULT.items())),
    ],
    "text in blocks, split, with cache markers": lambda: [
        {
            "role": "user",
            "content": [{"type": "text", "text": "who?", "cache_control": {"type": "ephemeral"}}],
        },
        {**CALLING, "content": [{"type": "text", "text": "Let me "}, {"type": "text", "text": "look."}]},
        {**RESULT, "content": [{"type": "text", "text": "Ann\nBob", "cache_control": {}}]},
    ],
    "metadata nobody asked for": lambda: [
        {**user("who?"), "id": "m1"},
        {**CALLING, "id": "m2", "created": 1, "status": "completed"},
        {**RESULT, "name": "search"},
    ],
    "ids of the client's own": lambda: [
        user("who?"),
        with_arguments(CALL["function"]["arguments"], id="toolu_9"),  # type: ignore[index]  # a literal above
        {**RESULT, "tool_call_id": "toolu_9"},
    ],
    "numbers as JavaScript writes them": lambda: [
        user("who?"),
        with_arguments('{"query": "who", "topk": 3.0, "id": 7e0}', id="toolu_9"),
        {**RESULT, "tool_call_id": "toolu_9"},
    ],
    "text and calls as two messages": lambda: [
        user("who?"),
        said("Let me look."),
        {**CALLING, "content": None},
        RESULT,
    ],
    "each block a message, ids of the client's own": lambda: [
        user("who?"),
        said("<think>\nHm.\n</think>"),
        said("Let me"),
        said("look."),
        {**with_arguments(CALL["function"]["arguments"], id="toolu_9"), "content": ""},  # type: ignore[index]  # a literal above
        {**RESULT, "tool_call_id": "toolu_9"},
    ],
    "text split at a line break, which is dropped": lambda: [
        user("who?"),
        {**CALLING, "content": ["Let me", "look."]},
        RESULT,
    ],
    "text dropped beside known ids": lambda: [user("who?"), {**CALLING, "content": None}, RESULT],
}

DIFFERENCES: dict[str, Callable[[], list[Message]]] = {
    "another question": lambda: [user("what?"), CALLING, RESULT],
    "another argument": lambda: [
        user("who?"),
        with_arguments({"query": "who", "topk": 3, "id": 8}, id="call_2"),
        RESULT,
    ],
    "another answer": lambda: [user("who?"), said("Ann"), user("sure?")],
    "a second assistant message": lambda: [user("who?"), {**CALLING, "tool_calls": []}, said("Ann"), RESULT],
    "indentation, which is meaning": lambda: [user("  who?\n  sure?"), CALLING, RESULT],
}


@pytest.fixture
def script(qwen3_tokenizer: Any) -> Script:
    ledger = Ledger(Renderer(qwen3_tokenizer))
    script = Script(ledger)
    script.say([user("who?")], "<think>\nHm.\n</think>\n\nLet me look.", message=CALLING)
    return script


@pytest.mark.parametrize("echo", ECHOES)
def test_an_echoed_turn_is_recognised(script: Script, echo: str) -> None:
    history = ECHOES[echo]()

    prompt = script.ledger.extend(history)

    assert prompt.parent == 0
    assert "Ann\nBob" in script.tokenizer.decode(prompt.delta)
    script.answer(prompt, "Ann")
    assert script.ledger.forks == []
    again = script.ledger.extend([*history, said("Ann"), user("sure?")])
    assert again.parent == 1


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_a_history_that_says_something_else_forks(script: Script, difference: str) -> None:
    script.say(DIFFERENCES[difference](), "Ann")

    assert len(script.ledger.segments()) == 2
    assert len(script.ledger.forks) == 1


def test_a_history_is_followed_through_whichever_of_two_equal_answers_went_on(qwen3_tokenizer: Any) -> None:
    script = Script(Ledger(Renderer(qwen3_tokenizer)))
    opening = [user("one?")]
    script.say(opening, "1")
    went_on = [*opening, said("1"), user("two?")]
    second = script.say(went_on, "2")
    script.answer(script.ledger.extend(opening), "1")  # asked again, and answered alike

    goes_on = script.ledger.extend([*went_on, said("2"), user("three?")])
    again = script.ledger.extend(went_on)

    assert goes_on.parent == second
    assert again.input_ids == script.ledger.tokens_until(second).tolist()[: again.length]


def test_a_response_id_is_enough(qwen3_tokenizer: Any) -> None:
    script = Script(Ledger(Renderer(qwen3_tokenizer)))
    script.say([user("who?")], "Ann", message={**said("Ann"), "response_id": "resp_1"})

    prompt = script.ledger.extend(
        [user("who?"), {**said("(hidden)"), "response_id": "resp_1"}, user("sure?")]
    )

    assert prompt.parent == 0


def test_ids_that_a_model_repeats_do_not_mix_turns_up(script: Script) -> None:
    ledger = script.ledger
    other = with_arguments({"query": "when"})
    script.answer(ledger.extend([user("who?")]), "second", message=other)

    assert ledger.extend([user("who?"), CALLING, RESULT]).parent == 0
    assert ledger.extend([user("who?"), other, RESULT]).parent == 1


def test_a_normalizer_may_say_what_does_not_matter(qwen3_tokenizer: Any) -> None:
    def without_clock(message: Message) -> Message:
        return {**message, "content": str(message["content"]).split(" @")[0]}

    script = Script(Ledger(Renderer(qwen3_tokenizer), normalizers=[without_clock]))
    script.say([user("who? @12:01")], "Ann")

    prompt = script.ledger.extend([user("who? @12:02"), said("Ann"), user("sure? @12:02")])

    assert prompt.parent == 0
    assert "@12:02" in script.tokenizer.decode(prompt.delta)


def test_an_assistant_message_nobody_sampled_is_a_message_like_any_other(qwen3_tokenizer: Any) -> None:
    shots = [user("1+1?"), said("2"), user("2+2?")]
    script = Script(Ledger(Renderer(qwen3_tokenizer)))
    script.say(shots, "4")

    prompt = script.ledger.extend([*shots, said("4"), user("3+3?")])

    assert prompt.parent == 0
    script.answer(prompt, "6")
    [segment] = script.ledger.segments()
    assert script.trained(segment).startswith("[4<|im_end|>]")


def test_a_tool_set_written_in_another_order_is_the_same(qwen3_tokenizer: Any) -> None:
    tool = {
        "type": "function",
        "function": {"name": "f", "description": "", "parameters": {"type": "object"}},
    }
    script = Script(Ledger(Renderer(qwen3_tokenizer)))
    script.answer(script.ledger.extend([user("who?")], tools=[tool]), "Ann")
    reordered = {**json.loads(json.dumps(tool, sort_keys=True)), "cache_control": {"type": "ephemeral"}}

    prompt = script.ledger.extend([user("who?"), said("Ann"), user("sure?")], tools=[reordered])

    assert prompt.parent == 0


@pytest.mark.parametrize(
    ("sampled", "echoed"),
    [
        ({"n": 1.0}, {"n": 1}),
        ({"n": [{"m": -0.0}]}, {"n": [{"m": 0}]}),
        ({"n": 1e21}, {"n": 10**21}),
        ({"n": 12345678901234567890}, {"n": 12345678901234567000}),
        ({}, ""),
        ({}, None),
    ],
)
def test_numbers_are_the_same_however_they_are_written(
    qwen3_tokenizer: Any, sampled: Any, echoed: Any
) -> None:
    script = Script(Ledger(Renderer(qwen3_tokenizer)))
    script.say([user("who?")], "look", message=with_arguments(sampled))

    prompt = script.ledger.extend([user("who?"), with_arguments(echoed, id="other"), RESULT])

    assert prompt.parent == 0


def test_true_is_not_one(qwen3_tokenizer: Any) -> None:
    script = Script(Ledger(Renderer(qwen3_tokenizer)))
    script.say([user("who?")], "look", message=with_arguments({"n": True}))

    assert script.ledger.extend([user("who?"), with_arguments({"n": 1}, id="other"), RESULT]).parent is None


def test_an_assistant_message_behind_an_echoed_turn_is_not_swallowed(qwen3_tokenizer: Any) -> None:
    script = Script(Ledger(Renderer(qwen3_tokenizer)))
    script.say([user("who?")], "Ann", message={**said("Ann"), "response_id": "resp_1"})

    prompt = script.ledger.extend(
        [user("who?"), {**said("Ann"), "response_id": "resp_1"}, said("Injected."), user("sure?")]
    )

    assert prompt.parent == 0
    assert "Injected." in script.tokenizer.decode(prompt.delta)
