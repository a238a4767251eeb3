from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollhook.errors import ConfigError
from rollhook.parsing import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    BrokenCall,
    Parsed,
    Parser,
    TextDelta,
    make_parser,
)
from rollhook.parsing.arguments import converted
from rollhook.protocols import ToolCall

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string"},
                    "topk": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "filters": {"type": "object"},
                    "weight": {"type": ["number", "null"]},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]


def parse(
    text: str, tool: str | None, reasoning: str | None = None, *, starts_in_reasoning: bool = False
) -> Parsed:
    return parser(tool, reasoning, starts_in_reasoning=starts_in_reasoning).parse(text)


def parser(tool: str | None, reasoning: str | None = None, *, starts_in_reasoning: bool = False) -> Parser:
    return make_parser(
        tool,
        reasoning,
        tools=TOOLS,
        starts_in_reasoning=starts_in_reasoning,
        new_id=lambda name, place: f"{name}-{place}",
    )


def calls(parsed: Parsed) -> list[tuple[str, dict[str, Any]]]:
    assert parsed.broken_calls == ()
    return [(call.name, call.arguments) for call in parsed.tool_calls]


TWO_CALLS = [("search", {"query": "cats", "topk": 3}), ("stop", {})]

WRITTEN: dict[str, str] = {
    "qwen25": (
        'Let me look.\n<tool_call>\n{"name": "search", "arguments": {"query": "cats", "topk": 3}}\n'
        '</tool_call>\n<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
    ),
    "qwen3_coder": (
        "Let me look.\n\n<tool_call>\n<function=search>\n<parameter=query>\ncats\n</parameter>\n"
        "<parameter=topk>\n3\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=stop>\n</function>\n</tool_call>"
    ),
    "llama3": (
        'Let me look.<|python_tag|>{"name": "search", "parameters": {"query": "cats", "topk": 3}}; '
        '{"name": "stop", "parameters": {}}'
    ),
    "mistral": (
        'Let me look.[TOOL_CALLS] [{"name": "search", "arguments": {"query": "cats", "topk": 3}}, '
        '{"name": "stop", "arguments": {}}]'
    ),
    "glm45": (
        "Let me look.\n<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>cats</arg_value>\n"
        "<arg_key>topk</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>stop\n</tool_call>"
    ),
    "deepseekv3": (
        "Let me look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n"
        '```json\n{"query": "cats", "topk": 3}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>stop\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "gpt-oss": (
        "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.search <|constrain|>json<|message|>{"query": "cats", "topk": 3}<|call|>'
        "<|start|>assistant to=functions.stop<|channel|>commentary json<|message|>{}"
    ),
    "kimi_k2": (
        "Let me look.<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0"
        '<|tool_call_argument_begin|>{"query": "cats", "topk": 3}<|tool_call_end|>'
        "<|tool_call_begin|>functions.stop:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    ),
}


@pytest.mark.parametrize("tool", WRITTEN)
def test_text_and_several_calls_are_read_in_order(tool: str) -> None:
    parsed = parse(WRITTEN[tool], tool)

    assert parsed.content == "Let me look."
    assert calls(parsed) == TWO_CALLS


def test_every_named_tool_parser_has_its_form_tested() -> None:
    assert set(TOOL_PARSERS) == set(WRITTEN)


# What else each family writes: (parser, text, content, calls).
OTHER_FORMS = [
    ("llama3", '{"name": "search", "parameters": {"query": "a"}}', "", [("search", {"query": "a"})]),
    ("llama3", '\n{"name": "stop", "parameters": {}}\n', "", [("stop", {})]),
    ("llama3", '{"answer": 42}', '{"answer": 42}', []),
    ("llama3", 'say {"name": "stop"}', 'say {"name": "stop"}', []),
    ("mistral", '[TOOL_CALLS]search[ARGS]{"query": "["}[TOOL_CALLS]stop[ARGS]{}', "", None),
    ("mistral", '[TOOL_CALLS]search[CALL_ID]Ab3[ARGS]{"query": "["}[TOOL_CALLS]stop[ARGS]{}', "", None),
    ("mistral", '[TOOL_CALLS]search{"query": "["}[TOOL_CALLS]stop{}', "", None),
    ("qwen3_coder", "<function=stop>\n</function>\n</tool_call>", "", [("stop", {})]),
    ("qwen3_coder", "<function=stop>\n</function> then", "then", [("stop", {})]),
    (
        "qwen3_coder",
        "<tool_call>\n<function=search>\n<parameter=query>\n\n  two\nlines\n\n</parameter>\n"
        "</function>\n</tool_call>",
        "",
        [("search", {"query": "\n  two\nlines\n"})],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=search>\n<parameter=query>\n</tool_call> </function>\n</parameter>\n"
        "</function>\n</tool_call>",
        "",
        [("search", {"query": "</tool_call> </function>"})],
    ),
    (
        "glm45",
        "<tool_call>search<arg_key>query</arg_key><arg_value></tool_call></arg_value></tool_call>",
        "",
        [("search", {"query": "</tool_call>"})],
    ),
    (
        "qwen25",
        '<tool_call>{"name": "search", "arguments": {"query": "</tool_call>"}}</tool_call>',
        "",
        [("search", {"query": "</tool_call>"})],
    ),
    ("qwen25", '<tool_call>{"name": "stop", "arguments": "{}"}', "", [("stop", {})]),
    (
        "qwen25",
        '<tool_call>{"name": "search", "arguments": {"query": "two\nlines"}}</tool_call> after',
        "after",
        [("search", {"query": "two\nlines"})],
    ),
]


@pytest.mark.parametrize(("tool", "text", "content", "expected"), OTHER_FORMS)
def test_other_forms_of_a_family(
    tool: str, text: str, content: str, expected: list[tuple[str, dict[str, Any]]] | None
) -> None:
    parsed = parse(text, tool)

    assert parsed.content == content
    assert calls(parsed) == (expected if expected is not None else [("search", {"query": "["}), ("stop", {})])


# Calls nobody can read: (parser, text, what the error says).
BROKEN = [
    ("qwen25", '<tool_call>{"name": "stop"</tool_call>', "not valid JSON"),
    ("qwen25", "<tool_call>[1]</tool_call>", '"name" and "arguments"'),
    ("qwen25", '<tool_call>{"name": "stop", "arguments": [1]}</tool_call>', "must be a JSON object"),
    ("qwen25", '<tool_call>{"name": "stop", "arguments": {"query": "cut', "not valid JSON"),
    ("qwen25", "<tool_call>" + "[" * 100_000 + "</tool_call>", "nested too deeply"),
    ("qwen3_coder", "<tool_call>\nstop()\n</tool_call>", "<function=name>"),
    ("llama3", "<|python_tag|>print(1)", "not valid JSON"),
    ("llama3", '{"name": "stop", "parameters": {', "not valid JSON"),
    ("mistral", '[TOOL_CALLS] [{"name": "stop"', "not valid JSON"),
    ("mistral", "[TOOL_CALLS]nothing more", "not valid JSON"),
    ("glm45", "<tool_call>\n</tool_call>", "function's name"),
    ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>b</tool_call>", "leaves an <arg_value> open"),
    ("deepseekv3", "<｜tool▁call▁begin｜>function stop<｜tool▁call▁end｜>", "fenced json block"),
    ("kimi_k2", "<|tool_call_begin|>stop<|tool_call_end|>", "functions.name:number"),
    ("gpt-oss", "<|channel|>commentary to=functions.stop<|message|>{<|call|>", "not valid JSON"),
]


@pytest.mark.parametrize(("tool", "text", "error"), BROKEN)
def test_a_call_that_cannot_be_read_stays_text_and_is_flagged(tool: str, text: str, error: str) -> None:
    parsed = parse(text, tool)

    assert parsed.tool_calls == ()
    [broken] = parsed.broken_calls
    assert error in broken.error
    assert parsed.content == broken.text
    assert broken.text.strip("<|cal>") in text


def test_calls_around_a_broken_one_are_kept() -> None:
    good = '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
    bad = '<tool_call>{"name" "stop"}</tool_call>'

    parsed = parse(f"{good}\n{bad}\n{good}", "qwen25")

    assert [call.name for call in parsed.tool_calls] == ["stop", "stop"]
    assert [broken.text for broken in parsed.broken_calls] == [bad]
    assert parsed.content == bad


@pytest.mark.parametrize("schema", [{"anyOf": 5}, {"oneOf": True}, {"type": {"a": 1}, "anyOf": {"b": 2}}])
def test_a_schema_that_is_none_leaves_arguments_as_they_are(schema: Any) -> None:
    assert converted("5", schema) == "5"


def test_arguments_come_in_the_schemas_types() -> None:
    parsed = parse(
        '<tool_call>{"name": "search", "arguments": {"query": 5, "topk": "7", "exact": "True", '
        '"filters": "{\\"a\\": 1}", "weight": "0.5", "unknown": "9"}}</tool_call>',
        "qwen25",
    )

    assert calls(parsed) == [
        (
            "search",
            {"query": "5", "topk": 7, "exact": True, "filters": {"a": 1}, "weight": 0.5, "unknown": "9"},
        )
    ]


def test_values_written_as_bare_text_are_typed_by_the_schema() -> None:
    def call(key: str, value: str) -> Any:
        text = f"<tool_call><function=search><parameter={key}>\n{value}\n</parameter></function></tool_call>"
        return parse(text, "qwen3_coder").tool_calls[0].arguments[key]

    assert call("query", "5") == "5"
    assert call("topk", "5") == 5
    assert call("topk", "five") == "five"
    assert call("exact", "false") is False
    assert call("weight", "null") is None
    assert call("filters", '{"a": [1]}') == {"a": [1]}
    assert call("unknown", "[1, 2]") == [1, 2]
    assert call("unknown", "plain") == "plain"


def test_a_models_own_call_id_is_kept() -> None:
    parsed = parse(
        "<|tool_call_begin|>functions.stop:4<|tool_call_argument_begin|>{}<|tool_call_end|>", "kimi_k2"
    )

    assert parsed.tool_calls == (ToolCall("functions.stop:4", "stop", {}),)


def test_reasoning_is_parted_from_the_answer() -> None:
    parsed = parse("<think>\nhm, <tool_call>\n</think>\n\nYes.", "qwen25", "qwen3")

    assert parsed == Parsed("Yes.", "hm, <tool_call>", (), ())


@pytest.mark.parametrize("repeated", ["", "<think>\n"])
def test_reasoning_that_the_prompt_opened(repeated: str) -> None:
    parsed = parse(f"{repeated}hm</think>Yes.", None, "qwen3", starts_in_reasoning=True)

    assert parsed == Parsed("Yes.", "hm", (), ())


def test_deepseek_r1_always_begins_in_reasoning() -> None:
    assert parse("hm\n</think>\n\nYes.", None, "deepseek-r1") == Parsed("Yes.", "hm", (), ())


def test_reasoning_cut_by_length_is_reasoning() -> None:
    assert parse("<think>\nhm", None, "qwen3") == Parsed("", "hm", (), ())


def test_an_empty_think_block_is_no_reasoning() -> None:
    assert parse("<think>\n\n</think>\n\nYes.", None, "qwen3") == Parsed("Yes.", None, (), ())


def test_gpt_oss_channels_become_reasoning_and_text() -> None:
    parsed = parse(
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Yes.",
        "gpt-oss",
        "gpt-oss",
    )

    assert parsed == Parsed("Yes.", "One.\nTwo.", (), ())


@pytest.mark.parametrize("text", ["plain text", "  padded \n", "<|channel|>fin", "to be or not", ""])
def test_gpt_oss_text_outside_messages_stays_text(text: str) -> None:
    assert parse(text, "gpt-oss") == Parsed(text, None, (), ())


@pytest.mark.parametrize(
    "text", ["", "plain", " padded\n\n", "a < b </think> <tool_cal", "{", "</tool_call>"]
)
@pytest.mark.parametrize("tool", sorted(TOOL_PARSERS))
def test_text_without_calls_comes_out_as_it_is(tool: str, text: str) -> None:
    assert parse(text, tool) == Parsed(text, None, (), ())


def test_unknown_names_are_refused_with_those_known() -> None:
    with pytest.raises(ConfigError, match="no tool parser named 'qwen'; known: deepseekv3, glm45, gpt-oss"):
        make_parser("qwen", None)
    with pytest.raises(ConfigError, match="no reasoning parser named 'think'; known: deepseek-r1, glm45"):
        make_parser(None, "think")


def test_ids_are_unique_without_being_asked_for() -> None:
    text = '<tool_call>{"name": "stop", "arguments": {}}</tool_call>' * 20

    ids = {call.id for call in make_parser("qwen25", None).parse(text).tool_calls}

    assert len(ids) == 20


BARE_CALLS = (
    "<function=search><parameter=query>cats</parameter></function>\n"
    "<function=search><parameter=query>dogs</parameter></function>\n<function=stop></function> then"
)


@pytest.mark.parametrize("size", [1, 2, 7, 31, len(BARE_CALLS)])
def test_bare_calls_in_a_row_stay_apart_when_streamed(size: int) -> None:
    streamed = parser("qwen3_coder")
    for at in range(0, len(BARE_CALLS), size):
        streamed.feed(BARE_CALLS[at : at + size])

    parsed = streamed.finish()

    assert calls(parsed) == [("search", {"query": "cats"}), ("search", {"query": "dogs"}), ("stop", {})]
    assert parsed.content == "then"


COMMON = ["text ", "\n", "  ", "<", "é𝄞", "<think>", "</think>", "{}", "\\", '"']

FRAGMENTS: dict[str, list[str]] = {
    "qwen25": [
        "<tool_call>",
        "</tool_call>",
        '{"name": "search", "arguments": {"query": "</tool_call>\\"", "topk": "3"}}',
        '{"name": "stop", "arguments": {}}',
        '{"name": "stop"',
    ],
    "qwen3_coder": [
        "<tool_call>",
        "</tool_call>",
        "<function=search>",
        "<function=stop>",
        "</function>",
        "<parameter=query>",
        "<parameter=topk>3",
        "</parameter>",
        "<function=stop></function>",
        "<function=search><parameter=query>cats</parameter></function>",
    ],
    "llama3": [
        "<|python_tag|>",
        '{"name": "search", "parameters": {"query": "}; {", "topk": "3"}}',
        '{"name": "stop", "parameters": {}}',
        '{"name": "stop"',
        "{",
        "}",
        "; ",
    ],
    "mistral": [
        "[TOOL_CALLS]",
        '[{"name": "search", "arguments": {"query": "]"}}, ',
        '{"name": "stop", "arguments": {}}]',
        "stop[ARGS]{}",
        "search",
        "[CALL_ID]Ab3",
        "[ARGS]",
        '{"query": "["}',
        "[",
        "]",
    ],
    "glm45": [
        "<tool_call>",
        "</tool_call>",
        "stop\n",
        "search\n",
        "<arg_key>query</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<arg_value>cats</arg_value>",
        "<tool_call>stop\n</tool_call>",
    ],
    "deepseekv3": [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "function<｜tool▁sep｜>stop\n```json\n{}\n```",
        'function<｜tool▁sep｜>search\n```json\n{"query": "<｜tool▁call▁end｜>"}\n```',
        "<｜tool▁call▁end｜>",
    ],
    "kimi_k2": [
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>functions.stop:0<|tool_call_argument_begin|>",
        "<|tool_call_begin|>",
        "functions.search:1",
        "<|tool_call_argument_begin|>",
        '{"query": "<|tool_call_end|>"}',
        "<|tool_call_end|>",
    ],
    "gpt-oss": [
        "<|channel|>",
        "analysis",
        "commentary to=functions.stop ",
        "<|constrain|>json",
        "final",
        "<|message|>",
        '{"query": "<|end|>"}',
        "<|end|>",
        "<|call|>",
        "<|return|>",
        "<|start|>assistant",
    ],
}
"""What each parser's texts are made of: mostly its own tags, so that whole calls in a row come up."""


def test_every_parser_has_fragments_of_its_own() -> None:
    assert set(FRAGMENTS) == set(TOOL_PARSERS)


@st.composite
def written(draw: st.DrawFn, *, without: Sequence[str] = ()) -> tuple[str, str]:
    """A parser's name and a text in something like its tongue; now and then in another's."""
    tool = draw(st.sampled_from(sorted(set(TOOL_PARSERS) - set(without))))
    tongue = draw(st.sampled_from([tool, tool, tool, *sorted(FRAGMENTS)]))
    own = st.sampled_from(FRAGMENTS[tongue])
    pieces = st.lists(st.one_of(own, own, own, st.sampled_from(COMMON), st.text(max_size=3)), max_size=14)
    return tool, "".join(draw(pieces))


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, str, list[str]]:
    tool, text = draw(written())
    everywhere = st.just(list(range(len(text))))
    somewhere = st.lists(st.integers(0, len(text)), max_size=12).map(sorted)
    cuts = draw(everywhere | somewhere)
    return tool, text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(deadline=None, max_examples=400)
@given(cut_texts(), st.sampled_from(sorted(REASONING_PARSERS)), st.booleans())
def test_streamed_and_whole_parsing_agree_for_any_cutting(
    cut: tuple[str, str, Sequence[str]], reasoning: str, starts_in_reasoning: bool
) -> None:
    tool, text, pieces = cut
    whole = parser(tool, reasoning, starts_in_reasoning=starts_in_reasoning).parse(text)
    streamed = parser(tool, reasoning, starts_in_reasoning=starts_in_reasoning)
    events = [event for piece in pieces for event in streamed.feed(piece)] + streamed.flush()

    assert streamed.finish() == whole
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert "".join(delta.text for delta in deltas if delta.kind == "content") == whole.content
    assert "".join(delta.text for delta in deltas if delta.kind == "reasoning") == (whole.reasoning or "")
    assert tuple(event for event in events if isinstance(event, ToolCall)) == whole.tool_calls
    assert tuple(event for event in events if isinstance(event, BrokenCall)) == whole.broken_calls


@settings(deadline=None)
@given(written(without=["gpt-oss"]))
def test_broken_calls_are_part_of_the_content(drawn: tuple[str, str]) -> None:
    tool, text = drawn
    parsed = parse(text, tool)

    at = 0
    for broken in parsed.broken_calls:
        assert broken.text in text
        at = parsed.content.index(broken.text.strip(), at) + len(broken.text.strip())
