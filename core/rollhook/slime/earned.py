"""What finished Samples say of their rollouts' rewards, and the groups in which those are compared.

Invariant: in a group each rollout (under a credit by role, each role of it) stands once, with one number,
whatever the order of the samples and however many siblings it has.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rollhook.credit import BY_ROLE
from rollhook.errors import CreditError
from rollhook.sample import Sample, Status, rollout_id_of
from rollhook.siblings import result_of

NormalizeBy = Literal["rollout", "agent", "role_turn"]
Group = tuple[Hashable, ...]
Member = tuple[Hashable, ...]

_UNSCORED = frozenset({Status.FAILED.value, Status.ABORTED.value})


@dataclass(frozen=True, slots=True)
class Earned:
    """What one sample says. prompt: what its group of rollouts shares. turn: its place among the segments of
    its role. value: what its rollout, or its role, earned. weight: the sample's part of that.
    """

    prompt: Hashable
    rollout: int
    role: str
    turn: int
    value: float
    weight: float
    by_role: bool

    def group(self, by: NormalizeBy) -> Group:
        """Whom its value is compared with."""
        if by == "rollout":
            return (self.prompt,)
        return (self.prompt, self.role) if by == "agent" else (self.prompt, self.role, self.turn)

    @property
    def member(self) -> Member:
        """Whose its value is."""
        return (self.rollout, self.role) if self.by_role else (self.rollout,)


def is_scored(sample: Sample) -> bool:
    """Whether the sample's reward measures anything: not when it was removed, failed or was aborted."""
    return not getattr(sample, "remove_sample", False) and sample.status.value not in _UNSCORED


def read_earned(
    samples: Sequence[Sample], *, reward_key: str | None, one_prompt: bool = False
) -> list[Earned | None]:
    """What each sample says, in order; None of one that is not scored.

    one_prompt: they all answer one prompt, whatever their group_index. Raises CreditError for a sample
    without a reward, without a group, or with a reward that is no finite number.
    """
    told = [_told(sample, reward_key, one_prompt) if is_scored(sample) else None for sample in samples]
    numbers = defaultdict(set)
    for earned in told:
        if earned is not None:
            numbers[earned.prompt, earned.rollout, earned.role].add(earned.turn)
    places = {
        key: {number: place for place, number in enumerate(sorted(turns))} for key, turns in numbers.items()
    }
    return [e and replace(e, turn=places[e.prompt, e.rollout, e.role][e.turn]) for e in told]


def _told(sample: Sample, reward_key: str | None, one_prompt: bool) -> Earned:
    rollout = rollout_id_of(sample)
    if sample.group_index is None and not one_prompt:
        raise CreditError(
            f"rollout {rollout} has no group_index, so nothing says which rollouts answer the same prompt; "
            "the data source must set it"
        )
    result = result_of(sample)
    credit: Mapping[str, Any] = result.get("credit") or {}
    earned, weight = credit.get("earned"), credit.get("weight", 1.0)
    given = reward_of(sample, reward_key)
    if earned is None or given != earned * weight:  # the run's own reward function wrote it
        earned = given
    return Earned(
        prompt=None if one_prompt else sample.group_index,
        rollout=rollout,
        role=result.get("role", "main"),
        turn=result.get("segment", 0),
        value=earned,
        weight=weight,
        by_role=credit.get("credit") in BY_ROLE,
    )


def reward_of(sample: Sample, reward_key: str | None) -> float:
    """The sample's reward as one number. Raises CreditError when it has none that is finite."""
    reward: Any = sample.reward
    if isinstance(reward, Mapping):
        if reward_key not in reward:
            raise CreditError(
                f"rollout {rollout_id_of(sample)} has the rewards {', '.join(map(repr, reward))}; set "
                "--reward-key to the one that trains"
            )
        reward = reward[reward_key]
    try:
        value = math.nan if isinstance(reward, str) else float(reward)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise CreditError(
            f"the reward of rollout {rollout_id_of(sample)} is {reward!r}; name a verifier in its row, or a "
            "reward function that gives a finite number"
        )
    return value


def grouped(told: Sequence[Earned | None], by: NormalizeBy) -> dict[Group, dict[Member, float]]:
    """The groups that are compared, each with what its members earned.

    Raises CreditError when two samples say different things of one member.
    """
    groups: dict[Group, dict[Member, float]] = defaultdict(dict)
    for earned in told:
        if earned is None:
            continue
        known = groups[earned.group(by)].setdefault(earned.member, earned.value)
        if known != earned.value:
            raise CreditError(
                f"rollout {earned.rollout} was given the rewards {known} and {earned.value}: siblings share "
                "one reward, and two rollouts never share a rollout_id; score a rollout once, or let its "
                'topology declare credit="roles"'
            )
    return dict(groups)


def check_groups(samples: Sequence[Sample], rollouts_per_prompt: int | None) -> None:
    """Raise CreditError for a rollout in two groups, and for a group larger than a whole one.

    A smaller one is no fault: rollouts are filtered, trimmed and lost.
    """
    group_of: dict[int, int | None] = {}
    for sample in samples:
        rollout = rollout_id_of(sample)
        if group_of.setdefault(rollout, sample.group_index) != sample.group_index:
            raise CreditError(
                f"rollout {rollout} is in the groups {group_of[rollout]} and {sample.group_index}: give "
                "every rollout of a batch its own rollout_id"
            )
    for group, size in Counter(group_of.values()).items():
        if rollouts_per_prompt is not None and size > rollouts_per_prompt:
            raise CreditError(
                f"group {group} has {size} rollouts and --n-samples-per-prompt is {rollouts_per_prompt}: "
                "give every prompt of a batch its own group_index"
            )
