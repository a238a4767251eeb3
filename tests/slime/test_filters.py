"""The dynamic filter: a prompt is kept when its rollouts earned different rewards, each counted once."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollhook.errors import CreditError
from rollhook.slime import keep_informative, normalize_rewards
from tests.slime.samples import TrainerSample, failed, finished, sibling

NOTHING: Any = SimpleNamespace()


def verdict(group: list[Any], **args: Any) -> tuple[bool, str | None]:
    output = keep_informative(SimpleNamespace(**args), group)
    return output.keep, output.reason


@pytest.mark.parametrize("shape", ["samples", "lists"])
def test_a_prompt_whose_rewards_differ_is_kept_and_one_of_equals_is_not(shape: str) -> None:
    def group(*rewards: float) -> list[Any]:
        samples = [finished(i, reward) for i, reward in enumerate(rewards)]
        return [[sample] for sample in samples] if shape == "lists" else samples

    assert verdict(group(1.0, 0.0)) == (True, None)
    assert verdict(group(0.5, 0.5, 0.5)) == (False, "equal_rewards")
    assert verdict(group(1.0)) == (False, "fewer_than_two_scored")
    assert verdict(group()) == (False, "fewer_than_two_scored")


def test_a_rollout_counts_once_however_many_siblings_it_has() -> None:
    alone = [[sibling(0, 1.0), sibling(0, 1.0, segment=1)]]
    split = [
        [sibling(0, 1.0, credit="split", weight=w, segment=n) for n, w in enumerate((0.75, 0.25))],
        [sibling(1, 1.0, credit="split")],
    ]

    assert verdict(alone) == (False, "fewer_than_two_scored")
    assert verdict(split) == (False, "equal_rewards")


def test_failed_aborted_and_removed_rollouts_do_not_make_a_difference() -> None:
    aborted = finished(2, 0.0, status=TrainerSample.Status.ABORTED)
    removed = finished(3, 0.5, remove_sample=True)

    assert verdict([finished(0, 1.0), failed(1), aborted, removed]) == (False, "fewer_than_two_scored")
    assert verdict([finished(0, 1.0), finished(4, 1.0), failed(1)]) == (False, "equal_rewards")
    assert verdict([failed(0), [failed(1)]]) == (False, "fewer_than_two_scored")


def test_the_group_is_what_was_handed_over_whatever_its_group_index() -> None:
    assert verdict([finished(0, 1.0, group=None), finished(1, 0.0, group=None)]) == (True, None)


def test_named_rewards_are_read_by_the_reward_key() -> None:
    group = [finished(0, {"right": 1.0, "form": 0.5}), finished(1, {"right": 1.0, "form": 0.1})]

    assert verdict(group, reward_key="right") == (False, "equal_rewards")
    assert verdict(group, reward_key="form") == (True, None)


def test_roles_are_compared_as_they_will_be_normalized() -> None:
    group = [
        sibling(rollout, earned, role=role, credit="zero_sum")
        for rollout in range(2)
        for role, earned in (("white", 1.0), ("black", -1.0))
    ]

    assert verdict(group) == (True, None)
    assert verdict(group, rollhook={"normalize_by": "agent"}) == (False, "equal_rewards")


def test_an_unscored_rollout_is_refused_with_a_sentence() -> None:
    with pytest.raises(CreditError, match="the reward of rollout 1 is None; name a verifier in its row"):
        keep_informative(NOTHING, [finished(0, 1.0), finished(1, None)])


def test_the_verdict_is_one_that_is_true_or_false_itself() -> None:
    kept = keep_informative(NOTHING, [finished(0, 1.0), finished(1, 0.0)], state=None)
    dropped = keep_informative(NOTHING, [])

    assert (bool(kept), bool(dropped), dropped.keep_when_insufficient) == (True, False, False)


@given(st.lists(st.one_of(st.sampled_from([0.0, 0.1, 1.0]), st.none()), max_size=6))
def test_a_prompt_is_kept_exactly_when_it_gives_advantages(rewards: list[float | None]) -> None:
    group = [failed(i) if reward is None else finished(i, reward) for i, reward in enumerate(rewards)]
    _, advantages = normalize_rewards(NOTHING, group)

    assert keep_informative(NOTHING, group).keep == any(not math.isclose(a, 0.0) for a in advantages)


SCRIPT = """
from types import SimpleNamespace
from rollhook.slime import keep_informative
output = keep_informative(SimpleNamespace(), [])
print(type(output).__module__, output)
"""


def test_in_a_trainer_the_verdict_is_of_its_own_class(tmp_path: Path) -> None:
    package = tmp_path / "slime" / "rollout" / "filter_hub"
    package.mkdir(parents=True)
    for folder in (tmp_path / "slime", tmp_path / "slime" / "rollout", package):
        (folder / "__init__.py").touch()
    (package / "base_types.py").write_text(
        "from dataclasses import dataclass\n\n\n"
        "@dataclass\nclass DynamicFilterOutput:\n    keep: bool\n    reason: str | None = None\n"
    )

    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.split(" ", 1) == [
        "slime.rollout.filter_hub.base_types",
        "DynamicFilterOutput(keep=False, reason='fewer_than_two_scored')\n",
    ]
