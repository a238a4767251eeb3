"""The tool as a model meets it: a loaded plugin, a real chat template, a real wire."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from typing import Any

from rollhook import Plugins, RunConfig, Runtime, Sample, Status, run_rollout
from rollhook.testing import ScriptedEngine

ENTRY_POINT = EntryPoint("calculator", "rollhook_calculator.hooks", "rollhook.plugins")


def call(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'calculator', 'arguments': arguments})}\n</tool_call>"


async def rollout(tokenizer: Any, *replies: str) -> tuple[list[Sample], ScriptedEngine]:
    """One row with the calculator and the built-in number verifier; the label is 391."""
    row = Sample(
        index=0,
        prompt="What is 17 * 23?",
        label="391",
        metadata={"rollhook": {"tools": ["calculator"], "verifier": "number"}},
    )
    async with ScriptedEngine(tokenizer, replies) as engine:
        config = RunConfig(engine=engine.url, tool_parser="qwen25")
        plugins = Plugins(entry_points=[ENTRY_POINT])
        async with Runtime(config, plugins=plugins, tokenizer=tokenizer) as runtime:
            return await run_rollout(runtime, row, {}), engine


async def test_a_call_is_answered_masked_and_the_answer_scored(qwen3_tokenizer: Any) -> None:
    [sample], engine = await rollout(qwen3_tokenizer, call(expression="17 * 23"), "It is 391.")

    assert (sample.status, sample.reward) == (Status.COMPLETED, 1.0)
    assert "<tool_response>\n391\n</tool_response>" in engine.requests[1].prompt
    assert '"name": "calculator"' in engine.requests[0].prompt
    trained = [
        token
        for token, bit in zip(sample.tokens[-sample.response_length :], sample.loss_mask or [], strict=True)
        if bit
    ]
    assert trained == [token for turn in engine.sampled for token in turn.token_ids]


async def test_a_wrong_expression_is_told_to_the_model_and_the_rollout_goes_on(qwen3_tokenizer: Any) -> None:
    [sample], engine = await rollout(
        qwen3_tokenizer, call(expression="17 x 23"), call(expr="17 * 23"), "It is 391."
    )

    assert "Error: this is not one arithmetic expression" in engine.requests[1].prompt
    assert "'expression' is a required property" in engine.requests[2].prompt
    assert (sample.status, sample.reward) == (Status.COMPLETED, 1.0)
