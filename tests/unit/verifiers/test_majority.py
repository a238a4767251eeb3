"""A verifier that sees all answers to a prompt."""

from __future__ import annotations

import pytest

from rollhook import Score
from rollhook.errors import RolloutError
from tests.unit.verifiers.world import scored


async def test_the_answer_that_most_give_is_rewarded() -> None:
    results = await scored("majority", "Paris", "paris.", "Rome", "")

    assert results == [
        Score(1.0, {"agreement": 0.5}),
        Score(1.0, {"agreement": 0.5}),
        Score(0.0, {"agreement": 0.25}),
        Score(0.0, {"agreement": 0.0}),
    ]


@pytest.mark.parametrize("said", [["a b", "c d"], ["x", "x", "y", "y"], ["", ""], ["", "", "x"]])
async def test_without_a_leader_nobody_is_rewarded(said: list[str]) -> None:
    results = await scored("majority", *said)

    assert [result.value for result in results if isinstance(result, Score)] == [0.0] * len(said)


async def test_answers_may_be_the_same_by_number_or_letter() -> None:
    by_number = await scored({"name": "majority", "by": "number"}, "so 4.0", "4", "5")
    by_choice = await scored({"name": "majority", "by": "choice"}, "B", "The answer is (B).", "A")

    for results in (by_number, by_choice):
        assert [result.value for result in results if isinstance(result, Score)] == [1.0, 1.0, 0.0]


async def test_one_answer_is_no_group() -> None:
    [error] = await scored("majority", "4")

    assert isinstance(error, RolloutError)
    assert "compares the answers to a prompt, and got one" in str(error)
