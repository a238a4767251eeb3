"""What slime's flags say of rewards and advantages.

Invariant: `args` is read and never written to; what is missing has slime's own default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SCALED = frozenset({"grpo", "gspo", "cispo"})
_CENTRED = _SCALED | {"reinforce_plus_plus_baseline"}
"""slime's advantage estimators that compare a rollout with its group; the others take rewards as they are."""


@dataclass(frozen=True, slots=True)
class RewardFlags:
    """How a trainer makes advantages of rewards.

    centred: less their group's mean. scaled: over their group's standard deviation. reward_key: which of a
    Sample's named rewards trains. rollouts_per_prompt: the size of a whole group, None when it is not said.
    """

    centred: bool
    scaled: bool
    reward_key: str | None
    rollouts_per_prompt: int | None

    @classmethod
    def from_args(cls, args: Any) -> RewardFlags:
        """Read slime's flags; what is missing has slime's default: GRPO with both."""
        estimator = getattr(args, "advantage_estimator", "grpo")
        centred = estimator in _CENTRED and getattr(args, "rewards_normalization", True)
        return cls(
            centred=bool(centred),
            scaled=bool(centred and estimator in _SCALED and getattr(args, "grpo_std_normalization", True)),
            reward_key=getattr(args, "reward_key", None) or None,
            rollouts_per_prompt=getattr(args, "n_samples_per_prompt", None),
        )
