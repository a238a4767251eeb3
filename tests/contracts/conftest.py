"""The engines that the wire contract holds for, and the bare client that states it.

The client is aiohttp and nothing of rollhook's, so that what is tested is the wire. One server per session:
its tests run on the session's event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from rollhook.embedded import EmbeddedEngine

Json = dict[str, Any]

ENGINES = [
    "embedded",
    pytest.param("sglang", marks=pytest.mark.sglang),
]


class Wire:
    """A client of one server: prompts as ids, answers as JSON."""

    def __init__(self, engine: str, url: str, session: aiohttp.ClientSession, tokenizer: Any) -> None:
        self.engine = engine
        self.url = url
        self.session = session
        self.tokenizer = tokenizer

    def prompt(self, text: str) -> list[int]:
        """The ids of a user's message, ready to be answered."""
        messages = [{"role": "user", "content": text}]
        ids: list[int] = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        return ids

    def body(self, ids: list[int], *, rid: str | None = None, stream: bool = False, **sampling: Any) -> Json:
        """A request as rollhook's client sends it."""
        body: Json = {
            "input_ids": ids,
            "return_logprob": True,
            "stream": stream,
            "sampling_params": {
                "temperature": 0.0,
                "max_new_tokens": 8,
                "no_stop_trim": True,
                "skip_special_tokens": False,
                "spaces_between_special_tokens": False,
                **sampling,
            },
        }
        return body if rid is None else {**body, "rid": rid}

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON (None if the body is none)."""
        async with self.session.post(f"{self.url}{path}", json=body) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith(("{", "[")) else None

    async def generate(self, ids: list[int], **fields: Any) -> Json:
        """A plain answer; its status must be 200."""
        status, answer = await self.post("/generate", self.body(ids, **fields))
        assert status == 200, answer
        result: Json = answer
        return result

    async def events(self, ids: list[int], **fields: Any) -> AsyncIterator[Json]:
        """The events of a streamed answer; the last line must be [DONE]."""
        body = self.body(ids, stream=True, **fields)
        async with self.session.post(f"{self.url}/generate", json=body) as response:
            assert response.status == 200
            assert response.content_type == "text/event-stream"
            data = ""
            async for raw in response.content:
                line = raw.decode().rstrip("\n")
                if line:
                    assert line.startswith("data: ")
                    data = line.removeprefix("data: ")
                    if data != "[DONE]":
                        yield json.loads(data)
            assert data == "[DONE]"

    async def until_free(self, rid: str, ids: list[int]) -> Json:
        """An answer under `rid`, once the request that held it has ended."""
        async with asyncio.timeout(30):
            while True:
                status, answer = await self.post("/generate", self.body(ids, rid=rid, max_new_tokens=1))
                if status == 200:
                    result: Json = answer
                    return result
                await asyncio.sleep(0.05)


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=ENGINES)
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    from transformers import AutoTokenizer

    async with AsyncExitStack() as stack:
        url = await _serve(request.param, stack)
        session = await stack.enter_async_context(
            # SGLang closes a connection that idles for 5 s; one kept longer is cut under the next request
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(keepalive_timeout=3), timeout=aiohttp.ClientTimeout(total=120)
            )
        )
        async with session.get(f"{url}/get_model_info") as response:
            path = (await response.json())["tokenizer_path"]
        tokenizer = await asyncio.to_thread(AutoTokenizer.from_pretrained, path, local_files_only=True)
        yield Wire(request.param, url, session, tokenizer)


async def _serve(engine: str, stack: AsyncExitStack) -> str:
    """The base URL of a running server of this kind."""
    if engine == "embedded":
        return (await stack.enter_async_context(EmbeddedEngine())).url
    url = os.environ.get("ROLLHOOK_SGLANG_URL")
    if not url:
        pytest.skip("needs a real SGLang server: make test-sglang (or set ROLLHOOK_SGLANG_URL)")
    return url.rstrip("/")
