"""What any HTTP client meets: hosts, sizes, depths, broken bytes, and paths that are not there."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from tests.adapters.worlds import world

PATHS = pytest.mark.parametrize(
    "path", ["chat/completions", "responses", "messages", "messages/count_tokens"]
)


async def post(url: str, key: str, body: bytes, **headers: str) -> tuple[int, Any]:
    given = {"x-api-key": key, "Content-Type": "application/json", **headers}
    async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=given) as response:
        return response.status, await response.json()


def message(path: str, answer: Any) -> str:
    """The sentence in an error, which must be in the form of the path's protocol."""
    assert ("type" in answer) == path.startswith("messages")
    text: str = answer["error"]["message"]
    return text


@PATHS
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"model": NaN}', "NaN is not a JSON number"),
        (b'{"tools": [{"x": -1e999}]}', "-1e999 is too large a number"),
        (b"[" * 100_000, "nested more than"),
        (b'{"messages":' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 64 levels"),
    ],
)
async def test_broken_json_is_a_400_that_says_so(
    qwen3_tokenizer: Any, path: str, body: bytes, why: str
) -> None:
    async with world(qwen3_tokenizer, []) as w:
        status, answer = await post(f"{w.url}/v1/{path}", w.adapter.open_session().api_key, body)

    assert status == 400
    assert why in message(path, answer)


@PATHS
async def test_a_body_over_the_limit_is_a_413(qwen3_tokenizer: Any, path: str) -> None:
    async with world(qwen3_tokenizer, [], max_body_bytes=1000) as w:
        key = w.adapter.open_session().api_key
        status, answer = await post(f"{w.url}/v1/{path}", key, json.dumps({"x": "y" * 2000}).encode())

    assert status == 413
    assert "too large" in message(path, answer)


@PATHS
async def test_a_foreign_host_name_is_refused_on_loopback(qwen3_tokenizer: Any, path: str) -> None:
    async with world(qwen3_tokenizer, [], allowed_hosts=["model.example"]) as w:
        key = w.adapter.open_session().api_key
        status, answer = await post(f"{w.url}/v1/{path}", key, b"{}", Host="attacker.example:80")
        allowed, _ = await post(f"{w.url}/v1/{path}", key, b"{}", Host="model.example")

    assert (status, allowed) == (403, 400)
    assert "'attacker.example:80' is not this adapter's" in message(path, answer)


@PATHS
async def test_no_key_is_a_401(qwen3_tokenizer: Any, path: str) -> None:
    async with world(qwen3_tokenizer, []) as w:
        status, answer = await post(f"{w.url}/v1/{path}", "", b"{}")

    assert status == 401
    assert "no key" in message(path, answer)


@pytest.mark.parametrize(
    "path",
    [
        "/generate",
        "/abort_request",
        "/flush_cache",
        "/update_weights_from_disk",
        "/pause_generation",
        "/health",
        "/v1/../generate",
        "/v1/messages/../../generate",
        "/sessions",
        "/v1/completions",
    ],
)
async def test_nothing_of_the_engine_but_sampling_is_reachable(qwen3_tokenizer: Any, path: str) -> None:
    async with world(qwen3_tokenizer, []) as w:
        key = w.adapter.open_session().api_key
        async with aiohttp.ClientSession() as http:
            for method in ("GET", "POST", "PUT", "DELETE"):
                async with http.request(method, w.url + path, headers={"x-api-key": key}, json={}) as answer:
                    assert answer.status in (404, 405)

        assert w.engine.requests == []
        assert w.engine.aborted == []


async def test_half_characters_from_a_client_do_not_break_the_tokenizer(qwen3_tokenizer: Any) -> None:
    body = rb'{"model": "m", "messages": [{"role": "user", "content": "cut \ud83e and whole \ud83e\udd8a"}]}'
    async with world(qwen3_tokenizer, ["ok"]) as w:
        status, _ = await post(f"{w.url}/v1/chat/completions", w.adapter.open_session().api_key, body)

    assert status == 200
    assert "cut \ufffd and whole 🦊" in w.engine.requests[0].prompt


async def test_head_of_the_root_and_the_list_of_models(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, [], model_name="tiny") as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            assert [model.id async for model in client.models.list()] == ["tiny"]
            assert (await client.models.retrieve("tiny")).id == "tiny"
        async with w.anthropic(session) as claude:
            assert [model.id async for model in claude.models.list()] == ["tiny"]
        async with aiohttp.ClientSession() as http, http.head(w.url + "/") as response:
            assert response.status == 200
