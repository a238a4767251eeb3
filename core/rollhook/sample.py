"""Sample: what a trainer learns from, field-compatible with slime's own class.

Invariant: tokens, response_length, loss_mask and rollout_log_probs are written by `write_tokens` only, and
no Sample leaves rollhook before `certify` has read it. Functions here work on any class with these fields,
so that a trainer which hands in its own Sample gets its own class back.

Field names and meanings follow slime 0.3 (`slime.utils.types.Sample`).
"""

from __future__ import annotations

import copy
import math
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from itertools import pairwise
from typing import Any, Self, SupportsIndex

from rollhook.errors import CertificationError
from rollhook.replay import TopP


@dataclass
class PrefixCacheInfo:
    """How much of the prompts the engine had cached, in tokens, summed over turns."""

    cached_tokens: int = 0
    total_prompt_tokens: int = 0


@dataclass
class SpecInfo:
    """Speculative-decoding counts, summed over turns."""

    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    completion_token_num: int = 0


@dataclass
class Sample:
    """One training sample: a prompt and a response of `response_length` tokens.

    tokens: [P + R] ids, prompt first, P >= 1, R = response_length >= 1.
    loss_mask: [R], 1 where the model sampled the token and it trains, else 0.
    rollout_log_probs: [R], the engine's log-probability, 0.0 where the mask is 0.
    reward: float, or a mapping of named rewards; None until someone scored it.
    rollout_id: shared by all siblings of one rollout. group_index: shared by all rollouts of one prompt.
    """

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"  # a limit was reached: verified and trained all the same
        ABORTED = "aborted"  # the trainer aborted it
        FAILED = "failed"  # removed, mask 0, reward 0.0, the cause in metadata["rollhook_result"]

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, Any]] = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: list[int] | None = None
    rollout_top_p_token_offsets: list[int] | None = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    spec_info: SpecInfo = field(default_factory=SpecInfo)
    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)

    def to_dict(self) -> dict[str, Any]:
        """Every field, not copied; the status in lower case, the counts as mappings."""
        return {
            **{f.name: getattr(self, f.name) for f in fields(self)},
            "status": self.status.value,
            "spec_info": asdict(self.spec_info),
            "prefix_cache_info": asdict(self.prefix_cache_info),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`. Raises TypeError for unknown fields, ValueError for an unknown status."""
        data = dict(data)
        data["status"] = cls.Status(data.get("status", "pending"))
        data["spec_info"] = SpecInfo(**data.get("spec_info") or {})
        data["prefix_cache_info"] = PrefixCacheInfo(**data.get("prefix_cache_info") or {})
        return cls(**data)


Status = Sample.Status

_STALE_ON_RETRY = (
    "tokens",
    "response",
    "response_length",
    "reward",
    "loss_mask",
    "weight_versions",
    "rollout_log_probs",
    "rollout_top_p_token_ids",
    "rollout_top_p_token_offsets",
    "rollout_routed_experts",
    "remove_sample",
    "non_generation_time",
    "spec_info",
    "prefix_cache_info",
)
_COUNTS = ("spec_info", "prefix_cache_info")
"""Fields of a class of their own, which a trainer's Sample brings along."""


def fresh_copy(sample: Sample) -> Sample:
    """A copy of `sample`, of its own class, with every field a former attempt left behind reset.

    Metadata is copied in depth, so that siblings and their row share nothing; what is no mapping becomes {}.
    Fields that the class does not have stay away.
    """
    made = copy.copy(sample)
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    made.metadata = copy.deepcopy({k: v for k, v in metadata.items() if k != "rollhook_result"})
    blank = Sample()
    for name in _STALE_ON_RETRY:
        if hasattr(made, name):
            old, new = getattr(made, name), getattr(blank, name)
            setattr(made, name, type(old)() if name in _COUNTS and old is not None else new)
    if hasattr(made, "status"):
        set_status(made, Status.PENDING)
    return made


def detached(sample: Sample) -> Sample:
    """A copy that plugins may hold: its metadata, prompt and label are its own. Metadata None becomes {}."""
    made = copy.copy(sample)
    made.metadata = {} if sample.metadata is None else copy.deepcopy(sample.metadata)
    made.prompt, made.label = copy.deepcopy((sample.prompt, sample.label))
    return made


def rollout_id_of(sample: Sample) -> int:
    """The id its siblings share: the sample's own, else its index, else a random one of 63 bits."""
    for known in (getattr(sample, "rollout_id", None), getattr(sample, "index", None)):
        if isinstance(known, SupportsIndex):
            return int(known)
    return secrets.randbits(63)


def set_status(sample: Sample, status: Status) -> None:
    """Set the status in the sample's own enum: a trainer's class has its own `Status`."""
    sample.status = type(sample).Status(status.value)


def write_tokens(
    sample: Sample,
    *,
    tokens: Sequence[int],
    prompt_length: int,
    loss_mask: Sequence[int],
    log_probs: Sequence[float],
) -> None:
    """Write the token fields of `sample`, all at once.

    tokens: [prompt_length + R]. loss_mask, log_probs: [R].
    """
    sample.tokens = list(tokens)
    sample.response_length = len(sample.tokens) - prompt_length
    sample.loss_mask = list(loss_mask)
    sample.rollout_log_probs = list(log_probs)


def write_top_p(sample: Sample, top_p: TopP) -> None:
    """Write the sets that the response was sampled from: [R]."""
    sample.rollout_top_p_token_ids = top_p.ids.tolist()
    sample.rollout_top_p_token_offsets = top_p.offsets.tolist()


def write_experts(sample: Sample, experts: Any) -> None:
    """Write the routed experts. experts: an array [P + R - 1, layers, experts a token] of int32."""
    sample.rollout_routed_experts = experts


def write_placeholder(sample: Sample) -> None:
    """Write the smallest valid Sample that trains nothing: two tokens, one of them response, masked."""
    write_tokens(sample, tokens=[0, 0], prompt_length=1, loss_mask=[0], log_probs=[0.0])


def certify(sample: Sample) -> None:
    """Raise CertificationError unless `sample` may enter a training batch.

    Checks: at least one prompt and one response token; mask and log-probabilities as long as the response;
    mask 0 or 1; log-probabilities finite where the mask is 1 and 0.0 where it is 0; a rollout_id; for FAILED
    samples: removed, nothing trained, reward 0.0; top-p sets, where there are any, for each response token;
    and routed experts, where there are any, for each token but the last.
    """
    mask, log_probs, length = sample.loss_mask, sample.rollout_log_probs, sample.response_length
    if mask is None or log_probs is None:
        raise CertificationError("the sample has no loss_mask or no rollout_log_probs")
    if length < 1 or len(sample.tokens) - length < 1:
        raise CertificationError(
            f"{len(sample.tokens)} tokens with response_length {length}: "
            "a sample needs at least one prompt token and one response token"
        )
    if not len(mask) == len(log_probs) == length:
        raise CertificationError(
            f"response_length is {length} but loss_mask has {len(mask)} and rollout_log_probs "
            f"{len(log_probs)} entries"
        )
    for position, (bit, log_prob) in enumerate(zip(mask, log_probs, strict=True)):
        if bit not in (0, 1):
            raise CertificationError(f"loss_mask[{position}] is {bit!r}, not 0 or 1")
        if not math.isfinite(log_prob) or (bit == 0 and log_prob != 0.0):
            raise CertificationError(
                f"rollout_log_probs[{position}] is {log_prob!r} where loss_mask is {bit}"
            )
    if sample.rollout_id is None:
        raise CertificationError("the sample has no rollout_id")
    if isinstance(sample.reward, float | int) and not math.isfinite(sample.reward):
        raise CertificationError(f"the reward is {sample.reward}; it must be finite")
    if sample.status.value == Status.FAILED.value and (
        not sample.remove_sample or any(mask) or sample.reward != 0.0
    ):
        raise CertificationError("a FAILED sample must be removed, masked and have reward 0.0")
    certify_replay(sample)


def certify_replay(sample: Sample) -> None:
    """The part of `certify` about what the trainer replays."""
    ids = getattr(sample, "rollout_top_p_token_ids", None)
    offsets = getattr(sample, "rollout_top_p_token_offsets", None)
    if (ids is None) != (offsets is None):
        raise CertificationError("the sample has only one of rollout_top_p_token_ids and _offsets")
    if ids is not None and offsets is not None:
        if len(offsets) != sample.response_length + 1 or offsets[0] != 0 or offsets[-1] != len(ids):
            raise CertificationError(
                f"{len(offsets)} rollout_top_p_token_offsets for {sample.response_length} tokens and "
                f"{len(ids)} ids: they begin with 0, end with the number of ids, and are one more than the "
                "tokens"
            )
        if any(later < earlier for earlier, later in pairwise(offsets)):
            raise CertificationError("rollout_top_p_token_offsets go backwards")
    experts = getattr(sample, "rollout_routed_experts", None)
    if experts is not None and len(experts) != len(sample.tokens) - 1:
        raise CertificationError(
            f"rollout_routed_experts has {len(experts)} rows; {len(sample.tokens)} tokens have one each, "
            "but the last"
        )
