"""A reward service over real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollhook import Score
from rollhook.errors import ResourceError, RolloutError
from rollhook.items import SpecError
from tests.unit.verifiers.world import Service, scored, serving


async def asked(service: Service, *responses: str, **settings: Any) -> list[Any]:
    given = {"url": service.url, "retries": 1, **settings}
    return await scored("remote", *responses, settings={"rollhook/remote": given})


async def test_the_service_is_sent_what_slimes_remote_rm_sends() -> None:
    async with serving(lambda body: 0.5) as service:
        [score] = await asked(service, "four", headers={"Authorization": "Bearer k"})

    assert score == Score(0.5)
    assert service.bodies == [{"prompt": "2 + 2?", "response": "four", "label": "4"}]
    assert service.headers[0]["Authorization"] == "Bearer k"


async def test_of_an_object_one_field_is_the_score_and_other_numbers_are_parts() -> None:
    async with serving(lambda body: {"acc": 1, "length": 0.25, "ok": True, "why": "text"}) as service:
        [score] = await asked(service, "four", value="acc")

    assert score == Score(1.0, {"length": 0.25})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"score": 1}, "the answer has no finite number 'reward'"),
        (True, "the answer has no finite number 'reward'"),
        ("NaN", "the answer has no finite number 'reward'"),
        ((200, "<html>"), "the answer is not JSON: <html>"),
        ((400, "no such label"), "status 400: no such label"),
        ((503, "busy"), r"status 503 \(2 attempts\)"),
        ((200, "1" * ((1 << 20) + 1)), "the answer is longer than 1048576 bytes"),
    ],
)
async def test_an_answer_without_a_number_is_an_error(answer: Any, message: str) -> None:
    async with serving(lambda body: (200, answer) if answer == "NaN" else answer) as service:
        [error] = await asked(service, "four")

    assert isinstance(error, RolloutError)
    with pytest.raises(RolloutError, match=message):
        raise error


async def test_a_service_that_recovers_is_asked_again() -> None:
    answers: list[Any] = [(503, "busy"), 1.0]
    async with serving(lambda body: answers.pop(0)) as service:
        [score] = await asked(service, "four")

    assert score == Score(1.0)


async def test_nothing_listens_is_an_error_after_the_retries() -> None:
    async with serving(lambda body: 1.0) as service:
        pass
    [error] = await asked(service, "four", retries=0)

    assert (error.stage, error.plugin, error.cause_type) == ("verifier", "rollhook/remote", "ConnectionError")


async def test_a_silent_service_ends_at_its_deadline() -> None:
    async with serving(lambda body: "hang") as service:
        [error] = await asked(service, "four", timeout_s=0.2)

    assert "no answer within 0.2 s" in str(error)


async def test_cancelling_ends_a_call_at_once() -> None:
    async with serving(lambda body: "hang") as service:
        task = asyncio.create_task(asked(service, "four"))
        while not service.bodies:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        async with asyncio.timeout(5):
            await service.gone.wait()

    assert task.cancelled()


async def test_the_url_is_the_runs_to_set() -> None:
    [missing] = await scored("remote", "four")
    [refused] = await scored({"name": "remote", "url": "http://127.0.0.1:9"}, "four")

    assert isinstance(refused, SpecError)
    assert 'a row may not set "url" of rollhook/remote (it holds a URL)' in str(refused)
    assert isinstance(missing, ResourceError)
    assert "the verifier remote has no URL: set settings: {rollhook/remote: {url: ...}}" in str(missing)
