"""Partial rollouts: a Sample that was aborted goes on from the tokens it kept.

Invariant: a turn is taken from what was kept only where it is asked for with exactly the prompt it was
sampled behind; so a resumed rollout holds what one that was never aborted could hold. Tools and environments
run again, which rebuilds their state; where they answer otherwise, the kept turns that follow are dropped,
and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any

from pydantic import TypeAdapter

from rollhook.carried import Carried
from rollhook.engine import Completion, Delta, Engine
from rollhook.errors import CertificationError, RolloutAborted
from rollhook.interruptions import behind, is_full
from rollhook.replay import Replay, TopP, experts_bytes
from rollhook.sample import Sample, Status, certify_replay
from rollhook.segments import SampledTurn
from rollhook.siblings import result_of


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """One kept turn: a Completion without its experts, behind the first `start` tokens of its Sample."""

    start: int
    completion: Completion


@dataclass(slots=True)
class Kept:
    """What a Sample kept of an aborted rollout, and how far it was used.

    tokens: the Sample's. turns: in order; only the last may be unfinished ("abort"). clock: of the chat
    templates. experts: of all tokens but the last; None where no trainer replays them. used, used_tokens:
    what was given out. continued: whether a turn was gone on with. dropped: tokens of turns whose prompt came
    out otherwise.
    """

    tokens: Sequence[int]
    turns: Sequence[KeptTurn]
    clock: datetime
    experts: Any = None
    used: int = 0
    used_tokens: int = 0
    continued: bool = False
    dropped: int = 0
    _waiting: list[KeptTurn] = field(init=False)

    def __post_init__(self) -> None:
        self._waiting = list(reversed(self.turns))

    @property
    def waiting(self) -> bool:
        """Whether a kept turn has not been asked for yet."""
        return bool(self._waiting)

    def peek(self, input_ids: Sequence[int]) -> Completion | None:
        """The kept turn behind this prompt. Where the next one stands behind another, the rest is dropped."""
        if not self._waiting:
            return None
        turn = self._waiting[-1]
        if list(input_ids) == list(self.tokens[: turn.start]):
            return self._with_experts(turn)
        self.dropped += sum(len(turn.completion.token_ids) for turn in self._waiting)
        self._waiting.clear()
        return None

    def _with_experts(self, turn: KeptTurn) -> Completion:
        """The turn's completion. Its experts are those of the whole chain, so each turn's are copied late."""
        if self.experts is None:
            return turn.completion
        end = turn.start + len(turn.completion.token_ids)
        carried = replace(turn.completion.carried, experts=experts_bytes(self.experts, end - 1))
        return replace(turn.completion, carried=carried)

    def take(self, *, continued: bool = False) -> None:
        """The turn that `peek` gave was given out."""
        turn = self._waiting.pop()
        self.used += 1
        self.used_tokens += len(turn.completion.token_ids)
        self.continued = self.continued or continued

    def record(self) -> dict[str, Any]:
        """For `rollhook_result["resumed"]`."""
        return {
            "turns": self.used,
            "tokens": self.used_tokens,
            "continued": self.continued,
            "dropped_tokens": self.dropped + sum(len(turn.completion.token_ids) for turn in self._waiting),
        }


@dataclass(frozen=True, slots=True)
class ResumingEngine:
    """An engine (`rollhook.engine.Engine`) that answers from what was kept, as long as that fits."""

    engine: Engine
    kept: Kept

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: Mapping[str, Any],
        *,
        session: str,
        timeout_s: float | None = None,
        on_delta: Callable[[Delta], None] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Completion:
        """The kept turn behind this prompt, gone on with where it is unfinished; else a new one."""
        turn = self.kept.peek(input_ids)
        if turn is not None and turn.finish_reason == "abort" and is_full(turn, sampling):
            turn = replace(turn, finish_reason="length")
        if turn is not None and turn.finish_reason != "abort":
            self.kept.take()
            return turn
        ids, rest = behind(input_ids, sampling, turn)
        try:
            answer = await self.engine.generate(
                ids, rest, session=session, timeout_s=timeout_s, on_delta=on_delta, extra=extra
            )
        except RolloutAborted:
            if turn is None or not turn.token_ids:
                raise
            return turn
        if turn is None:
            return answer
        self.kept.take(continued=True)
        return turn.then(answer)

    async def abort(self, session: str | None = None) -> None:
        """End live requests, as the engine does."""
        await self.engine.abort(session)

    async def model_info(self) -> dict[str, Any]:
        """What the engine says of its model."""
        return await self.engine.model_info()


def read_kept(sample: Sample, replay: Replay, *, masked: bool) -> Kept | None:
    """What `sample` kept of an aborted rollout; None when it comes fresh, or lacks something that trains.

    masked: none of it trains any more. Else what had mask 0 when it came stays untrained.
    """
    if sample.status.value not in (Status.ABORTED.value, Status.PENDING.value):
        return None
    result = result_of(sample)
    try:  # the record travels in metadata, where a data file may hold anything
        turns = _turns_adapter().validate_python(result["unfinished"])
        clock = datetime.fromisoformat(result["clock"])
        certify_replay(sample)
    except (KeyError, TypeError, ValueError, CertificationError):
        return None
    if not (_is_whole(sample, replay) and _are_sampled(sample, turns)):
        return None
    top_p = None
    if replay.top_p:
        top_p = TopP.of(sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets)
    return Kept(
        tokens=sample.tokens,
        turns=[_kept_turn(sample, turn, top_p, masked=masked) for turn in turns],
        clock=clock,
        experts=sample.rollout_routed_experts if replay.routing else None,
    )


@lru_cache(maxsize=1)
def _turns_adapter() -> TypeAdapter[list[SampledTurn]]:
    return TypeAdapter(list[SampledTurn])


def _is_whole(sample: Sample, replay: Replay) -> bool:
    """Whether there is a prompt and a response, with all that the trainer needs of it."""
    mask, log_probs, length = sample.loss_mask, sample.rollout_log_probs, sample.response_length
    if mask is None or log_probs is None or not len(mask) == len(log_probs) == length < len(sample.tokens):
        return False
    if replay.top_p and getattr(sample, "rollout_top_p_token_offsets", None) is None:
        return False
    return not replay.routing or getattr(sample, "rollout_routed_experts", None) is not None


def _are_sampled(sample: Sample, turns: Sequence[SampledTurn]) -> bool:
    """Whether `turns` lie in the response, one behind the other from its start on, and nothing in the middle
    of one is masked, as what was not sampled is.
    """
    assert sample.loss_mask is not None
    prompt_length = len(sample.tokens) - sample.response_length
    end = prompt_length
    for turn in turns:
        mask = sample.loss_mask[turn.start - prompt_length : turn.start - prompt_length + turn.length]
        if turn.start < end or len(mask) != turn.length or any(b < a for a, b in pairwise(mask)):
            return False
        end = turn.start + turn.length
    return (
        bool(turns)
        and turns[0].start == prompt_length
        and all(turn.finish_reason != "abort" for turn in turns[:-1])
    )


def _kept_turn(sample: Sample, turn: SampledTurn, top_p: TopP | None, *, masked: bool) -> KeptTurn:
    """A turn as the engine gave it, but for its experts. top_p: the sets of the whole response."""
    prompt_length = len(sample.tokens) - sample.response_length
    first, last = turn.start - prompt_length, turn.start - prompt_length + turn.length
    assert sample.loss_mask is not None
    assert sample.rollout_log_probs is not None
    carried = Carried(
        untrained=turn.length if masked else sample.loss_mask[first:last].count(0),
        spec=turn.spec,
        top_p=None if top_p is None else top_p.part(first, last),
    )
    completion = Completion(
        token_ids=list(sample.tokens[turn.start : turn.start + turn.length]),
        log_probs=list(sample.rollout_log_probs[first:last]),
        finish_reason=turn.finish_reason,
        matched=turn.matched,
        text="",
        request_id=turn.request_id,
        weight_versions=list(turn.weight_versions),
        prompt_tokens=turn.prompt_tokens,
        cached_tokens=turn.cached_tokens,
        meta_info={},
        carried=carried,
    )
    return KeptTurn(turn.start, completion)
