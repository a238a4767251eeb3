"""Every refusal makes the official SDKs raise the right class, and none is retried in vain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web

from rollhook.adapters import Adapter, AdapterSession
from rollhook.adapters.server import adapter_runner, url_of
from rollhook.engine import SGLangClient
from rollhook.testing import Fault, Reply, ScriptedEngine
from tests.adapters.worlds import ANTHROPIC_TOOL, CHAT_TOOL, QWEN3, RESPONSES_TOOL

USER: Any = {"role": "user", "content": "Hi"}
IMAGE = "iVBORw0KGgo="
Ask = Callable[["Counted", AdapterSession, dict[str, Any]], Awaitable[Any]]


class Counted:
    """An adapter whose requests are counted."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.requests = 0
        self.url = ""

    async def count(self, request: web.Request, response: web.StreamResponse) -> None:
        self.requests += 1


@asynccontextmanager
async def counted(tokenizer: Any, script: Any, **options: Any) -> AsyncIterator[Counted]:
    async with ScriptedEngine(tokenizer, script) as engine, SGLangClient(engine.url, retries=0) as client:
        adapter = Adapter(tokenizer=tokenizer, **{**QWEN3, "engine": client, **options})
        made = Counted(adapter)
        adapter.app.on_response_prepare.append(made.count)
        runner = adapter_runner(adapter)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.url = url_of(runner)
        try:
            yield made
        finally:
            await runner.cleanup()


async def chat(to: Counted, session: AdapterSession, extra: dict[str, Any]) -> Any:
    async with openai.AsyncOpenAI(api_key=session.api_key, base_url=f"{to.url}/v1") as client:
        return await _all(client.chat.completions.create(**{"model": "m", "messages": [USER], **extra}))


async def responses(to: Counted, session: AdapterSession, extra: dict[str, Any]) -> Any:
    async with openai.AsyncOpenAI(api_key=session.api_key, base_url=f"{to.url}/v1") as client:
        return await _all(client.responses.create(**{"model": "m", "input": [USER], **extra}))


async def messages(to: Counted, session: AdapterSession, extra: dict[str, Any]) -> Any:
    async with anthropic.AsyncAnthropic(api_key=session.api_key, base_url=to.url) as client:
        asked = {"model": "m", "max_tokens": 50, "messages": [USER], **extra}
        return await _all(client.messages.create(**asked))


async def _all(request: Awaitable[Any]) -> Any:
    """What comes of a request, a stream read to its end."""
    answer = await request
    return [event async for event in answer] if hasattr(answer, "__aiter__") else answer


CLIENTS = pytest.mark.parametrize(
    ("ask", "sdk"),
    [(chat, openai), (responses, openai), (messages, anthropic)],
    ids=["chat", "responses", "messages"],
)


@CLIENTS
@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_key(qwen3_tokenizer: Any, ask: Ask, sdk: Any, stream: bool) -> None:
    async with counted(qwen3_tokenizer, []) as to:
        with pytest.raises(sdk.AuthenticationError, match="not one of this adapter's session keys"):
            await ask(to, AdapterSession("x", "rhk-AAAA", ""), {"stream": stream})

        assert to.requests == 1


@CLIENTS
async def test_a_session_that_ended(qwen3_tokenizer: Any, ask: Ask, sdk: Any) -> None:
    async with counted(qwen3_tokenizer, []) as to:
        session = to.adapter.open_session("rollout-7")
        await to.adapter.drop_session("rollout-7")
        with pytest.raises(sdk.NotFoundError, match="session 'rollout-7' is not open any more"):
            await ask(to, session, {})

        assert to.requests == 1


@CLIENTS
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_is_down(qwen3_tokenizer: Any, ask: Ask, sdk: Any, stream: bool) -> None:
    script = [Reply("x", fault=Fault.status(500, None))]
    async with counted(qwen3_tokenizer, script) as to:
        session = to.adapter.open_session()
        with pytest.raises(sdk.InternalServerError, match="the engine gave no usable answer"):
            await ask(to, session, {"stream": stream})

        assert to.requests == 1


@CLIENTS
@pytest.mark.parametrize("stream", [False, True])
async def test_a_gateway_that_strips_log_probabilities_is_found_out_and_nothing_trains(
    qwen3_tokenizer: Any, ask: Ask, sdk: Any, stream: bool
) -> None:
    script = [Reply("x", fault=Fault.missing_logprobs())]
    async with counted(qwen3_tokenizer, script) as to:
        session = to.adapter.open_session()
        with pytest.raises(sdk.InternalServerError, match="cannot be trained on; look for a gateway"):
            await ask(to, session, {"stream": stream})
        segments = await to.adapter.finish_session(session.session_id)

    assert to.requests == 1
    assert segments == []


@CLIENTS
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_refuses(qwen3_tokenizer: Any, ask: Ask, sdk: Any, stream: bool) -> None:
    script = [Reply("x", fault=Fault.status(400, message="bad top_p"))]
    async with counted(qwen3_tokenizer, script) as to:
        session = to.adapter.open_session()
        with pytest.raises(sdk.BadRequestError, match=r"the engine refused the request.*bad top_p"):
            await ask(to, session, {"stream": stream})

        assert to.requests == 1


@CLIENTS
@pytest.mark.parametrize("known_limit", [True, False])
async def test_a_prompt_over_the_context(qwen3_tokenizer: Any, ask: Ask, sdk: Any, known_limit: bool) -> None:
    refusal = "The input (9 tokens) is longer than the model's context length (8 tokens)."
    script = [Reply("x", fault=Fault.status(400, message=refusal))]
    async with counted(qwen3_tokenizer, script) as to:
        session = to.adapter.open_session(max_context_tokens=8 if known_limit else 0)
        with pytest.raises(sdk.BadRequestError, match="prompt is too long: ") as caught:
            await ask(to, session, {})

        assert to.requests == 1
        if sdk is openai:
            assert caught.value.code == "context_length_exceeded"


@CLIENTS
async def test_the_turn_cap(qwen3_tokenizer: Any, ask: Ask, sdk: Any) -> None:
    async with counted(qwen3_tokenizer, ["one", "two"], max_turns_per_session=2) as to:
        session = to.adapter.open_session()
        await ask(to, session, {})
        await ask(to, session, {})
        with pytest.raises(sdk.PermissionDeniedError, match="has had its 2 turns"):
            await ask(to, session, {})

        assert to.requests == 3


@CLIENTS
async def test_the_token_cap(qwen3_tokenizer: Any, ask: Ask, sdk: Any) -> None:
    async with counted(qwen3_tokenizer, ["one two three"], max_tokens_per_session=3) as to:
        session = to.adapter.open_session()
        await ask(to, session, {})
        with pytest.raises(sdk.PermissionDeniedError, match="has sampled its 3 tokens"):
            await ask(to, session, {})

        assert to.requests == 2


@pytest.mark.parametrize(
    ("ask", "sdk", "extra"),
    [
        (chat, openai, {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}]}]}),
        (responses, openai, {"input": [{"role": "user", "content": [
            {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{IMAGE}"}]}]}),
        (messages, anthropic, {"messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}]}]}),
    ],
    ids=["chat", "responses", "messages"],
)  # fmt: skip
async def test_an_image(qwen3_tokenizer: Any, ask: Ask, sdk: Any, extra: dict[str, Any]) -> None:
    async with counted(qwen3_tokenizer, []) as to:
        with pytest.raises(sdk.BadRequestError, match="the served model takes text only"):
            await ask(to, to.adapter.open_session(), extra)

        assert to.requests == 1


@pytest.mark.parametrize(
    ("ask", "sdk", "extra", "why"),
    [
        (chat, openai, {"n": 2}, "n: only one answer"),
        (chat, openai, {"tool_choice": "required"}, "demands a call, but there are no tools"),
        (chat, openai, {"tools": [CHAT_TOOL], "tool_choice": "all"}, 'must be "auto", "none", "required"'),
        (chat, openai, {"logprobs": True}, "logprobs: "),
        (chat, openai, {"messages": []}, "messages: must hold at least one"),
        (chat, openai, {"messages": [{"role": "x" * 10_000}]}, "^.{100,600}$"),
        (
            responses,
            openai,
            {"tools": [RESPONSES_TOOL], "tool_choice": {"type": "file_search"}},
            "is no choice",
        ),
        (responses, openai, {"background": True}, "background: "),
        (responses, openai, {"input": [{"type": "item_reference", "id": "x"}]}, "is not an item type"),
        (
            messages,
            anthropic,
            {"tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "tool", "name": "x"}},
            "no tool named 'x' is offered",
        ),
        (messages, anthropic, {"messages": [USER, {"role": "assistant", "content": "I"}]}, "prefilled"),
    ],
)
async def test_what_cannot_be_served_as_asked_is_refused_and_not_ignored(
    qwen3_tokenizer: Any, ask: Ask, sdk: Any, extra: dict[str, Any], why: str
) -> None:
    async with counted(qwen3_tokenizer, []) as to:
        with pytest.raises(sdk.BadRequestError, match=why):
            await ask(to, to.adapter.open_session(), extra)

        assert to.requests == 1


async def test_an_unknown_previous_response(qwen3_tokenizer: Any) -> None:
    async with counted(qwen3_tokenizer, []) as to:
        with pytest.raises(openai.NotFoundError, match="no response resp_x is stored in this session"):
            await responses(to, to.adapter.open_session(), {"previous_response_id": "resp_x"})

        assert to.requests == 1


@pytest.mark.parametrize("sdk", [openai, anthropic])
async def test_tools_without_a_tool_parser(qwen3_tokenizer: Any, sdk: Any) -> None:
    ask, tool = (chat, CHAT_TOOL) if sdk is openai else (messages, ANTHROPIC_TOOL)
    async with counted(qwen3_tokenizer, [], tool_parser=None) as to:
        with pytest.raises(sdk.BadRequestError, match="made without a tool_parser"):
            await ask(to, to.adapter.open_session(), {"tools": [tool]})


@CLIENTS
async def test_an_aborted_answer_is_no_answer_and_may_be_asked_for_again(
    qwen3_tokenizer: Any, ask: Ask, sdk: Any
) -> None:
    async with counted(qwen3_tokenizer, [Reply("half", finish="abort"), "whole"]) as to:
        session = to.adapter.open_session()
        await ask(to, session, {})
        segments = await to.adapter.finish_session(session.session_id)

    assert to.requests == 2
    assert [segment.finish_reason for segment in segments] == ["stop"]


@CLIENTS
async def test_an_engine_that_dies_within_a_stream_ends_it_with_an_error(
    qwen3_tokenizer: Any, ask: Ask, sdk: Any
) -> None:
    script = [Reply("one two three four five six", fault=Fault.cut(3, None))]
    async with counted(qwen3_tokenizer, script) as to:
        session = to.adapter.open_session()
        with pytest.raises(sdk.APIError, match="the stream was cut after 3 tokens"):
            await ask(to, session, {"stream": True})
        segments = await to.adapter.finish_session(session.session_id)

    assert to.requests == 1
    assert segments == []
