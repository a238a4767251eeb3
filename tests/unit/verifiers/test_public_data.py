"""Verifiers on answers of public data sets: docs/verifiers.md looks at where they disagree."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rollhook import RunConfig, Runtime, Sample
from rollhook.scoring import score_samples
from tests.unit.verifiers import public_data
from tests.unit.verifiers.world import values


async def scored_by(verifier: str, rows: list[public_data.Row], **settings: Any) -> list[float]:
    samples = [
        Sample(
            index=index,
            prompt=row["prompt"],
            label=row["label"],
            response=row["response"],
            metadata={"rollhook": {"verifier": verifier}},
        )
        for index, row in enumerate(rows)
    ]
    async with Runtime(RunConfig(settings={verifier: settings})).scoring() as runtime:
        return values(await score_samples(runtime, samples))


async def test_every_worked_answer_to_multiple_choice_is_read_and_no_other_letter_earns() -> None:
    pytest.importorskip("lm_eval", reason="ships the answers: pip install --no-deps lm-eval")
    rows = list(public_data.choices())
    shifted = [{**row, "label": chr(ord(row["label"]) + 1)} for row in rows]

    assert len(rows) > 300
    assert await scored_by("multiple_choice", rows) == [1.0] * len(rows)
    assert await scored_by("multiple_choice", shifted) == [0.0] * len(rows)


async def test_f1_is_never_below_exact_match_and_sees_other_ways_to_say_a_name() -> None:
    pytest.importorskip("bfcl_eval", reason="ships the answers: pip install --no-deps bfcl-eval")
    rows = list(public_data.names())
    exact, f1 = await scored_by("exact_match", rows), await scored_by("f1", rows)

    assert len(rows) > 150
    assert all(a <= b for a, b in zip(exact, f1, strict=True))
    assert 0 < sum(exact) < sum(f1)


EQUAL = {"as it is", "thousands", "point zero", "unit", "unreduced", "fraction", "LaTeX"}
OTHER = {"off by one", "negated", "two answers", "rounded", "a word more"}


async def test_math_accepts_equal_values_in_any_form_and_nothing_else() -> None:
    pytest.importorskip("reasoning_gym", reason="makes the tasks: pip install reasoning-gym")
    pytest.importorskip("math_verify", reason="needs the extra `verifiers`")
    tasks = ("gsm_symbolic", "lcm", "decimal_arithmetic", "polynomial_multiplication")
    rows = list(public_data.mathematics(size=1, tasks=tasks))
    right: Counter[tuple[str, float]] = Counter()
    for row, value in zip(rows, await scored_by("math", rows, timeout_s=30, workers=1), strict=True):
        right[row["form"], value] += 1

    assert {form for form, value in right if value == 1.0} <= EQUAL | {"a word more"}
    assert {form for form, value in right if value == 0.0} <= OTHER | {"last part"}
