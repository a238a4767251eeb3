"""A call that a client demands is forced by the engine's grammar, served, and trains only if told to."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from rollhook.sample import Sample
from tests.adapters.worlds import (
    ANTHROPIC_TOOL,
    CHAT_TOOL,
    RESPONSES_TOOL,
    World,
    call,
    sampled,
    trained,
    world,
)

USER: Any = {"role": "user", "content": "Weather?"}


async def chat(w: World, session: Any, choice: Any) -> None:
    async with w.openai(session) as client:
        answer = await client.chat.completions.create(
            model="m", messages=[USER], tools=[CHAT_TOOL], tool_choice=choice
        )
        message = answer.choices[0].message
        [made] = list(message.tool_calls or ())
        result: Any = {"role": "tool", "tool_call_id": made.id, "content": "rain"}
        said: Any = [USER, message.model_dump(exclude_none=True), result]
        await client.chat.completions.create(model="m", messages=said, tools=[CHAT_TOOL])


async def responses(w: World, session: Any, choice: Any) -> None:
    async with w.openai(session) as client:
        answer = await client.responses.create(
            model="m", input=[USER], tools=[RESPONSES_TOOL], tool_choice=choice
        )
        assert answer.tool_choice == choice or answer.tool_choice.model_dump() == choice  # type: ignore[union-attr]  # an object where one was asked for
        [made] = [item for item in answer.output if item.type == "function_call"]
        result: Any = {"type": "function_call_output", "call_id": made.call_id, "output": "rain"}
        await client.responses.create(
            model="m", input=[result], previous_response_id=answer.id, tools=[RESPONSES_TOOL]
        )


async def messages(w: World, session: Any, choice: Any) -> None:
    async with w.anthropic(session) as client:
        answer = await client.messages.create(
            model="m", max_tokens=99, messages=[USER], tools=[ANTHROPIC_TOOL], tool_choice=choice
        )
        [made] = [block for block in answer.content if block.type == "tool_use"]
        result: Any = {"type": "tool_result", "tool_use_id": made.id, "content": "rain"}
        said: Any = [USER, answer.to_param(), {"role": "user", "content": [result]}]
        await client.messages.create(model="m", max_tokens=99, messages=said, tools=[ANTHROPIC_TOOL])


@pytest.mark.parametrize(
    ("converse", "choice"),
    [
        (chat, "required"),
        (chat, {"type": "function", "function": {"name": "weather"}}),
        (
            chat,
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CHAT_TOOL]}},
        ),
        (responses, "required"),
        (responses, {"type": "function", "name": "weather"}),
        (messages, {"type": "any"}),
        (messages, {"type": "tool", "name": "weather"}),
    ],
)
async def test_a_demanded_call_is_forced_and_only_the_next_turn_trains(
    qwen3_tokenizer: Any, converse: Callable[..., Any], choice: Any
) -> None:
    script = [call(city="x"), "Rain."]
    async with world(qwen3_tokenizer, script, reasoning_parser=None) as w:
        session = w.adapter.open_session()
        await converse(w, session, choice)
        record = w.adapter.session_record(session.session_id)
        samples = await w.adapter.finish_session(
            session.session_id, base_sample=Sample(index=0, prompt=""), reward=1.0
        )

    first, second = w.engine.requests
    [tag] = json.loads(first.sampling["structural_tag"])["format"]["tags"]
    assert tag["begin"] == '<tool_call>\n{"name": "weather", "arguments": '
    assert tag["content"] == {"type": "json_schema", "json_schema": CHAT_TOOL["function"]["parameters"]}
    assert "structural_tag" not in second.sampling
    assert second.input_ids[: len(first.input_ids)] == first.input_ids
    [sample] = samples
    kept = [
        token
        for token, bit in zip(sample.tokens[-len(sample.loss_mask) :], sample.loss_mask, strict=True)
        if bit
    ]
    assert kept == w.engine.sampled[1].token_ids
    assert (record["constrained_turns"], record["forks"]) == ([0], [])


async def test_demanded_calls_train_in_a_session_that_says_so(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, [call(city="x"), "Rain."]) as w:
        session = w.adapter.open_session(train_constrained=True)
        await chat(w, session, "required")
        segments = await w.adapter.finish_session(session.session_id)

    assert trained(segments) == [sampled(w.engine)]


async def test_a_model_that_thinks_may_think_before_a_demanded_call(qwen3_tokenizer: Any) -> None:
    script = ["<think>\nhm\n</think>\n\n" + call(city="x"), "Rain."]
    async with world(qwen3_tokenizer, script) as w:
        await chat(w, w.adapter.open_session(), "required")

    calls, thinking_first = json.loads(w.engine.requests[0].sampling["structural_tag"])["format"]["elements"]
    assert calls["type"] == "tags_with_separator"
    assert thinking_first["elements"][0]["begin"] == "<think>"
    assert thinking_first["elements"][-1] == calls


async def test_a_family_whose_calls_cannot_be_forced_is_refused(qwen3_tokenizer: Any) -> None:
    options = {"tool_parser": "gpt-oss", "reasoning_parser": "gpt-oss"}
    async with world(qwen3_tokenizer, [], **options) as w, w.openai(w.adapter.open_session()) as client:
        with pytest.raises(openai.BadRequestError, match="'gpt-oss' cannot be forced"):
            await client.chat.completions.create(
                model="m", messages=[USER], tools=[CHAT_TOOL], tool_choice="required"
            )
