"""Who acts in an environment stops at its strings; who reads what others said does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollhook.testing.replies import ScriptedRequest


def stops(requests: list[ScriptedRequest]) -> list[bool]:
    return [bool(request.sampling.get("stop")) for request in requests]


@pytest.mark.parametrize(
    ("topology", "lines", "expected"),
    [
        ("best-of-n", ["4 is done"] * 4, [True] * 4),
        ("self-refine", ["4 is done", "nothing to change"], [True, False]),
        ("solver-rewriter-selector", ["4 is done"] * 6 + ["SELECT: 1"], [True] * 6 + [False]),
        ("self-play", ["4 is done"], [True]),
    ],
)
async def test_only_who_acts_in_the_environment_stops_at_its_strings(
    smollm2_tokenizer: Any, player: Any, topology: str, lines: list[str], expected: list[bool]
) -> None:
    played = await player.play(smollm2_tokenizer, lines, f"topologies/{topology}", environment="world/steps")

    assert stops(played.engine.requests) == expected


async def test_a_subagent_does_not_stop_at_an_environments_strings(qwen3_tokenizer: Any, player: Any) -> None:
    order = {"name": "delegate", "arguments": {"task": "count"}}
    lines = [f"<tool_call>\n{json.dumps(order)}\n</tool_call>", "two", "4 is done"]
    played = await player.play(qwen3_tokenizer, lines, "topologies/orchestrator", environment="world/steps")

    assert stops(played.engine.requests) == [True, False, True]
