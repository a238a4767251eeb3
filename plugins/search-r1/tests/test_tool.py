"""The tool `search` under the topology `single`, with a model that calls functions."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from rollhook import Plugins, RowError, RunConfig, Runtime, Sample, Status, run_rollout
from rollhook.testing import ScriptedEngine

ENTRY_POINT = EntryPoint("search-r1", "rollhook_search_r1.hooks", "rollhook.plugins")
ROW = {"tools": ["search-r1/search"], "verifier": "search-r1"}


def call(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'search', 'arguments': arguments})}\n</tool_call>"


async def rollout(
    tokenizer: Any, script: list[str], row: dict[str, Any] | None = None, **settings: Any
) -> tuple[Sample, ScriptedEngine]:
    sample = Sample(
        index=0, prompt="Capital of Peru?", label="Lima", metadata={"rollhook": {**ROW, **(row or {})}}
    )
    async with ScriptedEngine(tokenizer, script) as engine:
        config = RunConfig(engine=engine.url, tool_parser="qwen25", settings={"search-r1": settings})
        plugins = Plugins(entry_points=[ENTRY_POINT])
        async with Runtime(config, plugins=plugins, tokenizer=tokenizer) as runtime:
            [made] = await run_rollout(runtime, sample, {})
    return made, engine


async def test_a_model_that_calls_functions_searches_without_the_environment(
    corpus: Path, qwen3_tokenizer: Any
) -> None:
    script = [call(query="capital of Peru"), "<answer>Lima</answer>"]
    sample, engine = await rollout(qwen3_tokenizer, script, corpus=str(corpus), cache=str(corpus.parent))

    shown = "Doc 1(Title: Lima) Lima is the capital of Peru."
    assert shown in engine.requests[1].prompt.split("<tool_response>")[1].split("</tool_response>")[0]
    assert (sample.status, sample.reward) == (Status.COMPLETED, 1.0)
    result = sample.metadata["rollhook_result"]
    assert result["environment"] is None
    assert [span["kind"] for span in result["spans"]] == ["prompt", "messages", "retrieved", "messages"]
    retrieved = result["spans"][2]
    tokens = sample.tokens[retrieved["start"] : retrieved["start"] + retrieved["length"]]
    assert qwen3_tokenizer.decode(tokens).split("\nDoc 2(")[0] == shown


async def test_a_row_bounds_what_a_call_shows(corpus: Path, qwen3_tokenizer: Any) -> None:
    row = {"tools": [{"name": "search-r1/search", "topk": 1}]}
    script = [call(query="capital"), "<answer>Lima</answer>"]
    _, engine = await rollout(qwen3_tokenizer, script, row, corpus=str(corpus), cache=str(corpus.parent))

    response = engine.requests[1].prompt.split("<tool_response>")[1]
    assert "Doc 1(" in response
    assert "Doc 2(" not in response


@pytest.mark.parametrize("arguments", [{}, {"query": " "}, {"query": "x", "topk": 5}])
async def test_a_call_that_does_not_fit_is_answered_and_not_searched(
    corpus: Path, qwen3_tokenizer: Any, arguments: dict[str, Any]
) -> None:
    script = [call(**arguments), "<answer>Lima</answer>"]
    sample, engine = await rollout(qwen3_tokenizer, script, corpus=str(corpus), cache=str(corpus.parent))

    assert "Error: search:" in engine.requests[1].prompt
    assert sample.status == Status.COMPLETED


async def test_an_outage_is_told_or_fails_as_the_run_says(qwen3_tokenizer: Any) -> None:
    script = [call(query="capital of Peru"), "<answer>Lima</answer>"]
    nobody: dict[str, Any] = {"url": "http://127.0.0.1:9/retrieve", "retries": 0}
    told, engine = await rollout(qwen3_tokenizer, script, **nobody, on_outage="observe")
    failed, _ = await rollout(qwen3_tokenizer, script, **nobody)

    assert "The search service does not answer." in engine.requests[1].prompt
    assert (told.status, told.reward) == (Status.COMPLETED, 1.0)
    error = failed.metadata["rollhook_result"]["error"]
    assert (failed.status, error["stage"], error["plugin"], error["type"]) == (
        Status.FAILED,
        "tool",
        "search-r1/search",
        "RetrievalOutage",
    )


@pytest.mark.parametrize(
    "key", ["corpus", "url", "ranking", "embedder", "device", "kept_queries", "max_batch"]
)
async def test_a_row_may_not_say_where_the_tool_looks(corpus: Path, smollm2_tokenizer: Any, key: str) -> None:
    async with ScriptedEngine(smollm2_tokenizer, []) as engine:
        config = RunConfig(engine=engine.url, settings={"search-r1": {"corpus": str(corpus)}})
        plugins = Plugins(entry_points=[ENTRY_POINT])
        async with Runtime(config, plugins=plugins, tokenizer=smollm2_tokenizer) as runtime:
            with pytest.raises(RowError, match=rf"tools\[0\]\.{key}"):
                runtime.resolver.resolve({"rollhook": {"tools": [{"name": "search-r1/search", key: "x"}]}})
