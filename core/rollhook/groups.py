"""Groups of rollouts: the rows of one prompt, where they come from, and what an attempt at them came to.

Invariant: a group keeps its rows from the source to the trainer or back; how its rollouts are made is its
runner's matter, so everything here is free of any trainer's types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

from rollhook.sample import Sample

Made = TypeVar("Made")
Rows = list[Sample]

DROPPED = "dropped: "
"""How `Batch.counts` begins the count of groups that were dropped for a reason."""


class GroupSource(Protocol):
    """Where groups come from and go back to; a group is the rows of one prompt."""

    def get_samples(self, num_samples: int, /) -> list[Rows]:
        """The next `num_samples` groups; fewer when there are no more."""
        ...

    def add_samples(self, samples: list[Rows], /) -> None:
        """Take groups back, to be given out again."""
        ...


class Verdict(Enum):
    """What a finished group is good for."""

    KEEP = "keep"
    DROP = "drop"  # a filter does not want it
    REDO = "redo"  # aborted: back to the source, and no fault of the group
    FAILED = "failed"  # nothing of it can be trained on


@dataclass(frozen=True, slots=True)
class Finished(Generic[Made]):
    """What became of one attempt at a group.

    made: what is handed over under KEEP. reason: why it is dropped, or the cause of its failure.
    versions: of the weights its tokens were sampled with; empty when unknown: those it began with count.
    rows: what goes back to the source under REDO, when not the rows it began with.
    """

    verdict: Verdict
    made: Made | None = None
    reason: str = ""
    versions: Sequence[int] = ()
    rows: Rows | None = None


@dataclass(frozen=True, slots=True)
class Batch(Generic[Made]):
    """groups: oldest first. rows: those of each group, as they came from the source. staleness: each group's
    age in versions. counts: groups since the last batch, by what became of them: "stale", "aborted",
    "retried", "failed", and for each reason "dropped: reason"."""

    groups: list[Made]
    rows: list[Rows]
    staleness: list[int]
    counts: Counter[str]
