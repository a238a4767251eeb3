"""What finished rollouts came to, in numbers."""

from __future__ import annotations

from typing import Any

from rollhook.cli.figures import Totals, cause, counted, figures, number
from rollhook.sample import Sample, Status


def a_sample(mask: list[int], **fields: Any) -> Sample:
    result = fields.pop("result", {})
    return Sample(
        group_index=3,
        loss_mask=mask,
        status=fields.pop("status", Status.COMPLETED),
        metadata={"rollhook_result": {"role": "main", "turns": 1, **result}},
        **fields,
    )


FORK = {"forks": [{"turn": 1, "reason": "history changed"}]}
ERROR = {"stage": "tool", "plugin": "calculator/calculator", "type": "ToolError", "message": "no\nway"}
FAILED = a_sample([0], status=Status.FAILED, reward=0.0, remove_sample=True, result={"error": ERROR})


def test_a_rollout_sums_its_siblings_and_takes_the_worst_status() -> None:
    siblings = [
        a_sample([1, 0, 1], reward=1.0, result={"role": "solver"}),
        a_sample([1], reward=0.5, status=Status.TRUNCATED, result={"role": "critic", **FORK}),
    ]

    one = figures(7, siblings)

    assert (one.index, one.group, one.status, one.reward) == (7, 3, "truncated", 0.75)
    assert (one.roles, one.turns, one.sampled, one.trained) == (("solver", "critic"), 2, 3, 3)
    assert (one.forks, one.error) == (("history changed",), None)


def test_a_removed_sample_trains_nothing_and_what_was_sampled_for_it_still_counts() -> None:
    removed = a_sample([1, 1], remove_sample=True, result={"sampled_tokens": 9})

    one = figures(0, [removed, a_sample([1], result={"sampled_tokens": 9})])

    assert (one.sampled, one.trained) == (9, 1)


def test_named_rewards_and_foreign_samples_have_no_number() -> None:
    assert figures(0, [Sample(reward={"main": 1.0})]).reward is None


def test_the_mean_reward_leaves_failures_out() -> None:
    totals = Totals()
    for index, samples in enumerate([[a_sample([1], reward=1.0, result=FORK)], [FAILED], [a_sample([1])]]):
        totals.add(figures(index, samples))

    assert (totals.rollouts, totals.siblings, totals.trained, totals.failed) == (3, 3, 2, 1)
    assert totals.mean_reward == 1.0
    assert counted(totals.forks) == "1 (history changed 1)"
    assert counted(totals.failures) == "1 (tool 1)"


def test_truncated_rollouts_are_counted_by_the_limit_that_ended_them() -> None:
    totals = Totals()
    for index, limit in enumerate(["max_turns", "timeout_s", "max_turns", None]):
        cut = a_sample([1], status=Status.TRUNCATED, result={"limit": limit})
        totals.add(figures(index, [a_sample([1]), cut]))
    totals.add(figures(4, [a_sample([1])]))

    assert counted(totals.truncations) == "4 (max_turns 2, timeout_s 1, unknown 1)"


def test_a_rollout_that_ended_without_a_reward_is_unscored() -> None:
    totals = Totals()
    aborted = a_sample([1], status=Status.ABORTED, reward=0.0)
    cut = a_sample([1], status=Status.TRUNCATED)
    for index, samples in enumerate(
        [[a_sample([1])], [cut], [FAILED], [aborted], [a_sample([1], reward=0.0)]]
    ):
        totals.add(figures(index, samples))

    assert totals.unscored == 2


def test_no_rewards_are_a_dash() -> None:
    assert (number(Totals().mean_reward), counted(Totals().forks)) == ("-", "0")


def test_a_cause_is_one_line() -> None:
    assert cause(ERROR) == "tool (calculator/calculator): no way"
    assert cause({**ERROR, "where": "calculator.py:9 in call"}) == (
        "tool (calculator/calculator): no way (calculator.py:9 in call)"
    )
