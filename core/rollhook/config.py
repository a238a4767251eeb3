"""RunConfig: what one run was told, from `rollhook.yaml` or from a trainer's args.

Invariant: a RunConfig never changes, and two with equal fingerprints run alike. Only this module and
`rollhook.slime` read a trainer's args, and nothing writes to them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator

from rollhook.errors import ConfigError
from rollhook.fields import MisfitError, fitted, plain
from rollhook.hookspecs import WholeCredit
from rollhook.limits import Limits
from rollhook.names import did_you_mean
from rollhook.pace import Pace
from rollhook.replay import Replay

SECTION = "rollhook"
"""The section of a shared YAML file, and the attribute of a trainer's args, that is rollhook's."""


SAMPLING = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "max_new_tokens",
        "min_new_tokens",
        "stop",
        "stop_regex",
        "stop_token_ids",
        "ignore_eos",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "sampling_seed",
        "logit_bias",
        "custom_params",
        "json_schema",
        "regex",
        "ebnf",
        "structural_tag",
        "no_stop_trim",
        "skip_special_tokens",
        "spaces_between_special_tokens",
    }
)
"""SGLang's sampling parameters."""


class RunConfig(BaseModel):
    """The configuration of one run. Unknown keys are refused.

    What runs:
        default: what a row runs that does not say it, in the form of `metadata["rollhook"]`.
        settings: configuration by item name (`search-r1`, `search-r1/em`); what rows may not set goes here.
        limits: caps that a row or an environment can only lower.
        plugins: loaded though no row names them (event sinks, normalizers). block: never imported.
        modules: hooks that are not packaged, as `MODULE` or `NAME=MODULE`.
        eval_max_context_tokens: in evaluation, instead of the limit max_context_tokens.
        trust_rows: whether rows may set paths, URLs, credentials, images, commands and backends.
        sandbox: the backend that runs untrusted commands; its limits are under `settings`.
        return_shape: what `generate` returns in training: a list of sibling Samples, or one Sample.
        credit: instead of what a topology declares, unless that rewards roles (see TopologySpec.credit).
        role_weights: go before a topology's own. normalize_by: whose rewards are compared with each other
        when `rollhook.slime.normalize_rewards` makes advantages of them.
        partial_rollout: whether a Sample that was aborted goes on from its tokens when it comes again.
        mask_kept_tokens: whether these no longer train then.
        seed: makes a run repeatable; None leaves sampling to the engine.
    The engine:
        engine: a URL, or `embedded`; model: what the embedded engine loads; models: URLs by model name, for
        agents that name one. tokenizer: a directory or hub name. chat_template: a file.
        tool_parser, reasoning_parser: the model family's. history: what happens to earlier turns when a chat
        template would render them anew: `append` keeps them as sampled, `template` follows the template.
        train_abandoned: whether a branch that its conversation left trains. chat_template_kwargs: further
        variables of the template. check_rendering: whether each delta is proved against the template.
        sampling: parameters of every request (temperature, top_p, top_k, min_p, stop, stop_token_ids).
        interrupted_turns: what becomes of a turn that the engine aborts, when it is not the trainer that
        does: a weight update, another client. top_p_replay: whether requests ask for the sets that top-p
        left, and every Sample carries them. routing_replay: layers and experts a token of a model whose
        routed experts every Sample carries.
        router_policy: how a gateway at `engine` picks a worker, for one whose answers do not tell.
    How:
        concurrency: rollouts at once. request_timeout_s: one call of the engine with all its attempts.
        retries: of a request that got no byte back. verifier_timeout_s: one call of a verifier.
        fully_async: how far sampling may run ahead of training, see `rollhook.pace`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    default: str | dict[str, Any] | None = Field(None, union_mode="left_to_right")
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict, repr=False)  # may hold credentials
    limits: Limits = Limits()
    plugins: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    trust_rows: bool = False
    eval_max_context_tokens: int | None = Field(None, gt=0)
    sandbox: str = "rollhook/bubblewrap"
    return_shape: Literal["list", "sample"] = "list"
    credit: WholeCredit | None = None
    role_weights: dict[str, float] = Field(default_factory=dict)
    normalize_by: Literal["rollout", "agent", "role_turn"] = "rollout"
    partial_rollout: bool = False
    mask_kept_tokens: bool = False
    seed: int | None = None
    engine: str | None = None
    model: str | None = None
    models: dict[str, str] = Field(default_factory=dict)
    router_policy: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    history: Literal["append", "template"] = "append"
    sampling: dict[str, Any] = Field(default_factory=dict)
    interrupted_turns: Literal["continue", "fail"] = "continue"
    top_p_replay: bool = False
    routing_replay: tuple[int, int] | None = None
    train_abandoned: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    check_rendering: bool = True
    concurrency: int = Field(64, gt=0)
    request_timeout_s: float = Field(600.0, gt=0, allow_inf_nan=False)
    retries: int = Field(3, ge=0)
    verifier_timeout_s: float = Field(120.0, gt=0, allow_inf_nan=False)
    fully_async: Pace = Pace()

    @field_validator("sampling")
    @classmethod
    def _known_sampling(cls, sampling: dict[str, Any]) -> dict[str, Any]:
        for name in sampling:
            if name not in SAMPLING:
                hint = did_you_mean(name, SAMPLING)
                raise ValueError(f'"{name}" is no sampling parameter' + (f"; {hint}" if hint else ""))
        return sampling

    @field_validator("role_weights")
    @classmethod
    def _usable_weights(cls, weights: dict[str, float]) -> dict[str, float]:
        for role, weight in weights.items():
            if not 0 <= weight < math.inf:
                raise ValueError(f'"{role}": a weight is a finite number of at least 0, got {weight}')
        return weights

    @classmethod
    def load(cls, path: Path) -> RunConfig:
        """Read a YAML file: rollhook's keys at the top, or in a section `rollhook:` beside others' keys.

        Raises ConfigError, naming the file, the key and the nearest right one.
        """
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
        if isinstance(data, dict) and SECTION in data:
            data = data[SECTION]
        return cls.of({} if data is None else data, where=str(path))

    @classmethod
    def of(cls, data: object, *, where: str) -> RunConfig:
        """Read a mapping. where: what to call it in the ConfigError."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"{where}: expected a mapping of keys, got {data!r}")
        try:
            return fitted(cls, plain(data))
        except MisfitError as error:
            raise ConfigError(f"{where}: {error}") from error

    @classmethod
    def from_args(cls, args: Any) -> RunConfig:
        """Read a trainer's args (slime's namespace); any attribute may be missing.

        `args.rollhook` is the section of its `--custom-config-path`; what it says goes before the trainer's
        own flags. Raises ConfigError for combinations that cannot work, with what to change.
        """
        where = "the rollhook section of the configuration"
        said = getattr(args, SECTION, None) or {}
        if not isinstance(said, Mapping):
            raise ConfigError(f"{where}: expected a mapping of keys, got {said!r}")
        flags = _flags(args)
        merged = {**flags, **said}
        for key in ("limits", "sampling"):
            if isinstance(inner := said.get(key) or {}, Mapping):
                merged[key] = {**flags[key], **inner}
        if isinstance(models := said.get("models") or {}, Mapping):
            merged["models"] = {**models, **flags["models"]}  # the trainer knows where it started its own
        config = cls.of(merged, where=where)
        _refuse_impossible(args, config)
        return config

    @property
    def replay(self) -> Replay:
        """What the run's trainer replays."""
        return Replay(self.top_p_replay, self.routing_replay)

    def fingerprint(self, *, exclude: Collection[str] = ()) -> str:
        """A hash that is equal for equal configurations, in every process. exclude: fields left out of it."""
        data = self.model_dump(mode="json", exclude=set(exclude))
        text = json.dumps(data, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


def _flags(args: Any) -> dict[str, Any]:
    """What the trainer's own flags say, as keys of a RunConfig."""

    def flag(name: str) -> Any:
        return getattr(args, name, None)

    ip, port = flag("sglang_router_ip"), flag("sglang_router_port")
    seed = flag("rollout_seed")
    return {
        "engine": _url(ip, port) if ip and port else None,
        "models": {name: _url(*address) for name, address in (flag("sglang_model_routers") or {}).items()},
        "router_policy": flag("router_policy"),
        "tokenizer": flag("hf_checkpoint"),
        "tool_parser": flag("sglang_tool_call_parser"),
        "reasoning_parser": flag("sglang_reasoning_parser"),
        "seed": flag("seed") if seed is None else seed,
        "return_shape": flag("return_shape") or "list",
        "partial_rollout": bool(flag("partial_rollout")),
        "mask_kept_tokens": bool(flag("mask_offpolicy_in_partial_rollout")),
        "top_p_replay": flag("rollout_top_p") not in (None, 1.0),
        "routing_replay": _routing(args),
        "limits": {"max_context_tokens": flag("rollout_max_context_len")},
        "eval_max_context_tokens": flag("eval_max_context_len"),
        "sampling": {
            "max_new_tokens": flag("rollout_max_response_len"),
            **{
                name: flag(f"rollout_{name}")
                for name in ("temperature", "top_p", "top_k", "stop", "stop_token_ids")
            },
        },
    }


def _routing(args: Any) -> tuple[int, int] | None:
    """Layers and experts a token, where the trainer replays routing."""
    layers, each = getattr(args, "num_layers", None), getattr(args, "moe_router_topk", None)
    if not getattr(args, "use_rollout_routing_replay", False):
        return None
    if not layers or not each:
        raise ConfigError(
            "--use-rollout-routing-replay needs the shape of what it replays, and args lack num_layers or "
            "moe_router_topk: set --num-layers and --moe-router-topk"
        )
    return int(layers), int(each)


def _url(host: str, port: int | str) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


_SET_BY_THE_TRAINER = {"temperature": "divides logits by", "top_p": "replays what is left by"}

_NEEDS_ONE_SAMPLE = {
    "group_rm": "--group-rm scores one Sample for each rollout",
    "partial_rollout": "--partial-rollout puts single Samples back into its buffer",
    "log_passrate": "--log-passrate counts one reward for each rollout",
}


def _refuse_impossible(args: Any, config: RunConfig) -> None:
    """Raise ConfigError for flags of the trainer that cannot work with this configuration."""
    for name, why in _SET_BY_THE_TRAINER.items():
        trainers = getattr(args, f"rollout_{name}", None)
        if trainers is not None and config.sampling[name] != trainers:
            raise ConfigError(
                f"sampling.{name} is {config.sampling[name]}, and the trainer {why} --rollout-"
                f"{name.replace('_', '-')} {trainers}; set it only there"
            )
    if getattr(args, "apply_chat_template", False):
        raise ConfigError(
            "--apply-chat-template hands over prompts that are rendered already, and rollhook renders them "
            "itself; drop the flag: a prompt may be a plain string or a list of messages"
        )
    if config.return_shape != "list":
        return
    for flag, why in _NEEDS_ONE_SAMPLE.items():
        if getattr(config, flag, False) or getattr(args, flag, False):
            raise ConfigError(
                f"{why}, and return_shape: list gives several; drop the flag, or set return_shape: sample in "
                "the rollhook section"
            )
    function = getattr(args, "rollout_function_path", None) or ""
    if "fully_async" in function and not function.startswith("rollhook."):
        raise ConfigError(
            f"--rollout-function-path {function} trains aborted groups and loses failed ones when rollouts "
            "are lists; use rollhook.slime.fully_async_rollout, or set return_shape: sample in the rollhook "
            "section"
        )
    rule = getattr(args, "dynamic_sampling_filter_path", None) or ""
    if rule.startswith("slime."):
        raise ConfigError(
            f"--dynamic-sampling-filter-path {rule} reads one Sample for each rollout, and return_shape: "
            "list gives several; use rollhook.slime.keep_informative, or set return_shape: sample"
        )
