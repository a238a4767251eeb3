"""What a row or a run may set of a debate. Every field is bounded, so that rows may set it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from rollhook_debate.answers import ExtractorName


class DebateConfig(BaseModel):
    """One debate.

    agents: how many take part. rounds: how often each of them speaks; 1 is a vote without a debate.
    extractor: where an answer is read (see `rollhook_debate.answers`).
    answer_format: a sentence put behind the question in every round, such as "End with: The answer is N."
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    agents: int = Field(3, ge=1, le=16)
    rounds: int = Field(2, ge=1, le=8)
    extractor: ExtractorName = "number"
    answer_format: str = Field("", max_length=1000)
