"""What a row or a run may set of a debate. Every field is bounded, so that rows may set it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollhook import RolesConfig
from rollhook_debate.answers import ExtractorName


class DebateConfig(RolesConfig[Literal["agent", "judge"]]):
    """One debate.

    agents: how many take part. rounds: how often each of them speaks; 1 is a vote without a debate.
    extractor: where an answer is read (see `rollhook_debate.answers`).
    answer_format: a sentence put behind the question in every round, such as "End with: The answer is N."
    decide: by the agents' vote, or by a judge who reads their last answers.
    stop_on_agreement: whether the debate ends with the first round whose answers are all the same.
    """

    agents: int = Field(3, ge=1, le=16)
    rounds: int = Field(2, ge=1, le=8)
    extractor: ExtractorName = "number"
    answer_format: str = Field("", max_length=1000)
    decide: Literal["vote", "judge"] = "vote"
    stop_on_agreement: bool = False
