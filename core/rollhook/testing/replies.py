"""What a scripted engine says: replies, faults, and the sampled ids that a reply becomes.

Invariant: a reply ends by the same rules as SGLang's sampling. A stop string, a stop or end-of-turn token, or
max_new_tokens (in this order, where one id completes several) cuts the *ids* after the id that completed
it; the text is what those ids decode to, up to the end of the stop string. No I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from rollhook.protocols import FinishReason

DEFAULT_MAX_NEW_TOKENS = 128  # SGLang's


class TextTokenizer(Protocol):
    """The part of a transformers tokenizer that a scripted engine uses."""

    eos_token_id: Any
    name_or_path: str

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str: ...


FaultKind = Literal[
    "drop", "status", "hang", "cut", "missing_logprobs", "nan_logprob", "wrong_ids", "truncated_json"
]


@dataclass(frozen=True, slots=True)
class Fault:
    """How an attempt to get a reply goes wrong; made by the named constructors.

    times: how many attempts it spoils before the reply is served as it is; None: all of them. An attempt is
    told from a new request by session and prompt, so a client's retry gets the same reply.
    """

    kind: FaultKind
    times: int | None = 1
    code: int = 500
    after_tokens: int = 0
    retry_after_s: int | None = None
    message: str = ""

    @classmethod
    def drop(cls, times: int | None = 1) -> Fault:
        """The connection is closed before any byte, as when an idle connection is reused too late."""
        return cls("drop", times)

    @classmethod
    def status(
        cls,
        code: int,
        times: int | None = 1,
        *,
        retry_after_s: int | None = None,
        message: str = "scripted fault",
    ) -> Fault:
        """An HTTP error in SGLang's form, with a Retry-After header if given."""
        return cls("status", times, code=code, retry_after_s=retry_after_s, message=message)

    @classmethod
    def hang(cls, after_tokens: int = 0, times: int | None = 1) -> Fault:
        """Sampling stops after some tokens and waits until the request is aborted."""
        return cls("hang", times, after_tokens=after_tokens)

    @classmethod
    def cut(cls, after_tokens: int = 0, times: int | None = 1) -> Fault:
        """The connection is closed inside the answer: a stream after some tokens, a plain answer half-way."""
        return cls("cut", times, after_tokens=after_tokens)

    @classmethod
    def missing_logprobs(cls, times: int | None = 1) -> Fault:
        """The answer has no output_token_logprobs, as behind a gateway that strips them."""
        return cls("missing_logprobs", times)

    @classmethod
    def nan_logprob(cls, times: int | None = 1) -> Fault:
        """The last log-probability is NaN."""
        return cls("nan_logprob", times)

    @classmethod
    def wrong_ids(cls, times: int | None = 1) -> Fault:
        """output_ids and the ids beside the log-probabilities differ."""
        return cls("wrong_ids", times)

    @classmethod
    def truncated_json(cls, times: int | None = 1) -> Fault:
        """The answer is complete by HTTP and half by JSON."""
        return cls("truncated_json", times)


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn of the model, written by a test.

    text: encoded by the engine's tokenizer. token_ids: the exact ids instead of a text.
    finish: how it ends unless a stop rule of the request ends it earlier. end_token: append the end-of-turn
    id when it ends by stop. delay_s: how long sampling takes, spread evenly over the tokens.
    weight_version: None means the engine's. meta: further fields of meta_info, which win.
    """

    text: str = ""
    token_ids: Sequence[int] | None = field(default=None, kw_only=True)
    finish: FinishReason = field(default="stop", kw_only=True)
    end_token: bool = field(default=True, kw_only=True)
    delay_s: float = field(default=0.0, kw_only=True)
    weight_version: str | None = field(default=None, kw_only=True)
    meta: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    fault: Fault | None = field(default=None, kw_only=True)


class ScriptedRequest:
    """One /generate request as it was received.

    session: the routing key. turn: how many other requests of the session came before (a retry counts as the
    request it repeats). sampling: its sampling_params. body, headers: all of it.
    """

    def __init__(
        self, body: Mapping[str, Any], headers: Mapping[str, str], turn: int, tokenizer: TextTokenizer
    ) -> None:
        self.body = body
        self.headers = headers
        self.turn = turn
        self.rid: str = body["rid"]
        self.input_ids: list[int] = body["input_ids"]
        self.sampling: Mapping[str, Any] = body.get("sampling_params") or {}
        self.session: str = headers.get("X-SMG-Routing-Key", "")
        self._tokenizer = tokenizer

    @cached_property
    def prompt(self) -> str:
        """The prompt's text, with its special tokens."""
        return _decode(self._tokenizer, self.input_ids)


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a reply became under one request's rules. token_ids, log_probs: [T]. reason: finish_reason."""

    token_ids: list[int]
    log_probs: list[float]
    reason: Mapping[str, Any]


Script = (
    Sequence[Reply | str]
    | Mapping[str, Reply | str | Sequence[Reply | str]]
    | Callable[[ScriptedRequest], Reply | str]
)


def read_script(script: Script) -> Callable[[ScriptedRequest], Reply]:
    """One function for every form of script (see ScriptedEngine); it raises LookupError at its end."""
    if callable(script):
        return lambda request: _reply(script(request))
    if isinstance(script, Mapping):
        return _by_prompt(script)
    if isinstance(script, str):
        raise TypeError(f"a script is a list of replies, not one string; try [{script!r}]")
    return _in_order(script, "the script")


def scripted_log_prob(position: int, token_id: int) -> float:
    """The log-probability of `token_id` at an output position: arbitrary, fixed, in [-3.01, -0.01]."""
    return -0.01 - (token_id * 7919 + position * 104_729) % 3001 / 1000


def sample(
    reply: Reply, tokenizer: TextTokenizer, sampling: Mapping[str, Any], end_token_id: int | None
) -> Sampled:
    """The ids that a model would have sampled to say `reply` under these sampling parameters."""
    if reply.token_ids is not None:
        token_ids = list(reply.token_ids)
    else:
        token_ids = tokenizer.encode(reply.text, add_special_tokens=False)
    if (
        reply.finish == "stop"
        and reply.end_token
        and end_token_id is not None
        and token_ids[-1:] != [end_token_id]
    ):
        token_ids.append(end_token_id)
    limit = sampling.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    ends: list[tuple[int, Mapping[str, Any]]] = [
        (_count_through(stop, token_ids, tokenizer), {"type": "stop", "matched": stop})
        for stop in _stop_strings(sampling)
        if stop in _decode(tokenizer, token_ids)
    ]
    stop_ids = set(sampling.get("stop_token_ids") or ())
    if end_token_id is not None and not sampling.get("ignore_eos"):
        stop_ids.add(end_token_id)
    hits = (index for index, token_id in enumerate(token_ids) if token_id in stop_ids)
    if (hit := next(hits, None)) is not None:
        ends.append((hit + 1, {"type": "stop", "matched": token_ids[hit]}))
    if len(token_ids) >= limit:
        ends.append((limit, {"type": "length", "length": limit}))
    count, reason = min(ends, key=lambda end: end[0], default=(len(token_ids), _own_reason(reply, token_ids)))
    token_ids = token_ids[:count]
    log_probs = [scripted_log_prob(position, token_id) for position, token_id in enumerate(token_ids)]
    return Sampled(token_ids, log_probs, reason)


def text_of(
    token_ids: Sequence[int], matched: object, tokenizer: TextTokenizer, sampling: Mapping[str, Any]
) -> str:
    """The `text` field for sampled ids, as SGLang trims it.

    Without no_stop_trim what matched is left out; with it, only what the last id says after a stop string.
    """
    keep = bool(sampling.get("no_stop_trim"))
    if isinstance(matched, int) and not keep:
        token_ids = token_ids[:-1]
    skip = sampling.get("skip_special_tokens", True)
    text = _decode(tokenizer, token_ids, skip_special_tokens=skip)
    if isinstance(matched, str) and matched in text:
        text = text[: text.index(matched) + len(matched) * keep]
    return text


def complete_characters(text: str) -> str:
    """`text` without a character whose last bytes are still to be sampled; a stream holds it back."""
    return text.removesuffix("\ufffd")


def _reply(value: Reply | str) -> Reply:
    return Reply(value) if isinstance(value, str) else value


def _in_order(replies: Sequence[Reply | str], name: str) -> Callable[[ScriptedRequest], Reply]:
    remaining = iter(replies)

    def next_reply(request: ScriptedRequest) -> Reply:
        try:
            return _reply(next(remaining))
        except StopIteration:
            raise LookupError(
                f"{name} has {len(replies)} replies and no more; asked for another by session "
                f"{request.session!r}, turn {request.turn}, prompt ending {request.prompt[-200:]!r}"
            ) from None

    return next_reply


def _by_prompt(
    script: Mapping[str, Reply | str | Sequence[Reply | str]],
) -> Callable[[ScriptedRequest], Reply]:
    def forever(value: Reply | str) -> Callable[[ScriptedRequest], Reply]:
        return lambda request: _reply(value)

    rules = {
        key: forever(value) if isinstance(value, Reply | str) else _in_order(value, f"the script for {key!r}")
        for key, value in script.items()
    }

    def reply_for(request: ScriptedRequest) -> Reply:
        for key, rule in rules.items():
            if key in request.prompt:
                return rule(request)
        raise LookupError(f"no key of the script occurs in the prompt, which ends {request.prompt[-200:]!r}")

    return reply_for


def _own_reason(reply: Reply, token_ids: Sequence[int]) -> Mapping[str, Any]:
    if reply.finish == "length":
        return {"type": "length", "length": len(token_ids)}
    if reply.finish == "abort":
        return {"type": "abort", "message": "scripted abort"}
    return {"type": "stop", "matched": None}


def _stop_strings(sampling: Mapping[str, Any]) -> list[str]:
    stop = sampling.get("stop") or []
    return [stop] if isinstance(stop, str) else list(stop)


def _count_through(stop: str, token_ids: Sequence[int], tokenizer: TextTokenizer) -> int:
    """How many ids it takes until their text contains `stop`, which the whole text does."""
    return bisect_left(
        range(len(token_ids) + 1), True, key=lambda count: stop in _decode(tokenizer, token_ids[:count])
    )


def _decode(tokenizer: TextTokenizer, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
    return tokenizer.decode(
        list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
    )
