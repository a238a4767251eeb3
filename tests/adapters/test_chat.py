"""The openai package's Chat Completions, unmodified, against an adapter."""

from __future__ import annotations

import json
from typing import Any

from rollhook.testing import Reply
from tests.adapters.worlds import CHAT_TOOL, call, sampled, trained, world

USER: Any = {"role": "user", "content": "Weather in Oslo and Bergen?"}
TWO_CALLS = f"<think>\nboth\n</think>\n\nLet me see.\n{call(city='Oslo', days='2')}\n{call(city='Bergen')}"


async def test_parallel_calls_and_the_text_beside_them_arrive_and_come_back(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, [TWO_CALLS, "<think>\n\n</think>\n\nRain in both."]) as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            first = await client.chat.completions.create(model="m", tools=[CHAT_TOOL], messages=[USER])
            message = first.choices[0].message
            calls = message.tool_calls or []
            results: Any = [{"role": "tool", "tool_call_id": c.id, "content": "rain"} for c in calls]
            second = await client.chat.completions.create(
                model="m",
                tools=[CHAT_TOOL],
                messages=[USER, message.model_dump(exclude_none=True), *results],  # type: ignore[list-item]  # as users do
            )
        segments = await w.adapter.finish_session(session.session_id)

    assert message.content == "Let me see."
    assert message.reasoning_content == "both"  # type: ignore[attr-defined]  # beside OpenAI's own fields
    assert [json.loads(c.function.arguments) for c in calls if c.type == "function"] == [
        {"city": "Oslo", "days": 2},
        {"city": "Bergen"},
    ]
    assert [first.choices[0].finish_reason, second.choices[0].finish_reason] == ["tool_calls", "stop"]
    assert second.choices[0].message.content == "Rain in both."
    assert [segment.kind for segment in segments] == ["main"]
    assert trained(segments) == [sampled(w.engine)]


async def test_a_stream_says_what_a_whole_completion_says(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, [Reply(TWO_CALLS), Reply(TWO_CALLS)]) as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            asked: Any = {"model": "m", "tools": [CHAT_TOOL], "messages": [USER]}
            whole = await client.chat.completions.create(**asked)
            stream = await client.chat.completions.create(
                **asked, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]

    content, reasoning, arguments, names = "", "", ["", ""], []
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for part in choice.delta.tool_calls or []:
                assert part.function is not None
                arguments[part.index] += part.function.arguments or ""
                names += [part.function.name] if part.function.name else []
    message = whole.choices[0].message
    assert (content, reasoning) == (message.content, message.reasoning_content)
    assert names == ["weather", "weather"]
    assert arguments == [c.function.arguments for c in message.tool_calls or [] if c.type == "function"]
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
