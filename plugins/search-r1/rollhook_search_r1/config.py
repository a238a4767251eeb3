"""What a run, and within bounds a row, may set.

Invariant: where passages come from, and how the service that gives them is treated, only the run says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field, field_validator, model_validator

from rollhook import RunOnly


class SearchConfig(BaseModel):
    """The environment.

    corpus: a JSONL file of passages, indexed on first use; or url: a service that answers POST /retrieve.
    cache: where indexes of corpora are kept; None means `$ROLLHOOK_CACHE`, else `~/.cache/rollhook`.
    topk: passages a search shows. max_turns: searches and invalid actions before the last, searchless turn.
    max_observation_chars: characters of passages that one search shows at most.
    prompt_has_instruction: the row's prompt explains the protocol itself and is used as it is.
    timeout_s: one request to the service, in seconds. retries: further requests after one without an answer.
    on_outage: what a service that stays silent does to a rollout: `fail` it, or be told to the model.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: Path | None = None
    url: AnyHttpUrl | None = None
    cache: Annotated[Path | None, RunOnly()] = None
    topk: int = Field(3, ge=1, le=20)
    max_turns: int = Field(4, ge=0, le=32)
    max_observation_chars: int = Field(2000, ge=100, le=100_000)
    prompt_has_instruction: bool = False
    timeout_s: Annotated[float, RunOnly()] = Field(30.0, gt=0, le=600)
    retries: Annotated[int, RunOnly()] = Field(3, ge=0, le=10)
    on_outage: Annotated[Literal["fail", "observe"], RunOnly()] = "fail"

    @field_validator("corpus")
    @classmethod
    def _is_there(cls, corpus: Path | None) -> Path | None:
        if corpus is not None and not corpus.is_file():
            raise ValueError(f"{corpus}: no such file")
        return corpus

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.corpus is None) == (self.url is None):
            raise ValueError("set one of corpus and url in the run configuration (settings: search-r1)")
        return self


class RewardConfig(BaseModel):
    """The verifier. format_score: also reward form, by the levels 1 / 0.8 / 0.3 / 0.2 / 0.1 / 0."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_score: bool = False
