"""Limits: when a rollout ends at the latest.

Invariant: capping never raises a limit that was set, and never forgets one that the cap sets.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

DEFAULT_NEW_TOKENS = 1024
"""Tokens a turn may have when neither a limit nor the sampling parameters say."""


class Limits(BaseModel):
    """The limits of one rollout. Only those that were set take part in merging and capping.

    max_turns: assistant turns of one agent. max_context_tokens: prompt and response of one agent together,
    None without limit. max_new_tokens: sampled in one turn, None for what the sampling parameters ask, else
    `DEFAULT_NEW_TOKENS`. timeout_s: wall clock of the whole rollout.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_turns: int = Field(32, gt=0)
    max_context_tokens: int | None = Field(None, gt=0)
    max_new_tokens: int | None = Field(None, gt=0)
    timeout_s: float = Field(1800.0, gt=0, allow_inf_nan=False)

    def over(self, other: Limits) -> Limits:
        """These limits, and `other`'s where none was set here."""
        return Limits(**{**other.model_dump(exclude_unset=True), **self.model_dump(exclude_unset=True)})

    def capped_by(self, cap: Limits) -> Limits:
        """These limits, none above what `cap` sets; one that was not set here is what `cap` sets."""
        merged = self.model_dump(exclude_unset=True)
        for name, most in cap.model_dump(exclude_unset=True, exclude_none=True).items():
            own = merged.get(name)
            merged[name] = most if own is None else min(own, most)
        return Limits(**merged)
