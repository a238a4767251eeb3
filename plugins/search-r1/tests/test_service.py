"""The HTTP service, against real servers on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rollhook_search_r1.protocol import Hit, Passage
from rollhook_search_r1.retrieval import RetrievalOutage, RetrieveService

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def service(
    handler: Handler, *, timeout_s: float = 5.0, retries: int = 2
) -> AsyncIterator[RetrieveService]:
    app = web.Application()
    app.router.add_post("/retrieve", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        async with aiohttp.ClientSession() as http:
            yield RetrieveService(http, f"http://127.0.0.1:{port}/retrieve", timeout_s, retries)
    finally:
        await runner.cleanup()


def answering(*answers: Any) -> tuple[Handler, list[Any]]:
    """A handler that gives one answer after another (an int is a status), and the requests it got."""
    asked: list[Any] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        answer = answers[min(len(asked), len(answers)) - 1]
        if isinstance(answer, int):
            return web.Response(status=answer, text="not today")
        if isinstance(answer, str):
            return web.Response(text=answer)
        return web.json_response(answer)

    return handler, asked


def documents(*contents: str) -> dict[str, Any]:
    return {"result": [[{"document": {"contents": text}, "score": 1.0} for text in contents]]}


async def test_the_request_and_the_answer_have_the_retrieval_servers_form() -> None:
    handler, asked = answering(documents("Lima\nThe capital.", "Peru\nA country."))
    async with service(handler) as search:
        found = await search.search(["capital of Peru"], 2)

    assert asked == [{"queries": ["capital of Peru"], "topk": 2, "return_scores": True}]
    assert found == [[Hit(Passage("Lima", "The capital."), 1.0), Hit(Passage("Peru", "A country."), 1.0)]]


async def test_documents_without_scores_and_with_titles_are_read_too() -> None:
    handler, _ = answering(
        {"result": [[{"contents": "Lima\nThe capital."}, {"id": 7, "title": "Peru", "text": "Land"}]]}
    )
    async with service(handler) as search:
        [found] = await search.search(["q"], 5)

    assert found == [Hit(Passage("Lima", "The capital.")), Hit(Passage("Peru", "Land", "7"))]


async def test_more_documents_than_asked_for_are_cut() -> None:
    handler, _ = answering(documents("a", "b", "c"))
    async with service(handler) as search:
        [found] = await search.search(["q"], 2)

    assert [hit.passage.title for hit in found] == ["a", "b"]


async def test_several_queries_are_one_request() -> None:
    both = [documents(name)["result"][0] for name in ("Lima", "Peru")]
    handler, asked = answering({"result": both})
    async with service(handler) as search:
        found = await search.search(["a", "b"], 3)

    assert [request["queries"] for request in asked] == [["a", "b"]]
    assert [[hit.passage.title for hit in hits] for hits in found] == [["Lima"], ["Peru"]]


async def test_a_shared_request_is_tried_once() -> None:
    handler, asked = answering(503)
    async with service(handler, retries=5) as search:
        with pytest.raises(RetrievalOutage, match="no answer in 1 requests"):
            await search.search(["a", "b"], 3)
    assert len(asked) == 1


@pytest.mark.parametrize("status", [429, 500, 502])
async def test_a_busy_service_is_asked_again(status: int) -> None:
    handler, asked = answering(status, documents("Lima"))
    async with service(handler) as search:
        assert await search.search(["q"], 1) == [[Hit(Passage("Lima", ""), 1.0)]]
    assert len(asked) == 2


async def test_a_service_that_stays_down_is_an_outage() -> None:
    handler, asked = answering(503)
    async with service(handler, retries=1) as search:
        with pytest.raises(
            RetrievalOutage, match=r"/retrieve: no answer in 2 requests; the last: .*status 503"
        ):
            await search.search(["q"], 1)
    assert len(asked) == 2


async def test_a_silent_service_is_an_outage_within_its_time() -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async with service(silent, timeout_s=0.05, retries=0) as search:
        with pytest.raises(RetrievalOutage, match=r"no answer in 1 requests; the last: .*Timeout"):
            await search.search(["q"], 1)


async def test_nobody_listening_is_an_outage() -> None:
    handler, _ = answering(documents("Lima"))
    async with service(handler) as search:
        url = search.url
    async with aiohttp.ClientSession() as http:
        with pytest.raises(RetrievalOutage, match="no answer in 1 requests"):
            await RetrieveService(http, url, 1.0, 0).search(["q"], 1)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (422, "status 422 for POST /retrieve: not today"),
        ("<html>", "the answer is no JSON"),
        ({"results": []}, r'expected {"result": \[\[\.\.\.\]\]}'),
        ({"result": []}, r'expected {"result": \[\[\.\.\.\]\]}'),
        ({"result": [[], []]}, r'expected {"result": \[\[\.\.\.\]\]}'),
        ({"result": [["text"]]}, 'expected documents with "contents"'),
        ({"result": [[{"document": {"body": "x"}}]]}, 'expected documents with "contents"'),
    ],
)
async def test_a_wrong_answer_is_told_at_once_and_not_asked_for_again(answer: Any, why: str) -> None:
    handler, asked = answering(answer)
    async with service(handler) as search:
        with pytest.raises(ValueError, match=why):
            await search.search(["q"], 1)
    assert len(asked) == 1
