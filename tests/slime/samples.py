"""Finished samples of a trainer's own class, as rollhook leaves them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass
class TrainerSample:
    """What rewards and filters read of slime's Sample; nothing else is there."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    index: int | None
    group_index: int | None
    rollout_id: int | None
    reward: Any
    status: Status = Status.COMPLETED
    remove_sample: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)


def finished(rollout: int, reward: Any, *, group: int | None = 0, **changes: Any) -> Any:
    """A sample that carries no record of rollhook's."""
    return TrainerSample(rollout, group, rollout, reward, **changes)


def sibling(
    rollout: int,
    earned: float | None,
    *,
    group: int | None = 0,
    role: str = "main",
    segment: int = 0,
    credit: str = "broadcast",
    weight: float = 1.0,
    **changes: Any,
) -> Any:
    """A sample with the record that `merge_siblings` writes."""
    shared = {"credit": credit, "earned": earned, "weight": weight}
    metadata = {"rollhook_result": {"role": role, "segment": segment, "credit": shared}}
    reward = None if earned is None else earned * weight
    return finished(rollout, reward, group=group, metadata=metadata, **changes)


def failed(rollout: int, *, group: int = 0) -> Any:
    return finished(
        rollout, 0.0, group=group, status=TrainerSample.Status.FAILED, remove_sample=True, metadata={}
    )
