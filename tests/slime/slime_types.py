"""The data that passes between slime and a rollout function: slime's own classes, rebuilt for tests."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rollhook.sample import PrefixCacheInfo, SpecInfo

Row = tuple[Any, Any, dict[str, Any]]
"""A row of a data set: prompt, label, metadata."""


@dataclass
class SlimeSample:
    """slime's Sample: a class of its own, so that what comes back is told from rollhook's."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: Any = None
    rollout_top_p_token_offsets: Any = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    spec_info: SpecInfo = field(default_factory=SpecInfo)
    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)


SlimeStatus = SlimeSample.Status


@dataclass
class RolloutFnTrainOutput:
    samples: list[list[Any]]
    metrics: dict[str, Any] | None = None


@dataclass
class RolloutFnEvalOutput:
    data: dict[str, dict[str, Any]]
    metrics: dict[str, Any] | None = None


@dataclass
class EvalSet:
    """slime's EvalDatasetConfig."""

    name: str
    path: str
    input_key: str | None = None
    label_key: str | None = None
    tool_key: str | None = None
    metadata_key: str | None = None
    n_samples_per_eval_prompt: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_response_len: int | None = None
    min_new_tokens: int | None = None
    stop: Any = None
    stop_token_ids: Any = None
    repetition_penalty: float | None = None
    custom_rm_path: str | None = None
    custom_generate_function_path: str | None = None
    metadata_overrides: dict[str, Any] = field(default_factory=dict)

    def inject_metadata(self, metadata: Any) -> dict[str, Any]:
        return {**(metadata if isinstance(metadata, dict) else {}), **self.metadata_overrides}


class Args(Namespace):
    """A namespace that nobody may write to once a run has begun."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(f"args were written to: {name}")


def make_args(engine_url: str, tokenizer: str, **flags: Any) -> Args:
    """slime's namespace with what a run must have, and `flags`; everything else is missing."""
    host, _, port = engine_url.removeprefix("http://").partition(":")
    args = Args()
    vars(args).update(
        sglang_router_ip=host,
        sglang_router_port=int(port),
        hf_checkpoint=tokenizer,
        rollout_temperature=1.0,
        rollout_max_response_len=64,
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        sglang_server_concurrency=64,
        custom_generate_function_path="rollhook.generate",
        custom_rm_path="rollhook.reward",
    )
    vars(args).update(flags)
    return args


class DataSource:
    """slime's RolloutDataSourceWithBuffer over endless copies of `rows`, each (prompt, label, metadata).

    returned: every group that was put back, in order. given: rows handed out for the first time.
    """

    def __init__(self, args: Args, rows: Sequence[Row]) -> None:
        self.args = args
        self.rows = rows
        self.buffer: list[list[Any]] = []
        self.returned: list[list[Any]] = []
        self.groups = 0
        self.given = 0

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        groups, self.buffer = self.buffer[:num_samples], self.buffer[num_samples:]
        while len(groups) < num_samples:
            prompt, label, metadata = self.rows[self.groups % len(self.rows)]
            group = []
            for _ in range(self.args.n_samples_per_prompt):
                sample = SlimeSample(self.groups, self.given, prompt=prompt, label=label)
                sample.metadata = copy.deepcopy(metadata)
                group.append(sample)
                self.given += 1
            self.groups += 1
            groups.append(group)
        return groups

    def add_samples(self, samples: list[list[Any]]) -> None:
        assert isinstance(samples, list)
        for group in samples:
            assert isinstance(group, list)
            assert len(group) == self.args.n_samples_per_prompt, f"a requeued group has {len(group)} samples"
            assert all(type(sample) is SlimeSample for sample in group), "a requeued group holds other things"
        self.buffer += samples
        self.returned += samples

    def unaccounted(self, trained: Sequence[Any]) -> set[int]:
        """Indices that were given out and are neither trained nor back."""
        back = {sample.index for group in self.buffer for sample in group}
        return set(range(self.given)) - back - {sample.index for sample in trained}
