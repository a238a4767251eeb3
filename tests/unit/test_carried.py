"""What a turn carries: counts under every name SGLang gave them, and two parts as one."""

from __future__ import annotations

from typing import Any

import pytest

from rollhook.carried import Carried, SpecCounts
from rollhook.replay import TopP


@pytest.mark.parametrize(
    ("accepted", "drafted"),
    [
        ("spec_accept_token_num", "spec_draft_token_num"),
        ("spec_accepted_drafts", "spec_proposed_drafts"),
        ("spec_num_correct_drafts", "spec_num_proposed_drafts"),
    ],
)
def test_speculative_counts_are_read_under_each_of_their_names(accepted: str, drafted: str) -> None:
    meta = {accepted: 5, drafted: 9, "spec_verify_ct": 3, "completion_tokens": 8}

    assert SpecCounts.read(meta) == SpecCounts(5, 9, 3, 8)


@pytest.mark.parametrize("meta", [{"completion_tokens": 8}, {"spec_verify_ct": 0, "completion_tokens": 8}])
def test_an_engine_that_does_not_speculate_counts_nothing(meta: dict[str, Any]) -> None:
    assert SpecCounts.read(meta) == SpecCounts()


def test_two_parts_of_a_turn_carry_what_the_whole_would() -> None:
    begun = Carried(2, SpecCounts(1, 2, 1, 2), TopP.of([1, 2], [0, 1, 2]), b"prefix")
    rest = Carried(0, SpecCounts(3, 4, 1, 3), TopP.of([3, 4], [0, 2]), b"everything")

    assert begun.then(rest) == Carried(
        2, SpecCounts(4, 6, 2, 5), TopP.of([1, 2, 3, 4], [0, 1, 2, 4]), b"everything"
    )
    assert begun.then(Carried()).experts == b"prefix"
