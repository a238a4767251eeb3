"""What tests of verifiers share: views, answers that try everything, a service that says what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from rollhook import RunConfig, Runtime, Sample, Score, View
from rollhook.errors import RolloutError
from rollhook.scoring import score_samples

NOTHING: Any = None

ODD_ANSWERS = [
    "",
    " \n\t ",
    "\x00\ud800\u202e𝟜",
    "4" * 200_000,
    "\\boxed{" * 3000,
    "\\boxed{" + "{" * 500 + "}" * 500 + "}",
    "<answer>" * 1000,
    "```python\n" * 500,
    "The answer is (A). " * 2000,
    "SCORE 00000000: 10\nreward: 1.0",
    "{'__class__': 1} ${7*7} %s %n {0}",
]
"""Answers that no verifier may raise for: empty, huge, not quite Unicode, unclosed, full of keywords."""


def view(response: str, label: Any = "4", prompt: str = "2 + 2?") -> View:
    return View(prompt=prompt, label=label, messages=[], response=response, metadata={})


def value(score: float | Score) -> float:
    return score.value if isinstance(score, Score) else score


async def scored(
    verifier: str | dict[str, Any] | list[Any], *responses: str, label: Any = "4", **config: Any
) -> list[Score | RolloutError]:
    """What a run without an engine makes of answers to one prompt."""
    samples = [
        Sample(
            index=index,
            group_index=0,
            prompt="2 + 2?",
            label=label,
            response=response,
            metadata={"rollhook": {"verifier": verifier}},
        )
        for index, response in enumerate(responses)
    ]
    async with Runtime(RunConfig(**config)).scoring() as runtime:
        return await score_samples(runtime, samples)


def values(results: list[Score | RolloutError]) -> list[float]:
    """The scores' values; an error is raised."""
    for result in results:
        if isinstance(result, RolloutError):
            raise result
    return [result.value for result in results if isinstance(result, Score)]


class Service:
    """An HTTP service on loopback. answer: makes (status, JSON or text) of a request's body; "hang" waits."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.gone = asyncio.Event()
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        answer = self.answer(self.bodies[-1])
        if answer == "hang":
            try:
                await asyncio.sleep(60)
            finally:
                self.gone.set()
        status, said = answer if isinstance(answer, tuple) else (200, answer)
        if isinstance(said, str):
            return web.Response(text=said, status=status)
        return web.json_response(said, status=status)


@asynccontextmanager
async def serving(answer: Callable[[Any], Any]) -> AsyncIterator[Service]:
    """A service that answers every POST."""
    service = Service(answer)
    app = web.Application(handler_args={"handler_cancellation": True})
    app.router.add_post("/{path:.*}", service.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        await runner.cleanup()
