"""64 rollouts at once, half of them cancelled: nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import threading
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rollhook import Plugins, RunConfig, Runtime, Sample, run_rollout
from rollhook.testing import ScriptedEngine
from rollhook_search_r1.serve import serving

ENTRY_POINT = EntryPoint("search-r1", "rollhook_search_r1.hooks", "rollhook.plugins")
ROLLOUTS = 64


def script(conversation: Any) -> str:
    """Searches for what its own question asks, then answers."""
    prompt = conversation.prompt
    number = prompt.split("kind ")[1].split("?")[0]
    if "<information>Doc" in prompt:
        return f"<think>so</think><answer>{number}</answer>"
    return f"<think>hm</think><search>kind {number}</search>"


def rows() -> list[Sample]:
    return [
        Sample(index=n, prompt=f"What is kind {n}?", label=str(n), metadata={"rollhook": "search-r1"})
        for n in range(ROLLOUTS)
    ]


async def half_of_them(runtime: Runtime, until: asyncio.Event) -> list[Sample]:
    """Start every row, cancel the odd ones once `until` is set, and return the samples of the others."""
    tasks = [asyncio.create_task(run_rollout(runtime, row, {})) for row in rows()]
    await until.wait()
    for task in tasks[1::2]:
        task.cancel()
    await asyncio.wait(tasks, timeout=60)
    assert all(task.cancelled() for task in tasks[1::2])
    return [sample for task in tasks[::2] for sample in task.result()]


def left_behind() -> tuple[set[asyncio.Task[Any]], list[str]]:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return tasks, [thread.name for thread in threading.enumerate() if thread.name.startswith("search-r1")]


async def test_with_a_service_no_task_and_no_connection_is_left(smollm2_tokenizer: Any) -> None:
    all_ask, open_now = asyncio.Event(), asyncio.Event()
    asked: set[str] = set()
    connections: set[Any] = set()

    async def retrieve(request: web.Request) -> web.Response:
        connections.add(request.transport)
        queries = (await request.json())["queries"]
        asked.update(queries)
        all_ask.set()
        await open_now.wait()
        documents = [[{"document": {"contents": f"Kind\n{query}"}, "score": 1.0}] for query in queries]
        return web.json_response({"result": documents})

    app = web.Application()
    app.router.add_post("/retrieve", retrieve)
    async with ScriptedEngine(smollm2_tokenizer, script) as engine, serving(app, "127.0.0.1", 0) as url:
        config = RunConfig(engine=engine.url, settings={"search-r1": {"url": url, "max_batch": 8}})
        plugins = Plugins(entry_points=[ENTRY_POINT])
        async with Runtime(config, plugins=plugins, tokenizer=smollm2_tokenizer) as runtime:
            before, _ = left_behind()
            running = asyncio.create_task(half_of_them(runtime, all_ask))
            await all_ask.wait()
            await asyncio.sleep(0.05)
            open_now.set()
            samples = await running
            after, _ = left_behind()
            of_rollouts = {task for task in after - before if "batch" in task.get_name()}
        closed = [transport is None or transport.is_closing() for transport in connections]
        for _ in range(100):  # the server sees the end of a connection a little later
            if all(closed):
                break
            await asyncio.sleep(0.02)
            closed = [transport is None or transport.is_closing() for transport in connections]

    assert [sample.reward for sample in samples] == [1.0] * (ROLLOUTS // 2)
    assert of_rollouts == set()
    assert all(closed)
    assert left_behind() == (set(), [])


async def test_with_an_index_no_task_and_no_thread_is_left(tmp_path: Path, smollm2_tokenizer: Any) -> None:
    corpus = tmp_path / "corpus.jsonl"
    passages = [{"title": f"Kind {n}", "text": f"This is kind {n}."} for n in range(ROLLOUTS)]
    corpus.write_text("\n".join(json.dumps(passage) for passage in passages), encoding="utf-8")
    started = asyncio.Event()

    def counting(conversation: Any) -> str:
        if len(engine.requests) >= ROLLOUTS // 2:
            started.set()
        return script(conversation)

    async with ScriptedEngine(smollm2_tokenizer, counting) as engine:
        settings = {"corpus": str(corpus), "cache": str(tmp_path)}
        config = RunConfig(engine=engine.url, settings={"search-r1": settings})
        plugins = Plugins(entry_points=[ENTRY_POINT])
        async with Runtime(config, plugins=plugins, tokenizer=smollm2_tokenizer) as runtime:
            samples = await half_of_them(runtime, started)

    assert [sample.reward for sample in samples] == [1.0] * (ROLLOUTS // 2)
    assert left_behind() == (set(), [])


@pytest.mark.parametrize("on_outage", ["fail", "observe"])
async def test_a_service_that_dies_between_two_searches(
    serve: Any, smollm2_tokenizer: Any, on_outage: str
) -> None:
    served = serve()

    def until_dead(conversation: Any) -> str:
        if "does not answer" in conversation.prompt:
            return "<think>then so</think><answer>Lima</answer>"
        if "<information>Doc" in conversation.prompt:
            served.process.kill()
            served.process.wait()
            return "<think>more</think><search>capital of Ecuador</search>"
        return "<think>hm</think><search>capital of Peru</search>"

    async with ScriptedEngine(smollm2_tokenizer, until_dead) as engine:
        settings = {"url": served.url, "retries": 1, "on_outage": on_outage}
        config = RunConfig(engine=engine.url, settings={"search-r1": settings})
        plugins = Plugins(entry_points=[ENTRY_POINT])
        async with Runtime(config, plugins=plugins, tokenizer=smollm2_tokenizer) as runtime:
            row = Sample(index=0, prompt="?", label="Lima", metadata={"rollhook": "search-r1"})
            [sample] = await run_rollout(runtime, row, {})

    result = sample.metadata["rollhook_result"]
    if on_outage == "observe":
        assert (sample.status.value, sample.reward) == ("completed", 1.0)
        assert result["environment"]["info"] == {"searches": 2, "invalid_actions": 0, "outages": 1}
    else:
        assert (sample.status.value, sample.reward, sample.remove_sample) == ("failed", 0.0, True)
        assert result["error"]["type"] == "RetrievalOutage"
        assert "no answer in 2 requests" in result["error"]["message"]
