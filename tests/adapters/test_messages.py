"""The anthropic package, unmodified, against an adapter."""

from __future__ import annotations

from typing import Any

from rollhook.testing import Reply
from tests.adapters.worlds import ANTHROPIC_TOOL, call, sampled, trained, world

USER: Any = {"role": "user", "content": "Weather in Oslo?"}


async def test_a_conversation_with_tools_and_thinking_is_one_segment(qwen3_tokenizer: Any) -> None:
    script = [
        f"<think>\nlook it up\n</think>\n\nLet me see.\n{call(city='Oslo', days='2')}",
        "<think>\neasy\n</think>\n\nIt rains.",
    ]
    async with world(qwen3_tokenizer, script) as w:
        session = w.adapter.open_session()
        async with w.anthropic(session) as client:
            first = await client.messages.create(
                model="m", max_tokens=500, system="Be brief.", tools=[ANTHROPIC_TOOL], messages=[USER]
            )
            result: Any = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "rain"}  # type: ignore[union-attr]  # asserted below
            second = await client.messages.create(
                model="m",
                max_tokens=500,
                system="Be brief.",
                tools=[ANTHROPIC_TOOL],
                messages=[USER, first.to_param(), {"role": "user", "content": [result]}],
            )
        segments = await w.adapter.finish_session(session.session_id)

    thinking, text, use = first.content
    assert (thinking.type, text.type, use.type) == ("thinking", "text", "tool_use")
    assert thinking.type == "thinking"
    assert thinking.thinking == "look it up"
    assert text.type == "text"
    assert text.text == "Let me see."
    assert use.type == "tool_use"
    assert use.input == {"city": "Oslo", "days": 2}
    assert (first.stop_reason, second.stop_reason) == ("tool_use", "end_turn")
    assert second.usage.input_tokens == len(w.engine.requests[1].input_ids)
    assert [segment.kind for segment in segments] == ["main"]
    assert trained(segments) == [sampled(w.engine)]


async def test_a_stream_says_what_a_whole_message_says(qwen3_tokenizer: Any) -> None:
    text = f"<think>\nlook\n</think>\n\nSee.\n{call(city='Oslo')}\n{call(city='Bergen', days=3)}"
    async with world(qwen3_tokenizer, [Reply(text), Reply(text)]) as w:
        session = w.adapter.open_session()
        async with w.anthropic(session) as client:
            asked: Any = {"model": "m", "max_tokens": 500, "tools": [ANTHROPIC_TOOL], "messages": [USER]}
            whole = await client.messages.create(**asked)
            async with client.messages.stream(**asked) as stream:
                kinds = [event.type async for event in stream]
                streamed = await stream.get_final_message()

    def said(message: Any) -> list[dict[str, Any]]:
        return [block.model_dump(exclude={"id", "signature"}, exclude_none=True) for block in message.content]

    assert [block["type"] for block in said(whole)] == ["thinking", "text", "tool_use", "tool_use"]
    assert said(streamed) == said(whole)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4


async def test_count_tokens_counts_the_prompt_that_would_be_sent(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, ["Rain."]) as w:
        session = w.adapter.open_session()
        async with w.anthropic(session) as client:
            asked: Any = {"model": "m", "tools": [ANTHROPIC_TOOL], "system": "Be brief.", "messages": [USER]}
            counted = await client.messages.count_tokens(**asked)
            await client.messages.create(max_tokens=9, **asked)

        assert counted.input_tokens == len(w.engine.requests[0].input_ids)
