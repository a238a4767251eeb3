"""JSON over HTTP for verifiers that ask a service: deadlines, retries, bounded answers.

Invariant: a call ends within its deadline, retries included, and at once when it is cancelled; what it raises
names the service, never a header.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import aiohttp
from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field

from rollhook.hookspecs import RunOnly

_MAX_ANSWER_BYTES = 1 << 20
_MAX_PAUSE_S = 30.0
_IDLE_S = 4.0  # servers close idle connections, some after 5 s


class ServiceConfig(BaseModel):
    """A service to ask; for the run configuration alone.

    timeout_s: one call with all its attempts. retries: further attempts after no answer, 429 or 5xx.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: AnyHttpUrl | None = None
    timeout_s: Annotated[float, RunOnly()] = Field(60.0, gt=0, allow_inf_nan=False)
    retries: Annotated[int, RunOnly()] = Field(3, ge=0, le=20)


@asynccontextmanager
async def open_session(connections: int = 1) -> AsyncIterator[aiohttp.ClientSession]:
    """A pool of so many connections."""
    connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=_IDLE_S)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def post_json(
    session: aiohttp.ClientSession,
    url: str,
    body: Any,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    retries: int,
) -> Any:
    """The decoded answer. Raises TimeoutError, ConnectionError after the last attempt, or ValueError for an
    answer that no attempt will mend (another 4xx, no JSON, too long)."""
    try:
        async with asyncio.timeout(timeout_s) as clock:
            for attempt in range(retries + 1):
                try:
                    return await _attempt(session, url, body, headers)
                except _TryAgain as failed:
                    if attempt == retries:
                        raise ConnectionError(f"{url}: {failed} ({attempt + 1} attempts)") from failed
                    pause_s = 0.25 * 2**attempt if failed.pause_s is None else failed.pause_s
                    await asyncio.sleep(min(pause_s, _MAX_PAUSE_S))
    except TimeoutError as error:
        if not clock.expired():
            raise
        raise TimeoutError(f"{url}: no answer within {timeout_s:g} s") from error
    raise AssertionError  # the last attempt returns or raises


class _TryAgain(Exception):
    """An attempt failed in a way that the next may not. pause_s: what the service asked for."""

    def __init__(self, why: str, pause_s: float | None = None) -> None:
        super().__init__(why)
        self.pause_s = pause_s


async def _attempt(session: aiohttp.ClientSession, url: str, body: Any, headers: Mapping[str, str]) -> Any:
    try:
        async with session.post(url, json=body, headers=headers, allow_redirects=False) as response:
            raw = await response.content.read(_MAX_ANSWER_BYTES + 1)
            while len(raw) <= _MAX_ANSWER_BYTES and (more := await response.content.read(_MAX_ANSWER_BYTES)):
                raw += more
    except aiohttp.ClientError as error:
        raise _TryAgain(f"{type(error).__name__}: {error}") from error
    if response.status == 429 or response.status >= 500:
        raise _TryAgain(f"status {response.status}", _pause_s(response.headers.get("Retry-After")))
    if response.status != 200:
        raise ValueError(f"{url}: status {response.status}: {raw[:200].decode('utf-8', 'replace')}")
    if len(raw) > _MAX_ANSWER_BYTES:
        raise ValueError(f"{url}: the answer is longer than {_MAX_ANSWER_BYTES} bytes")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{url}: the answer is not JSON: {raw[:200].decode('utf-8', 'replace')}") from error


def _pause_s(retry_after: str | None) -> float | None:
    """Seconds, where the service named a number of them."""
    return float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else None
