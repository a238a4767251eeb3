"""Model text to reasoning, text and tool calls, per model family, whole or as it streams.

Invariant: the names are SGLang's, and streamed and whole parsing give the same result.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rollhook.errors import ConfigError
from rollhook.parsing.grammars import DeepSeekV3, Glm, Hermes, KimiK2, Llama3, Mistral, Qwen3Coder
from rollhook.parsing.harmony import HarmonyParser
from rollhook.parsing.parser import NewId, Parser
from rollhook.parsing.results import BrokenCall, Event, Parsed, TextDelta, ToolSchemas
from rollhook.parsing.sglang import PREFIX as SGLANG
from rollhook.parsing.sglang import SGLangParser
from rollhook.parsing.tag_parser import Grammar, TagParser
from rollhook.protocols import ToolCall

__all__ = [
    "REASONING_PARSERS",
    "TOOL_PARSERS",
    "BrokenCall",
    "Event",
    "NewId",
    "Parsed",
    "Parser",
    "TextDelta",
    "ToolCall",
    "make_parser",
]

HARMONY = "gpt-oss"

TOOL_PARSERS: Mapping[str, Callable[[], Grammar] | None] = MappingProxyType(
    {
        "deepseekv3": DeepSeekV3,
        "glm45": Glm,
        HARMONY: None,  # a parser of its own, for calls and reasoning together
        "kimi_k2": KimiK2,
        "llama3": Llama3,
        "mistral": Mistral,
        "qwen25": Hermes,
        "qwen3_coder": Qwen3Coder,
    }
)

_THINK = ("<think>", "</think>")

REASONING_PARSERS: Mapping[str, tuple[str, str] | None] = MappingProxyType(
    {"deepseek-r1": _THINK, "glm45": _THINK, HARMONY: None, "qwen3": _THINK}
)

ALWAYS_REASONS = frozenset({"deepseek-r1"})
"""Reasoning parsers of models that begin inside reasoning whether or not the prompt says so."""


def make_parser(
    tool_parser: str | None,
    reasoning_parser: str | None,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    starts_in_reasoning: bool = False,
    new_id: NewId | None = None,
) -> Parser:
    """A parser for one turn.

    tool_parser, reasoning_parser: a name of `TOOL_PARSERS` and of `REASONING_PARSERS`, None for none;
    `sglang:<name>` takes SGLang's own. tools: as offered to the model, for the types of arguments.
    starts_in_reasoning: the prompt opened it. new_id: makes ids for calls, default random.
    Raises ConfigError for a name nobody knows.
    """
    names = [name for name in (tool_parser, reasoning_parser) if name is not None]
    if any(name.startswith(SGLANG) for name in names):
        if not all(name.startswith(SGLANG) for name in names):
            raise ConfigError(f"{' and '.join(names)}: take both parsers from sglang or none")
        return SGLangParser(
            tool_parser and tool_parser.removeprefix(SGLANG),
            reasoning_parser and reasoning_parser.removeprefix(SGLANG),
            tools=tools,
            starts_in_reasoning=starts_in_reasoning,
            new_id=new_id,
        )
    _check_name("tool", tool_parser, TOOL_PARSERS)
    _check_name("reasoning", reasoning_parser, REASONING_PARSERS)
    schemas = ToolSchemas(tools)
    if HARMONY in (tool_parser, reasoning_parser):
        return HarmonyParser(schemas=schemas, new_id=new_id)
    grammar = TOOL_PARSERS[tool_parser] if tool_parser else None
    return TagParser(
        grammar() if grammar else None,
        REASONING_PARSERS[reasoning_parser] if reasoning_parser else None,
        schemas=schemas,
        starts_in_reasoning=starts_in_reasoning or reasoning_parser in ALWAYS_REASONS,
        new_id=new_id or (_nine_characters if tool_parser == "mistral" else None),
    )


def _nine_characters(name: str, place: int) -> str:
    """A random call id in the only form that Mistral's templates take."""
    return uuid.uuid4().hex[:9]


def _check_name(kind: str, name: str | None, known: Mapping[str, object]) -> None:
    if name is not None and name not in known:
        raise ConfigError(f"no {kind} parser named {name!r}; known: {', '.join(sorted(known))}")
