"""Top-p sets and routed experts stay aligned with the tokens they belong to."""

from __future__ import annotations

import base64
import subprocess
import sys
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollhook.errors import EngineProtocolError
from rollhook.replay import Replay, TopP, experts_bytes

SETS = st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=8)


def top_p_of(sets: list[list[int]]) -> TopP:
    return TopP.chain(TopP.of(kept, [0, len(kept)]) for kept in sets)


def sets_of(top_p: TopP) -> list[list[int]]:
    return [top_p.part(place, place + 1).ids.tolist() for place in range(len(top_p.offsets) - 1)]


@given(SETS, SETS)
def test_chained_sets_are_the_sets_of_both_and_their_parts_are_each(
    one: list[list[int]], two: list[list[int]]
) -> None:
    both = TopP.chain([top_p_of(one), top_p_of(two)])

    assert sets_of(both) == one + two
    assert both.part(0, len(one)) == top_p_of(one)
    assert both.part(len(one), len(one) + len(two)) == top_p_of(two)


def test_tokens_that_were_not_sampled_have_empty_sets() -> None:
    assert TopP.empty(2) == TopP.of([], [0, 0, 0])


def test_arrays_are_read_from_lists_and_from_base64() -> None:
    told = base64.b64encode(array("i", [5, 6, 7]).tobytes()).decode()
    meta = {"top_p_kept_token_ids": told, "top_p_kept_token_offsets": [0, 2, 3]}

    assert Replay(top_p=True).read_top_p(meta, 2) == TopP.of([5, 6, 7], [0, 2, 3])


def test_nothing_is_read_for_a_trainer_that_replays_nothing() -> None:
    assert Replay().read_top_p({"top_p_token_ids": [1]}, 2) is None
    assert Replay().read_experts({"routed_experts": [1]}, 2) is None
    assert Replay().sampling({"top_k": 1}) == {"top_k": 1}
    assert Replay().extra(None) == {}


def test_experts_are_rows_of_an_int32_array_and_zeros_where_nothing_is_known() -> None:
    replay = Replay(routing=(1, 2))
    experts = replay.read_experts({"routed_experts": [1, 2, 3, 4]}, 3)
    made = replay.experts_array(experts, 5)

    assert made.tolist() == [[[1, 2]], [[3, 4]], [[0, 0]], [[0, 0]]]
    assert made.dtype == np.int32
    assert experts_bytes(made, 2) == experts


def test_an_array_that_is_none_is_told() -> None:
    with pytest.raises(EngineProtocolError, match="routed_experts is no array of int32"):
        Replay(routing=(1, 1)).read_experts({"routed_experts": [2**40]}, 2)


def test_numpy_is_imported_only_where_it_is_needed() -> None:
    code = "import sys, rollhook.replay; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
