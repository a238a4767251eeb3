"""What a trainer replays of sampling: the sets that top-p left to sample from, and the experts of each token.

Invariant: what leaves here is aligned with the ids it belongs to; an answer that lacks what was asked for, or
holds another number of values, raises EngineProtocolError. No I/O; NumPy is imported only where it is needed.

Source of the format: SGLang's meta_info holds int32 arrays as lists or as base64 of their bytes. Of T sampled
tokens, top_p_token_ids are the sets one behind the other and top_p_token_offsets [T + 1] where each begins
(slime's patch; also top_p_kept_token_ids and top_p_kept_token_offsets). routed_experts is [P + T - 1, layers,
experts a token] for a prompt of P, from token routed_experts_start_len on.
"""

from __future__ import annotations

import base64
import binascii
import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from rollhook.errors import EngineProtocolError

_TOP_P_IDS = ("top_p_token_ids", "top_p_kept_token_ids")
_TOP_P_OFFSETS = ("top_p_token_offsets", "top_p_kept_token_offsets")
_INT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class TopP:
    """The sets that T tokens were sampled from. ids: all sets, one behind the other.

    offsets: [T + 1], from 0; the set of token t is ids[offsets[t]:offsets[t + 1]], empty where nothing was
    sampled.
    """

    ids: array[int]
    offsets: array[int]

    @classmethod
    def of(cls, ids: Any, offsets: Any) -> Self:
        """From a Sample's fields: lists, or arrays of NumPy or torch."""
        made = [values.tolist() if hasattr(values, "tolist") else values for values in (ids, offsets)]
        return cls(array("i", made[0]), array("i", made[1]))

    @classmethod
    def empty(cls, length: int) -> Self:
        """Of `length` tokens that were not sampled."""
        return cls(array("i"), array("i", bytes(_INT32_BYTES * (length + 1))))

    @classmethod
    def chain(cls, pieces: Iterable[Self]) -> Self:
        """The sets of all pieces, in order."""
        ids, offsets = array("i"), array("i", [0])
        for piece in pieces:
            before = len(ids)
            offsets.extend(before + offset for offset in piece.offsets[1:])
            ids.extend(piece.ids)
        return cls(ids, offsets)

    def part(self, start: int, end: int) -> Self:
        """The sets of tokens [start, end)."""
        first, last = self.offsets[start], self.offsets[end]
        offsets = array("i", (offset - first for offset in self.offsets[start : end + 1]))
        return type(self)(self.ids[first:last], offsets)


@dataclass(frozen=True, slots=True)
class Replay:
    """What a run's trainer replays, so what its requests ask for.

    routing: layers and experts a token of the model, None without routing replay.
    """

    top_p: bool = False
    routing: tuple[int, int] | None = None

    def sampling(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """`sampling` with what asks for the sets, beside the run's own custom_params."""
        if not self.top_p:
            return dict(sampling)
        custom = {**(sampling.get("custom_params") or {}), "return_top_p_token_ids": True}
        return {**sampling, "custom_params": custom}

    def extra(self, extra: Mapping[str, Any] | None) -> dict[str, Any]:
        """Further fields of the request, with what asks for the experts."""
        return {**(extra or {}), **({"return_routed_experts": True} if self.routing else {})}

    def read_top_p(self, meta: Mapping[str, Any], sampled: int) -> TopP | None:
        """The sets of `sampled` tokens; None where no trainer replays them. Raises EngineProtocolError."""
        if not self.top_p:
            return None
        ids, offsets = _int32(meta, _TOP_P_IDS), _int32(meta, _TOP_P_OFFSETS)
        if ids is None or offsets is None:
            raise EngineProtocolError(
                "the engine's answer has no top_p_token_ids and top_p_token_offsets, which the trainer "
                "replays when --rollout-top-p is not 1: use slime's SGLang, or set --rollout-top-p 1"
            )
        if len(offsets) != sampled + 1 or offsets[0] != 0 or offsets[-1] != len(ids):
            raise EngineProtocolError(
                f"the engine sampled {sampled} tokens and gave {len(offsets)} top-p offsets that end at "
                f"{offsets[-1] if offsets else None} for {len(ids)} ids"
            )
        if any(later < earlier for earlier, later in pairwise(offsets)):
            raise EngineProtocolError("the engine's top-p offsets go backwards")
        return TopP(ids, offsets)

    def read_experts(self, meta: Mapping[str, Any], tokens: int) -> bytes | None:
        """The experts of all but the last of `tokens`, as int32 bytes; None where no trainer replays them.

        Raises EngineProtocolError.
        """
        if self.routing is None:
            return None
        experts = _int32(meta, ("routed_experts",))
        if experts is None:
            raise EngineProtocolError(
                "the engine's answer has no routed_experts, which --use-rollout-routing-replay needs: start "
                "SGLang with --enable-return-routed-experts, and look for a gateway that drops them"
            )
        start = meta.get("routed_experts_start_len") or 0
        layers, each = self.routing
        if start != 0 or len(experts) != (tokens - 1) * layers * each:
            raise EngineProtocolError(
                f"the engine gave {len(experts)} routed experts from token {start} on; {tokens} tokens, "
                f"{layers} layers and {each} experts a token make {(tokens - 1) * layers * each} from 0 on"
            )
        return experts.tobytes()

    def experts_array(self, experts: bytes | None, tokens: int) -> Any:
        """[tokens - 1, layers, experts a token] as a NumPy array of int32; zeros where nothing is known."""
        assert self.routing is not None
        import numpy as np

        made = np.zeros((tokens - 1, *self.routing), dtype=np.int32)
        known = np.frombuffer(experts or b"", dtype=np.int32)[: made.size]
        made.reshape(-1)[: known.size] = known
        return made


def experts_bytes(experts: Any, rows: int) -> bytes | None:
    """The first `rows` of an array of experts (NumPy, torch, lists) as int32 bytes; None for None."""
    if experts is None:
        return None
    import numpy as np

    return np.ascontiguousarray(np.asarray(experts, dtype=np.int32)[:rows]).tobytes()


def _int32(meta: Mapping[str, Any], names: tuple[str, ...]) -> array[int] | None:
    """An int32 array of meta_info, from a list or from base64; None where it is not there."""
    value = next((meta[name] for name in names if meta.get(name) is not None), None)
    if value is None:
        return None
    made = array("i")
    try:
        if isinstance(value, str):
            made.frombytes(base64.b64decode(value, validate=True))
            if sys.byteorder == "big":
                made.byteswap()
        else:
            made.extend(value)
    except (TypeError, ValueError, OverflowError, binascii.Error) as error:
        raise EngineProtocolError(f"the engine's {names[0]} is no array of int32: {error}") from error
    return made
