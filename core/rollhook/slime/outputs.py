"""What rollout functions return: slime's own classes where slime is loaded, else ours with the same fields.

Invariant: slime is never imported here; a process that slime runs has loaded it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollhook.sample import Sample

Made = Sample | list[Sample]
"""What became of one row: one Sample, or siblings."""


@dataclass
class TrainOutput:
    """slime's RolloutFnTrainOutput. samples: groups, each with what became of its rows."""

    samples: list[list[Made]]
    metrics: dict[str, Any] | None = None


@dataclass
class EvalOutput:
    """slime's RolloutFnEvalOutput. data: by data set, its rewards, truncated flags and samples."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, Any] | None = None


def train_output(samples: list[list[Made]], metrics: Mapping[str, Any]) -> Any:
    """The output of a training call."""
    kind = _of_slime("slime.rollout.base_types", "RolloutFnTrainOutput") or TrainOutput
    return kind(samples=samples, metrics=dict(metrics))


def eval_output(data: dict[str, dict[str, Any]], metrics: Mapping[str, Any]) -> Any:
    """The output of an evaluation."""
    kind = _of_slime("slime.rollout.base_types", "RolloutFnEvalOutput") or EvalOutput
    return kind(data=data, metrics=dict(metrics))


def as_trainers(sample: Sample) -> Sample:
    """A new row in the trainer's own Sample class."""
    kind = _of_slime("slime.utils.types", "Sample")
    if kind is None:
        return sample
    made: Sample = kind(
        group_index=sample.group_index,
        index=sample.index,
        prompt=sample.prompt,
        label=sample.label,
        metadata=sample.metadata,
    )
    return made


def flat(groups: list[list[Made]]) -> list[Sample]:
    """Every Sample of some groups."""
    return [sample for group in groups for made in group for sample in siblings(made)]


def siblings(made: Made) -> list[Sample]:
    """What became of one row, as a list."""
    return made if isinstance(made, list) else [made]


def group_index(group: list[Made]) -> int:
    """Where a group stands in its batch: by its first sample's index."""
    return siblings(group[0])[0].index or 0


def status_metrics(samples: list[Sample]) -> dict[str, float]:
    """How many Samples a trainer gets, and how many of them are there in name only."""
    statuses = [sample.status.value for sample in samples]
    return {
        "rollhook/samples": len(samples),
        "rollhook/failed_samples": statuses.count("failed"),
        "rollhook/truncated_samples": statuses.count("truncated"),
    }


def _of_slime(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)
