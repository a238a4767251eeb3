"""Sessions over HTTP, as `rollhook serve --adapters` offers them."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from rollhook.adapters import Adapter, serve
from rollhook.adapters.admin import add_admin_routes
from rollhook.testing import ScriptedEngine
from tests.e2e.conftest import rollhook_process

USER: Any = {"role": "user", "content": "Hi"}


async def request(method: str, url: str, key: str, body: Any = None) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, url, json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


async def test_a_misspelt_key_is_refused_with_the_right_one(qwen3_tokenizer: Any) -> None:
    async with ScriptedEngine(qwen3_tokenizer, []) as engine:
        adapter = Adapter(tokenizer=qwen3_tokenizer, sglang_url=engine.url)
        add_admin_routes(adapter, "admin")
        with serve(adapter) as server:
            url = f"{server.url}/sessions"
            told = [
                await request("POST", url, "admin", {"samplin": {}}),
                await request("POST", url, "admin", {"sampling": {"temprature": 2}}),
            ]

    assert [status for status, _ in told] == [400, 400]
    assert 'samplin: unknown key; did you mean "sampling"?' in str(told[0][1])
    assert 'sampling.temprature: unknown key; did you mean "temperature"?' in str(told[1][1])


async def test_a_session_is_opened_used_and_finished_over_http(qwen3_tokenizer: Any) -> None:
    async with ScriptedEngine(qwen3_tokenizer, ["one"]) as engine:
        adapter = Adapter(tokenizer=qwen3_tokenizer, sglang_url=engine.url)
        add_admin_routes(adapter, "admin")
        with serve(adapter) as server:
            opened = await request("POST", f"{server.url}/sessions", "admin", {"session_id": "a"})
            again = await request("POST", f"{server.url}/sessions", "admin", {"session_id": "a"})
            session = opened[1]
            async with openai.AsyncOpenAI(
                api_key=session["api_key"], base_url=session["openai_base_url"]
            ) as client:
                await client.chat.completions.create(model="m", messages=[USER])
            as_client = await request("POST", f"{server.url}/sessions/a/finish", session["api_key"])
            finished = await request("POST", f"{server.url}/sessions/a/finish", "admin", {"reward": 1})
            gone = await request("DELETE", f"{server.url}/sessions/a", "admin")

    assert (opened[0], session["session_id"], session["anthropic_base_url"]) == (200, "a", server.url)
    assert (again[0], as_client[0], finished[0], gone[0]) == (400, 401, 200, 404)
    [sample] = finished[1]["samples"]
    assert (sample["reward"], sample["status"]) == (1.0, "completed")
    assert sample["tokens"][-len(engine.sampled[0].token_ids) :] == engine.sampled[0].token_ids


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_other_methods_are_refused(qwen3_tokenizer: Any, method: str) -> None:
    async with ScriptedEngine(qwen3_tokenizer, []) as engine:
        adapter = Adapter(tokenizer=qwen3_tokenizer, sglang_url=engine.url)
        add_admin_routes(adapter, "admin")
        with serve(adapter) as server:
            status, _ = await request(method, f"{server.url}/sessions", "admin")

    assert status == 405


async def test_the_command_serves_adapters_in_front_of_an_engine(qwen3_tokenizer: Any) -> None:
    path = Path(qwen3_tokenizer.name_or_path)
    async with ScriptedEngine(qwen3_tokenizer, ["one"]) as engine:
        with rollhook_process(
            "serve", "--adapters", "--engine", engine.url, "--tokenizer", path, "--port", 0
        ) as process:
            assert process.stdout is not None
            lines = "".join([await asyncio.to_thread(process.stdout.readline) for _ in range(2)])
            served = re.search(r"curl -s -X POST (\S+/sessions) -H 'Authorization: Bearer (\S+)'", lines)
            assert served is not None
            _, session = await request("POST", served[1], served[2])
            async with openai.AsyncOpenAI(
                api_key=session["api_key"], base_url=session["openai_base_url"]
            ) as client:
                answer = await client.chat.completions.create(model="m", messages=[USER])
            process.send_signal(signal.SIGINT)
            _, stderr = await asyncio.to_thread(process.communicate, timeout=60)

    assert answer.choices[0].message.content == "one"
    assert (process.returncode, stderr.splitlines()[-1]) == (0, "stopped")
    assert "Traceback" not in stderr
