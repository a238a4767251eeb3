"""What slime's flags say to an evaluation: its data sets, in slime's `EvalDatasetConfig`.

Invariant: what a data set does not say, the run's `eval_` flags say, then its training flags. Each has a
sampling mapping of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollhook.data import DataKeys
from rollhook.errors import ConfigError
from rollhook.slime.flags import Hook, refuse_generate, reward_function


@dataclass(frozen=True, slots=True)
class EvalSet:
    """One data set. rollouts: to each row. reward: as in RolloutFlags. with_overrides: a row's metadata with
    what the data set adds to it."""

    name: str
    path: str
    keys: DataKeys
    rollouts: int
    sampling: dict[str, Any]
    reward: Hook | None
    with_overrides: Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class EvalFlags:
    """reward_key: which of a Sample's named rewards is reported."""

    datasets: list[EvalSet]
    reward_key: str | None

    @classmethod
    def from_args(cls, args: Any) -> EvalFlags:
        """Read slime's namespace. Raises ConfigError for a data set that cannot be run."""
        return cls(
            datasets=[_eval_set(args, config) for config in getattr(args, "eval_datasets", None) or []],
            reward_key=getattr(args, "eval_reward_key", None) or getattr(args, "reward_key", None),
        )


def _eval_set(args: Any, config: Any) -> EvalSet:
    def told(name: str, *flags: str) -> Any:
        """What the data set says, else the first flag that says something."""
        values = [getattr(config, name, None), *(getattr(args, flag, None) for flag in flags)]
        return next((value for value in values if value is not None), None)

    name, path = told("name"), told("path")
    if not name or not path:
        raise ConfigError(f"an entry of eval_datasets lacks a name or a path: {config!r}")
    refuse_generate(told("custom_generate_function_path"))
    default = DataKeys()
    sampling = {
        "temperature": told("temperature", "eval_temperature"),
        "top_p": told("top_p", "eval_top_p"),
        "top_k": told("top_k", "eval_top_k"),
        "max_new_tokens": told("max_response_len", "eval_max_response_len"),
        "min_new_tokens": told("min_new_tokens", "eval_min_new_tokens"),
        "stop": told("stop"),
        "stop_token_ids": told("stop_token_ids"),
        "repetition_penalty": told("repetition_penalty"),
    }
    return EvalSet(
        name=name,
        path=str(path),
        keys=DataKeys(
            input=told("input_key", "eval_input_key", "input_key") or default.input,
            label=told("label_key", "eval_label_key", "label_key") or default.label,
            metadata=told("metadata_key", "metadata_key") or default.metadata,
            tools=told("tool_key", "eval_tool_key", "tool_key") or default.tools,
        ),
        rollouts=told("n_samples_per_eval_prompt", "n_samples_per_eval_prompt") or 1,
        sampling={key: value for key, value in sampling.items() if value is not None},
        reward=reward_function(args, told("custom_rm_path")),
        with_overrides=getattr(config, "inject_metadata", None) or dict,
    )
