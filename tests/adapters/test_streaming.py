"""Streams go out while the engine still samples, stay alive while it is silent, and end with their client."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from rollhook.testing import Fault, Reply
from tests.adapters.worlds import ANTHROPIC_TOOL, CHAT_TOOL, RESPONSES_TOOL, World, call, world

USER: Any = {"role": "user", "content": "Hi"}
REPLY = f"<think>\nhm, well\n</think>\n\nLet me see.\n{call(city='Oslo and all the places around it')}"
PROTOCOLS = pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])


async def deltas(world: World, protocol: str, session: Any) -> Any:
    """The kinds of what a stream brings, as it comes: "reasoning", "text" and "arguments"."""
    if protocol == "messages":
        asked: Any = {"model": "m", "max_tokens": 500, "messages": [USER], "tools": [ANTHROPIC_TOOL]}
        async with world.anthropic(session) as client:
            async for event in await client.messages.create(**asked, stream=True):
                if event.type == "content_block_delta":
                    kinds = {
                        "thinking_delta": "reasoning",
                        "text_delta": "text",
                        "input_json_delta": "arguments",
                    }
                    if event.delta.type in kinds:
                        yield kinds[event.delta.type]
        return
    async with world.openai(session) as client:
        if protocol == "responses":
            asked = {"model": "m", "input": [USER], "tools": [RESPONSES_TOOL]}
            async for event in await client.responses.create(**asked, stream=True):
                kind = event.type.removeprefix("response.").removesuffix(".delta")
                if kind != event.type.removeprefix("response."):
                    yield {"reasoning_text": "reasoning", "output_text": "text"}.get(kind, "arguments")
            return
        asked = {"model": "m", "messages": [USER], "tools": [CHAT_TOOL]}
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            delta = chunk.choices[0].delta
            if getattr(delta, "reasoning_content", None):
                yield "reasoning"
            elif delta.content:
                yield "text"
            elif delta.tool_calls and delta.tool_calls[0].function and delta.tool_calls[0].function.arguments:
                yield "arguments"


@PROTOCOLS
async def test_thinking_text_and_arguments_arrive_while_the_engine_samples(
    qwen3_tokenizer: Any, protocol: str
) -> None:
    """The engine stops in the middle of the call's argument, and waits."""
    inside = qwen3_tokenizer.encode(REPLY.partition(" the places")[0])
    async with world(qwen3_tokenizer, [Reply(REPLY, fault=Fault.hang(len(inside)))]) as w:
        session = w.adapter.open_session()
        missing = {"reasoning", "text", "arguments"}
        async with aclosing(deltas(w, protocol, session)) as stream:
            async for kind in stream:
                missing.discard(kind)
                if not missing:
                    break

        assert missing == set()
        assert w.engine.sampled == []


@PROTOCOLS
async def test_a_silent_engine_is_covered_by_pings(qwen3_tokenizer: Any, protocol: str) -> None:
    import aiohttp

    path = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}[protocol]
    body = {"model": "m", "max_tokens": 9, "messages": [USER], "input": [USER], "stream": True}
    async with world(qwen3_tokenizer, [Reply("x", fault=Fault.hang())], ping_s=0.05) as w:
        session = w.adapter.open_session()
        headers = {"x-api-key": session.api_key}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{w.url}/v1/{path}", json=body, headers=headers) as response,
        ):
            pings = 0
            async for line in response.content:
                pings += line in (b": ping\n", b"event: ping\n")
                if pings == 3:
                    break

    assert w.engine.sampled == []


@PROTOCOLS
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_ends_the_engines_request_and_trains_nothing(
    qwen3_tokenizer: Any, protocol: str, stream: bool
) -> None:
    import aiohttp

    path = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}[protocol]
    body = {"model": "m", "max_tokens": 9, "messages": [USER], "input": [USER], "stream": stream}
    async with world(qwen3_tokenizer, [Reply("one two three", fault=Fault.hang(1))]) as w:
        session = w.adapter.open_session()
        async with aiohttp.ClientSession() as http:
            request = asyncio.create_task(
                http.post(f"{w.url}/v1/{path}", json=body, headers={"x-api-key": session.api_key})
            )
            while not w.engine.in_flight:
                await asyncio.sleep(0.01)
            request.cancel()
            await asyncio.wait([request])
        while w.engine.in_flight:
            await asyncio.sleep(0.01)
        segments = await w.adapter.finish_session(session.session_id)

    assert w.engine.aborted == [w.engine.requests[0].rid]
    assert segments == []


async def test_finishing_a_session_ends_what_it_still_samples(qwen3_tokenizer: Any) -> None:
    import openai

    async with world(qwen3_tokenizer, [Reply("one two three", fault=Fault.hang(1))]) as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            request = asyncio.create_task(client.chat.completions.create(model="m", messages=[USER]))
            while not w.engine.in_flight:
                await asyncio.sleep(0.01)
            segments = await w.adapter.finish_session(session.session_id)
            with pytest.raises(openai.NotFoundError, match="was closed while it sampled"):
                await request

    assert segments == []
    assert w.engine.in_flight == 0


async def test_text_is_streamed_by_whole_characters_and_joins_to_the_whole(smollm2_tokenizer: Any) -> None:
    text = "Zażółć gęślą jaźń 🦊 漢字 – ok"
    options: Any = {"tool_parser": None, "reasoning_parser": None}
    async with world(smollm2_tokenizer, [text], **options) as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            stream = await client.chat.completions.create(model="m", messages=[USER], stream=True)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]

    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts)
