"""How far sampling may run ahead of training."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollhook.pace import Pace

small = st.integers(0, 50)


@given(st.tuples(small, small, small), st.integers(0, 9), st.integers(1, 20), st.integers(0, 9))
def test_the_rule_is_that_of_areals_staleness_manager(
    groups: tuple[int, int, int], max_staleness: int, batch: int, version: int
) -> None:
    """Where one version lasts one batch, as there: `version * batch` groups were handed over before it."""
    handed, ready, running = groups
    accepted = version * batch + handed + ready
    areal = (max_staleness + version + 1) * batch - (accepted + running)
    ours = Pace(max_staleness=max_staleness).room(
        batch=batch, handed=handed, ready=ready, running=running, waiting=False
    )

    assert ours == areal


def test_a_call_that_waits_may_fill_its_own_batch() -> None:
    pace = Pace(max_staleness=0)

    assert pace.room(batch=4, handed=4, ready=0, running=0, waiting=False) == 0
    assert pace.room(batch=4, handed=4, ready=1, running=1, waiting=True) == 2


def test_a_group_is_stale_beyond_the_maximum_only() -> None:
    pace = Pace(max_staleness=2)

    assert [pace.is_stale(oldest, 5) for oldest in (2, 3, 5, 6)] == [True, False, False, False]


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="staleness"):
        Pace.model_validate({"staleness": 1})
