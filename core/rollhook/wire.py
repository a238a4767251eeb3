"""SGLang's answers, read strictly: nothing leaves here that training could not use.

Every sampled id comes with one finite log-probability, ids and log-probabilities agree, and an answer that
breaks this raises EngineProtocolError; it is never shortened, padded or returned as an empty turn. No I/O.

Source of the format: SGLang's native API (`/generate`): an answer is `{"text", "output_ids", "meta_info"}`,
`meta_info.output_token_logprobs` is `[[log_prob, token_id, text or null], ...]`. A streamed event repeats
the whole answer so far, unless the server runs with incremental streaming output, where it holds only what is
new; `meta_info.completion_tokens` counts the whole in both, and so tells them apart.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, get_args

from rollhook.carried import Carried, SpecCounts
from rollhook.errors import EngineProtocolError
from rollhook.protocols import FinishReason


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled turn as the engine returned it.

    token_ids: [T] sampled ids in order, with the id that ended the turn. log_probs: [T].
    matched: the stop string or token id that ended it.
    text: ends with the stop string that matched; the ids keep the token that completed it whole, so decoding
        them may give some characters more.
    request_id: the id of the attempt that answered.
    weight_versions: distinct, in order of first use; [] when the engine says none.
    meta_info: the engine's own, without output_token_logprobs.
    carried: what else training needs of it.
    """

    token_ids: list[int]
    log_probs: list[float]
    finish_reason: FinishReason
    matched: str | int | None
    text: str
    request_id: str
    weight_versions: list[str]
    prompt_tokens: int
    cached_tokens: int
    meta_info: Mapping[str, Any]
    carried: Carried = field(default_factory=Carried)

    def then(self, rest: Completion) -> Completion:
        """The whole turn, when `rest` was sampled behind this part of it."""
        return replace(
            rest,
            token_ids=self.token_ids + rest.token_ids,
            log_probs=self.log_probs + rest.log_probs,
            text=self.text + rest.text,
            weight_versions=list(dict.fromkeys(self.weight_versions + rest.weight_versions)),
            prompt_tokens=self.prompt_tokens + rest.prompt_tokens,
            cached_tokens=self.cached_tokens + rest.cached_tokens,
            carried=self.carried.then(rest.carried),
        )


@dataclass(frozen=True, slots=True)
class Delta:
    """What a stream brought since the last delta. token_ids: [N]. log_probs: [N]."""

    token_ids: list[int]
    log_probs: list[float]
    text: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer in the form of an error: `status` as HTTP's, `message` in the engine's own words."""

    status: int
    message: str


def parse_json(data: bytes | bytearray) -> Any:
    """The JSON value in `data`. Raises EngineProtocolError."""
    try:
        return json.loads(data)
    except ValueError as error:  # also UnicodeDecodeError
        start = bytes(data[:80]).decode(errors="replace")
        raise EngineProtocolError(f"the engine's answer is not JSON ({error}): {start!r}") from error


def error_message(body: bytes | bytearray, limit: int = 1000) -> str:
    """The engine's own words in an error body of SGLang, FastAPI, OpenAI or a plain gateway."""
    text = bytes(body).decode(errors="replace").strip()
    try:
        value = json.loads(text)
    except ValueError:
        return text[:limit] or "no message"
    for key in ("error", "message", "detail"):
        while isinstance(value, Mapping) and key in value:
            value = value[key]
    return (value if isinstance(value, str) else json.dumps(value))[:limit]


def retry_after_s(header: str | None) -> float | None:
    """Seconds to wait by a Retry-After header (seconds or a date); None when it says neither."""
    if header is None:
        return None
    if header.strip().isdigit():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time())
    except ValueError:
        return None


def refusal_in(answer: Any) -> Refusal | None:
    """The error that SGLang wraps in an answer of status 200: an `error` event, or an abort with a code."""
    if not isinstance(answer, Mapping):
        return None
    if "error" in answer:
        error = answer["error"]
        code = error.get("code") if isinstance(error, Mapping) else None
        status = code if isinstance(code, int) and code >= 400 else 400
        return Refusal(status, error_message(json.dumps(answer).encode()))
    meta = answer.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, Mapping) else None
    if isinstance(reason, Mapping) and reason.get("type") == "abort":
        code = reason.get("status_code")
        if isinstance(code, int) and code >= 400:
            return Refusal(code, str(reason.get("message") or "aborted by the engine"))
    return None


def read_completion(answer: Any, request_id: str) -> Completion:
    """The finished turn in a whole (not incremental) answer. Raises EngineProtocolError."""
    meta = _meta_info(answer)
    kind, matched = _finish(meta)
    token_ids, log_probs = _tokens(answer, meta)
    expected = meta.get("completion_tokens", len(token_ids))
    if len(token_ids) != expected:
        raise EngineProtocolError(
            f"the engine counts {expected} completion tokens and gave log-probabilities for {len(token_ids)}"
        )
    if not token_ids and kind != "abort":
        raise EngineProtocolError(
            f"the engine finished with {kind!r} and no token at all; there is nothing to train on"
        )
    return Completion(
        token_ids=token_ids,
        log_probs=log_probs,
        finish_reason=kind,
        matched=matched,
        text=_text(answer),
        request_id=request_id,
        weight_versions=_weight_versions(meta),
        prompt_tokens=int(meta.get("prompt_tokens") or 0),
        cached_tokens=int(meta.get("cached_tokens") or 0),
        meta_info={key: value for key, value in meta.items() if key != "output_token_logprobs"},
        carried=Carried(spec=SpecCounts.read(meta)),
    )


def aborted_completion(request_id: str) -> Completion:
    """The turn of a request that was aborted before the engine returned anything of it."""
    return Completion([], [], "abort", None, "", request_id, [], 0, 0, {})


class StreamReader:
    """Folds the events of one stream, cumulative or incremental, into deltas and one Completion."""

    def __init__(self, request_id: str, on_delta: Callable[[Delta], None]) -> None:
        self.request_id = request_id
        self.completion: Completion | None = None
        self.cumulative = False
        self._on_delta = on_delta
        self._token_ids: list[int] = []
        self._log_probs: list[float] = []
        self._text = ""

    @property
    def tokens_seen(self) -> int:
        return len(self._token_ids)

    def feed(self, event: Any) -> None:
        """Take one event and report what is new in it. Raises EngineProtocolError."""
        meta = _meta_info(event)
        seen = self.tokens_seen
        if meta.get("output_token_logprobs") is None:
            _tokens(event, meta)  # raises, unless nothing was sampled yet
        count = len(meta.get("output_token_logprobs") or ())
        total = meta.get("completion_tokens", count)
        if count == total:
            self.cumulative = self.cumulative or seen > 0
            token_ids, log_probs = _tokens(event, meta, offset=seen)
            text = _text(event)[len(self._text) :]
            self._text = _text(event)
        elif seen + count == total:
            token_ids, log_probs = _tokens(event, meta)
            text = _text(event)
            self._text += text
        else:
            raise EngineProtocolError(
                f"a streamed event of {count} tokens follows {seen} tokens and counts {total} in all"
            )
        self._token_ids += token_ids
        self._log_probs += log_probs
        if meta.get("finish_reason") is not None:
            self.completion = read_completion(self._whole(event, meta), self.request_id)
        if token_ids or text:
            self._on_delta(Delta(token_ids, log_probs, text))

    def _whole(self, last: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of a plain request. A cumulative last event must repeat the ids that were reported."""
        entries = list(zip(self._log_probs, self._token_ids, strict=True))
        whole = {"text": self._text, "meta_info": {**meta, "output_token_logprobs": entries}}
        if self.cumulative and "output_ids" in last:
            whole["output_ids"] = last["output_ids"]
        return whole


class EventSplitter:
    """Cuts a server-sent-event byte stream into the payloads of its `data:` lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield each payload that `chunk` completes."""
        searched = len(self._rest)
        self._rest += chunk
        while (end := self._rest.find(b"\n", searched)) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            searched = 0
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _meta_info(answer: Any) -> Mapping[str, Any]:
    meta = answer.get("meta_info") if isinstance(answer, Mapping) else None
    if not isinstance(meta, Mapping):
        raise EngineProtocolError("the engine's answer has no meta_info; is this SGLang's /generate?")
    return meta


def _text(answer: Mapping[str, Any]) -> str:
    text = answer.get("text") or ""
    if not isinstance(text, str):
        raise EngineProtocolError(f"the engine's text is not a string but {type(text).__name__}")
    return text


def _finish(meta: Mapping[str, Any]) -> tuple[FinishReason, str | int | None]:
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, Mapping) else reason
    for known in get_args(FinishReason):
        if kind == known:
            return known, reason.get("matched") if isinstance(reason, Mapping) else None
    raise EngineProtocolError(f"the engine's answer has no known finish_reason but {reason!r}")


def _tokens(
    answer: Mapping[str, Any], meta: Mapping[str, Any], offset: int = 0
) -> tuple[list[int], list[float]]:
    """The ids [T - offset] and log-probabilities of one answer or event, checked against each other."""
    output_ids = answer.get("output_ids")
    entries = meta.get("output_token_logprobs")
    if entries is None:
        # SGLang sends neither when a request is aborted in the waiting queue
        if not output_ids and (_is_abort(meta) or meta.get("finish_reason") is None):
            return [], []
        raise EngineProtocolError(
            "the engine's answer has no output_token_logprobs and cannot be trained on; "
            "look for a gateway that strips them"
        )
    try:
        log_probs = [entry[0] for entry in entries[offset:]]
        token_ids = [entry[1] for entry in entries[offset:]]
    except (TypeError, LookupError) as error:
        raise EngineProtocolError("output_token_logprobs is not a list of [log_prob, id, text]") from error
    for position, (token_id, log_prob) in enumerate(zip(token_ids, log_probs, strict=True), start=offset):
        if not isinstance(token_id, int) or token_id < 0:
            raise EngineProtocolError(f"the id of output token {position} is {token_id!r}, not a token id")
        if not isinstance(log_prob, int | float) or not math.isfinite(log_prob):
            raise EngineProtocolError(f"the log-probability of output token {position} is {log_prob!r}")
    if output_ids is not None and list(output_ids[offset:]) != token_ids:
        raise EngineProtocolError(
            f"output_ids ({len(output_ids)}) and the ids of output_token_logprobs ({len(entries)}) differ"
        )
    return token_ids, log_probs


def _is_abort(meta: Mapping[str, Any]) -> bool:
    reason = meta.get("finish_reason")
    return isinstance(reason, Mapping) and reason.get("type") == "abort"


def _weight_versions(meta: Mapping[str, Any]) -> list[str]:
    """Distinct versions in order: a list of names or of `{"version", "start", "end"}` spans, or one name."""
    spans = meta.get("weight_versions")
    if not isinstance(spans, list):
        spans = [meta.get("weight_version")]
    names = (span.get("version") if isinstance(span, Mapping) else span for span in spans)
    return list(dict.fromkeys(str(name) for name in names if name is not None))
