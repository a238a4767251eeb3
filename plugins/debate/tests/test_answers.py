from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollhook_debate.answers import EXTRACTORS, Answer, ExtractorName, agree, majority


@pytest.mark.parametrize(
    ("extractor", "said", "answer"),
    [
        ("number", "2 + 2 = 4. The answer is 4.", Answer("4", "4")),
        ("number", "It costs $1,234.50.", Answer("1234.5", "1234.5")),
        ("number", "4.0", Answer("4", "4")),
        ("number", "minus: -7", Answer("-7", "-7")),
        ("number", "-0", Answer("0", "0")),
        ("number", "100", Answer("100", "100")),
        ("number", "7th of them", None),
        ("number", "no idea", None),
        ("number", "", None),
        ("boxed", r"so \boxed{1} no, \boxed{\frac{1}{2}}!", Answer(r"\frac{1}{2}", r"\boxed{\frac{1}{2}}")),
        ("boxed", r"\boxed{ x + 1 }", Answer("x+1", r"\boxed{x + 1}")),
        ("boxed", r"\boxed{1} and \boxed{cut", Answer("1", r"\boxed{1}")),
        ("boxed", r"\boxed{}", None),
        ("boxed", "4", None),
        (
            "answer",
            "<answer>Lima</answer> <answer> the Lima! </answer>",
            Answer("the lima", "<answer>the Lima!</answer>"),
        ),
        ("answer", "<answer> </answer>", None),
        ("answer", "In <answer> I write: <answer>4</answer>", Answer("4", "<answer>4</answer>")),
        ("answer", "<answer>4</answer>, not </answer>", Answer("4", "<answer>4</answer>")),
        ("boxed", r"}\boxed{\boxed{4}}", Answer("4", r"\boxed{4}")),
        ("boxed", r"\boxed{ {1} \boxed{2", None),
        ("answer", "<answer>cut", None),
        ("text", "Let me see.\nAnswer: Yes.\n\n", Answer("yes", "Yes.")),
        ("text", "The final answer is NO", Answer("no", "NO")),
        ("text", "Answers differ", Answer("answers differ", "Answers differ")),
        ("text", "answer: answer = 5", Answer("5", "5")),
        ("text", "final answer - (b)", Answer("b", "(b)")),
        ("text", "...\n---", None),
    ],
)
def test_what_each_extractor_reads(extractor: ExtractorName, said: str, answer: Answer | None) -> None:
    assert answer == EXTRACTORS[extractor](said)


@pytest.mark.parametrize(("extractor", "opening"), [("boxed", r"\boxed{"), ("answer", "<answer>")])
def test_what_opens_again_and_again_and_never_closes_is_read_once(
    extractor: ExtractorName, opening: str
) -> None:
    assert EXTRACTORS[extractor](opening * 200_000) is None  # hours, if each opening were followed to the end


def votes(*keys: str | None) -> list[Answer | None]:
    return [None if key is None else Answer(key, f"as written by voter {at}") for at, key in enumerate(keys)]


@pytest.mark.parametrize(
    ("keys", "winner"),
    [
        (["a", "b", "b"], 1),
        (["b", "a", "a", "b"], 0),
        (["c", "a", "b"], 0),
        ([None, "a", None], 1),
        ([None, None, "a", "b", "b"], 3),
    ],
)
def test_most_votes_win_and_ties_go_to_the_earliest_agent(keys: list[str | None], winner: int) -> None:
    answers = votes(*keys)

    assert answers[winner] == majority(answers)


def test_nobody_wins_without_a_readable_answer() -> None:
    assert majority([None, None]) is None
    assert majority([]) is None


def test_agents_agree_when_all_answers_are_read_and_equal() -> None:
    assert agree(votes("a", "a"))
    assert not agree(votes("a", "b"))
    assert not agree(votes("a", None))
    assert not agree([])


@given(st.lists(st.none() | st.sampled_from("abc"), max_size=9))
def test_no_other_answer_has_more_votes_than_the_winner(keys: list[str | None]) -> None:
    winner = majority(votes(*keys))

    if winner is not None:
        assert keys.count(winner.key) == max(keys.count(key) for key in keys if key is not None)


@given(st.text(), st.sampled_from(sorted(EXTRACTORS)))
def test_any_text_is_read_or_is_none(said: str, extractor: ExtractorName) -> None:
    answer = EXTRACTORS[extractor](said)

    assert answer is None or (answer.key and answer.text)


@given(st.text(), st.sampled_from(sorted(EXTRACTORS)))
def test_an_answer_read_again_is_the_same_vote(said: str, extractor: ExtractorName) -> None:
    answer = EXTRACTORS[extractor](said)

    if answer is not None:
        again = EXTRACTORS[extractor](answer.text)
        assert again is not None
        assert again.key == answer.key
