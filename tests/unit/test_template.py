from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from rollhook.errors import ConfigError, RenderError
from rollhook.template import ChatTemplate

NOW = datetime(2024, 2, 29, tzinfo=UTC)


def render(source: str, *messages: dict[str, Any], **variables: Any) -> str:
    return ChatTemplate(source, variables).render(list(messages), now=NOW)


def test_a_generation_block_lets_its_body_through() -> None:
    source = "{% for m in messages %}<{% generation %}{{ m.content }}{% endgeneration %}>{% endfor %}"

    assert render(source, {"content": "a"}, {"content": "b"}) == "<a><b>"


def test_loops_can_be_left_and_json_is_not_escaped_for_html() -> None:
    source = "{% for m in messages %}{{ m.content | tojson }}{% break %}{% endfor %}"

    assert render(source, {"content": "<é>"}, {"content": "b"}) == '"<é>"'


def test_variables_and_the_clock_are_the_callers() -> None:
    assert render("{{ bos_token }}{{ strftime_now('%d %b %Y') }}", bos_token="<s>") == "<s>29 Feb 2024"


def test_reasoning_is_found_under_each_name_and_missing_values_are_missing() -> None:
    source = (
        "{{ messages[0].thinking }}{{ messages[0].reasoning_content }}{{ messages[0].content is defined }}"
    )

    assert render(source, {"reasoning": "r", "content": None}) == "rrFalse"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('no tools') }}", "the chat template refuses these messages: no tools"),
        ("{{ 'a' + messages }}", "cannot express these messages"),
        ("{{ ''.__class__.__mro__ }}", "refuses these messages"),
    ],
)
def test_a_template_that_cannot_says_so_in_a_render_error(source: str, words: str) -> None:
    with pytest.raises(RenderError, match=words):
        render(source)


def test_a_template_that_is_none_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        ChatTemplate("{% if %}", {})


@pytest.mark.parametrize(
    "expression",
    [
        "m.keys",  # a method before an entry of that name
        "m.missing",
        "m.keys()|list",
        "m.text.startswith('a')",
        "m.text.missing",
        "m.text.__class__",
        "m.__class__",
        "m.text.format(1)",
        "'{0.__class__}'.format(m)",
        "m.clear()",
        "m.none",
    ],
)
def test_the_short_ways_of_the_sandbox_give_what_the_sandbox_gives(expression: str) -> None:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    message = {"text": "abc {}", "keys": "k", "none": None}
    source = f"{{{{ {expression} }}}}"

    def outcome(make: Callable[[], str]) -> str:
        try:
            return re.sub("0x[0-9a-f]+", "", make())
        except (TemplateError, RenderError) as error:
            return type(error.__cause__ or error).__name__

    expected = outcome(lambda: ImmutableSandboxedEnvironment().from_string(source).render(m=message))
    assert outcome(lambda: render(source, m=message)) == expected
