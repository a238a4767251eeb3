from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollhook_search_r1.protocol import (
    Action,
    Passage,
    information,
    instruct,
    read_action,
    show_passages,
)

TAGS = re.compile(r"</?(think|search|information|answer)>", re.IGNORECASE)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>hm</think><search> capital of Peru </search>", Action("search", "capital of Peru")),
        ("<search>two\nlines</search>\n", Action("search", "two\nlines")),
        ("<think>sure</think><answer> Lima </answer>", Action("answer", "Lima")),
        ("<answer></answer>", Action("answer", "")),
        ("<search>first</search><answer>second</answer>", Action("search", "first")),
        ("no tag at all", None),
        ("<search>   </search>", None),
        ("<search>never closed", None),
        ("closed without opening</search>", None),
        ("<answer>crossed</search>", None),
        ("", None),
    ],
)
def test_a_turn_is_read_as_its_first_complete_action(text: str, action: Action | None) -> None:
    assert action == read_action(text)


def test_the_question_is_put_into_the_instruction_as_it_is() -> None:
    prompt = instruct(" What is {x} in <answer>? \n")

    assert prompt.endswith("Question: What is {x} in <answer>?")
    assert "<search> and </search>" in prompt


def tokens(text: str) -> int:
    """Of a simple tokenizer: words and marks."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def test_passages_are_shown_in_the_papers_form() -> None:
    shown = show_passages(
        [Passage("Lima", "Lima is the\ncapital of Peru."), Passage("Peru", "A country.")], 500, tokens
    )

    assert shown == "Doc 1(Title: Lima) Lima is the capital of Peru.\nDoc 2(Title: Peru) A country."
    assert information(shown) == f"\n\n<information>{shown}</information>\n\n"


def test_no_passages_are_said_to_be_none() -> None:
    assert show_passages([], 500, tokens) == "Nothing was found."


def test_a_long_observation_is_cut_at_a_word() -> None:
    shown = show_passages([Passage("T", "word " * 1000)], 50, tokens)

    assert 45 < tokens(shown) <= 50
    assert shown.endswith(" word…")


def test_text_without_spaces_is_cut_within_it() -> None:
    shown = show_passages([Passage("T", "首都" * 1000)], 50, len)

    assert len(shown) == 50
    assert shown.endswith("首都首…")


@given(st.lists(st.tuples(st.text(), st.text())), st.integers(10, 100))
def test_what_is_shown_never_exceeds_its_budget(passages: list[tuple[str, str]], budget: int) -> None:
    shown = show_passages([Passage(title, text) for title, text in passages], budget, tokens)

    assert tokens(shown) <= budget


def test_half_a_character_becomes_a_whole_one() -> None:
    assert show_passages([Passage("T", "a\ud800b")], 100, tokens) == "Doc 1(Title: T) a\ufffdb"


_TAGGY = st.lists(
    st.sampled_from(["<", "/", ">", "answer", "<answer>", "</answer>", "search", "INFORMATION", "x", " "])
).map("".join)


@given(_TAGGY, _TAGGY)
def test_no_passage_brings_a_tag_into_the_conversation(title: str, text: str) -> None:
    shown = show_passages([Passage(title, text)], 10_000, tokens)

    assert TAGS.search(shown) is None


def test_a_passage_is_read_from_the_form_of_corpora_and_services() -> None:
    assert Passage.of("Lima\nLine one.\nLine two.") == Passage("Lima", "Line one.\nLine two.")
    assert Passage.of("only a title") == Passage("only a title", "")
    assert Passage("Lima", "Line one.").contents == "Lima\nLine one."
