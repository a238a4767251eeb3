"""Every rule gives a finite score for any answer whatever, and none for one that only echoes or floods."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollhook.opened import as_score
from rollhook.verifiers.form import Format, FormatConfig
from rollhook.verifiers.labels import AnswerConfig
from rollhook.verifiers.majority import Majority, MajorityConfig
from rollhook.verifiers.multiple_choice import MultipleChoice
from rollhook.verifiers.text import F1, ExactMatch, Number
from tests.unit.verifiers.world import NOTHING, ODD_ANSWERS, scored, value, values, view

RULES: list[tuple[Any, Any]] = [
    (ExactMatch(AnswerConfig(), NOTHING), "Paris"),
    (ExactMatch(AnswerConfig(tag="answer"), NOTHING), "Paris"),
    (F1(AnswerConfig(), NOTHING), "Paris"),
    (Number(AnswerConfig(), NOTHING), "17"),
    (MultipleChoice(AnswerConfig(), NOTHING), "C"),
    (Format(FormatConfig(tags=("think", "answer")), NOTHING), None),
    (Format(FormatConfig(pattern="a+b"), NOTHING), None),
]
MARKUP = st.sampled_from(
    ["<answer>", "</answer>", "\\boxed{", "}", "(A)", "answer is", "1,0", ".5", "-", "\n", "a"]
)
ANSWERS = st.text(max_size=200) | st.lists(MARKUP, max_size=30).map("".join)


@settings(max_examples=60, deadline=None)
@given(answer=ANSWERS)
def test_any_answer_gets_a_finite_score(answer: str) -> None:
    for verifier, label in RULES:
        score = as_score(asyncio.run(verifier.score(view(answer, label))))

        assert math.isfinite(score.value)
        assert 0.0 <= score.value <= 1.0


@settings(max_examples=30, deadline=None)
@given(answers=st.lists(ANSWERS, min_size=2, max_size=6), by=st.sampled_from(["text", "number", "choice"]))
def test_any_group_gets_finite_scores(answers: list[str], by: Any) -> None:
    scores = asyncio.run(Majority(MajorityConfig(by=by), NOTHING).score_group([view(a) for a in answers]))

    assert len(scores) == len(answers)
    assert all(0.0 <= value(score) <= 1.0 for score in scores)


@pytest.mark.parametrize("answer", ODD_ANSWERS, ids=range(len(ODD_ANSWERS)))
async def test_odd_answers_earn_nothing(answer: str) -> None:
    for verifier, label in RULES:
        assert value(await verifier.score(view(answer, label))) == 0.0


async def test_odd_answers_earn_nothing_in_mathematics() -> None:
    pytest.importorskip("math_verify", reason="needs the extra `verifiers`")
    results = await scored(
        "math", *ODD_ANSWERS, label="17", settings={"math": {"timeout_s": 1, "workers": 1}}
    )

    assert values(results) == [0.0] * len(ODD_ANSWERS)
