"""What finished rollouts came to, in numbers: for tables, the progress bar and the summary.

Invariant: everything is read from the Samples alone, so a stored run and a live one give the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rollhook.sample import Sample
from rollhook.siblings import result_of

_WORST_FIRST = ("failed", "aborted", "truncated", "completed", "pending")


@dataclass(frozen=True, slots=True)
class Figures:
    """One rollout. reward: None when nobody gave one; limit: what truncated it; error: None or its cause."""

    index: int
    group: int | None
    status: str
    reward: float | None
    roles: tuple[str, ...]
    turns: int
    sampled: int
    trained: int
    forks: tuple[str, ...]
    kept: dict[str, int]
    limit: str | None
    error: dict[str, Any] | None


def figures(index: int, samples: Sequence[Sample]) -> Figures:
    """The figures of the rollout that became `samples`."""
    results = [result_of(sample) for sample in samples]
    statuses = {sample.status.value for sample in samples}
    return Figures(
        index=index,
        group=samples[0].group_index,
        status=next(status for status in _WORST_FIRST if status in statuses),
        reward=rollout_reward(samples),
        roles=tuple(result.get("role", "") for result in results),
        turns=sum(result.get("turns", 0) for result in results),
        sampled=sampled_tokens(samples),
        trained=sum(trained_tokens(sample) for sample in samples),
        kept=results[0].get("kept", {}),
        forks=tuple(fork["reason"] for result in results for fork in result.get("forks", ())),
        limit=next((result["limit"] for result in results if result.get("limit")), None),
        error=next((result["error"] for result in results if result.get("error")), None),
    )


def trained_tokens(sample: Sample) -> int:
    """How many tokens of the sample a trainer learns from."""
    return 0 if sample.remove_sample else sum(sample.loss_mask or ())


def sampled_tokens(samples: Sequence[Sample]) -> int:
    """How many tokens were sampled for the rollout that became `samples`, by agents that train or do not."""
    told = [result["sampled_tokens"] for result in map(result_of, samples) if "sampled_tokens" in result]
    return max(told) if told else sum(sum(sample.loss_mask or ()) for sample in samples)


def rollout_reward(samples: Sequence[Sample]) -> float | None:
    """The rollout's own reward, before credit shared it; the mean of its samples' where none is recorded."""
    told = [result["rollout_reward"] for result in map(result_of, samples) if "rollout_reward" in result]
    if told and told[0] is not None:
        return float(told[0])
    rewards = [sample.reward for sample in samples if isinstance(sample.reward, int | float)]
    return sum(rewards) / len(rewards) if rewards else None


def cause(error: dict[str, Any]) -> str:
    """A failure's stage, plugin, message and place in one line."""
    owner = f" ({error['plugin']})" if error.get("plugin") else ""
    message = " ".join(str(error.get("message", "")).split())
    where = f" ({error['where']})" if error.get("where") else ""
    return f"{error.get('stage', '?')}{owner}: {message}{where}"


@dataclass(slots=True)
class Totals:
    """The sum over finished rollouts. unscored: how many ended by themselves or at a limit without a reward.

    forks, truncations, failures: how often by reason, by limit, by stage.

    kept: how often, by what, sampled tokens stood although the chat template would write them otherwise.
    """

    rollouts: int = 0
    siblings: int = 0
    sampled: int = 0
    trained: int = 0
    failed: int = 0
    unscored: int = 0
    forks: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    truncations: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    _rewards: list[float] = field(default_factory=list)

    def add(self, one: Figures) -> None:
        """Count one more rollout."""
        self.rollouts += 1
        self.siblings += len(one.roles)
        self.sampled += one.sampled
        self.trained += one.trained
        self.forks.update(one.forks)
        self.kept.update(one.kept)
        if one.status == "truncated":
            self.truncations[one.limit or "unknown"] += 1
        if one.status == "failed":
            self.failed += 1
            self.failures[(one.error or {}).get("stage", "unknown")] += 1
        elif one.reward is not None:
            self._rewards.append(one.reward)
        elif one.status != "aborted":
            self.unscored += 1

    @property
    def mean_reward(self) -> float | None:
        """Over the rollouts that did not fail and have a reward; None without any."""
        return sum(self._rewards) / len(self._rewards) if self._rewards else None


def number(value: float | None) -> str:
    """A reward for people: three digits, a dash for none."""
    return "-" if value is None else f"{value:.3f}"


def counted(counts: Counter[str]) -> str:
    """`3 (prefix 2, template 1)`; `0` for nothing."""
    total = counts.total()
    return f"{total} ({', '.join(f'{name} {n}' for name, n in counts.most_common())})" if total else "0"
