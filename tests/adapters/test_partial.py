"""Arguments of a call that is still being written join to the finished call's, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollhook.adapters.partial import PartialCalls, dump
from rollhook.adapters.reading import ArgumentsDelta, CallClosed, CallOpened, TurnEvent, TurnReader
from rollhook.parsing import TextDelta, make_parser
from rollhook.render import Renderer

PROPERTIES = {"n": {"type": "integer"}, "s": {"type": "string"}, "l": {"type": "array"}, "any": {}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}},
    }
]

VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=12), st.sampled_from(["1", "🦊", "a\\n"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(st.sampled_from([*PROPERTIES, "x y", 'q"']), VALUES, max_size=4)


@settings(max_examples=300, deadline=None)
@given(ARGUMENTS, st.booleans(), st.sampled_from([None, 2]), st.integers(1, 7))
def test_what_was_given_is_always_a_beginning_of_the_finished_arguments(
    arguments: dict[str, Any], escaped: bool, indent: int | None, step: int
) -> None:
    body = {"name": "f", "arguments": arguments}
    text = "<tool_call>\n" + json.dumps(body, ensure_ascii=escaped, indent=indent) + "\n</tool_call>"
    finished = dump(make_parser("qwen25", None, tools=TOOLS).parse(text).tool_calls[0].arguments)
    calls, partial = PartialCalls(TOOLS), None
    for end in range(0, len(text), step):
        partial = partial or calls.open(text[:end])
        if partial is not None:
            partial.take(text[:end])
            assert finished.startswith(partial.given)

    assert partial is not None
    assert len(partial.given) >= (len(finished) - 2 - 7 * step if len(arguments) else 0)


def read(tokenizer: Any, text: str, step: int = 1) -> tuple[list[TurnEvent], Any]:
    """A turn streamed by `step` ids at a time, and what its reader says at the end."""
    reader = TurnReader(
        Renderer(tokenizer),
        lambda new_id: make_parser("qwen25", "qwen3", tools=TOOLS, new_id=new_id),
        iter(f"id{n}" for n in range(9)).__next__,
        TOOLS,
    )
    ids = tokenizer.encode(text)
    events = [event for at in range(0, len(ids), step) for event in reader.feed(ids[at : at + step])]
    last, said = reader.finish(ids)
    return [*events, *last], said


def test_a_long_text_argument_is_streamed_and_joins_to_the_whole(qwen3_tokenizer: Any) -> None:
    file = "".join(f'line {n}: "é🦊"\n' for n in range(30))
    body = json.dumps({"name": "f", "arguments": {"s": file, "n": "3"}})
    events, said = read(
        qwen3_tokenizer, f"Go.\n<tool_call>\n{body}\n</tool_call>\n<tool_call>\n{body}\n</tool_call>"
    )

    whole = dump({"s": file, "n": 3})
    first, second = said.calls
    assert (first.name, first.arguments, second.name, second.arguments) == ("f", whole, "f", whole)
    assert first.id != second.id
    assert [e.id for e in events if isinstance(e, CallOpened)] == [first.id, second.id]
    assert said.content == "Go."
    for index in (0, 1):
        deltas = [e.text for e in events if isinstance(e, ArgumentsDelta) and e.index == index]
        assert len(deltas) > 100
        assert "".join(deltas) == whole
    assert [type(e) for e in events if not isinstance(e, ArgumentsDelta | TextDelta)] == [
        CallOpened, CallClosed, CallOpened, CallClosed,
    ]  # fmt: skip


@pytest.mark.parametrize("step", [2, 5, 9, 13, 17, 25, 50, 99])
def test_calls_of_one_turn_have_ids_of_their_own_however_they_come(qwen3_tokenizer: Any, step: int) -> None:
    one = '<tool_call>\n{"name": "f", "arguments": {"s": "abc"}}\n</tool_call>\n'
    broken = '<tool_call>\n{"name": "f", "arguments": {"s": "abc", }\n</tool_call>\n'
    events, said = read(qwen3_tokenizer, one + broken + one + one, step)

    ids = [call.id for call in said.calls]
    assert len(set(ids)) == len(ids) in (3, 4)  # the broken one is text where it was not seen to begin
    assert [e.id for e in events if isinstance(e, CallOpened)] == ids
    assert [e.id for e in events if isinstance(e, CallClosed)] == ids


@pytest.mark.parametrize("end", ["", "}}\n</tool_call>", "]\n</tool_call>"])
def test_a_call_that_breaks_off_stays_the_call_that_the_client_saw(qwen3_tokenizer: Any, end: str) -> None:
    text = f'Go.\n<tool_call>\n{{"name": "f", "arguments": {{"s": "abc", "l": [1, {end}'
    events, said = read(qwen3_tokenizer, text)

    assert said.content == "Go."
    assert said.calls == (CallClosed(0, "id0", "f", '{"s": "abc"'),)
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Go."
    assert isinstance(events[-1], CallClosed)


def test_half_a_character_in_an_argument_is_replaced(qwen3_tokenizer: Any) -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"s": "a \\ud83d b \\ud83e\\udd8a"}}\n</tool_call>'
    events, said = read(qwen3_tokenizer, text)

    assert said.calls[0].arguments == '{"s": "a \ufffd b 🦊"}'
    assert "".join(e.text for e in events if isinstance(e, ArgumentsDelta)) == said.calls[0].arguments
