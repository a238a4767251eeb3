"""What SGLang's parsers say of texts. Run by an interpreter that has sglang, without rollhook.

Reads {"tools": [...], "texts": [[tool parser, reasoning parser, text], ...]} and writes, for each text,
{"content", "reasoning", "calls": [[name, arguments], ...]} or {"error"}.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

make_tool = import_module("sglang.srt.entrypoints.openai.protocol").Tool
make_calls = import_module("sglang.srt.function_call.function_call_parser").FunctionCallParser
make_reasoning = import_module("sglang.srt.parser.reasoning_parser").ReasoningParser


def answer(tools: list[Any], tool: str | None, reasoning: str | None, text: str) -> dict[str, Any]:
    thought = None
    if reasoning is not None:
        thought, text = make_reasoning(model_type=reasoning, stream_reasoning=False).parse_non_stream(text)
    calls: list[list[Any]] = []
    if tool is not None:
        text, found = make_calls(tools=tools, tool_call_parser=tool).parse_non_stream(text)
        calls = [[call.name, json.loads(call.parameters)] for call in found]
    return {"content": text, "reasoning": thought or None, "calls": calls}


def main() -> None:
    asked = json.load(sys.stdin)
    tools = [make_tool(**tool) for tool in asked["tools"]]
    answers = []
    for tool, reasoning, text in asked["texts"]:
        try:
            answers.append(answer(tools, tool, reasoning, text))
        except Exception as error:  # noqa: BLE001  whatever it is, it is SGLang's answer
            answers.append({"error": f"{type(error).__name__}: {error}"})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
