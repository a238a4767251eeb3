"""Segments to sibling Samples: one rollout_id, a status, and the reward by the declared credit.

Invariant: over the siblings of one rollout each sampled token of a trained agent has mask 1 exactly once, and
every Sample made here has passed `certify`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rollhook.errors import CertificationError, CreditError, RolloutError
from rollhook.hookspecs import Credit
from rollhook.ledger import Segment
from rollhook.protocols import EnvironmentResult
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


@dataclass(frozen=True, slots=True)
class Origin:
    """The rollout that siblings come from. sample: its row, which is not written to.

    sampled_tokens, trained_tokens: what all its agents, and what those that train, sampled.
    environment: what its environment said of the episode; None without one. clock: the time its chat
    templates saw (ISO 8601). kept: how often what was sampled stood against the template, by what.
    """

    sample: Sample
    rollout_id: int
    sampled_tokens: int = 0
    trained_tokens: int = 0
    environment: EnvironmentResult | None = None
    clock: str | None = None
    kept: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """One segment of a rollout with the status it ended in and the text of its response."""

    segment: Segment
    status: Status
    response: str


@dataclass(frozen=True, slots=True)
class Reward:
    """What a rollout earned. value: None when nobody scored it. by_role: for credit "roles".

    answer: the text that was, or is to be, scored; None when the rollout came to none.
    """

    value: float | None = None
    credit: Credit = "broadcast"
    by_role: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    answer: str | None = None


def merge_siblings(origin: Origin, parts: Sequence[Part], reward: Reward) -> list[Sample]:
    """The rollout's Samples, one per segment that trains (one that trains nothing when none does).

    Raises CreditError when the credit cannot be applied, CertificationError when an invariant breaks.
    """
    training = [part for part in parts if any(part.segment.loss_mask)] or list(parts[:1])
    masked_in = sum(sum(part.segment.loss_mask) for part in training)
    if masked_in != origin.trained_tokens:
        raise CertificationError(
            f"{origin.trained_tokens} tokens were sampled to train but {masked_in} have mask 1"
        )
    siblings = _from_parts(origin, training, reward)
    for sibling, part, value in zip(siblings, training, _share(reward, training), strict=True):
        set_status(sibling, part.status)
        sibling.reward = value
        certify(sibling)
    return siblings


def aborted_siblings(origin: Origin, parts: Sequence[Part]) -> list[Sample]:
    """What the trainer gets back of a rollout it aborted: what was sampled so far, ABORTED, reward 0.0."""
    siblings = _from_parts(origin, parts, Reward()) or [_placeholder(origin)]
    for sibling in siblings:
        set_status(sibling, Status.ABORTED)
        sibling.reward = 0.0
        certify(sibling)
    return siblings


def failed_sample(origin: Origin, error: RolloutError, parts: Sequence[Part] = ()) -> Sample:
    """The one Sample of a rollout that failed (see `mark_failed`).

    It keeps the tokens of the longest segment, for people to look at; nothing of it trains.
    """
    longest = sorted(parts, key=lambda part: -len(part.segment.tokens))[:1]
    made = (_from_parts(origin, longest, Reward()) or [_placeholder(origin)])[0]
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
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    known = metadata.get(RESULT_KEY) or _result(None, 0, 1, Origin(sample, 0), Reward())
    sample.metadata = {**metadata, RESULT_KEY: {**known, "error": cause}}


def longest_sibling(siblings: Sequence[Sample]) -> Sample:
    """The sibling with the most trained tokens: what stands for the rollout where one Sample must."""
    return max(siblings, key=lambda sibling: sum(sibling.loss_mask or ()))


def _from_parts(origin: Origin, parts: Sequence[Part], reward: Reward) -> list[Sample]:
    """One Sample a part, without status and reward."""
    siblings = []
    for number, part in enumerate(parts):
        segment = part.segment
        made = fresh_copy(origin.sample)
        made.rollout_id = origin.rollout_id
        write_tokens(
            made,
            tokens=segment.tokens,
            prompt_length=segment.prompt_length,
            loss_mask=segment.loss_mask,
            log_probs=segment.log_probs,
        )
        made.response = part.response
        made.weight_versions = list(segment.weight_versions)
        if hasattr(made, "prefix_cache_info"):
            made.prefix_cache_info.cached_tokens = segment.cached_tokens
            made.prefix_cache_info.total_prompt_tokens = segment.prompt_tokens
        made.metadata[RESULT_KEY] = _result(segment, number, len(parts), origin, reward)
        siblings.append(made)
    return siblings


def _placeholder(origin: Origin) -> Sample:
    """The Sample of a rollout that sampled nothing."""
    made = fresh_copy(origin.sample)
    made.rollout_id = origin.rollout_id
    write_placeholder(made)
    made.metadata[RESULT_KEY] = _result(None, 0, 1, origin, Reward())
    return made


def _result(
    segment: Segment | None, number: int, count: int, origin: Origin, reward: Reward
) -> dict[str, Any]:
    """`metadata["rollhook_result"]`: the segment's own facts, then the whole rollout's."""
    return {
        "kind": segment.kind if segment else "main",
        "role": segment.role if segment else "main",
        "segment": number,
        "segments": count,
        "turns": segment.turns if segment else 0,
        "forks": [dict(fork) for fork in segment.forks] if segment else [],
        "abandoned": segment.abandoned if segment else False,
        "request_ids": list(segment.request_ids) if segment else [],
        "spans": _spans(segment) if segment else [],
        "error": None,
        "sampled_tokens": origin.sampled_tokens,
        "rollout_reward": reward.value,
        "environment": None if origin.environment is None else asdict(origin.environment),
        "scores": dict(reward.scores),
        "answer": reward.answer,
        "clock": origin.clock,
        "kept": {what: count for what, count in origin.kept.items() if count},
    }


def _spans(segment: Segment) -> list[dict[str, Any]]:
    """Where in `tokens`, the prompt's included, stands what was not sampled, and how it came there."""
    return [{"start": start, "length": length, "kind": kind} for start, length, kind in segment.spans]


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
