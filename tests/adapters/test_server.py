"""`serve`: an adapter on its own thread and loop, and the command that runs one."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from rollhook.adapters import AnthropicAdapter, OpenAIAdapter, serve
from rollhook.errors import ConfigError
from rollhook.testing import Fault, Reply, ScriptedEngine
from tests.adapters.worlds import sampled, trained

USER: Any = {"role": "user", "content": "Hi"}


def adapter_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rollhook adapter"]


async def test_a_served_adapter_is_used_from_other_threads_and_loops(qwen3_tokenizer: Any) -> None:
    async with ScriptedEngine(qwen3_tokenizer, ["one"]) as engine:
        adapter = OpenAIAdapter(tokenizer=qwen3_tokenizer, sglang_url=engine.url)
        with serve(adapter) as server:
            session = adapter.open_session()

            def ask() -> str | None:
                with openai.OpenAI(api_key=session.api_key, base_url=session.base_url) as client:
                    answer = client.chat.completions.create(model="m", messages=[USER])
                return answer.choices[0].message.content

            assert await asyncio.to_thread(ask) == "one"
            segments = await adapter.finish_session(session.session_id)
            assert session.base_url == f"{server.url}/v1"

    assert trained(segments) == [sampled(engine)]
    assert adapter_threads() == []


async def test_closing_a_server_ends_what_it_still_samples(qwen3_tokenizer: Any) -> None:
    async with ScriptedEngine(qwen3_tokenizer, [Reply("x", fault=Fault.hang())]) as engine:
        adapter = AnthropicAdapter(tokenizer=qwen3_tokenizer, sglang_url=engine.url)
        server = serve(adapter)
        session = adapter.open_session()
        async with anthropic.AsyncAnthropic(
            api_key=session.api_key, base_url=session.base_url, max_retries=0
        ) as client:
            request = asyncio.create_task(client.messages.create(model="m", max_tokens=9, messages=[USER]))
            while not engine.in_flight:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.close)
            with pytest.raises(anthropic.APIError):
                await request

        assert engine.in_flight == 0
    assert adapter.open_sessions == 0
    assert adapter_threads() == []


async def test_a_port_that_is_taken_is_an_error_of_serve(qwen3_tokenizer: Any) -> None:
    async with ScriptedEngine(qwen3_tokenizer, []) as engine:
        adapter = OpenAIAdapter(tokenizer=qwen3_tokenizer, sglang_url=engine.url)
        taken = int(engine.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{taken}"):
            serve(adapter, port=taken)

    assert adapter_threads() == []


def test_an_adapter_needs_one_engine_and_known_parsers(qwen3_tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="give sglang_url or engine"):
        OpenAIAdapter(tokenizer=qwen3_tokenizer)
    with pytest.raises(ConfigError, match="no tool parser named 'qwen9'"):
        OpenAIAdapter(tokenizer=qwen3_tokenizer, sglang_url="http://x", tool_parser="qwen9")


async def test_a_plain_conversation_with_the_embedded_engine(
    tiny_model: Path, smollm2_tokenizer: Any
) -> None:
    from rollhook.embedded import EmbeddedEngine

    async with EmbeddedEngine(str(tiny_model)) as engine:
        adapter = OpenAIAdapter(tokenizer=smollm2_tokenizer, sglang_url=engine.url)
        with serve(adapter):
            session = adapter.open_session(sampling_defaults={"max_new_tokens": 8})
            async with openai.AsyncOpenAI(api_key=session.api_key, base_url=session.base_url) as client:
                first = await client.chat.completions.create(model="m", messages=[USER])
                said: Any = [USER, first.choices[0].message.model_dump(exclude_none=True), USER]
                stream = await client.chat.completions.create(model="m", messages=said, stream=True)
                chunks = [chunk async for chunk in stream]
            segments = await adapter.finish_session(session.session_id)

    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert [segment.turns for segment in segments] == [2]
    assert 2 <= sum(segments[0].loss_mask) <= 16


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, smollm2_tokenizer: Any) -> Path:
    """A toy model with random weights and SmolLM2's tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(smollm2_tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        eos_token_id=smollm2_tokenizer.eos_token_id,
        bos_token_id=None,
    )
    path = tmp_path_factory.mktemp("tiny")
    Qwen3ForCausalLM(config).save_pretrained(path)
    smollm2_tokenizer.save_pretrained(path)
    return path
