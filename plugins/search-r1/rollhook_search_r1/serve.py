"""The retrieval service: POST /retrieve, in the form of Search-R1's own server, over a corpus of passages.

Invariant: every request gets one list for each of its queries, in their order, or a status that says why not.
Source of the form: the public code of arXiv 2503.09516 and the clients written against it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, Field, ValidationError

from rollhook_search_r1.batching import Batched
from rollhook_search_r1.protocol import Hit

MAX_BODY_BYTES = 16 * 2**20
SHUTDOWN_S = 1.0


class RetrieveRequest(BaseModel):
    """The body of a request; other keys are ignored. topk: None or 0 means the service's own."""

    queries: Annotated[list[str], Field(max_length=4096)]
    topk: int | None = Field(None, ge=0, le=1000)
    return_scores: bool = False


def make_app(batched: Batched, *, topk: int) -> web.Application:
    """The service as an application. topk: passages for a request that names no number."""

    async def retrieve(http: web.Request) -> web.Response:
        try:
            asked = RetrieveRequest.model_validate_json(await http.read())
        except ValidationError as error:
            detail = error.errors(include_url=False, include_context=False, include_input=False)
            return web.json_response({"detail": detail}, status=422)
        found = await _find(batched, asked.queries, asked.topk or topk)
        result = [[_document(hit, scored=asked.return_scores) for hit in hits] for hits in found]
        return web.json_response({"result": result})

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post("/retrieve", retrieve)
    return app


@asynccontextmanager
async def serving(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Listen, and give the endpoint's URL. port: 0 means any free one. Raises OSError."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound = runner.addresses[0][1]
        named = f"[{host}]" if ":" in host else host
        yield f"http://{named}:{bound}/retrieve"
    finally:
        await runner.cleanup()


async def _find(batched: Batched, queries: list[str], topk: int) -> list[tuple[Hit, ...]]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(batched.find(query, topk)) for query in queries]
    return [task.result() for task in tasks]


def _document(hit: Hit, *, scored: bool) -> dict[str, Any]:
    passage = hit.passage
    document = {"contents": passage.contents, "title": passage.title, "text": passage.text}
    if passage.id is not None:
        document["id"] = passage.id
    return {"document": document, "score": hit.score} if scored else document
