"""Segments to sibling Samples: one rollout_id, a status, and the reward by the declared credit.

Invariant: over the siblings of one rollout each sampled token of a trained agent has mask 1 exactly once, and
every Sample made here has passed `certify`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

from rollhook.credit import Reward, share
from rollhook.errors import CertificationError, RolloutError, raised_at
from rollhook.ledger import Segment
from rollhook.protocols import EnvironmentResult
from rollhook.replay import Replay, TopP
from rollhook.sample import (
    Sample,
    Status,
    certify,
    detached,
    fresh_copy,
    rollout_id_of,
    set_status,
    write_experts,
    write_placeholder,
    write_tokens,
    write_top_p,
)

RESULT_KEY = "rollhook_result"


@dataclass(frozen=True, slots=True)
class Origin:
    """The rollout that siblings come from. sample: its row, which is not written to.

    sampled_tokens, trained_tokens: what all its agents, and what those that train, sampled.
    environment: what its environment said of the episode; None without one. clock: the time its chat
    templates saw (ISO 8601). kept: how often what was sampled stood against the template, by what.
    replay: what the trainer replays, so what every Sample must carry. resumed: what became of the tokens that
    an aborted rollout had kept, for the record; None without any.
    """

    sample: Sample
    rollout_id: int
    sampled_tokens: int = 0
    trained_tokens: int = 0
    environment: EnvironmentResult | None = None
    clock: str | None = None
    kept: Mapping[str, int] = field(default_factory=dict)
    replay: Replay = field(default_factory=Replay)
    resumed: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One segment of a rollout with the status it ended in and the text of its response.

    limit: the name of what truncated it, a limit or a stage; None where nothing is known to have.
    """

    segment: Segment
    status: Status
    response: str
    limit: str | None = None


def merge_siblings(origin: Origin, parts: Sequence[Part], reward: Reward) -> list[Sample]:
    """The rollout's Samples, one per segment that trains (one that trains nothing when none does).

    Raises CreditError when the credit cannot be applied, CertificationError when an invariant breaks.
    """
    training = _training(parts)
    masked_in = sum(sum(part.segment.loss_mask) for part in training)
    if masked_in != origin.trained_tokens:
        raise CertificationError(
            f"{origin.trained_tokens} tokens were sampled to train but {masked_in} have mask 1"
        )
    shares = share(reward, [part.segment for part in training])
    siblings = _from_parts(origin, training, reward)
    for sibling, part, shared in zip(siblings, training, shares, strict=True):
        set_status(sibling, part.status)
        sibling.reward = shared.reward
        result = sibling.metadata[RESULT_KEY]
        result["limit"] = part.limit
        result["credit"] = asdict(shared)
        if shared.reward is None:
            result["unfinished"] = _turns(part.segment)
        certify(sibling)
    return siblings


def aborted_siblings(origin: Origin, parts: Sequence[Part]) -> list[Sample]:
    """What the trainer gets back of a rollout it aborted: what was sampled so far, ABORTED, reward 0.0."""
    training = _training(parts)
    siblings = _from_parts(origin, training, Reward()) or [_placeholder(origin)]
    for sibling, part in zip_longest(siblings, training):
        set_status(sibling, Status.ABORTED)
        sibling.reward = 0.0
        if part is not None:
            sibling.metadata[RESULT_KEY]["unfinished"] = _turns(part.segment)
        certify(sibling)
    return siblings


def _training(parts: Sequence[Part]) -> list[Part]:
    """The parts that train; the first one where none does."""
    return [part for part in parts if any(part.segment.loss_mask)] or list(parts[:1])


def masked_sample(sample: Sample) -> Sample:
    """A copy of a finished Sample in which nothing trains any more."""
    made = detached(sample)
    made.rollout_id = rollout_id_of(sample)
    made.loss_mask = [0] * sample.response_length
    made.rollout_log_probs = [0.0] * sample.response_length
    certify(made)
    return made


def kept_sample(origin: Origin) -> Sample:
    """The Sample of a rollout that was aborted again before it had used all it kept: as it came, ABORTED."""
    row = origin.sample
    made = detached(row)
    made.rollout_id = origin.rollout_id
    assert row.loss_mask is not None
    assert row.rollout_log_probs is not None
    made.rollout_log_probs = [
        log_prob if bit else 0.0 for bit, log_prob in zip(row.loss_mask, row.rollout_log_probs, strict=True)
    ]
    set_status(made, Status.ABORTED)
    made.reward = 0.0
    certify(made)
    return made


def failed_sample(origin: Origin, error: RolloutError, parts: Sequence[Part] = ()) -> Sample:
    """The one Sample of a rollout that failed (see `mark_failed`).

    It keeps the tokens of the longest segment, for people to look at; nothing of it trains.
    """
    longest = sorted(parts, key=lambda part: -len(part.segment.tokens))[:1]
    made = (_from_parts(origin, longest, Reward()) or [_placeholder(origin)])[0]
    mark_failed(made, error)
    certify(made)
    return made


def mark_aborted(sample: Sample) -> float:
    """Make a finished Sample ABORTED, whose scoring the trainer aborted: its reward is 0.0."""
    set_status(sample, Status.ABORTED)
    return 0.0


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
        "where": error.where or (None if error.plugin else raised_at(error)),
    }
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    known = result_of(sample) or _result(None, 0, 1, Origin(sample, 0), Reward())
    sample.metadata = {**metadata, RESULT_KEY: {**known, "error": cause}}


def result_of(sample: Sample) -> dict[str, Any]:
    """`metadata["rollhook_result"]`; empty where there is none, or a row brought something else along."""
    metadata: object = sample.metadata
    result = metadata.get(RESULT_KEY) if isinstance(metadata, dict) else None
    return result if isinstance(result, dict) else {}


def reward_later(sample: Sample, value: float) -> float:
    """What `sample` gets of `value`, which its rollout was given after its end; its record says so too."""
    result = result_of(sample)
    credit = result.get("credit")
    if not isinstance(credit, dict) or not isinstance(credit.get("weight"), int | float):
        return value
    result["rollout_reward"] = credit["earned"] = value
    result["unfinished"] = None
    return float(value * credit["weight"])


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
        _write_counts(made, segment)
        _write_replay(made, origin.replay, segment)
        made.metadata[RESULT_KEY] = _result(segment, number, len(parts), origin, reward)
        siblings.append(made)
    return siblings


def _write_counts(sample: Sample, segment: Segment) -> None:
    """The engine's own counts, in the fields that the trainer's Sample has."""
    if hasattr(sample, "prefix_cache_info"):
        sample.prefix_cache_info.cached_tokens = segment.cached_tokens
        sample.prefix_cache_info.total_prompt_tokens = segment.prompt_tokens
    if hasattr(sample, "spec_info"):
        sample.spec_info.spec_accept_token_num = segment.spec.accepted
        sample.spec_info.spec_draft_token_num = segment.spec.drafted
        sample.spec_info.spec_verify_ct = segment.spec.verified
        sample.spec_info.completion_token_num = segment.spec.sampled


def _write_replay(sample: Sample, replay: Replay, segment: Segment | None) -> None:
    """What the trainer replays; empty sets, and experts 0, where nothing was sampled."""
    if replay.top_p:
        top_p = segment.top_p if segment else None
        write_top_p(sample, top_p or TopP.empty(sample.response_length))
    if replay.routing:
        write_experts(sample, replay.experts_array(segment.experts if segment else None, len(sample.tokens)))


def _placeholder(origin: Origin) -> Sample:
    """The Sample of a rollout that sampled nothing."""
    made = fresh_copy(origin.sample)
    made.rollout_id = origin.rollout_id
    write_placeholder(made)
    _write_replay(made, origin.replay, None)
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
        "limit": None,
        "error": None,
        "sampled_tokens": origin.sampled_tokens,
        "rollout_reward": reward.value,
        "credit": None,
        "environment": None if origin.environment is None else asdict(origin.environment),
        "scores": dict(reward.scores),
        "answer": reward.answer,
        "clock": origin.clock,
        "kept": {what: count for what, count in origin.kept.items() if count},
        "unfinished": None,
        "resumed": origin.resumed,
    }


def _turns(segment: Segment) -> list[dict[str, Any]]:
    """A segment's turns as plain JSON, for `rollhook_result["unfinished"]`."""
    return [{**asdict(turn), "weight_versions": list(turn.weight_versions)} for turn in segment.sampled]


def _spans(segment: Segment) -> list[dict[str, Any]]:
    """Where in `tokens`, the prompt's included, stands what was not sampled, and how it came there."""
    return [{"start": start, "length": length, "kind": kind} for start, length, kind in segment.spans]
