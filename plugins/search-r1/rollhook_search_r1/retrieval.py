"""The HTTP service that finds passages, as a client of it.

Invariant: it answers with passages, says that the service is out (RetrievalOutage), or raises what is wrong
with the set-up; it never answers with nothing because something failed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from rollhook_search_r1.protocol import Hit, Passage

FIRST_WAIT_S = 0.1
SHOWN_BODY_CHARS = 200


class RetrievalOutage(Exception):
    """The service gave no answer, after every retry."""


@dataclass(frozen=True, slots=True)
class RetrieveService:
    """A service that answers POST /retrieve, in the form of Search-R1's own retrieval server.

    url: of the endpoint. timeout_s: one request. retries: further requests after one without an answer
    (refused, cut, silent, 429 or 5xx), each after twice the wait of the one before. Several queries at once
    are tried once: who shared a request without an answer is asked for alone then.
    """

    http: aiohttp.ClientSession
    url: str
    timeout_s: float
    retries: int

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Raises RetrievalOutage without an answer, ValueError for one that is no answer to this request."""
        outage = ""
        attempts = self.retries + 1 if len(queries) == 1 else 1
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(FIRST_WAIT_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
            try:
                return await self._ask(queries, topk)
            except (aiohttp.ClientError, TimeoutError, _NoAnswer) as error:
                outage = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise RetrievalOutage(f"{self.url}: no answer in {attempts} requests; the last: {outage}")

    async def _ask(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        question = {"queries": list(queries), "topk": topk, "return_scores": True}
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
        found = _found(answer, len(queries), self.url)
        return [[_hit(document, self.url) for document in documents[:topk]] for documents in found]


class _NoAnswer(Exception):
    """A status that says: try again."""


def _found(answer: Any, queries: int, url: str) -> list[list[Any]]:
    """The documents for each query: `{"result": [[...], ...]}`."""
    match answer:
        case {"result": [*found]} if len(found) == queries and all(isinstance(one, list) for one in found):
            return found
    raise ValueError(
        f'{url}: expected {{"result": [[...]]}} with one list for each of {queries} queries, '
        f"got {answer!r:.200}"
    )


def _hit(found: Any, url: str) -> Hit:
    """One document, beside its score or alone (as without `return_scores`)."""
    document = found.get("document", found) if isinstance(found, Mapping) else found
    score = found.get("score") if isinstance(found, Mapping) else None
    scored = float(score) if isinstance(score, int | float) else None
    name = document.get("id") if isinstance(document, Mapping) else None
    named = None if name is None else str(name)
    match document:
        case {"contents": str(contents)}:
            return Hit(Passage.of(contents, named), scored)
        case {"title": str(title), "text": str(text)}:
            return Hit(Passage(title, text, named), scored)
    raise ValueError(f'{url}: expected documents with "contents", got {found!r:.200}')
