"""A tool call that the model is still writing: which tool it calls, and what is certain of its arguments.

Invariant: a call is opened only when its name is certain, and only as its family's parser will read it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rollhook.adapters.partial_arguments import (
    GLM_TAGS,
    QWEN_TAGS,
    JsonArguments,
    PartialArguments,
    TaggedArguments,
)
from rollhook.parsing.results import ToolSchemas


@dataclass(frozen=True, slots=True)
class _Form:
    """head: a call's text up to its arguments, with its `name`, and its `id` where it has one."""

    head: re.Pattern[str]
    arguments: Callable[[int, Mapping[str, Any]], PartialArguments]


def _json(head: str) -> _Form:
    return _Form(re.compile(head, re.DOTALL), JsonArguments)


_FORMS: Mapping[str, _Form] = MappingProxyType(
    {
        "deepseekv3": _json(
            r"<｜tool▁call▁begin｜>\s*function<｜tool▁sep｜>(?P<name>[^\n`]+?)\s*```(?:json)?\n\s*\{"
        ),
        "glm45": _Form(
            re.compile(r"<tool_call>\s*(?P<name>[^\s<](?:[^\n<]*[^\s<])?)\s*(?=<arg_key>)"),
            lambda start, properties: TaggedArguments(start, properties, GLM_TAGS),
        ),
        "gpt-oss": _json(
            r"(?:(?!to=|<\|message\|>).)*to=(?:functions\.)?(?P<name>[^\s<]+)(?:(?!<\|message\|>).)*"
            r"<\|message\|>\s*\{"
        ),
        "kimi_k2": _json(
            r"<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>[\w.\-]+):\d+)\s*"
            r"<\|tool_call_argument_begin\|>\s*\{"
        ),
        "llama3": _json(
            r'(?:<\|python_tag\|>)?\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,'
            r'\s*"(?:arguments|parameters)"\s*:\s*\{'
        ),
        # not the array of calls, in which an id may follow the arguments
        "mistral": _json(
            r"\[TOOL_CALLS\]\s*(?P<name>[\w.\-]+)(?:\[CALL_ID\](?P<id>[\w\-]+))?(?:\[ARGS\])?\s*\{"
        ),
        "qwen25": _json(
            r'<tool_call>\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*\{'
        ),
        "qwen3_coder": _Form(
            re.compile(r"(?:<tool_call>\s*)?<function=(?P<name>[^>\n]+)>"),
            lambda start, properties: TaggedArguments(start, properties, QWEN_TAGS),
        ),
    }
)
"""By the parser's name."""


@dataclass(frozen=True, slots=True)
class PartialCall:
    """name: of the tool. id: where the family writes one."""

    name: str
    id: str | None
    arguments: PartialArguments


class PartialCalls:
    """Makes the reader of each call. tool_parser: the family's. tools: as offered, for arguments' types."""

    def __init__(self, tool_parser: str | None, tools: Sequence[Mapping[str, Any]]) -> None:
        self._form = _FORMS.get(tool_parser or "")
        self._schemas = ToolSchemas(tools)

    def open(self, text: str) -> PartialCall | None:
        """A reader for the call that `text` begins; None while its name is not certain, or for good."""
        head = self._form.head.match(text) if self._form else None
        if head is None or self._form is None:
            return None
        name = head["name"].strip()
        properties = self._schemas.parameters(name).get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        return PartialCall(name, head.groupdict().get("id"), self._form.arguments(head.end(), known))
