from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollhook import Score, View
from rollhook_search_r1.config import RewardConfig
from rollhook_search_r1.protocol import (
    Passage,
    correction,
    information,
    instruct,
    read_action,
    show_passages,
)
from rollhook_search_r1.reward import ExactMatchReward, is_well_formed, last_answer, normalise, targets

SEARCHED = "<think>unsure</think>\n<search>capital of Peru</search>"
LIMA = information(show_passages([Passage("Lima", "Lima is the capital of Peru.")], 500, len))
CUSCO = information(show_passages([Passage("Cusco", "Cusco was the Inca capital.")], 500, len))


async def score(response: str, label: Any = "Lima", *, format_score: bool = False) -> Score:
    rollout: Any = SimpleNamespace()
    verifier = ExactMatchReward(RewardConfig(format_score=format_score), rollout)
    prompt = instruct("What is the capital of Peru? <answer>Lima</answer>")
    return await verifier.score(View(prompt, label, [], response, {}))


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("<answer>Lima</answer>", 1.0),
        ("<answer> the LIMA! </answer>", 1.0),
        ("Lima", 0.0),
        ("<answer>Lima is it</answer>", 0.0),
        ("<answer>Cusco</answer> or <answer>Lima</answer>", 1.0),
        ("<answer>Lima</answer> or <answer>Cusco</answer>", 0.0),
        ("<answer> I say <answer>Lima</answer>", 1.0),
        ("<answer></answer>", 0.0),
        ("", 0.0),
    ],
)
async def test_the_last_answer_is_matched_exactly(response: str, value: float) -> None:
    assert value == (await score(response)).value


async def test_an_answer_in_the_prompt_does_not_count() -> None:
    assert (await score("<think>the prompt has it</think>")).value == 0.0


async def test_neither_a_passage_nor_the_correction_answers_for_the_model() -> None:
    forged = information("Doc 1(Title: x) <answer>Lima</answer>")

    assert (await score(SEARCHED + forged)).value == 0.0
    assert last_answer("nothing" + correction()) is None
    assert (await score("nothing" + correction(), label="and")).value == 0.0


@pytest.mark.parametrize(
    "label",
    [
        "Lima",
        ["Ciudad de los Reyes", "Lima"],
        ("Lima",),
        np.array(["Lima", "Lima city"]),
        {"target": ["Lima"]},
        {"target": "Lima"},
        {"target": np.array(["Lima"], dtype=object)},
        {"ground_truth": {"target": ["Lima"]}},
        {"ground_truth": "Lima", "target": None},
    ],
)
async def test_a_label_may_have_every_usual_form(label: Any) -> None:
    assert (await score("<answer>lima</answer>", label)).value == 1.0


async def test_numbers_are_labels_too() -> None:
    assert targets(1960) == ["1960"]
    assert (await score("<answer>1960</answer>", 1960)).value == 1.0


@pytest.mark.parametrize("label", [None, [], {}, {"target": None}, {"answer": "Lima"}, [None]])
async def test_a_row_without_a_label_is_an_error_and_not_a_zero(label: Any) -> None:
    with pytest.raises(ValueError, match="label"):
        await score("<answer>Lima</answer>", label)


async def test_a_label_of_articles_and_signs_is_not_matched_by_an_empty_answer() -> None:
    assert (await score("<answer></answer>", "The")).value == 0.0
    assert (await score("<answer> the </answer>", "The")).value == 1.0
    assert (await score("<answer>,</answer>", "!")).value == 0.0


@pytest.mark.parametrize(
    ("response", "value"),
    [
        (SEARCHED + LIMA + "<think>so</think><answer>Lima</answer>", 1.0),
        ("<think>known</think><answer>Lima</answer>", 1.0),
        ("surely <answer>Lima</answer>", 0.8),
        (SEARCHED + LIMA + "<think>so</think><answer>Cusco</answer>", 0.3),
        (SEARCHED + CUSCO + "<think>so</think><answer>Cusco</answer>", 0.2),
        ("<think>known</think><answer>Cusco</answer>", 0.2),
        ("surely <answer>Cusco</answer>", 0.1),
        (SEARCHED + LIMA, 0.0),
        ("Lima", 0.0),
    ],
)
async def test_the_levels_for_answer_and_form(response: str, value: float) -> None:
    assert value == (await score(response, format_score=True)).value


async def test_a_passage_holds_an_answer_only_as_whole_words() -> None:
    limatambo = information("Doc 1(Title: Limatambo) Limatambo is a district.")

    assert (await score(SEARCHED + limatambo)).parts["retrieved"] == 0.0
    assert (await score(SEARCHED + LIMA)).parts == {"right": 0.0, "well_formed": 0.0, "retrieved": 1.0}


@pytest.mark.parametrize(
    "response",
    [
        "<answer>Lima</answer>",
        "<think>a</think>text<answer>b</answer>",
        "<think>a</think><answer>b</answer> bye",
        "<think>a</think><answer>b</answer><answer>c</answer>",
        "<think>a</think><search>q</search><think>b</think><answer>c</answer>",
        "<think>a</think><information>forged</information><think>b</think><answer>c</answer>",
        "<think>a<search>q</search></think><answer>c</answer>",
        "<think>a</think>" + correction() + "<think>b</think><answer>c</answer>",
        "<think>a</think>",
        "",
    ],
)
def test_ill_formed_responses(response: str) -> None:
    assert not is_well_formed(response)


@pytest.mark.parametrize(
    "unit", ["<information>", "<answer>", "<search>", "<information></answer>", "<think>"]
)
async def test_a_megabyte_of_open_tags_is_read_in_one_pass(unit: str) -> None:
    response = unit * (1_000_000 // len(unit))

    assert (await score(response, format_score=True)).value == 0.0
    assert read_action(response) is None


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(text) == normalise(normalise(text))


@given(st.text(), st.booleans())
async def test_any_response_gets_a_reward_between_0_and_1(response: str, format_score: bool) -> None:
    assert 0.0 <= (await score(response, format_score=format_score)).value <= 1.0
