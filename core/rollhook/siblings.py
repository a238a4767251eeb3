"""Segments to sibling Samples: one rollout_id, a status, and the reward by the declared credit.

Invariant: over the siblings of one rollout each sampled token of a trained agent has mask 1 exactly once, and
every Sample made here has passed `certify`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollhook.errors import CertificationError, CreditError, RolloutError
from rollhook.hookspecs import Credit
from rollhook.ledger import Segment
from rollhook.sample import (
    Sample,
    Status,
    certify,
    fresh_copy,
    set_status,
    write_placeholder,
    write_tokens,
)

RESULT_KEY = "rollhook_result"
_EMPTY_RESULT: Mapping[str, Any] = {
    "kind": "main",
    "role": "main",
    "segment": 0,
    "segments": 1,
    "forks": [],
    "error": None,
    "turns": 0,
    "request_ids": [],
    "scores": {},
}


@dataclass(frozen=True, slots=True)
class Part:
    """One segment of a rollout with the status it ended in and the text of its response."""

    segment: Segment
    status: Status
    response: str


@dataclass(frozen=True, slots=True)
class Reward:
    """What a rollout earned. value: None when nobody scored it. by_role: for credit "roles"."""

    value: float | None = None
    credit: Credit = "broadcast"
    by_role: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)


def merge_siblings(
    sample: Sample, rollout_id: int, parts: Sequence[Part], reward: Reward, *, sampled_tokens: int
) -> list[Sample]:
    """The rollout's Samples, one per segment that trains (one that trains nothing when none does).

    sampled_tokens: how many tokens trained agents sampled; the masks must sum to it.
    Raises CreditError when the credit cannot be applied, CertificationError when an invariant breaks.
    """
    training = [part for part in parts if any(part.segment.loss_mask)] or list(parts[:1])
    trained = sum(sum(part.segment.loss_mask) for part in training)
    if trained != sampled_tokens:
        raise CertificationError(f"{sampled_tokens} tokens were sampled to train but {trained} have mask 1")
    rewards = _share(reward, training)
    made = []
    for number, (part, value) in enumerate(zip(training, rewards, strict=True)):
        sibling = _from_segment(sample, rollout_id, part)
        set_status(sibling, part.status)
        sibling.reward = value
        sibling.metadata[RESULT_KEY] = _result(part.segment, number, len(training), reward.scores)
        certify(sibling)
        made.append(sibling)
    return made


def aborted_siblings(sample: Sample, rollout_id: int, parts: Sequence[Part]) -> list[Sample]:
    """What the trainer gets back of a rollout it aborted: what was sampled so far, ABORTED, reward 0.0."""
    made = [_from_segment(sample, rollout_id, part) for part in parts] or [_placeholder(sample, rollout_id)]
    for number, part in enumerate(parts):
        made[number].metadata[RESULT_KEY] = _result(part.segment, number, len(parts), {})
    for sibling in made:
        set_status(sibling, Status.ABORTED)
        sibling.reward = 0.0
        certify(sibling)
    return made


def failed_sample(sample: Sample, rollout_id: int, error: RolloutError, parts: Sequence[Part] = ()) -> Sample:
    """The one Sample of a rollout that failed (see `mark_failed`).

    It keeps the tokens of the longest segment, for people to look at; nothing of it trains.
    """
    longest = max(parts, key=lambda part: len(part.segment.tokens), default=None)
    if longest is None:
        made = _placeholder(sample, rollout_id)
    else:
        made = _from_segment(sample, rollout_id, longest)
        made.metadata[RESULT_KEY] = _result(longest.segment, 0, 1, {})
    mark_failed(made, error)
    certify(made)
    return made


def mark_failed(sample: Sample, error: RolloutError) -> None:
    """Make `sample` FAILED: removed, mask 0, reward 0.0, the cause in `rollhook_result["error"]`."""
    sample.loss_mask = [0] * sample.response_length
    sample.rollout_log_probs = [0.0] * sample.response_length
    sample.remove_sample = True
    sample.reward = 0.0
    set_status(sample, Status.FAILED)
    cause = {
        "stage": error.stage,
        "plugin": error.plugin,
        "type": error.cause_type,
        "message": str(error),
    }
    sample.metadata[RESULT_KEY] = {**_EMPTY_RESULT, **sample.metadata.get(RESULT_KEY, {}), "error": cause}


def longest_sibling(siblings: Sequence[Sample]) -> Sample:
    """The sibling with the most trained tokens: what stands for the rollout where one Sample must."""
    return max(siblings, key=lambda sibling: sum(sibling.loss_mask or ()))


def _from_segment(sample: Sample, rollout_id: int, part: Part) -> Sample:
    segment = part.segment
    made = fresh_copy(sample)
    made.rollout_id = rollout_id
    write_tokens(
        made,
        tokens=segment.tokens,
        prompt_length=segment.prompt_length,
        loss_mask=segment.loss_mask,
        log_probs=segment.log_probs,
    )
    made.response = part.response
    made.weight_versions = list(segment.weight_versions)
    made.prefix_cache_info.cached_tokens = segment.cached_tokens
    made.prefix_cache_info.total_prompt_tokens = segment.prompt_tokens
    return made


def _result(segment: Segment, number: int, count: int, scores: Mapping[str, float]) -> dict[str, Any]:
    return {
        "kind": segment.kind,
        "role": segment.role,
        "segment": number,
        "segments": count,
        "forks": [dict(fork) for fork in segment.forks],
        "error": None,
        "turns": segment.turns,
        "request_ids": list(segment.request_ids),
        "scores": dict(scores),
    }


def _placeholder(sample: Sample, rollout_id: int) -> Sample:
    made = fresh_copy(sample)
    made.rollout_id = rollout_id
    write_placeholder(made)
    made.metadata[RESULT_KEY] = dict(_EMPTY_RESULT)
    return made


def _share(reward: Reward, parts: Sequence[Part]) -> list[float | None]:
    if reward.credit == "roles":
        missing = sorted({p.segment.role for p in parts} - set(reward.by_role))
        if missing:
            raise CreditError(
                f'credit is "roles" but the topology gave no reward for: {", ".join(missing)}; '
                "put every trained role into Outcome.role_rewards"
            )
        return [reward.by_role[part.segment.role] for part in parts]
    if reward.value is None or reward.credit == "broadcast":
        return [reward.value] * len(parts)
    return list(split_reward(reward.value, [sum(part.segment.loss_mask) for part in parts]))


def split_reward(reward: float, trained_tokens_K: Sequence[int]) -> list[float]:  # noqa: N803  K: segments
    """Share one rollout's reward over its K segments, by trained length.

    reward: the rollout's total, unitless. trained_tokens_K: [K], at least one > 0.
    Returns [K] rewards that sum to `reward`. Raises CreditError if every length is 0.
    """
    total = sum(trained_tokens_K)
    if total == 0:
        raise CreditError("no segment of the rollout has a trained token to split the reward over")
    return [reward * length / total for length in trained_tokens_K]
