"""What each sibling of a rollout gets of what the rollout earned.

Invariant: every sibling gets `earned * weight`, both finite and both recorded, or, when nobody scored the
rollout, every sibling gets None. Which credit goes with which loss: docs/credit.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from statistics import fmean

from rollhook.errors import CreditError
from rollhook.hookspecs import Credit, WholeCredit
from rollhook.segments import Segment

BY_ROLE: frozenset[Credit] = frozenset({"roles", "zero_sum"})
"""The credits that give each role its own reward."""


@dataclass(frozen=True, slots=True)
class Reward:
    """What a rollout earned. value: None when nobody scored it. by_role: for the credits by role.

    role_weights: as in TopologySpec. answer: the text that was, or is to be, scored; None when the rollout
    came to none.
    """

    value: float | None = None
    credit: Credit = "broadcast"
    by_role: Mapping[str, float] = field(default_factory=dict)
    role_weights: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """What one sibling gets. earned: the rollout's reward or its role's, before any sharing: what is compared
    between rollouts; None until somebody scores. weight: the sibling's part of it, or its role's weight.
    """

    credit: Credit
    earned: float | None
    weight: float = 1.0

    @property
    def reward(self) -> float | None:
        """The Sample's reward."""
        return None if self.earned is None else self.earned * self.weight


def applied(declared: Credit, run: WholeCredit | None) -> Credit:
    """The credit that applies: the run's, which knows its loss, unless the topology rewards roles."""
    return declared if run is None or declared in BY_ROLE else run


def share(reward: Reward, segments: Sequence[Segment]) -> list[Share]:
    """The share of each of a rollout's segments, in order.

    Raises CreditError when a role of theirs has no reward, when a number is not finite, and when there is
    nothing trained to split over.
    """
    credit = reward.credit
    if credit in BY_ROLE:
        by_role = _role_rewards(reward, [segment.role for segment in segments])
        weights = reward.role_weights
        return [Share(credit, by_role[s.role], role_weight(s.role, weights)) for s in segments]
    if reward.value is not None:
        _check_finite("the rollout's reward", reward.value)
    if credit == "broadcast":
        parts = [1.0] * len(segments)
    elif credit == "split_segments":
        parts = [1.0 / len(segments)] * len(segments)
    else:
        parts = split_reward(1.0, [sum(segment.loss_mask) for segment in segments])
    return [Share(credit, reward.value, part) for part in parts]


def _role_rewards(reward: Reward, roles: Sequence[str]) -> Mapping[str, float]:
    missing = sorted(set(roles) - set(reward.by_role))
    if missing:
        raise CreditError(
            f'credit is "{reward.credit}" but the topology gave no reward for: {", ".join(missing)}; '
            "put every trained role into Outcome.role_rewards"
        )
    for role, value in reward.by_role.items():
        _check_finite(f"the reward of role {role!r}", value)
    if reward.credit == "roles":
        return reward.by_role
    if len(reward.by_role) < 2:
        raise CreditError(
            f'credit is "zero_sum" but the topology named one contestant: {", ".join(reward.by_role)}; put '
            "all of them into Outcome.role_rewards, also those that do not train"
        )
    mean = fmean(reward.by_role.values())
    return {role: value - mean for role, value in reward.by_role.items()}


def role_weight(role: str, weights: Mapping[str, float]) -> float:
    """The weight of `role`: its own, else that of the first pattern that matches (`solver_*`), else 1.0."""
    if role in weights:
        return weights[role]
    return next((weight for pattern, weight in weights.items() if fnmatchcase(role, pattern)), 1.0)


def _check_finite(what: str, value: float) -> None:
    if not math.isfinite(value):
        raise CreditError(f"{what} is {value}; the verifier or the topology must give a finite number")


def split_reward(reward: float, trained_tokens_K: Sequence[int]) -> list[float]:  # noqa: N803  K: segments
    """Share one rollout's reward over its K segments, by trained length.

    reward: the rollout's total, unitless. trained_tokens_K: [K], at least one > 0.
    Returns [K] rewards that sum to `reward`. Raises CreditError if every length is 0.
    """
    total = sum(trained_tokens_K)
    if total == 0:
        raise CreditError("no segment of the rollout has a trained token to split the reward over")
    return [reward * length / total for length in trained_tokens_K]
