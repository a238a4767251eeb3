"""What adapter tests share: an adapter over a scripted engine, the official clients, and a client's tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web

from rollhook.adapters import Adapter, AdapterSession
from rollhook.adapters.server import adapter_runner, url_of
from rollhook.ledger import Segment
from rollhook.testing import ScriptedEngine

QWEN3 = {"tool_parser": "qwen25", "reasoning_parser": "qwen3"}

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
CHAT_TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather.", "parameters": PARAMETERS},
}
RESPONSES_TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather.",
    "parameters": PARAMETERS,
    "strict": False,
}
ANTHROPIC_TOOL: Any = {"name": "weather", "description": "The weather.", "input_schema": PARAMETERS}


def call(name: str = "weather", **arguments: Any) -> str:
    """A tool call as Qwen3 writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def original_template(name: str) -> str:
    """A family's own chat template, by trl's name for it."""
    trl = find_spec("trl")
    if trl is None or not trl.submodule_search_locations:
        pytest.skip("needs trl, for its chat templates: pip install --no-deps 'trl==1.16.*'")
    return (Path(trl.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class World:
    """An adapter that serves over real HTTP, and the engine behind it."""

    adapter: Adapter
    engine: ScriptedEngine
    url: str

    def openai(self, session: AdapterSession, **options: Any) -> openai.AsyncOpenAI:
        """The official client, as a user would make it."""
        options = {"api_key": session.api_key, "base_url": f"{self.url}/v1", **options}
        return openai.AsyncOpenAI(**options)

    def anthropic(self, session: AdapterSession, **options: Any) -> anthropic.AsyncAnthropic:
        """The official client, as a user would make it."""
        return anthropic.AsyncAnthropic(**{"api_key": session.api_key, "base_url": self.url, **options})


@asynccontextmanager
async def world(tokenizer: Any, script: Any, **options: Any) -> AsyncIterator[World]:
    """All three protocols over one scripted engine. options: the adapter's; engine_options: the engine's."""
    engine_options = options.pop("engine_options", {})
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(ScriptedEngine(tokenizer, script, **engine_options))
        adapter = Adapter(**{"tokenizer": tokenizer, "sglang_url": engine.url, **QWEN3, **options})
        runner = adapter_runner(adapter)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        adapter.base_url = url_of(runner)
        yield World(adapter, engine, adapter.base_url)


def trained(segments: Sequence[Segment]) -> list[tuple[list[int], list[float]]]:
    """The ids and log-probabilities that each segment trains."""
    made = []
    for segment in segments:
        response = segment.tokens[segment.prompt_length :]
        kept = [at for at, bit in enumerate(segment.loss_mask) if bit]
        made.append(([response[at] for at in kept], [segment.log_probs[at] for at in kept]))
    return made


def sampled(engine: ScriptedEngine) -> tuple[list[int], list[float]]:
    """Everything the engine returned, in order."""
    ids = [token_id for turn in engine.sampled for token_id in turn.token_ids]
    return ids, [log_prob for turn in engine.sampled for log_prob in turn.log_probs]
