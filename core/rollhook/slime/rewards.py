"""Rewards and advantages for slime's `--group-rm` and `--custom-reward-post-process-path`.

Invariant: the advantage of a rollout depends on what the rollouts of its prompt earned, and on nothing else:
not on the order of samples, and, unless turns are compared, not on how many siblings it or another has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rollhook.config import RunConfig
from rollhook.errors import ConfigError
from rollhook.generate import reward
from rollhook.sample import Sample
from rollhook.slime.earned import check_groups, grouped, is_scored, read_earned, reward_of
from rollhook.slime.reward_flags import RewardFlags

_EPSILON = 1e-6
"""What slime adds to a standard deviation before it divides by it."""


async def reward_batch(args: Any, samples: Sequence[Sample]) -> list[float]:
    """The reward of each sample of one prompt's group, in order: for `--custom-rm-path` with `--group-rm`.

    As `rollhook.reward` does of a list. Verifiers that compare answers get the whole group.
    Raises ConfigError for a group of lists, which `--group-rm` cannot write rewards to.
    """
    if any(isinstance(sample, list | tuple) for sample in samples):
        raise ConfigError(
            "--group-rm got several Samples of one rollout; drop the flag, or set return_shape: sample in "
            "the rollhook section"
        )
    rewards: list[float] = await reward(args, list(samples))
    return rewards


def normalize_rewards(args: Any, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """Raw rewards and advantages of a flat batch, in order: for `--custom-reward-post-process-path`.

    A rollout's value is centred on the mean of its group's, and divided by their standard deviation where
    slime's flags say so; each sibling gets that times its share of the reward. Groups are the rollouts of one
    group_index, and with the run's `normalize_by` of one role, or of one role and turn. A rollout counts once
    in each. Samples that were removed, failed or aborted count nowhere and get 0.0, as does a group of one.
    Raises CreditError for siblings and groups that contradict each other, with what to change.
    """
    config, flags = RunConfig.from_args(args), RewardFlags.from_args(args)
    check_groups(samples, flags.rollouts_per_prompt)
    told = read_earned(samples, reward_key=flags.reward_key)
    raw = [reward_of(sample, flags.reward_key) if is_scored(sample) else 0.0 for sample in samples]
    values = {
        group: dict(zip(members, _normalized(members.values(), flags), strict=True))
        for group, members in grouped(told, config.normalize_by).items()
    }
    advantages = [
        earned.weight * values[earned.group(config.normalize_by)][earned.member] if earned else 0.0
        for earned in told
    ]
    return raw, advantages


def _normalized(group: Iterable[float], flags: RewardFlags) -> list[float]:
    """The values of one group as advantages. Sums are exact, so that their order does not matter."""
    values = list(group)
    if not flags.centred:
        return values
    if min(values) == max(values):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    centred = [value - mean for value in values]
    if not flags.scaled:
        return centred
    deviation = math.sqrt(math.fsum(value * value for value in centred) / (len(values) - 1))
    return [value / (deviation + _EPSILON) for value in centred]
