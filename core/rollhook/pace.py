"""Pace: how far sampling may run ahead of training, and what becomes of what fell behind.

Invariant: a group that is handed over holds no token sampled more than `max_staleness` versions of the
weights ago. Two rules see to it.

The capacity rule says when a new group may start: while fewer than `concurrency` run, and

    handed + ready + running < (max_staleness + 1) * batch

batch: groups in a training batch. handed: groups handed over since the weights last changed. ready: finished
and waiting. It is the rule of AReaL's staleness manager, (max_staleness + version + 1) * batch - (accepted +
running), with what was handed over under earlier weights taken from both sides; so it asks nothing of where
versions begin or how many batches one version lasts. Ready groups are handed over oldest first, so a new
group has fewer than max_staleness + 1 batches before it; where the weights change at most once a batch, it is
handed over at most max_staleness versions after it began. A call that waits may always fill its own batch.

The expiry rule takes the stragglers, which finish long after those that began with them: when the weights
change, whatever began too many versions ago ends, running or ready. Hence the slowest rollout never holds up
a batch, as long as no more than max_staleness * batch groups are that slow at once. With max_staleness 0
sampling waits for training, and each batch for its slowest group.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Pace(BaseModel):
    """Settings of fully asynchronous rollouts: the section `fully_async` of the run configuration.

    max_staleness: versions of the weights between a group's oldest token and the trainer's when the group is
        handed over.
    on_stale: what becomes of older ones: their rows go back to the data source and are sampled anew
        (`requeue`), or are given up (`drop`). Both are counted.
    on_pause: whether running turns go on while the run is paused for new weights (`keep`), or end at once and
        their rows go back (`abort`).
    group_retries: how often a group whose rollouts all failed goes back to the data source.
    max_failed_groups: how many groups may fail for good before a call reports it as an error; None: as many
        as a batch has.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_staleness: int = Field(1, ge=0)
    on_stale: Literal["requeue", "drop"] = "requeue"
    on_pause: Literal["keep", "abort"] = "keep"
    group_retries: int = Field(2, ge=0)
    max_failed_groups: int | None = Field(None, ge=0)

    def room(self, *, batch: int, handed: int, ready: int, running: int, waiting: bool) -> int:
        """How many groups may start now, apart from the concurrency. waiting: a call waits for its batch."""
        ahead = (self.max_staleness + 1) * batch - handed
        return (max(ahead, batch) if waiting else ahead) - ready - running

    def is_stale(self, oldest: int, version: int) -> bool:
        """Whether what was sampled at version `oldest` may no longer be trained on at `version`."""
        return version - oldest > self.max_staleness
