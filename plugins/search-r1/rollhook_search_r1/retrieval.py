"""Where passages come from: what every source does, and the HTTP service.

Invariant: a retriever answers with passages, says that the service is out (RetrievalOutage), or raises what
is wrong with the set-up; it never answers with nothing because something failed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from rollhook_search_r1.protocol import Passage

FIRST_WAIT_S = 0.1
SHOWN_BODY_CHARS = 200


class RetrievalOutage(Exception):
    """The service gave no answer, after every retry."""


class Retriever(Protocol):
    """Finds passages. Best first, at most `topk`."""

    async def search(self, query: str, topk: int) -> list[Passage]: ...


@dataclass(frozen=True, slots=True)
class RetrieveService:
    """A service that answers POST /retrieve, in the form of Search-R1's own retrieval server.

    url: of the endpoint. timeout_s: one request. retries: further requests after one without an answer
    (refused, cut, silent, 429 or 5xx), each after twice the wait of the one before.
    """

    http: aiohttp.ClientSession
    url: str
    timeout_s: float
    retries: int

    async def search(self, query: str, topk: int) -> list[Passage]:
        """Raises RetrievalOutage without an answer, ValueError for one that is no answer to this request."""
        outage = ""
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(FIRST_WAIT_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
            try:
                return await self._ask(query, topk)
            except (aiohttp.ClientError, TimeoutError, _NoAnswer) as error:
                outage = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise RetrievalOutage(f"{self.url}: no answer in {self.retries + 1} requests; the last: {outage}")

    async def _ask(self, query: str, topk: int) -> list[Passage]:
        question = {"queries": [query], "topk": topk, "return_scores": True}
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        async with self.http.post(self.url, json=question, timeout=timeout) as response:
            if response.status == 429 or response.status >= 500:
                raise _NoAnswer(f"status {response.status}")
            if response.status != 200:
                body = (await response.text(errors="replace"))[:SHOWN_BODY_CHARS]
                raise ValueError(f"{self.url}: status {response.status} for POST /retrieve: {body}")
            try:
                answer = await response.json(content_type=None)
            except ValueError as error:
                raise ValueError(f"{self.url}: the answer is no JSON: {error}") from error
        return [_passage(found, self.url) for found in _found(answer, self.url)[:topk]]


class _NoAnswer(Exception):
    """A status that says: try again."""


def _found(answer: Any, url: str) -> list[Any]:
    """The documents for the one query: `{"result": [[...]]}`."""
    match answer:
        case {"result": [list(found)]}:
            return found
    raise ValueError(
        f'{url}: expected {{"result": [[...]]}} with one list for one query, got {answer!r:.200}'
    )


def _passage(found: Any, url: str) -> Passage:
    """One document, beside its score or alone (as without `return_scores`)."""
    document = found.get("document", found) if isinstance(found, Mapping) else found
    match document:
        case {"contents": str(contents)}:
            return Passage.of(contents)
        case {"title": str(title), "text": str(text)}:
            return Passage(title, text)
    raise ValueError(f'{url}: expected documents with "contents", got {found!r:.200}')
