"""Forty turns through each protocol, by the official clients, are one segment of exactly what was sampled."""

from __future__ import annotations

from typing import Any

import pytest

from rollhook.testing import ScriptedRequest
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

TURNS = 40
USER: Any = {"role": "user", "content": "Weather everywhere?"}


def reply(request: ScriptedRequest) -> str:
    """A turn that thinks and speaks, with no, one or two calls, whose arguments need converting."""
    n = request.turn
    thinking = f"<think>\nturn {n} é 🦊\n</think>\n\n"
    calls = "\n".join(call(city=f"city {n}.{k}", days=str(k)) for k in range(1 + n % 2))
    return thinking + (f"Now for {n}.\n\n" if n % 3 else "") + calls


async def chat(w: World, session: Any, *, keeps_thinking: bool) -> None:
    history: list[Any] = [{"role": "system", "content": "Be brief."}, USER]
    async with w.openai(session) as client:
        for n in range(TURNS):
            answer = await client.chat.completions.create(model="m", messages=history, tools=[CHAT_TOOL])
            message = answer.choices[0].message.model_dump(exclude_none=True)
            if not keeps_thinking:
                del message["reasoning_content"]
            history.append(message)
            for made in message["tool_calls"]:
                history.append({"role": "tool", "tool_call_id": made["id"], "content": f"rain {n}"})  # noqa: PERF401  reads as a client writes it


async def responses(w: World, session: Any, *, keeps_thinking: bool) -> None:
    history: list[Any] = [USER]
    async with w.openai(session) as client:
        for n in range(TURNS):
            answer = await client.responses.create(
                model="m", input=history, tools=[RESPONSES_TOOL], store=False, instructions="Be brief."
            )
            history += [
                item.model_dump(exclude_none=True, exclude={"id", "status"})
                for item in answer.output
                if item.type != "reasoning" or keeps_thinking
            ]
            for item in answer.output:
                if item.type == "function_call":
                    output = {"type": "function_call_output", "call_id": item.call_id, "output": f"rain {n}"}
                    history.append(output)


async def messages(w: World, session: Any, *, keeps_thinking: bool) -> None:
    history: list[Any] = [USER]
    async with w.anthropic(session) as client:
        for n in range(TURNS):
            marked = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
            answer = await client.messages.create(
                model="m",
                max_tokens=500,
                messages=history,
                tools=[ANTHROPIC_TOOL],
                system=marked if n % 2 else "Be brief.",  # type: ignore[arg-type]  # markers come and go
            )
            blocks = [b for b in answer.content if b.type != "thinking" or keeps_thinking]
            history.append({"role": "assistant", "content": blocks})
            results = [
                {"type": "tool_result", "tool_use_id": b.id, "content": f"rain {n}"}
                for b in blocks
                if b.type == "tool_use"
            ]
            history.append({"role": "user", "content": results})


@pytest.mark.parametrize("keeps_thinking", [True, False], ids=["keeps thinking", "drops thinking"])
@pytest.mark.parametrize("converse", [chat, responses, messages])
async def test_forty_turns_are_one_segment_of_what_was_sampled(
    qwen3_tokenizer: Any, converse: Any, keeps_thinking: bool
) -> None:
    async with world(qwen3_tokenizer, reply) as w:
        session = w.adapter.open_session()
        await converse(w, session, keeps_thinking=keeps_thinking)
        segments = await w.adapter.finish_session(session.session_id)

    assert [(segment.kind, segment.turns, segment.forks) for segment in segments] == [("main", TURNS, [])]
    assert trained(segments) == [sampled(w.engine)]
    last = w.engine.requests[-1].input_ids
    assert segments[0].tokens.tolist() == last + w.engine.sampled[-1].token_ids
    assert all(
        after.input_ids[: len(before.input_ids)] == before.input_ids
        for before, after in zip(w.engine.requests, w.engine.requests[1:], strict=False)
    )
