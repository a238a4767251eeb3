"""Which option a response settles on."""

from __future__ import annotations

import pytest

from rollhook.verifiers.labels import AnswerConfig
from rollhook.verifiers.multiple_choice import MultipleChoice, chosen_option
from tests.unit.verifiers.world import NOTHING, value, view

OPTIONS = "Capital of France?\n(A) Rome\n(B) Paris\n(C) Bonn"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is (B).", "B"),
        ("Answer: B", "B"),
        ("**Answer:** **B**", "B"),
        ("the correct answer is B because", "B"),
        ("I choose option C.", "C"),
        ("so \\boxed{B}", "B"),
        ("so \\boxed{\\text{(B)}}", "B"),
        ("B", "B"),
        ("(b)", None),
        ("B) Paris", "B"),
        ("I think it over.\nB.", "B"),
        ("The answer is (A). No: the answer is (B).", "B"),
        ("The answer is (A) or (B).", None),
        ("Answer: A, B, C", None),
        ("\\boxed{A} and \\boxed{B}", "B"),
        ("\\boxed{A, B}", None),
        ("The answer is A man", None),
        ("Apples", None),
        ("", None),
        (OPTIONS, None),  # the prompt, echoed: a list of options is no choice
        ("A B C D", None),
    ],
)
def test_a_response_settles_on_one_option_or_on_none(text: str, letter: str | None) -> None:
    assert chosen_option(text) == letter


async def test_the_label_is_a_letter() -> None:
    verifier = MultipleChoice(AnswerConfig(), NOTHING)

    assert value(await verifier.score(view("B", "(B)"))) == 1.0
    assert value(await verifier.score(view("B", "A"))) == 0.0
    with pytest.raises(ValueError, match="the label 'Paris' is no letter of an option"):
        await verifier.score(view("B", "Paris"))
