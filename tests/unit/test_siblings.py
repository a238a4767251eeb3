"""Segments become siblings: one rollout_id, each sampled token trained once, credit as declared."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from rollhook.credit import Reward
from rollhook.errors import CertificationError, ToolError
from rollhook.sample import Sample, Status
from rollhook.segments import Segment
from rollhook.siblings import (
    Origin,
    Part,
    aborted_siblings,
    failed_sample,
    longest_sibling,
    merge_siblings,
)


def segment(mask: list[int], *, role: str = "main", prompt: int = 2, **changes: Any) -> Segment:
    values: dict[str, Any] = {
        "kind": role,
        "role": role,
        "tokens": array("i", range(10, 10 + prompt + len(mask))),
        "prompt_length": prompt,
        "loss_mask": bytearray(mask),
        "log_probs": array("d", [-0.5 if bit else 0.0 for bit in mask]),
        "finish_reason": "stop",
        "weight_versions": ["3"],
        "request_ids": [f"r-{role}"],
        "turns": 1,
        "forks": [],
        "cached_tokens": 4,
        "prompt_tokens": 9,
    }
    return Segment(**{**values, **changes})


def part(mask: list[int], **changes: Any) -> Part:
    return Part(segment(mask, **changes), Status.COMPLETED, "text")


def row() -> Sample:
    return Sample(index=4, group_index=2, prompt="q", label="a", metadata={"rollhook": "debate", "own": 1})


def origin(rollout_id: int, trained_tokens: int = 0) -> Origin:
    return Origin(row(), rollout_id, sampled_tokens=trained_tokens + 10, trained_tokens=trained_tokens)


def test_one_sibling_per_segment_with_the_rollouts_id_and_full_reward() -> None:
    parts = [part([1, 1, 0], role="agent_1"), part([0, 1], role="agent_2")]

    made = merge_siblings(origin(77, 3), parts, Reward(0.5, scores={"vote": 0.5}))

    assert [(s.rollout_id, s.index, s.group_index, s.reward, s.status) for s in made] == [
        (77, 4, 2, 0.5, Status.COMPLETED)
    ] * 2
    assert [(s.tokens, s.loss_mask, s.rollout_log_probs) for s in made] == [
        ([10, 11, 12, 13, 14], [1, 1, 0], [-0.5, -0.5, 0.0]),
        ([10, 11, 12, 13], [0, 1], [0.0, -0.5]),
    ]
    assert made[1].metadata == {
        "rollhook": "debate",
        "own": 1,
        "rollhook_result": {
            "kind": "agent_2",
            "role": "agent_2",
            "segment": 1,
            "segments": 2,
            "turns": 1,
            "forks": [],
            "abandoned": False,
            "request_ids": ["r-agent_2"],
            "spans": [],
            "limit": None,
            "error": None,
            "sampled_tokens": 13,
            "rollout_reward": 0.5,
            "credit": {"credit": "broadcast", "earned": 0.5, "weight": 1.0},
            "environment": None,
            "scores": {"vote": 0.5},
            "answer": None,
            "clock": None,
            "kept": {},
            "unfinished": None,
            "resumed": None,
        },
    }
    assert made[0].prefix_cache_info.cached_tokens == 4


def test_what_was_not_sampled_is_told_by_its_place_in_the_tokens() -> None:
    spans = [(0, 2, "prompt"), (3, 1, "text"), (5, 2, "messages")]
    told = [
        {"start": 0, "length": 2, "kind": "prompt"},
        {"start": 3, "length": 1, "kind": "text"},
        {"start": 5, "length": 2, "kind": "messages"},
    ]
    mixed = part([1, 0, 1, 0, 0, 1], spans=spans)

    [made] = merge_siblings(origin(1, 3), [mixed], Reward(1.0))
    failed = failed_sample(origin(1), ToolError("gone"), [mixed])

    assert [made.metadata["rollhook_result"]["spans"], failed.metadata["rollhook_result"]["spans"]] == [
        told,
        told,
    ]


def test_a_segment_that_trains_nothing_is_left_out_unless_it_is_all_there_is() -> None:
    silent = part([0, 0], role="judge")

    both = merge_siblings(origin(1, 1), [silent, part([1])], Reward(1.0))
    alone = merge_siblings(origin(1, 0), [silent], Reward(1.0))

    assert [s.metadata["rollhook_result"]["role"] for s in both] == ["main"]
    assert [s.loss_mask for s in alone] == [[0, 0]]


def test_a_token_trained_twice_or_lost_is_refused() -> None:
    with pytest.raises(CertificationError, match="3 tokens were sampled to train but 2 have mask 1"):
        merge_siblings(origin(1, 3), [part([1, 1])], Reward(1.0))


def test_an_unscored_rollout_keeps_reward_none() -> None:
    made = merge_siblings(origin(1, 1), [part([1])], Reward(credit="split"))

    assert made[0].reward is None


def test_a_failed_rollout_is_one_removed_masked_sample_with_its_cause() -> None:
    message = "calculator/calculator: OSError: gone"
    error = ToolError(
        message, plugin="calculator/calculator", cause_type="OSError", where="calculator.py:9 in call"
    )

    made = failed_sample(origin(5), error, [part([1]), part([1, 0, 1])])

    assert (made.status, made.remove_sample, made.reward, made.loss_mask, made.rollout_log_probs) == (
        Status.FAILED,
        True,
        0.0,
        [0, 0, 0],
        [0.0, 0.0, 0.0],
    )
    assert made.metadata["rollhook_result"]["error"] == {
        "stage": "tool",
        "plugin": "calculator/calculator",
        "type": "OSError",
        "message": message,
        "where": "calculator.py:9 in call",
    }


def test_a_rollout_that_failed_before_any_token_is_the_placeholder() -> None:
    made = failed_sample(origin(5), ToolError("early"))

    assert (made.tokens, made.response_length, made.loss_mask) == ([0, 0], 1, [0])
    assert made.metadata["rollhook_result"]["turns"] == 0


def test_an_aborted_rollout_keeps_what_was_sampled() -> None:
    made = aborted_siblings(origin(5), [part([1, 1])])
    nothing = aborted_siblings(origin(5), [])

    assert [(s.status, s.reward, s.loss_mask) for s in made] == [(Status.ABORTED, 0.0, [1, 1])]
    assert [(s.status, s.tokens) for s in nothing] == [(Status.ABORTED, [0, 0])]


def test_the_longest_sibling_is_the_one_that_trains_most() -> None:
    made = merge_siblings(origin(1, 3), [part([1, 0, 0, 0]), part([1, 1])], Reward(1.0))

    assert longest_sibling(made) is made[1]
