"""rollhook's parsers and SGLang's on the same texts, and who is right where they differ.

Needs an interpreter that has sglang: set ROLLHOOK_SGLANG_PYTHON to it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rollhook.parsing import Parsed
from tests.unit.test_parsing import BROKEN, OTHER_FORMS, TOOLS, WRITTEN, parse

REASONING = [
    ("qwen3", "<think>\nhm, <tool_call>\n</think>\n\nYes."),
    ("qwen3", "<think>\nhm"),
    ("qwen3", "<think>\n\n</think>\n\nYes."),
    ("qwen3", "plain"),
    ("deepseek-r1", "hm\n</think>\n\nYes."),
    ("glm45", "<think>hm</think>\nYes."),
    ("gpt-oss", "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Yes."),
]

CORPUS: list[tuple[str | None, str | None, str]] = [
    *((tool, None, text) for tool, text in WRITTEN.items()),
    *((tool, None, text) for tool, text, _, _ in OTHER_FORMS),
    *((tool, None, text) for tool, text, _ in BROKEN if len(text) < 1000),
    *((None, reasoning, text) for reasoning, text in REASONING),
]

RIGHT = [  # (parser, what the text holds, who is right and why)
    ("gpt-oss", " to=functions.stop<|channel|>", "rollhook: templates put the recipient before the channel"),
    ("llama3", '\n{"name": "stop"', "rollhook: a line break before the object is no other text"),
    ("llama3", '{"answer": 42}', "rollhook: an answer in JSON is an answer; SGLang drops it"),
    ("qwen3_coder", "<function=stop>\n</function>\n</tool_call>", "rollhook: models leave the outer tag out"),
    ("qwen3_coder", "<function=stop>\n</function> then", "rollhook: models leave the outer tag out"),
    ("qwen3_coder", "</tool_call> </function>", "rollhook: a closing tag inside a value is part of it"),
    ("mistral", "[CALL_ID]", "rollhook: newer templates write a call id between name and arguments"),
    ("mistral", "search{", "rollhook: newer templates write no [ARGS]"),
    ("glm45", "</tool_call></arg_value>", "rollhook: a closing tag inside a value is part of it"),
    ("qwen25", '"</tool_call>"', "rollhook: a closing tag inside a string is part of it"),
    ("qwen25", '"arguments": "{}"}', "rollhook: a whole call whose closing tag was cut off is a call"),
    ("qwen25", "two\nlines", "rollhook: models break lines inside JSON strings"),
]


def sglang_answers() -> list[dict[str, Any]]:
    python = os.environ.get("ROLLHOOK_SGLANG_PYTHON")
    if not python:
        pytest.skip("needs an interpreter with sglang: set ROLLHOOK_SGLANG_PYTHON")
    script = Path(__file__).with_name("sglang_answers.py")
    answered = subprocess.run(
        [python, str(script)],
        input=json.dumps({"tools": TOOLS, "texts": CORPUS}),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    answers: list[dict[str, Any]] = json.loads(answered.stdout.splitlines()[-1])
    return answers


def difference(ours: Parsed, theirs: dict[str, Any]) -> str | None:
    """How two answers differ; None when only in blanks beside reasoning and calls."""
    if [[call.name, call.arguments] for call in ours.tool_calls] != theirs["calls"]:
        return "calls"
    if (ours.reasoning or "") != (theirs["reasoning"] or "").strip():
        return "reasoning"
    return None if ours.content == theirs["content"].strip() else "content"


@pytest.mark.sglang
def test_both_read_the_same_or_it_is_known_who_is_right() -> None:
    unexplained = []
    explained = set()
    for (tool, reasoning, text), theirs in zip(CORPUS, sglang_answers(), strict=True):
        ours = parse(text, tool, reasoning)
        found = difference(ours, theirs)
        if found is None or (found == "content" and ours.broken_calls):
            continue  # what it cannot read rollhook keeps as text, where SGLang drops some or all of it
        known = {why for parser, part, why in RIGHT if parser == tool and part in text}
        explained |= known
        if not known:
            unexplained.append((found, tool, reasoning, text, ours, theirs))

    assert unexplained == []
    assert explained == {why for _, _, why in RIGHT}
