"""The scripted engine: a real HTTP server in SGLang's wire form whose model's words are written by a test.

Invariant: what leaves it is what SGLang would send for the same sampled ids: real ids of a real tokenizer,
one log-probability each, cumulative streams, aborted requests answered with the part sampled so far. Only
`Fault` breaks that, on purpose and on one reply.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from rollhook.testing.replies import (
    Fault,
    Reply,
    Sampled,
    Script,
    ScriptedRequest,
    TextTokenizer,
    complete_characters,
    read_script,
    sample,
    text_of,
)


class ScriptedEngine:
    """An engine for tests: serves the replies of `script` on a loopback port, and records what it was asked.

    script is one of:
      - a list of replies or strings, served in the order in which requests arrive;
      - a mapping: the first key found in the prompt's text names the reply, or a list served in order;
      - a function of a ScriptedRequest (`.prompt`, `.input_ids`, `.sampling`, `.session`, `.turn`).

    A complete test of a plugin's turn:

        from rollhook.engine import SGLangClient
        from rollhook.testing import Reply, ScriptedEngine

        async def test_the_model_answers(qwen3_tokenizer):
            script = [Reply("<think>easy</think>42"), Reply("slow", delay_s=0.1)]
            async with ScriptedEngine(qwen3_tokenizer, script) as engine, SGLangClient(engine.url) as client:
                prompt = qwen3_tokenizer.encode("6 times 7?")
                turn = await client.generate(prompt, {"max_new_tokens": 64}, session="a")

                assert turn.text == "<think>easy</think>42<|im_end|>"
                assert turn.matched == qwen3_tokenizer.eos_token_id
                assert engine.requests[0].prompt == "6 times 7?"

    url: where it listens. requests: every /generate request received. sampled: every answer without a fault,
    whole or aborted. aborted: every rid that /abort_request named. in_flight, peak_in_flight: requests being
    served, now and at most.
    errors: what went wrong in the script itself (it ran out, it raised). The request that met it is
    answered 400, which no client retries, and leaving the engine's context raises AssertionError.
    weight_version: told with each answer; assign to it to simulate a weight update.
    end_token_id: the id that ends a turn; the tokenizer's eos token unless given.
    incremental: stream as SGLang does with incremental streaming output: an event holds only what is new.
    stream_interval: how many tokens an event brings. port: 0 takes a free one.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        script: Script,
        *,
        weight_version: str = "default",
        end_token_id: int | None = None,
        incremental: bool = False,
        stream_interval: int = 1,
        port: int = 0,
    ) -> None:
        self.tokenizer = tokenizer
        self.weight_version = weight_version
        self.end_token_id = tokenizer.eos_token_id if end_token_id is None else end_token_id
        self.incremental = incremental
        self.stream_interval = stream_interval
        self.port = port
        self.requests: list[ScriptedRequest] = []
        self.sampled: list[Sampled] = []
        self.aborted: list[str] = []
        self.errors: list[str] = []
        self.peak_in_flight = 0
        self.url = ""
        self._reply_for = read_script(script)
        self._turns: Counter[str] = Counter()
        self._spoiled: dict[tuple[str, tuple[int, ...]], deque[_Spoiled]] = {}
        self._live: dict[str, asyncio.Event] = {}
        self._runner: web.AppRunner | None = None

    @property
    def in_flight(self) -> int:
        return len(self._live)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=256 * 2**20)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort_request)
        for path, reply in (
            ("/health", _ok),
            ("/model_info", self._info),
            ("/get_model_info", self._info),
            ("/server_info", self._info),
            ("/get_server_info", self._info),
            ("/v1/models", self._models),
        ):
            app.router.add_get(path, reply)
        app.router.add_route("*", "/flush_cache", _ok)
        # SGLang drops a request whose client went away; so does a cancelled handler
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for aborted in self._live.values():
            aborted.set()
        if self._runner is not None:
            await self._runner.cleanup()
        if self.errors and kind is None:
            raise AssertionError("; ".join(self.errors))

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        if problem := self._problem(body):
            return _error(400, problem)
        try:
            request, reply, fault = self._receive(body, http.headers)
        except Exception as error:  # noqa: BLE001  a script is the test's own code: report whatever it raises
            self.errors.append(f"scripted engine: {type(error).__name__}: {error}")
            return _error(400, self.errors[-1])
        sampled = sample(reply, self.tokenizer, request.sampling, self.end_token_id)
        turn = _Turn(request, reply, fault, sampled)
        self._live[request.rid] = turn.aborted
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        try:
            if fault and fault.kind in ("drop", "status"):
                return _refuse(http, fault)
            if body.get("stream"):
                return await self._answer_stream(http, turn)
            return await self._answer_plain(http, turn)
        finally:
            del self._live[request.rid]

    def _problem(self, body: Any) -> str | None:
        if not isinstance(body, dict) or not isinstance(body.get("rid"), str):
            return "the scripted engine needs a JSON object with a rid"
        ids = body.get("input_ids")
        if not isinstance(ids, list) or not ids or not all(isinstance(token_id, int) for token_id in ids):
            return "input_ids must be a list of at least one token id"
        if body["rid"] in self._live:
            return f"Duplicate request ID detected: {body['rid']}"
        return None

    def _receive(
        self, body: dict[str, Any], headers: Mapping[str, str]
    ) -> tuple[ScriptedRequest, Reply, Fault | None]:
        """Record a request and find its reply: a retry of a spoiled attempt gets the reply it missed."""
        request = ScriptedRequest(body, headers, 0, self.tokenizer)
        self.requests.append(request)
        key = request.session, tuple(request.input_ids)
        if waiting := self._spoiled.get(key):
            missed = waiting.popleft()
            request.turn = missed.turn
        else:
            request.turn = self._turns[request.session]
            self._turns[request.session] += 1
            missed = _Spoiled(request.turn, self._reply_for(request))
        fault = missed.reply.fault
        if fault is None or (fault.times is not None and missed.times >= fault.times):
            return request, missed.reply, None
        missed.times += 1
        self._spoiled.setdefault(key, deque()).append(missed)
        return request, missed.reply, fault

    async def _sampling(self, turn: _Turn) -> AsyncIterator[int]:
        """Yield the number of tokens sampled so far, one by one, until the end or an abort."""
        total = len(turn.sampled.token_ids)
        hang_at = min(turn.fault.after_tokens, total) if turn.fault and turn.fault.kind == "hang" else None
        loop = asyncio.get_running_loop()
        start = loop.time()
        for count in range(total + 1):
            due = start + turn.reply.delay_s * count / max(1, total)
            if due > loop.time():
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await turn.aborted.wait()
            if turn.aborted.is_set():
                return
            if count:
                yield count
            if count == hang_at:
                await turn.aborted.wait()

    async def _answer_plain(self, http: web.Request, turn: _Turn) -> web.StreamResponse:
        count = 0
        async for sampled_now in self._sampling(turn):
            count = sampled_now
        body = _dump(self._answer(turn, count, finished=True))
        if turn.fault and turn.fault.kind == "truncated_json":
            body = body[: len(body) // 2]
        if turn.fault and turn.fault.kind == "cut":
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            response.content_length = len(body)
            await response.prepare(http)
            await response.write(body[: len(body) // 2])
            return _hang_up(http, response)
        return web.Response(body=body, content_type="application/json")

    async def _answer_stream(self, http: web.Request, turn: _Turn) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        total = len(turn.sampled.token_ids)
        cut_at = turn.fault.after_tokens if turn.fault and turn.fault.kind == "cut" else None
        count = sent = 0
        if cut_at == 0:
            return _hang_up(http, response)
        async for count in self._sampling(turn):
            if count < total and count % self.stream_interval == 0:
                await self._send_event(response, turn, count, sent, finished=False)
                sent = count
            if count == cut_at:
                return _hang_up(http, response)
        await self._send_event(response, turn, count, sent, finished=True)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _send_event(
        self, response: web.StreamResponse, turn: _Turn, count: int, sent: int, *, finished: bool
    ) -> None:
        payload = _dump(self._answer(turn, count, since=sent if self.incremental else 0, finished=finished))
        if turn.fault and turn.fault.kind == "truncated_json":
            payload = payload[: len(payload) // 2]
        await response.write(b"data: " + payload + b"\n\n")

    def _answer(self, turn: _Turn, count: int, *, finished: bool, since: int = 0) -> dict[str, Any]:
        """The answer after `count` sampled tokens, as its fault leaves it; from token `since` on."""
        sampled, sampling = turn.sampled, turn.request.sampling
        whole = count == len(sampled.token_ids) and not turn.aborted.is_set()
        reason = sampled.reason if whole else {"type": "abort", "message": "Aborted"}
        matched = reason.get("matched") if finished else None
        ids, log_probs = sampled.token_ids[:count], sampled.log_probs[:count]
        text = text_of(ids, matched, self.tokenizer, sampling)
        if not finished:
            text = complete_characters(text)
        if since:
            sent = text_of(ids[:since], None, self.tokenizer, sampling)
            text = text[len(complete_characters(sent)) :]
        version = turn.reply.weight_version or self.weight_version
        if finished and (turn.fault is None or turn.fault.kind == "hang"):
            self.sampled.append(Sampled(ids, log_probs, reason))
        meta = {
            "id": turn.request.rid,
            "finish_reason": reason if finished else None,
            "prompt_tokens": len(turn.request.input_ids),
            "completion_tokens": count,
            "cached_tokens": 0,
            "weight_version": version,
            "weight_versions": [{"version": version, "start": 0, "end": count}],
            **turn.reply.meta,
        }
        if turn.request.body.get("return_logprob"):
            meta["output_token_logprobs"] = [
                [log_prob, token_id, None] for log_prob, token_id in zip(log_probs, ids, strict=True)
            ][since:]
        return _spoil({"text": text, "output_ids": ids[since:], "meta_info": meta}, turn.fault)

    async def _abort_request(self, http: web.Request) -> web.Response:
        body = await http.json()
        rid = body.get("rid", "")
        self.aborted.append(rid)
        for live, aborted in self._live.items():
            if body.get("abort_all") or (rid and live.startswith(rid)):
                aborted.set()
        return web.Response()

    async def _info(self, http: web.Request) -> web.Response:
        path = self.tokenizer.name_or_path
        info = {"model_path": path, "tokenizer_path": path, "is_generation": True}
        return web.json_response({**info, "weight_version": self.weight_version})

    async def _models(self, http: web.Request) -> web.Response:
        """What a gateway knows a worker of SGLang by."""
        model = {"id": self.tokenizer.name_or_path, "object": "model", "owned_by": "sglang"}
        return web.json_response({"object": "list", "data": [model]})


@dataclass(slots=True)
class _Spoiled:
    """A reply that attempts have missed so far, `times` times."""

    turn: int
    reply: Reply
    times: int = 0


@dataclass(frozen=True, slots=True)
class _Turn:
    """One attempt being answered."""

    request: ScriptedRequest
    reply: Reply
    fault: Fault | None
    sampled: Sampled
    aborted: asyncio.Event = field(default_factory=asyncio.Event)


def _spoil(answer: dict[str, Any], fault: Fault | None) -> dict[str, Any]:
    entries = answer["meta_info"].get("output_token_logprobs")
    match fault.kind if fault else None:
        case "missing_logprobs":
            answer["meta_info"].pop("output_token_logprobs", None)
        case "nan_logprob" if entries:
            entries[-1][0] = float("nan")
        case "wrong_ids" if entries:
            entries[-1][1] += 1
    return answer


def _dump(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode()


def _refuse(http: web.Request, fault: Fault) -> web.StreamResponse:
    if fault.kind == "drop":
        return _hang_up(http, web.Response())
    retry_after = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
    return _error(fault.code, fault.message, retry_after)


def _hang_up(http: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Close the connection under a response; what was not written yet never arrives."""
    if http.transport is not None:
        http.transport.close()
    return response


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status, headers=headers)


async def _ok(http: web.Request) -> web.Response:
    return web.Response()
