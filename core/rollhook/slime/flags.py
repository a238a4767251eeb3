"""What slime's flags say to its rollout functions, read in one place.

Invariant: rollout functions know of `args` what this module, `eval_flags` and `rollhook.config` read, and
none writes to it; every dotted path among the flags is loaded before the first token.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollhook.config import RunConfig
from rollhook.errors import ConfigError

OWN_GENERATE = frozenset({"rollhook.generate", "rollhook.generate.generate"})
OWN_REWARD = frozenset({"rollhook.reward", "rollhook.generate.reward", "rollhook.slime.reward_batch"})
SLIMES_REWARD = "slime.rollout.rm_hub.async_rm"

Hook = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class RolloutFlags:
    """The flags of one call.

    groups: in a training batch. rollouts: to each group. over_sampling: groups drawn at a time by the
    synchronous function. concurrency: rollouts at once.
    reward: the trainer's own reward function; None for rollhook's.
    """

    groups: int
    rollouts: int
    over_sampling: int
    concurrency: int
    group_rm: bool
    reward: Hook | None
    keep: Hook | None
    sample_filter: Hook | None
    all_samples: Hook | None

    @classmethod
    def from_args(cls, args: Any, config: RunConfig) -> RolloutFlags:
        """Read slime's namespace; what is missing has slime's default.

        Raises ConfigError for a function that cannot be loaded, or cannot be honoured.
        """
        refuse_generate(getattr(args, "custom_generate_function_path", None))
        groups = getattr(args, "rollout_batch_size", None) or 0
        flags = cls(
            groups=groups,
            rollouts=getattr(args, "n_samples_per_prompt", None) or 1,
            over_sampling=getattr(args, "over_sampling_batch_size", None) or groups,
            concurrency=rollouts_at_once(args, config),
            group_rm=bool(getattr(args, "group_rm", False)),
            reward=reward_function(args),
            keep=load(getattr(args, "dynamic_sampling_filter_path", None), "--dynamic-sampling-filter-path"),
            sample_filter=load(
                getattr(args, "rollout_sample_filter_path", None), "--rollout-sample-filter-path"
            ),
            all_samples=load(
                getattr(args, "rollout_all_samples_process_path", None), "--rollout-all-samples-process-path"
            ),
        )
        if not flags.groups:
            raise ConfigError("args have no rollout_batch_size: set --rollout-batch-size")
        return flags


def rollouts_at_once(args: Any, config: RunConfig) -> int:
    """The configuration's `concurrency` where it says one, else slime's: so many for each of its engines."""
    each = getattr(args, "sglang_server_concurrency", None)
    if each is None or "concurrency" in config.model_fields_set:
        return config.concurrency
    gpus, per_engine = (
        getattr(args, "rollout_num_gpus", None),
        getattr(args, "rollout_num_gpus_per_engine", 1),
    )
    return int(each * max(1, (gpus or 1) // (per_engine or 1)))


def refuse_generate(path: str | None) -> None:
    """Raise ConfigError for a generate function that is not rollhook's: only that one is run here."""
    if path is not None and path not in OWN_GENERATE:
        raise ConfigError(
            f"rollhook.slime's rollout functions run rollhook.generate, not {path}: drop "
            "custom_generate_function_path, or use slime's own rollout function"
        )


def reward_function(args: Any, path: str | None = None) -> Hook | None:
    """What scores samples that generate left unscored; None for rollhook's own verifiers.

    path: goes before the run's `--custom-rm-path`; `--rm-type` comes last, and is slime's to answer.
    """
    path = path or getattr(args, "custom_rm_path", None)
    if path is None and getattr(args, "rm_type", None):
        path = SLIMES_REWARD
    return None if path in OWN_REWARD else load(path, "--custom-rm-path")


def load(path: str | None, flag: str) -> Hook | None:
    """The function at a dotted path; None for none. Raises ConfigError, naming the flag."""
    if not path:
        return None
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{flag} {path}: {error}; name an importable function as module.function"
        ) from error
    if not callable(found):
        raise ConfigError(f"{flag} {path}: {type(found).__name__} cannot be called")
    return found  # type: ignore[no-any-return]  # what the user named; its result is checked where it is used
