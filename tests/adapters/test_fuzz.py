"""Any JSON to any endpoint gets a clean answer, in time, and no session is lost or mixed with another."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollhook.adapters import AdapterSession
from tests.adapters.worlds import (
    ANTHROPIC_TOOL,
    CHAT_TOOL,
    RESPONSES_TOOL,
    World,
    call,
    original_template,
    world,
)

CALLED = json.dumps({"city": "Oslo"})
IMAGE = base64.b64encode(b"\x89PNG").decode()
IMAGE_URL = f"data:image/png;base64,{IMAGE}"
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}
VALID: dict[str, Any] = {
    "chat/completions": {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 20,
        "tools": [CHAT_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "response_format": {"type": "text"},
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE_URL}}]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": CALLED}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
        ],
    },
    "responses": {
        "model": "m",
        "stream": True,
        "store": True,
        "instructions": "Be brief.",
        "max_output_tokens": 20,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
        "metadata": {"a": "b"},
        "previous_response_id": None,
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "weather"}],
        },
        "tools": [
            RESPONSES_TOOL,
            {"type": "custom", "name": "patch", "format": {"type": "grammar", "definition": "x"}},
            {"type": "namespace", "name": "n", "description": "N.", "tools": [RESPONSES_TOOL]},
            {"type": "web_search"},
        ],
        "input": [
            {"role": "user", "content": [{"type": "input_image", "image_url": IMAGE_URL}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "rollhook.abc"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "w", "namespace": "n", "arguments": CALLED},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "text", "text": "ok"}]},
        ],
    },
    "messages": {
        "model": "m",
        "stream": True,
        "max_tokens": 20,
        "thinking": {"type": "adaptive"},
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": [ANTHROPIC_TOOL],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        "output_config": {"effort": "high"},
        "messages": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "See."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": [PICTURE]},
                    {"type": "text", "text": "Go on."},
                ],
            },
        ],
    },
}  # fmt: skip
VALID["messages/count_tokens"] = VALID["messages"]

ENDS = re.compile(rb"\[DONE\]\n\n$|event: (response\.completed|response\.incomplete|message_stop)\n.*\n\n$")
"""How a stream ends that was not cut short."""

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "id", "x"]), inner, max_size=3
        ),
    ),
    max_leaves=6,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every node below the root."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, item in inner for path in [(*at, key), *places(item, (*at, key))]]


@st.composite
def bodies(draw: st.DrawFn, path: str) -> Any:
    """A valid body in which up to three nodes are replaced by anything, or taken away."""
    body = json.loads(json.dumps(VALID[path]))
    for _ in range(draw(st.integers(0, 3))):
        *parents, last = draw(st.sampled_from(places(body) or [("model",)]))
        parent = body
        for key in parents:
            parent = parent[key]
        if draw(st.booleans()):
            parent[last] = draw(ANYTHING)
        else:
            parent.pop(last, None) if isinstance(parent, dict) else parent.pop(last)
    return body


async def send(http: aiohttp.ClientSession, url: str, key: str, body: Any) -> tuple[int, bytes]:
    async with asyncio.timeout(20), http.post(url, json=body, headers={"x-api-key": key}) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("path", list(VALID))
def test_any_json_gets_a_clean_answer(qwen3_tokenizer: Any, path: str) -> None:
    script: Callable[[Any], str] = lambda request: f"{request.session} {call(city='Oslo')}"  # noqa: E731  typed
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        serving = world(qwen3_tokenizer, script, chat_template=original_template("qwen3_vl"))
        w: World = runner.run(stack.enter_async_context(serving))
        http = runner.run(_client(stack))
        session = w.adapter.open_session("fuzzed")
        other = w.adapter.open_session("other")
        statuses: set[int] = set()

        @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(bodies(path))
        def check(body: Any) -> None:
            status, answer = runner.run(send(http, f"{w.url}/v1/{path}", session.api_key, body))
            statuses.add(status)
            assert status in (200, 400, 404), (status, answer)
            if status != 200:
                assert json.loads(answer)["error"]["message"]
            elif not answer.startswith(b"{"):
                assert ENDS.search(answer), answer
            assert b"internal_error" not in answer
            assert b'"other' not in answer

        try:
            check()
            assert statuses >= {200, 400}
            assert runner.run(_still_answers(w, other)).startswith("other ")
            runner.run(w.adapter.finish_session("fuzzed"))
        finally:
            runner.run(stack.aclose())


async def _client(stack: AsyncExitStack) -> aiohttp.ClientSession:
    return await stack.enter_async_context(aiohttp.ClientSession())


async def _still_answers(w: World, session: AdapterSession) -> str:
    async with w.openai(session) as client:
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
    return answer.choices[0].message.content or ""
