"""Arguments of a call that is still being written join to the finished call's, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollhook.adapters.partial import PartialCalls
from rollhook.adapters.partial_arguments import dump
from rollhook.adapters.reading import ArgumentsDelta, CallClosed, CallOpened, TurnEvent, TurnReader
from rollhook.parsing import TextDelta, make_parser
from rollhook.render import Renderer
from tests.adapters.worlds import sampled, trained, world

PROPERTIES = {
    "n": {"type": "integer"},
    "s": {"type": "string"},
    "t": {"type": ["string", "null"]},
    "l": {"type": "array"},
    "any": {},
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}},
    }
]

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=12),
        st.sampled_from(["1", "🦊", "a\\n", "NaN", "1e999"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(st.sampled_from([*PROPERTIES, "x y", 'q"']), VALUES, max_size=4)


@pytest.mark.parametrize("number", ["1.5", "-0.25", "1e3", "2E-7", "120"])
def test_a_number_is_given_when_it_is_whole(number: str) -> None:
    text = f'<tool_call>\n{{"name": "f", "arguments": {{"any": {number}, "n": 1}}}}\n</tool_call>'
    finished = dump({"any": json.loads(number), "n": 1})
    calls, partial = PartialCalls("qwen25", TOOLS), None
    for end in range(len(text)):
        partial = partial or calls.open(text[:end])
        if partial is not None:
            partial.arguments.take(text[:end])
            assert finished.startswith(partial.arguments.given)


@settings(max_examples=300, deadline=None)
@given(ARGUMENTS, st.booleans(), st.sampled_from([None, 2]), st.integers(1, 7))
def test_what_was_given_is_always_a_beginning_of_the_finished_arguments(
    arguments: dict[str, Any], escaped: bool, indent: int | None, step: int
) -> None:
    body = {"name": "f", "arguments": arguments}
    text = "<tool_call>\n" + json.dumps(body, ensure_ascii=escaped, indent=indent) + "\n</tool_call>"
    finished = dump(make_parser("qwen25", None, tools=TOOLS).parse(text).tool_calls[0].arguments)
    calls, partial = PartialCalls("qwen25", TOOLS), None
    for end in range(0, len(text), step):
        partial = partial or calls.open(text[:end])
        if partial is not None:
            partial.arguments.take(text[:end])
            assert finished.startswith(partial.arguments.given)

    assert partial is not None
    assert len(partial.arguments.given) >= (len(finished) - 2 - 7 * step if len(arguments) else 0)


TAGS = [
    "</parameter>",
    "<parameter=s>",
    "</function>",
    "</tool_call>",
    "<arg_value>",
    "</arg_value>",
    "<",
    "\n",
]
TEXTS = st.lists(st.one_of(st.text(max_size=4), st.sampled_from(TAGS)), max_size=4).map("".join)


def qwen_coder(arguments: list[tuple[str, str]]) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<tool_call>\n<function=f>\n{written}</function>\n</tool_call>"


def glm(arguments: list[tuple[str, str]]) -> str:
    written = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments
    )
    return f"<tool_call>f\n{written}</tool_call>"


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["s", "n", "any", "t"]), TEXTS), max_size=3, unique_by=lambda a: a[0]),
    st.sampled_from([("qwen3_coder", qwen_coder), ("glm45", glm)]),
    st.booleans(),
)
def test_what_was_given_of_bare_text_values_is_a_beginning_too_whatever_they_hold(
    arguments: list[tuple[str, str]], family: tuple[str, Any], cut: bool
) -> None:
    name, write = family
    text = write(arguments)
    if cut:
        text = text.replace("</parameter>", "", 1)
    parsed = make_parser(name, None, tools=TOOLS).parse(text)
    if not parsed.tool_calls or text.count("<parameter=s>") > 1:
        return  # a call that cannot be read, or says one thing twice: its client keeps what it saw of it
    finished = dump(parsed.tool_calls[0].arguments)
    calls, partial = PartialCalls(name, TOOLS), None
    parser = make_parser(name, None, tools=TOOLS)
    for character in text:
        parser.feed(character)
        if parser.open_call is None:
            continue
        partial = partial or calls.open(parser.open_call)
        if partial is not None:
            partial.arguments.take(parser.open_call)
            assert finished.startswith(partial.arguments.given)


FILE = "".join(f"line {n}: <b> & {{}}\n" for n in range(30))
JSON = json.dumps({"s": FILE, "n": "3"}, ensure_ascii=False)
FAMILIES = {
    "deepseekv3": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{JSON}\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "glm45": glm([("s", FILE), ("n", "3")]),
    "gpt-oss": f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{JSON}<|call|>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    f"{JSON}<|tool_call_end|><|tool_calls_section_end|>",
    "llama3": f'{{"name": "f", "parameters": {JSON}}}',
    "mistral": f"[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{JSON}",
    "qwen25": f'<tool_call>\n{{"name": "f", "arguments": {JSON}}}\n</tool_call>',
    "qwen3_coder": qwen_coder([("s", FILE), ("n", "3")]),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_streams_a_long_argument(qwen3_tokenizer: Any, family: str) -> None:
    events, said = read(qwen3_tokenizer, FAMILIES[family], tool_parser=family)

    whole = dump({"s": FILE, "n": 3})
    deltas = [event.text for event in events if isinstance(event, ArgumentsDelta)]
    assert [call.arguments for call in said.calls] == [whole]
    assert "".join(deltas) == whole
    assert len(deltas) > 60
    written = {"kimi_k2": "functions.f:0", "mistral": "abcdefghi"}
    assert said.calls[0].id == written.get(family, "id0")


def read(
    tokenizer: Any, text: str, step: int = 1, tool_parser: str = "qwen25"
) -> tuple[list[TurnEvent], Any]:
    """A turn streamed by `step` ids at a time, and what its reader says at the end."""
    reasoning = "gpt-oss" if tool_parser == "gpt-oss" else "qwen3"
    reader = TurnReader(
        Renderer(tokenizer),
        lambda new_id: make_parser(tool_parser, reasoning, tools=TOOLS, new_id=new_id),
        iter(f"id{n}" for n in range(9)).__next__,
        PartialCalls(tool_parser, TOOLS),
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


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e999"])
@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
async def test_a_number_that_json_has_not_is_null_and_can_be_sent_back(
    qwen3_tokenizer: Any, sdk: str, number: str
) -> None:
    script = [
        f'<tool_call>\n{{"name": "f", "arguments": {{"any": [{number}], "n": 1}}}}\n</tool_call>',
        "Ok.",
    ]
    async with world(qwen3_tokenizer, script) as w:
        session = w.adapter.open_session()
        if sdk == "openai":
            async with w.openai(session) as client:
                history: list[Any] = [{"role": "user", "content": "Go."}]
                answer = await client.chat.completions.create(model="m", messages=history, tools=TOOLS)
                message = answer.choices[0].message
                [made] = list(message.tool_calls or ())
                assert made.type == "function"
                given = json.loads(made.function.arguments, parse_constant=pytest.fail)
                result: Any = {"role": "tool", "tool_call_id": made.id, "content": "x"}
                history += [message.model_dump(exclude_none=True), result]
                await client.chat.completions.create(model="m", messages=history, tools=TOOLS)
        else:
            async with w.anthropic(session) as other:
                tool: Any = {"name": "f", "input_schema": {"type": "object", "properties": PROPERTIES}}
                said: list[Any] = [{"role": "user", "content": "Go."}]
                reply = await other.messages.create(model="m", max_tokens=99, messages=said, tools=[tool])
                [use] = [block for block in reply.content if block.type == "tool_use"]
                given = use.input
                shown = {"type": "tool_result", "tool_use_id": use.id, "content": "x"}
                said += [reply.to_param(), {"role": "user", "content": [shown]}]
                await other.messages.create(model="m", max_tokens=99, messages=said, tools=[tool])
        [segment] = await w.adapter.finish_session(session.session_id)

    assert given == {"any": [None], "n": 1}
    assert trained([segment]) == [sampled(w.engine)]
