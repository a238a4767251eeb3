"""What tells a gateway from a server, and what is said of one that does not say which worker answers."""

from __future__ import annotations

import json
import logging
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rollhook import ConfigError
from rollhook.gateway import check_gateway, list_workers
from tests.unit.engines import app_server, unused_port

TWO = [{"url": "http://a:1"}, {"url": "http://b:2/"}]


def routes(listing: Any, status: int = 200) -> list[web.RouteDef]:
    """A gateway in the form of sglang-router 0.3.2, which names no worker and drops what it does not know."""

    async def workers(request: web.Request) -> web.Response:
        body = listing if isinstance(listing, str) else json.dumps(listing)
        return web.Response(text=body, status=status, content_type="text/plain")

    async def generate(request: web.Request) -> web.Response:
        return web.json_response({"text": "", "meta_info": {"id": (await request.json())["rid"]}})

    return [web.get("/workers", workers), web.post("/generate", generate)]


@pytest.mark.parametrize(
    ("listing", "urls"),
    [
        ({"workers": TWO}, ["http://a:1", "http://b:2"]),
        ({"workers": [{"url": "http://a:1@0"}, {"url": "http://a:1@1"}]}, ["http://a:1"]),
        ({"workers": [{"url": "grpc://a:1"}, {"url": None}, "http://b:2"]}, []),
        ({"workers": []}, []),
        (["http://a:1"], []),
        ("<html>", []),
    ],
)
async def test_workers_are_read_from_what_a_gateway_lists(listing: Any, urls: list[str]) -> None:
    async with app_server(routes(listing)) as url, aiohttp.ClientSession() as http:
        assert [worker.url for worker in await list_workers(http, url)] == urls


async def test_a_server_that_knows_no_workers_is_none() -> None:
    async with app_server(routes({"workers": TWO}, status=403)) as url, aiohttp.ClientSession() as http:
        assert await list_workers(http, url) == []


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("consistent_hashing", None),
        ("manual", None),
        ("cache_aware", "runs the policy cache_aware, which may send the turns of one rollout to different"),
        (None, "does not say which worker answers"),
    ],
)
async def test_a_gateway_that_names_no_worker_is_judged_by_its_policy(
    caplog: pytest.LogCaptureFixture, policy: str | None, said: str | None
) -> None:
    async with app_server(routes({"workers": TWO})) as url:
        with caplog.at_level(logging.WARNING, logger="rollhook.gateway"):
            await check_gateway(url, sampling={}, extra={}, policy=policy)

    assert len(caplog.records) == (said is not None)
    assert said is None or f"the gateway at {url} {said}" in caplog.text


async def test_a_gateway_that_drops_a_field_training_needs_is_refused() -> None:
    async with app_server(routes({"workers": TWO})) as url:
        with pytest.raises(ConfigError, match="either the gateway drops the field"):
            await check_gateway(url, sampling={}, extra={"return_routed_experts": True}, policy=None)


async def test_an_engine_that_is_away_is_left_to_the_first_rollout(caplog: pytest.LogCaptureFixture) -> None:
    await check_gateway(f"http://127.0.0.1:{unused_port()}", sampling={}, extra={}, policy=None)

    assert caplog.records == []


async def test_an_answer_that_is_not_of_the_form_is_left_to_the_first_rollout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def odd(request: web.Request) -> web.Response:
        return web.Response(text="<html>")

    async with app_server([*routes({"workers": TWO})[:1], web.post("/generate", odd)]) as url:
        await check_gateway(url, sampling={}, extra={}, policy=None)

    assert "was not asked for a gateway's habits: JSONDecodeError" in caplog.text
