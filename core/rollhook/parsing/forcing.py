"""How each family's calls are forced: the grammar that an engine is given where a client demands a call.

Invariant: what the grammar admits is what the family's parser reads as calls of the tools named, behind
thinking where the model thinks. Arguments that a family writes as JSON follow the tool's schema; others are
free text.

Source of the format: XGrammar's structural tags, which SGLang takes as `sampling_params.structural_tag`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

NAME_SLOT = "QzNameQz"

Thinking = Literal["never", "may", "open"]
"""Whether the model thinks before it calls: not, if it wants to, or as the prompt has begun for it."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """What stands around a call's arguments.

    json: whether they are JSON. separator: what stands between two calls; None where only one can be forced.
    """

    begin: str
    end: str
    json: bool = True
    separator: str | None = None


CALL_FORMS: Mapping[str, CallForm] = MappingProxyType(
    {
        "deepseekv3": CallForm(
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{NAME_SLOT}\n```json\n",
            "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        "glm45": CallForm(f"<tool_call>{NAME_SLOT}\n", "</tool_call>", json=False, separator="\n"),
        "kimi_k2": CallForm(
            f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{NAME_SLOT}:0<|tool_call_argument_begin|>",
            "<|tool_call_end|><|tool_calls_section_end|>",
        ),
        "llama3": CallForm(f'{{"name": "{NAME_SLOT}", "parameters": ', "}"),
        "mistral": CallForm(f'[TOOL_CALLS][{{"name": "{NAME_SLOT}", "arguments": ', "}]"),
        "qwen25": CallForm(
            f'<tool_call>\n{{"name": "{NAME_SLOT}", "arguments": ', "}\n</tool_call>", separator="\n"
        ),
        "qwen3_coder": CallForm(
            f"<tool_call>\n<function={NAME_SLOT}>\n",
            "</function>\n</tool_call>",
            json=False,
            separator="\n",
        ),
    }
)
"""By the parser's name. gpt-oss is missing: the token that ends its calls ends its turns too."""


def forced_calls(
    form: CallForm, tools: Sequence[Mapping[str, Any]], *, parallel: bool, thinking: Thinking
) -> dict[str, Any]:
    """The structural tag that admits one call of one of `tools`, or more where the family can and `parallel`.

    tools: functions in OpenAI's form, at least one.
    """
    tags = [_call(form, tool["function"]) for tool in tools]
    if form.separator is None:
        calls: dict[str, Any] = {"type": "or", "elements": tags} if len(tags) > 1 else tags[0]
    else:
        calls = {
            "type": "tags_with_separator",
            "tags": tags,
            "separator": form.separator,
            "at_least_one": True,
            "stop_after_first": not parallel,
        }
    if thinking == "open":
        calls = _behind_thinking("", calls)
    elif thinking == "may":
        calls = {"type": "or", "elements": [calls, _behind_thinking("<think>", calls)]}
    return {"type": "structural_tag", "format": calls}


def _call(form: CallForm, function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object"}
    return {
        "type": "tag",
        "begin": form.begin.replace(NAME_SLOT, function["name"]),
        "content": {"type": "json_schema", "json_schema": schema} if form.json else {"type": "any_text"},
        "end": form.end,
    }


def _behind_thinking(opener: str, calls: dict[str, Any]) -> dict[str, Any]:
    thought = {"type": "tag", "begin": opener, "content": {"type": "any_text"}, "end": "</think>"}
    return {"type": "sequence", "elements": [thought, {"type": "regex", "pattern": "\\n{0,2}"}, calls]}
