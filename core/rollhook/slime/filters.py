"""slime's `--dynamic-sampling-filter-path`: a filter of rollhook's, and how any filter is asked.

Invariant: `keep_informative` keeps a prompt exactly when `normalize_rewards`, with slime's default flags,
gives one of its samples an advantage other than 0 (but for a role's weight of 0). A filter may answer with a
bool or with slime's DynamicFilterOutput; drops are counted under slime's own metric names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollhook.config import RunConfig
from rollhook.sample import Sample
from rollhook.slime.earned import grouped, read_earned
from rollhook.slime.flags import Hook
from rollhook.slime.outputs import Made
from rollhook.slime.reward_flags import RewardFlags

NO_REASON = "filtered"


@dataclass
class FilterOutput:
    """slime's `DynamicFilterOutput`, for a process that has no slime. True when the group is kept.

    reason: why it was dropped; slime counts drops by it. keep_when_insufficient: keep it all the same when
    the batch would come out short.
    """

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False

    def __bool__(self) -> bool:
        return self.keep


def keep_informative(args: Any, samples: Sequence[Sample | Sequence[Sample]], **_: Any) -> Any:
    """Whether the rollouts of one prompt earned different rewards: slime's DynamicFilterOutput, or ours.

    samples: the prompt's group; a rollout is a Sample or a list of siblings, and counts once. Those that were
    removed, failed or aborted do not count. Under a credit by role, what is compared is what
    `normalize_by` compares. Raises CreditError as `normalize_rewards` does.
    """
    flat: list[Sample] = []
    for item in samples:
        flat.extend(item if isinstance(item, Sequence) else [item])
    told = read_earned(flat, reward_key=RewardFlags.from_args(args).reward_key, one_prompt=True)
    groups = grouped(told, RunConfig.from_args(args).normalize_by).values()
    if any(len(set(members.values())) > 1 for members in groups):
        return _output(keep=True, reason=None)
    rollouts = {earned.rollout for earned in told if earned}
    return _output(keep=False, reason="equal_rewards" if len(rollouts) > 1 else "fewer_than_two_scored")


def _output(*, keep: bool, reason: str | None) -> Any:
    try:
        from slime.rollout.filter_hub.base_types import (  # type: ignore[import-not-found]  # a trainer has it
            DynamicFilterOutput,
        )
    except ModuleNotFoundError:
        return FilterOutput(keep, reason)
    return DynamicFilterOutput(keep=keep, reason=reason)


def drop_reason(keep: Hook | None, args: Any, group: Sequence[Made], *, scarce: bool = False) -> str | None:
    """Why the filter drops a group; None when it is kept. scarce: no group is left over for its place."""
    answer = True if keep is None else keep(args, list(group))
    if getattr(answer, "keep", answer) or (scarce and getattr(answer, "keep_when_insufficient", False)):
        return None
    return getattr(answer, "reason", None) or NO_REASON


def drop_metrics(reasons: Mapping[str, int]) -> dict[str, float]:
    """As slime names them."""
    return {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in reasons.items()}
