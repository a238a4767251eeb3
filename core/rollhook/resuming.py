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
from itertools import takewhile
from typing import Any

from rollhook.carried import Carried, SpecCounts
from rollhook.engine import Completion, Delta, Engine
from rollhook.errors import RolloutAborted
from rollhook.interruptions import behind, is_full
from rollhook.replay import Replay, TopP, experts_bytes
from rollhook.sample import Sample, Status
from rollhook.siblings import result_of


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """One kept turn: a Completion, behind the first `start` tokens of its Sample."""

    start: int
    completion: Completion


@dataclass(slots=True)
class Kept:
    """What a Sample kept of an aborted rollout, and how far it was used.

    tokens: the Sample's. turns: in order; only the last may be unfinished ("abort"). clock: of the chat
    templates. used, used_tokens: what was given out. continued: whether a turn was gone on with. dropped:
    tokens of turns whose prompt came out otherwise.
    """

    tokens: Sequence[int]
    turns: Sequence[KeptTurn]
    clock: datetime
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
            return turn.completion
        self.dropped += sum(len(turn.completion.token_ids) for turn in self._waiting)
        self._waiting.clear()
        return None

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
    result = result_of(sample)
    record, clock = result.get("unfinished"), result.get("clock")
    waiting = sample.status.value in (Status.ABORTED.value, Status.PENDING.value)
    if not (waiting and record and clock and _is_whole(sample, record, replay)):
        return None
    turns = [KeptTurn(turn["start"], _completion(sample, turn, masked=masked)) for turn in record]
    return Kept(sample.tokens, turns, datetime.fromisoformat(clock))


def _is_whole(sample: Sample, record: Sequence[Mapping[str, Any]], replay: Replay) -> bool:
    """Whether the tokens of all recorded turns are there, with all that the trainer needs of them."""
    mask, log_probs, length = sample.loss_mask, sample.rollout_log_probs, sample.response_length
    if mask is None or log_probs is None or not len(mask) == len(log_probs) == length:
        return False
    if replay.top_p and getattr(sample, "rollout_top_p_token_offsets", None) is None:
        return False
    if replay.routing and getattr(sample, "rollout_routed_experts", None) is None:
        return False
    return bool(record[-1]["start"] + record[-1]["length"] <= len(sample.tokens))


def _completion(sample: Sample, turn: Mapping[str, Any], *, masked: bool) -> Completion:
    """A kept turn as the engine gave it."""
    start, end = turn["start"], turn["start"] + turn["length"]
    prompt_length = len(sample.tokens) - sample.response_length
    first, last = start - prompt_length, end - prompt_length
    assert sample.loss_mask is not None
    assert sample.rollout_log_probs is not None
    untrained = sum(1 for _ in takewhile(lambda bit: bit == 0, sample.loss_mask[first:last]))
    offsets = getattr(sample, "rollout_top_p_token_offsets", None)
    top_p = None
    if offsets is not None:
        top_p = TopP.of(sample.rollout_top_p_token_ids, offsets).part(first, last)
    carried = Carried(
        untrained=end - start if masked else untrained,
        spec=SpecCounts(*turn["spec"]),
        top_p=top_p,
        experts=experts_bytes(getattr(sample, "rollout_routed_experts", None), end - 1),
    )
    return Completion(
        token_ids=list(sample.tokens[start:end]),
        log_probs=list(sample.rollout_log_probs[first:last]),
        finish_reason=turn["finish_reason"],
        matched=turn["matched"],
        text="",
        request_id=turn["request_id"],
        weight_versions=list(turn["weight_versions"]),
        prompt_tokens=turn["prompt_tokens"],
        cached_tokens=turn["cached_tokens"],
        meta_info={},
        carried=carried,
    )
