from __future__ import annotations

from typing import Any

import pytest

from rollhook.ledger import Ledger
from rollhook.protocols import Message
from rollhook.render import Renderer
from tests.unit.ledger_script import Script, said, user

THOUGHT = "<think>\nhm\n</think>\n\n"
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": "x"}}}
CALLING = {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]}
WRITTEN = THOUGHT + '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "found"}


def thinking(text: str) -> Message:
    return {**said(text), "reasoning_content": "hm"}


@pytest.fixture
def script(qwen3_tokenizer: Any) -> Script:
    return Script(Ledger(Renderer(qwen3_tokenizer, policy="template")))


def test_a_history_the_template_rewrites_forks_to_the_templates_writing(script: Script) -> None:
    ledger = script.ledger
    first = script.answer(ledger.extend([user("one?")]), f"{THOUGHT}one", message=thinking("one"))
    prompt = ledger.extend([user("two?")], after=first)
    script.answer(prompt, f"{THOUGHT}two", message=thinking("two"))

    history = [user("one?"), thinking("one"), user("two?")]
    assert prompt.input_ids == script.tokenizer.apply_chat_template(
        history, add_generation_prompt=True, return_dict=False
    )
    left, live = ledger.segments()
    assert script.trained(left) == f"[{THOUGHT}one<|im_end|>]"
    assert script.trained(live) == f"[{THOUGHT}two<|im_end|>]"
    assert [segment.kind for segment in (left, live)] == ["main", "main"]
    assert not left.abandoned
    assert live.forks == [{"turn": 0, "reason": "the template rewrote the history"}]


def test_a_history_the_template_adds_to_goes_on_in_one_chain(script: Script) -> None:
    ledger = script.ledger
    first = script.answer(ledger.extend([user("one?")]), WRITTEN, message=CALLING)
    prompt = ledger.extend([RESULT], after=first)
    script.answer(prompt, f"{THOUGHT}one", message=thinking("one"))

    [segment] = ledger.segments()

    assert segment.turns == 2
    assert ledger.forks == []
    assert prompt.input_ids == script.tokenizer.apply_chat_template(
        [user("one?"), CALLING, RESULT], add_generation_prompt=True, return_dict=False
    )


def test_whole_histories_and_retries_find_the_rewritten_chain(script: Script) -> None:
    ledger = script.ledger
    history = [user("one?")]
    script.say(history, f"{THOUGHT}one", message=thinking("one"))
    history += [said("one"), user("two?")]
    lost = ledger.extend(history)
    script.answer(lost, f"{THOUGHT}lost", message=thinking("lost"))
    script.say(history, f"{THOUGHT}two", message=thinking("two"))
    history += [said("two"), user("three?")]
    script.say(history, f"{THOUGHT}three", message=thinking("three"))

    assert [script.trained(segment) for segment in ledger.segments()] == [
        f"[{THOUGHT}{word}<|im_end|>]" for word in ("one", "two", "three")
    ]
    assert [reason for _, reason in ledger.forks].count("retry") == 1


def test_raw_text_in_an_open_turn_does_not_fork(script: Script) -> None:
    ledger = script.ledger
    first = script.answer(ledger.extend([user("one?")]), "look", end="")
    second = script.answer(ledger.continue_turn(first, " found "), "one", message=said("look found one"))
    prompt = ledger.extend([user("two?")], after=second)

    assert prompt.parent == second
    assert script.tokenizer.decode(prompt.input_ids).endswith(
        "look found one<|im_end|>\n<|im_start|>user\ntwo?<|im_end|>\n<|im_start|>assistant\n"
    )
