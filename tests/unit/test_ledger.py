from __future__ import annotations

from typing import Any

import pytest

from rollhook.carried import Carried, SpecCounts
from rollhook.errors import EngineProtocolError, RenderError
from rollhook.ledger import Ledger
from rollhook.render import Renderer
from rollhook.replay import TopP
from tests.unit.ledger_script import Completion, Script, said, user

HEAD = "<|im_start|>assistant\n"
NEXT = "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def renderer(qwen3_tokenizer: Any) -> Renderer:
    return Renderer(qwen3_tokenizer)


@pytest.fixture
def ledger(renderer: Renderer) -> Ledger:
    return Ledger(renderer)


@pytest.fixture
def script(ledger: Ledger) -> Script:
    return Script(ledger)


def test_a_conversation_is_one_segment(ledger: Ledger, script: Script) -> None:
    first = script.answer(ledger.extend([user("one?")]), "one")
    script.answer(ledger.extend([user("two?")], after=first), "two", end="", finish="length")

    [segment] = ledger.segments()

    assert segment.kind == segment.role == "main"
    assert script.trained(segment) == "[one<|im_end|>]" + NEXT.format("two?") + "[two]"
    assert [p for p, bit in zip(segment.log_probs, segment.loss_mask, strict=True) if bit] == [-1, -2, -3]
    assert [bit for p, bit in zip(segment.log_probs, segment.loss_mask, strict=True) if p == 0.0] == [0] * 11
    assert script.tokenizer.decode(segment.tokens[: segment.prompt_length]).endswith(HEAD)
    assert segment.finish_reason == "length"
    assert segment.weight_versions == ["1", "1"]
    assert segment.request_ids == ["r0", "r1"]
    assert (segment.turns, segment.forks, segment.cached_tokens, segment.prompt_tokens) == (2, [], 8, 20)
    assert ledger.sampled_tokens == 3


def test_a_prompt_is_everything_before_it(ledger: Ledger, script: Script) -> None:
    opening = ledger.extend([user("one?")])
    first = script.answer(opening, "one")
    prompt = ledger.extend([user("two?")], after=first)

    assert prompt.input_ids[: opening.length] == opening.input_ids
    assert prompt.input_ids == [*ledger.tokens_until(first), *prompt.delta]
    assert prompt.length == len(prompt.input_ids)


def test_raw_text_goes_on_in_the_open_turn(ledger: Ledger, script: Script) -> None:
    first = script.answer(ledger.extend([user("who?")]), "<search>who</search>", end="")
    prompt = ledger.continue_turn(first, "\n\n<information>Ann</information>\n\n")
    script.answer(
        prompt, "Ann", message=said("<search>who</search>\n\n<information>Ann</information>\n\nAnn")
    )

    [segment] = ledger.segments()

    assert script.trained(segment) == (
        "[<search>who</search>]\n\n<information>Ann</information>\n\n[Ann<|im_end|>]"
    )
    assert segment.turns == 2
    assert [kind for _, _, kind in segment.spans] == ["prompt", "text"]


def test_a_whole_history_reaches_a_turn_that_raw_text_continued(ledger: Ledger, script: Script) -> None:
    first = script.answer(ledger.extend([user("who?")]), "<search>who</search>", end="")
    whole = said("<search>who</search> Ann found. Ann")
    second = script.answer(ledger.continue_turn(first, " Ann found. "), "Ann", message=whole)

    prompt = ledger.extend([user("who?"), whole, user("sure?")])

    assert prompt.parent == second
    assert script.tokenizer.decode(prompt.delta) == NEXT.format("sure?")


def test_branches_share_what_they_share_and_train_it_once(ledger: Ledger, script: Script) -> None:
    first = script.answer(ledger.extend([user("one?")]), "one")
    script.answer(ledger.extend([user("two?")], after=first), "two")
    script.answer(ledger.extend([user("three?")], after=first), "three")

    left, live = ledger.segments()

    assert script.trained(left) == "one<|im_end|>" + NEXT.format("two?") + "[two<|im_end|>]"
    assert script.trained(live) == "[one<|im_end|>]" + NEXT.format("three?") + "[three<|im_end|>]"
    assert (left.abandoned, live.abandoned) == (True, False)
    assert live.forks == [{"turn": 1, "reason": "rewind"}]
    assert ledger.forks == [(2, "rewind")]
    assert ledger.sampled_tokens == sum(sum(segment.loss_mask) for segment in (left, live)) == 6


def test_abandoned_branches_train_only_where_they_are_to(renderer: Renderer) -> None:
    ledger = Ledger(renderer, train_abandoned=False)
    script = Script(ledger)
    first = script.answer(ledger.extend([user("one?")]), "one")
    script.answer(ledger.extend([user("two?")], after=first), "two")
    script.answer(ledger.extend([user("three?")], after=first), "three")

    left, live = ledger.segments()

    assert sum(left.loss_mask) == 0
    assert set(left.log_probs) == {0.0}
    assert sum(live.loss_mask) == ledger.sampled_tokens == 4


def test_the_same_request_sent_twice_trains_once(ledger: Ledger, script: Script) -> None:
    history = [user("one?")]
    script.say(history, "lost")
    kept = script.say(history, "kept")
    script.answer(ledger.extend([user("two?")], after=kept), "two")

    [segment] = ledger.segments()

    assert script.trained(segment) == "[kept<|im_end|>]" + NEXT.format("two?") + "[two<|im_end|>]"
    assert segment.forks == [{"turn": 0, "reason": "retry"}]
    assert ledger.sampled_tokens == 4


def test_of_two_answers_the_one_the_client_went_on_from_trains(ledger: Ledger, script: Script) -> None:
    script.say([user("one?")], "first")
    script.say([user("one?")], "second")
    script.say([user("one?"), said("first"), user("two?")], "two")

    [segment] = ledger.segments()

    assert script.trained(segment).startswith("[first<|im_end|>]")
    assert not segment.abandoned


def test_committing_one_answer_twice_is_one_turn(ledger: Ledger, script: Script) -> None:
    prompt = ledger.extend([user("one?")])
    completion = script.completion("one")

    assert ledger.commit(prompt, completion, said("one")) == ledger.commit(prompt, completion, said("one"))
    assert ledger.turns == 1


def test_an_answer_with_no_tokens_leaves_nothing_to_train(ledger: Ledger, script: Script) -> None:
    first = script.answer(ledger.extend([user("one?")]), "", end="", finish="abort")

    assert ledger.segments() == []
    script.answer(ledger.extend([user("two?")], after=first), "two")
    [segment] = ledger.segments()
    assert script.trained(segment) == "[two<|im_end|>]"


def test_an_untrained_ledger_masks_everything(renderer: Renderer) -> None:
    ledger = Ledger(renderer, role="judge", trained=False)
    Script(ledger).say([user("one?")], "one")

    [segment] = ledger.segments()

    assert (segment.role, sum(segment.loss_mask), ledger.sampled_tokens) == ("judge", 0, 2)


def test_other_system_prompts_and_tools_in_one_session_are_subagents(ledger: Ledger, script: Script) -> None:
    script.say([user("one?")], "one")
    script.say([{"role": "system", "content": "Make a title."}, user("one?")], "title")
    tool = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}
    script.answer(ledger.extend([user("one?")], tools=[tool]), "looked")
    script.say([user("one?"), said("one"), user("two?")], "two")

    assert [(segment.kind, segment.turns) for segment in ledger.segments()] == [
        ("subagent", 1),
        ("subagent", 1),
        ("main", 2),
    ]
    assert {reason for _, reason in ledger.forks} == {"other system prompt or tools"}


def test_a_history_replaced_by_a_summary_is_a_wipe_and_a_final(ledger: Ledger, script: Script) -> None:
    script.say([user("one?")], "one")
    script.say([user("one?"), said("one"), user("two?")], "two")
    script.say([user("Summary: one, two. Three?")], "three")
    script.say([user("Summary: one to three. Four?")], "four")

    assert [(segment.kind, segment.turns) for segment in ledger.segments()] == [
        ("wipe", 2),
        ("wipe", 1),
        ("final", 1),
    ]
    assert ledger.forks == [(2, "history replaced"), (3, "history replaced")]


def test_a_conversation_that_ends_inside_another_is_a_subagents(ledger: Ledger, script: Script) -> None:
    script.say([user("main?")], "one")
    script.say([user("side?")], "side")
    script.say([user("main?"), said("one"), user("two?")], "two")

    assert [(segment.kind, segment.turns) for segment in ledger.segments()] == [("subagent", 1), ("main", 2)]


def test_an_edited_answer_forks_and_stays_masked(ledger: Ledger, script: Script) -> None:
    script.say([user("one?")], "one")
    script.say([user("one?"), said("one"), user("two?")], "two")
    script.say([user("one?"), said("one"), user("two?"), said("TWO"), user("three?")], "three")

    left, live = ledger.segments()

    assert script.trained(live) == (
        "[one<|im_end|>]"
        + NEXT.format("two?")
        + "TWO<|im_end|>"
        + NEXT.format("three?")
        + "[three<|im_end|>]"
    )
    assert left.abandoned
    assert ledger.forks == [(2, "edited turn")]


def test_what_a_turn_carries_stands_behind_its_tokens_and_the_last_answer_knows_all_experts(
    ledger: Ledger, script: Script
) -> None:
    one = Carried(spec=SpecCounts(1, 2, 1, 2), top_p=TopP.of([1, 7, 2], [0, 2, 3]), experts=b"old")
    two = Carried(spec=SpecCounts(1, 1, 1, 1), top_p=TopP.of([3], [0, 1]), experts=b"all")
    first = ledger.extend([user("one?")])
    turn = ledger.commit(first, Completion([1, 2], [-0.1, -0.2], "stop", "r", carried=one), said("one"))
    second = ledger.extend([user("two?")], after=turn)
    ledger.commit(second, Completion([3], [-0.3], "stop", "s", carried=two), said("two"))

    [segment] = ledger.segments()

    between = len(second.delta)
    assert segment.top_p == TopP.of([1, 7, 2, 3], [0, 2, 3, *[3] * between, 4])
    assert (segment.experts, segment.spec) == (b"all", SpecCounts(2, 3, 2, 3))
    assert [(turn.start, turn.length) for turn in segment.sampled] == [
        (first.length, 2),
        (first.length + 2 + between, 1),
    ]


def test_what_was_kept_of_a_turn_does_not_train(ledger: Ledger, script: Script) -> None:
    completion = Completion([1, 2, 3], [-0.1, -0.2, -0.3], "stop", "r", carried=Carried(untrained=2))
    ledger.commit(ledger.extend([user("one?")]), completion, said("one"))

    [segment] = ledger.segments()

    assert (list(segment.loss_mask), segment.log_probs.tolist()) == ([0, 0, 1], [0.0, 0.0, -0.3])
    assert (ledger.sampled_tokens, ledger.trained_tokens) == (3, 1)


def test_ids_without_log_probabilities_are_refused(ledger: Ledger) -> None:
    with pytest.raises(EngineProtocolError, match="request r: 2 ids but 1 log-probabilities"):
        ledger.commit(ledger.extend([user("one?")]), Completion([1, 2], [-0.1], "stop", "r"), said("one"))


def test_what_the_template_would_write_otherwise_is_counted_once_a_turn(
    ledger: Ledger, script: Script
) -> None:
    thought = "<think>\nhm\n</think>\n\n"
    first = script.answer(ledger.extend([user("one?")]), f"{thought}one", end="<|endoftext|>")
    ledger.extend([user("two?")], after=first)
    second = script.answer(ledger.extend([user("two?")], after=first), f"{thought}two")
    third = script.answer(ledger.extend([user("three?")], after=second), f"{thought}three")
    ledger.extend([user("four?")], after=third)

    assert ledger.kept == {"end of turn": 1, "history": 2}


def test_ten_thousand_turns_need_no_recursion(ledger: Ledger) -> None:
    turn = None
    for n in range(10_000):
        prompt = ledger.extend([user("go")], after=turn)
        turn = ledger.commit(prompt, Completion([9], [-0.5], "stop", str(n)), said("yes"))

    [segment] = ledger.segments()

    assert segment.turns == sum(segment.loss_mask) == 10_000


MALFORMED: list[tuple[Any, str]] = [
    ("hi", r"message 1 must be a mapping with role and content, not str 'hi'"),
    ({"content": "x"}, r"message 1 must have a role, not None"),
    ({"role": 5, "content": "x"}, r"message 1 must have a role, not int 5"),
    ({"role": "user"}, r"message 1 \(user\) has no content"),
    ({"role": "tool", "content": None}, r"message 1 \(tool\) has no content"),
    ({"role": "user", "content": 5}, r"message 1 \(user\) must have a text or a list of parts .* not int 5"),
    ({"role": "user", "content": {"a": 1}}, r"message 1 \(user\) must have a text .* not dict {'a': 1}"),
    ({"role": "user", "content": [None]}, r"message 1 \(user\) must have texts and mappings .* not None"),
    ({"role": "user", "content": [{"type": "text", "text": 5}]}, r"a 'text' part whose text is int 5"),
    ({"role": "user", "content": [{"type": []}]}, r"a content part whose type is no text but list"),
    ({"role": "assistant", "tool_calls": "f"}, r"message 1 \(assistant\) must have a list as tool_calls"),
    ({"role": "assistant", "tool_calls": [{"id": "1"}]}, r"a tool call without a function and its name"),
    ({"role": "assistant", "tool_calls": [{"function": {"name": None}}]}, r"without a function and its name"),
]


@pytest.mark.parametrize(("message", "sentence"), MALFORMED, ids=lambda value: str(value)[:40])
def test_a_malformed_message_is_refused_with_a_sentence(ledger: Ledger, message: Any, sentence: str) -> None:
    with pytest.raises(RenderError, match=sentence):
        ledger.extend([user("one?"), message])
    with pytest.raises(RenderError, match=sentence):
        ledger.renderer.opening([user("one?"), message])
    with pytest.raises(RenderError, match=sentence):
        ledger.renderer.continuation(said("one"), [user("one?"), message], ended_by_eot=True)


@pytest.mark.parametrize("tool", ["f", None, {}, {"function": "f"}, {"function": {"name": 5}}])
def test_a_malformed_tool_is_refused_with_a_sentence(ledger: Ledger, tool: Any) -> None:
    with pytest.raises(RenderError, match="tool 0 must be a mapping with a name, not"):
        ledger.extend([user("one?")], tools=[tool])
    with pytest.raises(RenderError, match="tool 0 must be a mapping with a name, not"):
        ledger.renderer.opening([user("one?")], tools=[tool])


def test_what_is_nested_too_deeply_is_refused(ledger: Ledger) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": deep}}}
    history = [user("one?"), {"role": "assistant", "content": "", "tool_calls": [call]}, user("two?")]

    with pytest.raises(RenderError, match="nested too deeply"):
        ledger.extend(history)
    with pytest.raises(RenderError, match="nested too deeply"):
        ledger.renderer.opening(history)
