"""The trainer's dynamic filter, asked the way slime asks it.

Invariant: a filter may answer with a bool or with slime's DynamicFilterOutput (`keep`, `reason`,
`keep_when_insufficient`); drops are counted under slime's own metric names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollhook.slime.flags import Hook
from rollhook.slime.outputs import Made

NO_REASON = "filtered"


def drop_reason(keep: Hook | None, args: Any, group: Sequence[Made], *, scarce: bool = False) -> str | None:
    """Why the filter drops a group; None when it is kept. scarce: no group is left over for its place."""
    answer = True if keep is None else keep(args, list(group))
    if getattr(answer, "keep", answer) or (scarce and getattr(answer, "keep_when_insufficient", False)):
        return None
    return getattr(answer, "reason", None) or NO_REASON


def drop_metrics(reasons: Mapping[str, int]) -> dict[str, float]:
    """As slime names them."""
    return {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in reasons.items()}
