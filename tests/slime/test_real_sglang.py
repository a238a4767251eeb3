"""The real gateway before a real SGLang server (`make test-sglang`)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from rollhook.gateway import check_gateway
from tests.slime.gateways import gateway, needs_gateway
from tests.unit.engines import client_of

URL = os.environ.get("ROLLHOOK_SGLANG_URL", "").rstrip("/")

pytestmark = [
    needs_gateway,
    pytest.mark.sglang,
    pytest.mark.skipif(not URL, reason="needs a real SGLang server: make test-sglang"),
]

LONG = {"max_new_tokens": 400, "ignore_eos": True, "temperature": 1.0}


async def test_an_abort_through_the_gateway_keeps_the_part(smollm2_tokenizer: Any) -> None:
    prompt = smollm2_tokenizer.encode("Count as far as you can: 1, 2, 3,")
    seen = asyncio.Event()
    async with gateway([URL]) as url, client_of(url, request_timeout_s=120.0) as client:
        asking = asyncio.create_task(
            client.generate(prompt, LONG, session="a", on_delta=lambda delta: seen.set())
        )
        await seen.wait()
        await client.abort("a")
        part = await asking

    assert part.finish_reason == "abort"
    assert 0 < len(part.token_ids) == len(part.log_probs) < 400


async def test_the_next_turn_finds_its_prefix_in_the_cache(smollm2_tokenizer: Any) -> None:
    prompt = smollm2_tokenizer.encode("It was the best of times, it was the worst of times, " * 8)
    async with gateway([URL]) as url, client_of(url, request_timeout_s=120.0) as client:
        first = await client.generate(prompt, {"max_new_tokens": 8}, session="s")
        second = await client.generate([*prompt, *first.token_ids], {"max_new_tokens": 8}, session="s")

    assert second.cached_tokens > len(prompt) // 2


async def test_the_probes_are_requests_that_the_server_takes(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway([URL]) as url:
        await check_gateway(url, sampling={"temperature": 1.0, "top_p": 0.9}, extra={}, policy=None)

    assert caplog.text == ""
