"""What a forcing grammar admits is read by its family's own parser."""

from __future__ import annotations

from typing import Any

import pytest

from rollhook.parsing import TOOL_PARSERS, make_parser
from rollhook.parsing.forcing import CALL_FORMS, forced_calls

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
BARE = {
    "glm45": "<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n",
    "qwen3_coder": "<parameter=city>\nOslo\n</parameter>\n",
}


def first_tag(grammar: dict[str, Any]) -> dict[str, Any]:
    form = grammar["format"]
    tag: dict[str, Any] = (form.get("tags") or form["elements"])[0]
    return tag


@pytest.mark.parametrize("family", CALL_FORMS)
def test_a_call_in_the_forced_form_is_a_call(family: str) -> None:
    form = CALL_FORMS[family]
    tag = first_tag(forced_calls(form, TOOLS, parallel=True, thinking="never"))
    text = tag["begin"] + ('{"city": "Oslo"}' if form.json else BARE[family]) + tag["end"]
    row = text if form.separator is None else text + form.separator + text

    parsed = make_parser(family, None, tools=TOOLS).parse(row)

    calls = [(call.name, call.arguments) for call in parsed.tool_calls]
    assert calls == [("weather", {"city": "Oslo"})] * (1 if form.separator is None else 2)
    assert parsed.content == ""
    assert tag["content"] == (
        {"type": "json_schema", "json_schema": PARAMETERS} if form.json else {"type": "any_text"}
    )


def test_all_families_but_the_one_whose_calls_end_its_turns_can_be_forced() -> None:
    assert set(TOOL_PARSERS) - set(CALL_FORMS) == {"gpt-oss"}


@pytest.mark.parametrize(
    ("thinking", "openers"), [("never", [None]), ("open", [""]), ("may", [None, "<think>"])]
)
def test_thinking_comes_before_the_calls(thinking: Any, openers: list[str | None]) -> None:
    form = forced_calls(CALL_FORMS["qwen25"], TOOLS, parallel=False, thinking=thinking)["format"]
    ways = form["elements"] if form["type"] == "or" else [form]

    assert [way["elements"][0]["begin"] if way["type"] == "sequence" else None for way in ways] == openers
    assert all(
        (way["elements"][-1] if way["type"] == "sequence" else way)["stop_after_first"] for way in ways
    )
