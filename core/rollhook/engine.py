"""The inference engine as rollhook sees it, and the client for SGLang's native HTTP API.

Invariants of `SGLangClient.generate`: every attempt has a fresh request id, because SGLang refuses an id that
is alive; nothing is sampled again once a token was received; and an attempt that is left before its answer
is complete (retry, deadline, cancellation, a callback that raised) is aborted on the server first.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self

import aiohttp

from rollhook.errors import (
    ConfigError,
    EngineError,
    EngineProtocolError,
    EngineRejected,
    EngineUnavailable,
)
from rollhook.gateway import ROUTING_HEADER, list_workers
from rollhook.wire import (
    Completion,
    Delta,
    EventSplitter,
    Refusal,
    StreamReader,
    aborted_completion,
    error_message,
    parse_json,
    read_completion,
    refusal_in,
    retry_after_s,
)

__all__ = ["Completion", "Delta", "Engine", "SGLangClient"]

EXACT_SAMPLING = {"no_stop_trim": True, "skip_special_tokens": False, "spaces_between_special_tokens": False}
IDLE_CONNECTION_S = 3.0  # below SGLang's 5 s: a longer-lived pool would post into closed connections
CONNECT_TIMEOUT_S = 10.0
CONTROL_TIMEOUT_S = 10.0
ABORT_TIMEOUT_S = 2.0
ABORT_GRACE_S = 5.0
ABORTS_AT_ONCE = 64  # behind a gateway each is told to every worker, which is many sockets for a whole batch
ABORTS_AT_ONCE = 16
MAX_BACKOFF_S = 30.0
ONE_PIECE_BYTES = 2**18


class Engine(Protocol):
    """What the rest of rollhook needs of an inference engine."""

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
        """Sample one turn after `input_ids`.

        sampling: the engine's sampling parameters. session: requests of one session go to one worker.
        extra: further fields of the request. Raises EngineUnavailable, EngineRejected, EngineProtocolError.
        """
        ...

    async def abort(self, session: str | None = None) -> None:
        """End the live requests of a session (None: all); their `generate` returns the part with "abort"."""
        ...

    async def model_info(self) -> dict[str, Any]:
        """What the engine says of its model: model_path, tokenizer_path, weight_version, ..."""
        ...


class SGLangClient:
    """One pooled client for one engine URL (a server or a gateway). Use it with `async with`.

    retries: further attempts after refused connections, 5xx, 429 and requests cut before any token came.
    backoff_s: the first wait between attempts; it doubles, is jittered, and yields to Retry-After.
    connections: how many generate requests are in flight at once; more wait for their turn.
    request_timeout_s: bounds a call, with all its attempts and waits, that gives no timeout_s of its own.
    """

    def __init__(
        self,
        url: str,
        *,
        retries: int = 5,
        backoff_s: float = 0.25,
        connections: int = 256,
        request_timeout_s: float = 600.0,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"engine URL {url!r} must begin with http:// or https://")
        self.url = url.rstrip("/")
        self.retries = retries
        self.backoff_s = backoff_s
        self.request_timeout_s = request_timeout_s
        self._http: aiohttp.ClientSession | None = None
        self._behind_gateway = False
        self._abort_slots = asyncio.Semaphore(ABORTS_AT_ONCE)
        self._slots = asyncio.Semaphore(connections)
        self._calls: set[_Call] = set()
        self._aborting: set[asyncio.Task[bool]] = set()
        self._random = random.Random()  # jitter only: must differ between clients, never seeded by a run

    async def __aenter__(self) -> Self:
        # The pool itself is unbounded (`_slots` bounds generation), so that an abort never queues behind
        # the requests it is meant to end.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        self._http = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.abort()
        if self._aborting:
            await asyncio.wait(self._aborting, timeout=ABORT_TIMEOUT_S)
        http, self._http = self._session(), None
        await http.close()

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
        """Sample one turn after `input_ids`; see `Engine.generate`.

        Streams only when `on_delta` is given: SGLang's stream repeats the whole answer in every event, so
        its cost is quadratic in the turn, and a plain request is linear. `on_delta` must not block.
        """
        limit_s = self.request_timeout_s if timeout_s is None else timeout_s
        call = _Call(session, _request_tail(input_ids, sampling, extra, stream=on_delta is not None))
        self._calls.add(call)
        try:
            async with asyncio.timeout(limit_s) as call.scope:
                return await self._attempts(call, on_delta)
        except TimeoutError as error:
            if not call.scope.expired():
                raise
            if call.aborted:
                return aborted_completion(call.request_id)
            raise EngineUnavailable(
                f"{self.url}: no complete answer in {limit_s:g} s and {call.attempts} attempts; aborted"
            ) from error
        finally:
            self._calls.discard(call)
            call.ended.set()

    async def abort(self, session: str | None = None) -> None:
        """End live requests of `session` (None: all of this client); returns when they have ended.

        The abort is repeated while a call lives, as it may overtake its request. A gateway, which knows no
        `/abort_request`, is asked for its workers, and these are told. An engine that does not react in 5 s
        loses the part it had sampled: the connection is closed, and `generate` returns an empty turn with
        "abort".
        """
        calls = [call for call in self._calls if session is None or call.session == session]
        slots = asyncio.Semaphore(ABORTS_AT_ONCE)
        await asyncio.gather(*(self._abort_call(call, slots) for call in calls))

    async def model_info(self) -> dict[str, Any]:
        """`/get_model_info`, or `/model_info` where the server has dropped the older name."""
        path = "/get_model_info"
        status, body = await self._get(path)
        if status == 404:
            path = "/model_info"
            status, body = await self._get(path)
        if status != 200:
            _raise_status(self.url + path, status, error_message(body))
        info = parse_json(body)
        if not isinstance(info, dict):
            raise EngineProtocolError(f"{self.url}{path}: {type(info).__name__} instead of a JSON object")
        return info

    async def wait_ready(self, timeout_s: float, *, poll_s: float = 0.2) -> None:
        """Return once `/health` answers 200. Raises EngineUnavailable with the last cause after timeout_s."""
        cause: object = "not asked yet"
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        status, _ = await self._get("/health")
                    except EngineUnavailable as error:
                        cause = error
                    else:
                        if status == 200:
                            return
                        cause = f"status {status}"
                    await asyncio.sleep(poll_s)
        except TimeoutError as error:
            raise EngineUnavailable(
                f"{self.url}/health: the engine is not ready after {timeout_s:g} s ({cause})"
            ) from error

    async def _attempts(self, call: _Call, on_delta: Callable[[Delta], None] | None) -> Completion:
        for attempt in range(self.retries + 1):
            try:
                async with self._slots:
                    call.attempts += 1
                    call.request_id = uuid.uuid4().hex
                    return await self._attempt(call, on_delta)
            except _Retryable as failure:
                call.request_id = ""
                if call.aborted:
                    return aborted_completion("")
                if attempt == self.retries:
                    raise EngineUnavailable(
                        f"{self.url}: {failure} (after {call.attempts} attempts)"
                    ) from failure
                await asyncio.sleep(self._backoff(attempt, failure.wait_s))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _attempt(self, call: _Call, on_delta: Callable[[Delta], None] | None) -> Completion:
        """One POST /generate. Leaves no request behind on the server unless its answer is complete."""
        alive = True
        try:
            async with self._session().post(
                f"{self.url}/generate",
                data=_payload(b'{"rid":"%s",%s' % (call.request_id.encode(), call.tail)),
                headers={"Content-Type": "application/json", ROUTING_HEADER: call.session},
            ) as response:
                if response.status != 200:
                    message = error_message(await response.read())
                    alive = response.status >= 500  # a gateway's 502 or 504 says nothing of the worker
                    self._refuse(Refusal(response.status, message), response.headers.get("Retry-After"))
                if on_delta is None:
                    completion = await self._read_plain(call, response)
                else:
                    completion = await self._read_stream(call, response, on_delta)
                alive = False
                return completion
        except aiohttp.ClientConnectorError as error:
            alive = False
            raise _Retryable(f"cannot connect: {error}") from error
        except aiohttp.ClientError as error:
            raise _Retryable(f"cut before an answer came: {type(error).__name__}: {error}") from error
        finally:
            if alive:
                await self._abort_shielded(call.request_id)

    async def _read_plain(self, call: _Call, response: aiohttp.ClientResponse) -> Completion:
        body = bytearray()
        try:
            async for chunk in response.content.iter_any():
                body += chunk
        except aiohttp.ClientError as error:
            if not body:
                raise
            raise EngineUnavailable(
                f"{self.url}: the answer was cut after {len(body)} bytes: {error}"
            ) from error
        answer = parse_json(body)
        if refusal := refusal_in(answer):
            self._refuse(refusal)
        return read_completion(answer, call.request_id)

    async def _read_stream(
        self, call: _Call, response: aiohttp.ClientResponse, on_delta: Callable[[Delta], None]
    ) -> Completion:
        reader = StreamReader(call.request_id, on_delta)
        splitter = EventSplitter()
        cause: object = "the stream ended without a finish_reason"
        try:
            async for chunk in response.content.iter_any():
                payloads = [payload for payload in splitter.feed(chunk) if payload != b"[DONE]"]
                if reader.cumulative:  # the newest event holds all the others
                    payloads = payloads[-1:]
                for payload in payloads:
                    self._feed(reader, parse_json(payload))
        except aiohttp.ClientError as error:
            cause = error
        if reader.completion is not None:
            return reader.completion
        if reader.tokens_seen == 0:
            raise _Retryable(f"cut before any token: {cause}")
        raise EngineUnavailable(f"{self.url}: the stream was cut after {reader.tokens_seen} tokens: {cause}")

    def _feed(self, reader: StreamReader, event: Any) -> None:
        if refusal := refusal_in(event):
            if reader.tokens_seen:
                raise EngineUnavailable(
                    f"{self.url}: the engine gave up after {reader.tokens_seen} tokens: {refusal.message}"
                )
            self._refuse(refusal)
        reader.feed(event)

    def _refuse(self, refusal: Refusal, retry_after: str | None = None) -> NoReturn:
        if refusal.status == 429 or refusal.status >= 500:
            raise _Retryable(f"status {refusal.status}: {refusal.message}", retry_after_s(retry_after))
        _raise_status(f"{self.url}/generate", refusal.status, refusal.message)

    def _backoff(self, attempt: int, wait_s: float | None) -> float:
        """Seconds to wait after failed attempt number `attempt` (from 0)."""
        if wait_s is not None:
            return min(wait_s, MAX_BACKOFF_S)
        return min(self.backoff_s * 2.0**attempt, MAX_BACKOFF_S) * self._random.uniform(0.5, 1.0)

    async def _abort_call(self, call: _Call, slots: asyncio.Semaphore) -> None:
        """End one call. slots: so that many aborts share few connections, where each would open its own."""
        call.aborted = True
        pause_s = 0.05
        with suppress(TimeoutError):
            async with asyncio.timeout(ABORT_GRACE_S):
                while call.request_id:
                    async with slots:
                        if call.ended.is_set() or not await self._post_abort(call.request_id):
                            break
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause_s):
                            await call.ended.wait()
                        return
                    pause_s *= 2
        call.interrupt()
        await call.ended.wait()

    async def _abort_shielded(self, request_id: str) -> None:
        """Tell the server to drop a request, even while this task is being cancelled, also twice."""
        task = asyncio.create_task(self._post_abort(request_id))
        self._aborting.add(task)  # awaited at close if this task cannot wait for it
        task.add_done_callback(self._aborting.discard)
        await asyncio.shield(task)

    async def _post_abort(self, request_id: str) -> bool:
        """Whether a server took the abort; one that is away has nothing left to abort."""
        try:
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                if not self._behind_gateway:
                    status = await self._abort_at(self.url, request_id)
                    if status != 404:
                        return status == 200
                workers = await list_workers(self._session(), self.url)
                self._behind_gateway = bool(workers)
                statuses = await asyncio.gather(
                    *(self._abort_at(worker.url, request_id) for worker in workers)
                )
                return 200 in statuses
        except (aiohttp.ClientError, OSError):  # OSError includes TimeoutError
            return False

    async def _abort_at(self, url: str, request_id: str) -> int:
        """The status that one server answers an abort with; 0 for a server that cannot be reached."""
        try:
            async with (
                self._abort_slots,
                self._session().post(f"{url}/abort_request", json={"rid": request_id}) as response,
            ):
                return response.status
        except aiohttp.ClientError:
            return 0

    async def _get(self, path: str) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT_S), self._session().get(self.url + path) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"{self.url}{path}: {type(error).__name__}: {error}") from error

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise RuntimeError("SGLangClient is not open; use it inside `async with`")
        return self._http


class _Call:
    """One `generate` call: what abort and the deadline need to know of it."""

    def __init__(self, session: str, tail: bytes) -> None:
        self.session = session
        self.tail = tail
        self.attempts = 0
        self.request_id = ""  # of the attempt on the wire; empty while none is
        self.aborted = False
        self.ended = asyncio.Event()
        self.scope = asyncio.timeout(None)

    def interrupt(self) -> None:
        """End whatever the call waits for, as its deadline would."""
        if not self.ended.is_set() and not self.scope.expired():
            self.scope.reschedule(asyncio.get_running_loop().time())


class _Retryable(Exception):
    """An attempt failed before any token came; another may succeed."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def _request_tail(
    input_ids: Sequence[int], sampling: Mapping[str, Any], extra: Mapping[str, Any] | None, *, stream: bool
) -> bytes:
    """The request's JSON after `{"rid": ...,`: made once for all attempts, as it grows with the prompt."""
    body = {
        **(extra or {}),
        "input_ids": input_ids.tolist() if isinstance(input_ids, array) else list(input_ids),
        "sampling_params": {**sampling, **EXACT_SAMPLING},
        "return_logprob": True,
        "stream": stream,
    }
    body.pop("rid", None)
    return json.dumps(body, separators=(",", ":")).encode()[1:]


def _payload(body: bytes) -> bytes | BytesIO:
    """As a stream where it is long: aiohttp warns of bytes over 1 MiB, and would send them in one piece."""
    return body if len(body) < ONE_PIECE_BYTES else BytesIO(body)


def _raise_status(where: str, status: int, message: str) -> NoReturn:
    error: type[EngineError] = EngineUnavailable if status == 429 or status >= 500 else EngineRejected
    raise error(f"{where}: status {status}: {message}")
