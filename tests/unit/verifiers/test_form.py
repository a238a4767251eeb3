"""The form of a response."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rollhook import Score
from rollhook.verifiers.form import Format, FormatConfig
from tests.unit.verifiers.world import NOTHING, view

BOTH = FormatConfig(tags=("think", "answer"))


@pytest.mark.parametrize(
    ("text", "value", "parts"),
    [
        ("<think>2+2</think>\n<answer>4</answer>", 1.0, (1.0, 1.0)),
        ("<answer>4</answer><think>2+2</think>", 0.0, (1.0, 1.0)),
        ("So: <think>2+2</think><answer>4</answer>", 0.0, (1.0, 1.0)),
        ("<think>2+2</think><answer> </answer>", 0.0, (1.0, 0.0)),
        ("<think>2+2</think><answer>4</answer><answer>5</answer>", 0.0, (1.0, 0.0)),
        ("<think><answer>4</answer></think>", 0.0, (1.0, 1.0)),
        ("</think>x<think><answer>4</answer>", 0.0, (0.0, 1.0)),
        ("", 0.0, (0.0, 0.0)),
    ],
)
async def test_tags_are_all_there_once_in_order_with_nothing_between(
    text: str, value: float, parts: tuple[float, float]
) -> None:
    score = await Format(BOTH, NOTHING).score(view(text))

    assert score == Score(value, {"think": parts[0], "answer": parts[1]})


async def test_a_pattern_matches_the_whole_response() -> None:
    verifier = Format(FormatConfig(pattern=r"Answer: \d+"), NOTHING)

    assert [await verifier.score(view(text)) for text in ("Answer: 4", "Answer: 4!", "")] == [1.0, 0.0, 0.0]


async def test_a_pattern_that_never_ends_ends() -> None:
    verifier = Format(FormatConfig(pattern=r"(x+x+)+y"), NOTHING)

    assert await verifier.score(view("x" * 5000)) == 0.0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "give tags or pattern, one of them"),
        ({"tags": ["a"], "pattern": "b"}, "give tags or pattern, one of them"),
        ({"tags": ["a", "a"]}, "each may be named once"),
        ({"pattern": "("}, "no regular expression"),
        ({"tags": ["<a>"]}, "String should match pattern"),
    ],
)
def test_a_form_is_tags_or_a_pattern(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FormatConfig(**config)
