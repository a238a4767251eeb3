"""Exact match, F1 and last number, by SQuAD's rules."""

from __future__ import annotations

from typing import Any

import pytest

from rollhook import Score
from rollhook.verifiers.labels import AnswerConfig, accepted
from rollhook.verifiers.text import F1, ExactMatch, Number, normalise, token_f1
from tests.unit.verifiers.world import NOTHING, value, view


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Eiffel\nTower!", "eiffel tower"),
        ("An apple a day", "apple day"),
        ("U.S.", "us"),
        ("A", "a"),  # the letter of an option: nothing else would be left
        ("- !", "- !"),
        ("", ""),
    ],
)
def test_texts_are_compared_without_case_punctuation_and_articles(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("response", "label", "right"),
    [
        ("the Eiffel Tower.", "Eiffel tower", 1.0),
        ("It is the Eiffel Tower", "Eiffel tower", 0.0),
        ("Paris", ["London", "paris"], 1.0),
        ("Paris", {"ground_truth": {"target": ["Paris"]}}, 0.0),
        ("Paris", {"target": ["Paris"]}, 1.0),
        ("", "A", 0.0),  # an article alone is an answer: an empty one does not equal it
        ("the", "A", 0.0),
        ("2 + 2?", "4", 0.0),  # the prompt, echoed
    ],
)
async def test_exact_match_is_of_the_whole_answer(response: str, label: Any, right: float) -> None:
    assert await ExactMatch(AnswerConfig(), NOTHING).score(view(response, label)) == right


@pytest.mark.parametrize(
    ("answer", "label", "score"),
    [
        ("the cat sat", "cat", Score(2 / 3, {"precision": 0.5, "recall": 1.0})),
        ("cat cat", "cat", Score(2 / 3, {"precision": 0.5, "recall": 1.0})),  # repeating a word earns nothing
        ("dog", "cat", Score(0.0, {"precision": 0.0, "recall": 0.0})),
        ("", "cat", Score(0.0, {"precision": 0.0, "recall": 0.0})),
        ("A", "a", Score(1.0, {"precision": 1.0, "recall": 1.0})),
    ],
)
def test_f1_is_over_words_counted_with_repetition(answer: str, label: str, score: Score) -> None:
    assert token_f1(answer, label) == score


async def test_f1_takes_the_best_label_and_a_flood_of_words_earns_little() -> None:
    verifier = F1(AnswerConfig(), NOTHING)

    assert value(await verifier.score(view("Marie Curie", ["Curie", "Marie Curie"]))) == 1.0
    assert value(await verifier.score(view("word " * 999 + "curie", "curie"))) < 0.01


@pytest.mark.parametrize(
    ("response", "right"),
    [("so 4", 1.0), ("4 or 5", 0.0), ("1,004.0", 0.0), ("4.00", 1.0), ("four", 0.0), ("x4", 0.0), ("", 0.0)],
)
async def test_number_reads_the_last_one(response: str, right: float) -> None:
    assert await Number(AnswerConfig(), NOTHING).score(view(response, 4)) == right


@pytest.mark.parametrize(
    ("label", "said"), [("2 * 3 = 6\n#### 6", "6"), ("99 days", "99"), ("$1,000", "1000")]
)
async def test_a_label_has_one_number(label: str, said: str) -> None:
    assert await Number(AnswerConfig(), NOTHING).score(view(said, label)) == 1.0


@pytest.mark.parametrize("label", ["many", "3, 4", "2*y**7 + 5"])
async def test_a_label_without_one_number_is_an_error_of_the_row(label: str) -> None:
    with pytest.raises(ValueError, match="is no number"):
        await Number(AnswerConfig(), NOTHING).score(view("5", label))


async def test_with_a_tag_only_what_is_in_the_last_one_answers() -> None:
    verifier = ExactMatch(AnswerConfig(tag="answer"), NOTHING)
    said = ["<answer>5</answer> no: <answer> 4 </answer> done", "4", "<answer>4", "</answer>4<answer>"]

    assert [await verifier.score(view(text)) for text in said] == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("label", [None, [], [None], {"answer": None}, {"other": "4"}])
def test_a_row_without_a_label_is_an_error_of_the_row(label: Any) -> None:
    with pytest.raises(ValueError, match="the row has no label to compare with"):
        accepted(label)
