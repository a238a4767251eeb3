"""Turns that go on: an engine whose answer was interrupted, by anyone but the trainer, is asked for the rest.

Invariant: "abort" comes out of here only while the trainer aborts. A turn in parts has the ids,
log-probabilities and weight versions of all of them, as they were sampled, and carries what the run's trainer
replays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rollhook.engine import Completion, Delta, Engine
from rollhook.errors import EngineProtocolError, EngineUnavailable, RolloutAborted
from rollhook.replay import Replay

MAX_IN_VAIN = 8
"""Requests in a row that may be interrupted before any token; a turn that gets on ends by its length."""
MAX_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class ContinuingEngine:
    """An engine (`rollhook.engine.Engine`) of which training takes every turn whole.

    aborting: whether the trainer aborts now. interrupted: what becomes of a turn that the engine ends with
    "abort" at somebody else's word (a weight update, another client's /abort_request): "continue" asks for
    the rest behind what was sampled, "fail" raises. replay: what each answer must carry.
    pause_s: before a further request; it doubles while nothing comes.

    A stop string that an interruption cuts in two does not end a continued turn: engines look for it in what
    they sample themselves.
    """

    engine: Engine
    aborting: Callable[[], bool]
    interrupted: Literal["continue", "fail"] = "continue"
    replay: Replay = field(default_factory=Replay)
    pause_s: float = 0.05

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
        """Sample one turn, in as many requests as it takes (see `rollhook.engine.Engine.generate`).

        Raises RolloutAborted when nothing of it was sampled before the trainer aborted, EngineUnavailable
        when the turn may not go on, EngineProtocolError when an answer lacks what the trainer replays.
        """
        turn: Completion | None = None
        in_vain = 0
        while not self.aborting():
            ids, rest = behind(input_ids, sampling, turn)
            answer = await self.engine.generate(
                ids,
                self.replay.sampling(rest),
                session=session,
                timeout_s=timeout_s,
                on_delta=on_delta,
                extra=self.replay.extra(extra) or None,
            )
            answer = self._carrying(answer, len(ids))
            turn = answer if turn is None else turn.then(answer)
            if turn.finish_reason != "abort" or self.aborting():
                break
            if is_full(turn, sampling):
                return replace(turn, finish_reason="length")
            in_vain = 0 if answer.token_ids else in_vain + 1
            self._refuse_more(turn, in_vain)
            await asyncio.sleep(min(self.pause_s * 2**in_vain, MAX_PAUSE_S))
        if turn is None or (turn.finish_reason == "abort" and not turn.token_ids):
            raise RolloutAborted
        return turn

    async def abort(self, session: str | None = None) -> None:
        """End live requests, as the engine does; what is asked for again is not known here."""
        await self.engine.abort(session)

    async def model_info(self) -> dict[str, Any]:
        """What the engine says of its model."""
        return await self.engine.model_info()

    def _refuse_more(self, turn: Completion, in_vain: int) -> None:
        """Raise EngineUnavailable where an interrupted turn is not to go on.

        in_vain: the last requests that brought nothing.
        """
        if self.interrupted == "fail":
            raise EngineUnavailable(
                f"the engine aborted the turn after {len(turn.token_ids)} tokens, and the trainer did not "
                "ask for it; interrupted_turns: continue would have asked for the rest"
            )
        if in_vain > MAX_IN_VAIN:
            raise EngineUnavailable(
                f"the engine aborted {in_vain} requests in a row before any token, and the trainer did "
                "not ask for it; look for another client that aborts them, or for an engine that stays paused"
            )

    def _carrying(self, answer: Completion, prompt_tokens: int) -> Completion:
        """`answer` with what the trainer replays; of an interrupted one that lacks it nothing is kept."""
        sampled = len(answer.token_ids)
        try:
            top_p = self.replay.read_top_p(answer.meta_info, sampled) if sampled else None
            experts = self.replay.read_experts(answer.meta_info, prompt_tokens + sampled) if sampled else None
        except EngineProtocolError:
            if answer.finish_reason != "abort":
                raise
            return replace(answer, token_ids=[], log_probs=[], text="")
        return replace(answer, carried=replace(answer.carried, top_p=top_p, experts=experts))


def behind(
    input_ids: Sequence[int], sampling: Mapping[str, Any], turn: Completion | None
) -> tuple[Sequence[int], Mapping[str, Any]]:
    """The request for the rest of a turn of which `turn` was sampled: ids and sampling parameters."""
    if turn is None or not turn.token_ids:
        return input_ids, sampling
    counted = {
        name: max(0, sampling[name] - len(turn.token_ids))
        for name in ("max_new_tokens", "min_new_tokens")
        if sampling.get(name) is not None
    }
    return [*input_ids, *turn.token_ids], {**sampling, **counted}


def is_full(turn: Completion, sampling: Mapping[str, Any]) -> bool:
    """Whether nothing more may be sampled in a turn of which `turn` was."""
    most = sampling.get("max_new_tokens")
    return most is not None and len(turn.token_ids) >= most
