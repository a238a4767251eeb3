"""Conversations and a demanded call with a real SGLang server (`make test-sglang`)."""

from __future__ import annotations

import json
import os
from typing import Any

import anthropic
import openai
import pytest

from rollhook.adapters import Adapter, serve
from tests.adapters.worlds import original_template

URL = os.environ.get("ROLLHOOK_SGLANG_URL", "")
USER: Any = {"role": "user", "content": "Say hi."}

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(not URL, reason="needs a real SGLang server: make test-sglang"),
]


async def chat(key: str, url: str, stream: bool) -> None:
    async with openai.AsyncOpenAI(api_key=key, base_url=f"{url}/v1") as client:
        first = await client.chat.completions.create(model="m", messages=[USER])
        said: Any = [USER, first.choices[0].message.model_dump(exclude_none=True), USER]
        second: Any = await client.chat.completions.create(model="m", messages=said, stream=stream)
        if stream:
            assert [chunk async for chunk in second]


async def responses(key: str, url: str, stream: bool) -> None:
    async with openai.AsyncOpenAI(api_key=key, base_url=f"{url}/v1") as client:
        first = await client.responses.create(model="m", input=[USER])
        second: Any = await client.responses.create(
            model="m", input=[USER], previous_response_id=first.id, stream=stream
        )
        if stream:
            assert [event async for event in second]


async def messages(key: str, url: str, stream: bool) -> None:
    async with anthropic.AsyncAnthropic(api_key=key, base_url=url) as client:
        first = await client.messages.create(model="m", max_tokens=20, messages=[USER])
        said: Any = [USER, first.to_param(), USER]
        second: Any = await client.messages.create(model="m", max_tokens=20, messages=said, stream=stream)
        if stream:
            assert [event async for event in second]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("converse", [chat, responses, messages])
async def test_two_turns_with_a_real_server_are_one_segment(
    smollm2_tokenizer: Any, converse: Any, stream: bool
) -> None:
    adapter = Adapter(tokenizer=smollm2_tokenizer, sglang_url=URL, sampling={"max_new_tokens": 12})
    with serve(adapter) as server:
        session = adapter.open_session()
        await converse(session.api_key, server.url, stream)
        [segment] = await adapter.finish_session(session.session_id)

    assert segment.turns == 2
    assert 2 <= sum(segment.loss_mask) <= 24
    assert all(
        log_prob < 0 for log_prob, bit in zip(segment.log_probs, segment.loss_mask, strict=True) if bit
    )


async def test_a_real_server_samples_a_demanded_call(smollm2_tokenizer: Any) -> None:
    """By a model too small to make one by itself."""
    adapter = Adapter(
        tokenizer=smollm2_tokenizer,
        sglang_url=URL,
        tool_parser="qwen25",
        chat_template=original_template("qwen2_5"),
        sampling={"max_new_tokens": 200},
    )
    schema = {
        "type": "object",
        "properties": {"days": {"type": "integer"}, "sky": {"enum": ["clear", "grey"]}},
        "required": ["days", "sky"],
        "additionalProperties": False,
    }
    tool: Any = {"type": "function", "function": {"name": "forecast", "parameters": schema}}
    with serve(adapter) as server:
        session = adapter.open_session()
        async with openai.AsyncOpenAI(api_key=session.api_key, base_url=f"{server.url}/v1") as client:
            answer = await client.chat.completions.create(
                model="m", messages=[USER], tools=[tool], tool_choice="required", parallel_tool_calls=False
            )
        [segment] = await adapter.finish_session(session.session_id)

    [call] = list(answer.choices[0].message.tool_calls or ())
    assert call.type == "function"
    assert call.function.name == "forecast"
    arguments = json.loads(call.function.arguments)
    assert arguments["sky"] in ("clear", "grey")
    assert isinstance(arguments["days"], int)
    assert sum(segment.loss_mask) == 0
