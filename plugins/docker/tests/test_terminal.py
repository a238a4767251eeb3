"""Whole rollouts of `rollhook-terminal`, where it is installed, on a task that names an image."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from rollhook import Plugins, RunConfig, Runtime, Sample, Status, run_rollout
from rollhook.testing import ScriptedEngine

pytest.importorskip("rollhook_terminal", reason="rollhook-terminal is not installed")
ENTRY_POINTS = [
    EntryPoint(name, f"rollhook_{name}.hooks", "rollhook.plugins") for name in ("docker", "terminal")
]
TEST_SH = """
echo 0 > /logs/verifier/reward.txt
[ "$(cat answer.txt)" = "$(cat given)" ] && echo 1 > /logs/verifier/reward.txt
"""


def call(command: str) -> str:
    told = {"name": "bash", "arguments": {"command": command}}
    return f"<tool_call>\n{json.dumps(told)}\n</tool_call>"


async def play(tokenizer: Any, tasks: Path, settings: dict[str, Any], commands: list[str]) -> Sample:
    row = Sample(
        index=0, prompt="t", metadata={"rollhook": {"environment": {"name": "terminal", "task": "t"}}}
    )
    async with ScriptedEngine(tokenizer, [*map(call, commands), "Done."]) as engine:
        config = RunConfig(
            engine=engine.url,
            tool_parser="qwen25",
            sandbox="docker",
            settings={"docker/docker": settings, "terminal": {"tasks": str(tasks)}},
        )
        plugins = Plugins(entry_points=ENTRY_POINTS)
        async with Runtime(config, plugins=plugins, tokenizer=tokenizer) as runtime:
            [sample] = await run_rollout(runtime, row, {})
    return sample


@pytest.mark.parametrize(
    ("command", "reward"),
    [
        ("cat given > answer.txt", 1.0),
        ("true", 0.0),
        ("mkdir /logs/verifier; echo 1 > /logs/verifier/reward.txt", 0.0),
        ("(trap '' HUP TERM; while :; do echo 1 > /logs/verifier/reward.txt; done) & sleep 1", 0.0),
        ("echo x > given; echo y > answer.txt; printf 'exit 0' > cat; chmod +x cat; PATH=.:$PATH", 0.0),
    ],
)
async def test_a_task_is_done_and_tested_in_its_image(
    qwen3_tokenizer: Any, tmp_path: Path, settings: dict[str, Any], command: str, reward: float
) -> None:
    for name, text in {
        "task.toml": f"[environment]\ndocker_image = '{settings['image']}'",
        "instruction.md": "Copy the file given to answer.txt.",
        "tests/test.sh": TEST_SH,
    }.items():
        path = tmp_path / "t" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sample = await play(qwen3_tokenizer, tmp_path, settings, [command])

    assert sample.metadata["rollhook_result"]["error"] is None
    assert (sample.status, sample.reward) == (Status.COMPLETED, reward)
