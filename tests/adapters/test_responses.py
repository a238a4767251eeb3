"""The openai package's Responses, unmodified, against an adapter."""

from __future__ import annotations

import json
from typing import Any

from rollhook.testing import Reply
from tests.adapters.worlds import RESPONSES_TOOL, call, sampled, trained, world

TEXT = f"<think>\nboth\n</think>\n\nLet me see.\n{call(city='Oslo', days='2')}\n{call(city='Bergen')}"


async def test_items_echoed_by_the_client_are_one_segment(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, [TEXT, "<think>\n\n</think>\n\nRain in both."]) as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            user: Any = {"role": "user", "content": "Weather?"}
            asked: Any = {
                "model": "m",
                "tools": [RESPONSES_TOOL],
                "store": False,
                "instructions": "Be brief.",
            }
            first: Any = await client.responses.create(input=[user], **asked)
            calls = [item for item in first.output if item.type == "function_call"]
            results: Any = [
                {"type": "function_call_output", "call_id": c.call_id, "output": "rain"} for c in calls
            ]
            second = await client.responses.create(input=[user, *first.output, *results], **asked)
        segments = await w.adapter.finish_session(session.session_id)

    assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
    assert [json.loads(c.arguments) for c in calls] == [{"city": "Oslo", "days": 2}, {"city": "Bergen"}]
    assert second.output_text == "Rain in both."
    assert second.status == "completed"
    assert second.usage is not None
    assert second.usage.input_tokens == len(w.engine.requests[1].input_ids)
    assert trained(segments) == [sampled(w.engine)]


async def test_previous_response_id_goes_on_in_the_same_segment(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, [TEXT, "Rain.", "Bye."]) as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            asked: Any = {"model": "m", "tools": [RESPONSES_TOOL]}
            first = await client.responses.create(input="Weather?", **asked)
            results: Any = [
                {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
                for item in first.output
                if item.type == "function_call"
            ]
            second = await client.responses.create(input=results, previous_response_id=first.id, **asked)
            third = await client.responses.create(input="Bye", previous_response_id=second.id, **asked)
        segments = await w.adapter.finish_session(session.session_id)

    assert third.output_text == "Bye."
    assert trained(segments) == [sampled(w.engine)]


async def test_a_stream_has_the_official_order_and_says_what_a_whole_response_says(
    qwen3_tokenizer: Any,
) -> None:
    async with world(qwen3_tokenizer, [Reply(TEXT), Reply(TEXT)]) as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            asked: Any = {"model": "m", "tools": [RESPONSES_TOOL], "input": "Weather?"}
            whole = await client.responses.create(**asked)
            async with client.responses.stream(**asked) as stream:
                events = [event async for event in stream]
                streamed = await stream.get_final_response()

    def said(response: Any) -> list[dict[str, Any]]:
        hidden = {"id", "call_id", "encrypted_content", "parsed_arguments"}
        return [item.model_dump(exclude=hidden, exclude_none=True) for item in response.output]

    assert said(streamed) == said(whole)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    once = [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]
    call_events = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert once == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        *call_events,
        *call_events,
        "response.completed",
    ]


async def test_custom_and_namespaced_tools_keep_their_names_and_kinds(qwen3_tokenizer: Any) -> None:
    patch = "*** Begin Patch\n*** End Patch"
    script = [
        f"{call('apply_patch', input=patch)}\n{call('crm__find', query='x')}",
        "Done.",
    ]
    tools: Any = [
        {"type": "custom", "name": "apply_patch", "description": "Patch files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
        {"type": "namespace", "name": "crm", "description": "CRM.", "tools": [
            {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}}]},
        {"type": "web_search"},
    ]  # fmt: skip
    async with world(qwen3_tokenizer, script) as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            user: Any = {"role": "user", "content": "Go."}
            stream = await client.responses.create(
                model="m", input=[user], tools=tools, store=False, stream=True
            )
            events = [event async for event in stream]
            assert events[-1].type == "response.completed"
            output: Any = events[-1].response.output
            custom, function = output
            assert custom.type == "custom_tool_call"
            assert function.type == "function_call"
            results: Any = [
                {"type": "custom_tool_call_output", "call_id": custom.call_id, "output": "ok"},
                {"type": "function_call_output", "call_id": function.call_id, "output": "ok"},
            ]
            await client.responses.create(
                model="m", input=[user, *output, *results], tools=tools, store=False
            )
        record = w.adapter.session_record(session.session_id)
        segments = await w.adapter.finish_session(session.session_id)

    assert (custom.name, custom.input) == ("apply_patch", patch)
    assert (function.namespace, function.name) == ("crm", "find")
    assert [e.type for e in events if "custom" in e.type] == [
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
    ]
    assert "start: /.+/" in w.engine.requests[0].prompt
    assert record["asked"][0]["dropped_tools"] == ["web_search"]
    assert trained(segments) == [sampled(w.engine)]
