"""SGLang's own parsers, where sglang is importable: `sglang:qwen25` and the like.

Invariant: a turn is parsed once, whole, at its end, so that streaming gives the same result. What SGLang
drops is dropped, and its errors are a broken call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from rollhook.errors import ConfigError
from rollhook.parsing.parser import NewId, Parser
from rollhook.parsing.results import BrokenSyntax, ToolSchemas, WrittenCall

PREFIX = "sglang:"


class SGLangParser(Parser):
    """tool, reasoning: SGLang's names, without the prefix; None for none. Raises ConfigError."""

    def __init__(
        self,
        tool: str | None,
        reasoning: str | None,
        *,
        tools: Sequence[Mapping[str, Any]],
        starts_in_reasoning: bool,
        new_id: NewId | None,
    ) -> None:
        super().__init__(ToolSchemas(tools), new_id)
        self._tool_parser, self._reasoning_parser = _load(tool, reasoning, tools, starts_in_reasoning)

    def _step(self, *, whole: bool) -> bool:
        if not whole:
            return False
        text, self._buffer = self._buffer, ""
        if self._reasoning_parser is not None:
            thought, text = self._reasoning_parser.parse_non_stream(text)
            if thought:
                self._think(thought)
                self._content.block()
        self._read_calls(text, lambda: self._calls_in(text))
        return False

    def _calls_in(self, text: str) -> list[WrittenCall]:
        if self._tool_parser is None:
            self._say(text)
            return []
        try:
            rest, calls = self._tool_parser.parse_non_stream(text)
            written = [WrittenCall(call.name, json.loads(call.parameters)) for call in calls]
        except Exception as error:  # foreign code on a model's text never ends a rollout
            raise BrokenSyntax(f"the tool call cannot be read ({type(error).__name__}: {error})") from error
        self._say(rest)
        return written


def _load(
    tool: str | None, reasoning: str | None, tools: Sequence[Mapping[str, Any]], starts_in_reasoning: bool
) -> tuple[Any, Any]:
    """SGLang's two parsers, None where not asked for."""
    try:
        make_tool = import_module("sglang.srt.entrypoints.openai.protocol").Tool
        make_calls = import_module("sglang.srt.function_call.function_call_parser").FunctionCallParser
        make_reasoning = import_module("sglang.srt.parser.reasoning_parser").ReasoningParser
    except ImportError as error:
        raise ConfigError(
            f"the parser {PREFIX}{tool or reasoning} needs sglang, which cannot be imported ({error}); "
            "leave the prefix out for rollhook's own parser of that name"
        ) from error
    try:
        offered = [make_tool(**tool) for tool in tools]
        tool_parser = make_calls(tools=offered, tool_call_parser=tool) if tool else None
        force = True if starts_in_reasoning else None
        reasoning_parser = (
            make_reasoning(model_type=reasoning, stream_reasoning=False, force_reasoning=force)
            if reasoning
            else None
        )
    except ValueError as error:
        raise ConfigError(f"sglang has no such parser: {error}") from error
    return tool_parser, reasoning_parser
