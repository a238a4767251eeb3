"""The wire: SGLang's native HTTP API over a worker.

Invariant: whatever a client sends gets an answer in SGLang's form and status; a client that goes away ends
its request; a rid names at most one live request.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from rollhook.embedded.params import GenerateRequest, InvalidRequest, parse_request
from rollhook.embedded.worker import Stream, Worker
from rollhook.errors import EngineError, EngineUnavailable

WEIGHT_VERSION = "default"  # what SGLang reports for weights that were never updated
_MAX_BODY_BYTES = 64 << 20
_MAX_LIVE = 4096  # requests running or queued; each queued one holds only its ids


class EngineServer:
    """Handlers over one worker; `app()` is what a runner serves."""

    def __init__(self, worker: Worker, model_path: Path, context_len: int) -> None:
        self._worker = worker
        self._model_path = model_path
        self._context_len = context_len
        self._live: set[str] = set()

    @property
    def live(self) -> int:
        """Requests that run or wait."""
        return len(self._live)

    def app(self) -> web.Application:
        """The application. Its runner must cancel handlers when a client disconnects."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors])
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_route("*", "/flush_cache", self._flush)
        for path in ("/health", "/health_generate"):
            app.router.add_get(path, self._health)
        for path in ("/get_model_info", "/model_info"):
            app.router.add_get(path, self._model_info)
        for path in ("/get_server_info", "/server_info"):
            app.router.add_get(path, self._server_info)
        app.router.add_get("/v1/models", self._models)
        return app

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        request = parse_request(await _json(http))
        rid = request.rid or uuid.uuid4().hex
        if rid in self._live:
            raise InvalidRequest(f"rid {rid!r} is alive: abort it first, or send a fresh one")
        if len(self._live) >= _MAX_LIVE:
            raise EngineUnavailable(f"{_MAX_LIVE} requests are running or queued; try again later")
        self._live.add(rid)
        finished = False
        try:
            answers = self._answers(request, rid, await self._worker.submit(request, rid))
            if request.stream:
                response = await _send_events(http, answers)
            else:
                response = web.json_response([answer async for answer in answers][-1])
            finished = True
            return response
        finally:
            if not finished:
                self._worker.abort(rid)
            self._live.discard(rid)

    async def _answers(
        self, request: GenerateRequest, rid: str, stream: Stream
    ) -> AsyncIterator[dict[str, Any]]:
        """The answer so far, again and again: each holds everything up to then, the last one all."""
        async for snapshot in stream:
            tokens = len(snapshot.output_ids)
            meta: dict[str, Any] = {
                "id": rid,
                "finish_reason": snapshot.finish,
                "prompt_tokens": snapshot.prompt_tokens,
                "completion_tokens": tokens,
                "cached_tokens": snapshot.cached_tokens,
                "weight_version": WEIGHT_VERSION,
                "weight_versions": [{"version": WEIGHT_VERSION, "start": 0, "end": tokens}],
                "e2e_latency": snapshot.elapsed_s,
            }
            if request.return_logprob:
                meta["output_token_logprobs"] = [
                    [logprob, token, None]
                    for logprob, token in zip(snapshot.logprobs, snapshot.output_ids, strict=True)
                ]
            yield {"text": snapshot.text, "output_ids": snapshot.output_ids, "meta_info": meta}

    async def _abort(self, http: web.Request) -> web.Response:
        body = await _json(http)
        if not isinstance(body, dict):
            raise InvalidRequest("the body must be an object with rid or abort_all")
        rid, everything = body.get("rid") or "", body.get("abort_all") or False
        if not isinstance(rid, str) or not isinstance(everything, bool):
            raise InvalidRequest("rid must be a string and abort_all true or false")
        if everything:
            self._worker.abort(None)
        elif rid in self._live:
            self._worker.abort(rid)
        return web.Response()

    async def _flush(self, http: web.Request) -> web.Response:
        if await self._worker.flush():
            return web.Response(text="Cache flushed.\n")
        return web.Response(status=400, text="Not flushed: requests are running or waiting.\n")

    async def _health(self, http: web.Request) -> web.Response:
        return web.Response(status=200 if self._worker.alive else 503)

    async def _model_info(self, http: web.Request) -> web.Response:
        path = str(self._model_path)
        return web.json_response(
            {
                "model_path": path,
                "served_model_name": path,
                "tokenizer_path": path,
                "is_generation": True,
                "weight_version": WEIGHT_VERSION,
            }
        )

    async def _server_info(self, http: web.Request) -> web.Response:
        path = str(self._model_path)
        return web.json_response({"model_path": path, "context_length": self._context_len, "status": "ready"})

    async def _models(self, http: web.Request) -> web.Response:
        model = {
            "id": str(self._model_path),
            "object": "model",
            "owned_by": "rollhook",
            "max_model_len": self._context_len,
        }
        return web.json_response({"object": "list", "data": [model]})


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors in SGLang's form: {"error": {"message": ...}}."""
    try:
        return await handler(request)
    except InvalidRequest as error:
        return web.json_response({"error": {"message": str(error)}}, status=400)
    except EngineError as error:
        status = 503 if isinstance(error, EngineUnavailable) else 500
        return web.json_response({"error": {"message": str(error)}}, status=status)


async def _json(http: web.Request) -> Any:
    try:
        return json.loads(await http.read())
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from error


async def _send_events(http: web.Request, answers: AsyncIterator[dict[str, Any]]) -> web.StreamResponse:
    """Server-sent events, one per answer, then [DONE]. An error after the first byte becomes an event."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(http)
    try:
        async for answer in answers:
            await response.write(_event(answer))
    except EngineError as error:
        await response.write(_event({"error": {"message": str(error)}}))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


@contextlib.asynccontextmanager
async def serving(app: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Serve `app` while the block runs; yields the port. Raises OSError if it is taken."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
