"""Samples are copied clean, written in one place, and certified before they leave."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from rollhook.errors import CertificationError
from rollhook.sample import (
    PrefixCacheInfo,
    Sample,
    Status,
    certify,
    detached,
    fresh_copy,
    rollout_id_of,
    set_status,
    write_placeholder,
    write_tokens,
)


def valid_sample(**changes: Any) -> Sample:
    sample = Sample(index=3, rollout_id=3, status=Status.COMPLETED)
    write_tokens(sample, tokens=[5, 6, 7, 8], prompt_length=2, loss_mask=[1, 0], log_probs=[-0.5, 0.0])
    for name, value in changes.items():
        setattr(sample, name, value)
    return sample


def test_written_fields_align() -> None:
    sample = valid_sample()

    certify(sample)
    assert (sample.tokens, sample.response_length, sample.loss_mask, sample.rollout_log_probs) == (
        [5, 6, 7, 8],
        2,
        [1, 0],
        [-0.5, 0.0],
    )


def test_the_placeholder_is_valid_and_trains_nothing() -> None:
    sample = Sample(index=0, rollout_id=0)
    write_placeholder(sample)

    certify(sample)
    assert (sample.tokens, sample.loss_mask) == ([0, 0], [0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_mask": None}, "no loss_mask"),
        ({"response_length": 0}, "at least one prompt token and one response token"),
        ({"response_length": 4}, "at least one prompt token and one response token"),
        ({"loss_mask": [1]}, "loss_mask has 1 and rollout_log_probs 2 entries"),
        ({"loss_mask": [1, 2]}, r"loss_mask\[1\] is 2, not 0 or 1"),
        ({"rollout_log_probs": [float("nan"), 0.0]}, r"rollout_log_probs\[0\] is nan where loss_mask is 1"),
        ({"rollout_log_probs": [-0.5, -0.1]}, r"rollout_log_probs\[1\] is -0.1 where loss_mask is 0"),
        ({"rollout_id": None}, "no rollout_id"),
        ({"reward": float("nan")}, "the reward is nan; it must be finite"),
        ({"status": Status.FAILED}, "FAILED sample must be removed"),
        ({"status": Status.FAILED, "remove_sample": True, "reward": 1.0}, "FAILED sample must be removed"),
    ],
)
def test_a_broken_invariant_never_leaves(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CertificationError, match=message):
        certify(valid_sample(**changes))


def test_a_fresh_copy_forgets_the_former_attempt_and_keeps_the_row() -> None:
    stale = valid_sample(
        prompt="why?",
        label="because",
        reward=1.0,
        remove_sample=True,
        session_id="s-1",
        metadata={"rollhook": "debate", "rollhook_result": {"turns": 4}},
        prefix_cache_info=PrefixCacheInfo(cached_tokens=9, total_prompt_tokens=10),
    )

    copy = fresh_copy(stale)

    assert copy == Sample(
        index=3,
        rollout_id=3,
        prompt="why?",
        label="because",
        session_id="s-1",
        metadata={"rollhook": "debate"},
    )
    assert stale.metadata["rollhook_result"] == {"turns": 4}


def test_copies_do_not_share_what_is_written_later() -> None:
    row = Sample(index=1)
    first, second = fresh_copy(row), fresh_copy(row)

    first.weight_versions.append("7")
    first.prefix_cache_info.cached_tokens = 5
    first.metadata["x"] = 1

    assert (second.weight_versions, second.prefix_cache_info.cached_tokens, second.metadata) == ([], 0, {})


def test_siblings_and_their_row_share_no_metadata() -> None:
    row = Sample(index=1, metadata={"task": {"files": ["a"]}})
    first, second, held = fresh_copy(row), fresh_copy(row), detached(row)

    first.metadata["task"]["files"].append("b")
    held.metadata["task"]["files"].append("c")

    assert (second.metadata, row.metadata) == ({"task": {"files": ["a"]}}, {"task": {"files": ["a"]}})


@pytest.mark.parametrize(("index", "known"), [(4, 4), ("abc", None), (None, None)])
def test_siblings_share_an_id_whatever_the_row_says(index: Any, known: int | None) -> None:
    made = rollout_id_of(Sample(index=index))

    assert made == known if known is not None else 0 <= made < 2**63


def test_dict_round_trip() -> None:
    sample = valid_sample(metadata={"a": [1, {"b": None}]}, reward=0.25)

    assert Sample.from_dict(sample.to_dict()) == sample
    assert sample.to_dict()["status"] == "completed"


@dataclass
class TrainerSample:
    """A trainer's own class: other fields, its own Status."""

    class Status(Enum):
        PENDING = "pending"
        FAILED = "failed"

    index: int | None = None
    tokens: list[int] = field(default_factory=list)
    loss_mask: list[int] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    status: Status = Status.PENDING
    own_field: str = "kept"


def test_a_trainer_gets_its_own_class_and_enum_back() -> None:
    row: Any = TrainerSample(index=2, tokens=[1], own_field="mine")

    copy: Any = fresh_copy(row)
    set_status(copy, Status.FAILED)

    assert type(copy) is TrainerSample
    assert (copy.own_field, copy.tokens, copy.status) == ("mine", [], TrainerSample.Status.FAILED)


@pytest.mark.parametrize(
    ("replayed", "message"),
    [
        ({"rollout_top_p_token_ids": [1]}, "only one of rollout_top_p_token_ids and _offsets"),
        (
            {"rollout_top_p_token_ids": [1], "rollout_top_p_token_offsets": [0, 1]},
            "2 rollout_top_p_token_offsets for 2 tokens and 1 ids",
        ),
        (
            {"rollout_top_p_token_ids": [1], "rollout_top_p_token_offsets": [0, 2, 1]},
            "rollout_top_p_token_offsets go backwards",
        ),
        ({"rollout_routed_experts": [[[1]]]}, "rollout_routed_experts has 1 rows; 4 tokens have one each"),
    ],
)
def test_what_the_trainer_replays_must_fit_the_tokens(replayed: dict[str, Any], message: str) -> None:
    with pytest.raises(CertificationError, match=message):
        certify(valid_sample(**replayed))


def test_replayed_values_that_fit_are_certified() -> None:
    certify(
        valid_sample(
            rollout_top_p_token_ids=[7, 8],
            rollout_top_p_token_offsets=[0, 2, 2],
            rollout_routed_experts=[[[1]]] * 3,
        )
    )
