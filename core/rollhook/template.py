"""A chat template, compiled once: messages in, text out, with a clock the caller holds.

Invariant: for the same messages, tools and clock the text is the one `apply_chat_template` writes. The
environment is the one chat templates are written for: sandboxed, blocks trimmed, `tojson` without HTML
escapes, `raise_exception`, `strftime_now`, loop controls and `{% generation %}` as a transparent block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rollhook.errors import ConfigError, RenderError

Message = dict[str, Any]

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """A compiled chat template with the variables every render of it gets.

    source: the Jinja text. variables: the tokenizer's special tokens and the run's template arguments.
    Raises ConfigError when the source is not a valid template.
    """

    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        self.source = source
        self._variables = dict(variables)
        try:
            self._template = _compile(source)
        except TemplateError as error:
            raise ConfigError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime,
        add_generation_prompt: bool = True,
    ) -> str:
        """The template's text for `messages`.

        Raises RenderError with the template's own words when it refuses them.
        """
        try:
            return self._template.render(
                messages=[_with_reasoning_aliases(message) for message in messages],
                tools=None if tools is None else [dict(tool) for tool in tools],
                documents=None,
                add_generation_prompt=add_generation_prompt,
                strftime_now=now.strftime,
                **self._variables,
            )
        except TemplateError as error:
            raise RenderError(f"the chat template refuses these messages: {error}") from error
        except (TypeError, AttributeError, KeyError, IndexError, ValueError) as error:
            raise RenderError(
                f"the chat template cannot express these messages ({type(error).__name__}: {error})"
            ) from error


class _Generation(Extension):
    """`{% generation %}` marks sampled text for other trainers; here it only lets its body through."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with short ways to what templates look up most, and the same results."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        if type(obj) is str and attribute in _SAFE_STR_METHODS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


_DICT_ATTRIBUTES = frozenset(dir(dict))
_SAFE_STR_METHODS = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))


@lru_cache(maxsize=32)
def _compile(source: str) -> Template:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    template = environment.from_string(source)
    template.globals = dict(template.globals)  # copied for every render, which a chain of mappings makes slow
    return template


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _with_reasoning_aliases(message: Message) -> Message:
    """The message without None values, its reasoning under each name that templates read."""
    given = {key: value for key, value in message.items() if value is not None}
    reasoning = next((given[name] for name in REASONING_FIELDS if name in given), None)
    if reasoning is None:
        return given
    return {"thinking": reasoning, **given, "reasoning_content": reasoning}
