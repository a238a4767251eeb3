"""Whole rollouts: a loaded plugin, a real chat template, a real engine wire, real sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import uuid
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from rollhook import Plugins, RunConfig, Runtime, Sample, Status, run_rollout
from rollhook.testing import Reply, ScriptedEngine

ENTRY_POINT = EntryPoint("terminal", "rollhook_terminal.hooks", "rollhook.plugins")
EXAMPLES = Path(__file__).parents[1] / "examples"
SETTINGS = {"terminal": {"tasks": str(EXAMPLES / "tasks")}, "rollhook/bubblewrap": {"warm": 0}}
ROW = {"environment": {"name": "terminal", "task": "find-offender"}}


def call(tool: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


async def rollout(
    tokenizer: Any, script: Sequence[Reply | str], spec: Any = None, **config: Any
) -> tuple[Sample, ScriptedEngine]:
    row = Sample(index=0, prompt="find-offender", metadata={"rollhook": spec or ROW})
    async with ScriptedEngine(tokenizer, script) as engine:
        settings = {
            "engine": engine.url,
            "retries": 0,
            "tool_parser": "qwen25",
            "settings": SETTINGS,
            **config,
        }
        plugins = Plugins(entry_points=[ENTRY_POINT])
        async with Runtime(RunConfig(**settings), plugins=plugins, tokenizer=tokenizer) as runtime:
            [sample] = await run_rollout(runtime, row, {"temperature": 1.0})
    return sample, engine


COUNT = "awk '$NF >= 500 { n[$1]++ } END { for (a in n) print a, n[a] }' logs/* | sort -k2,2nr | head -1"


async def test_a_task_is_done_by_commands_and_scored_by_its_tests(qwen3_tokenizer: Any) -> None:
    script = [
        call("bash", command="ls logs | wc -l"),
        call("bash", command=f"{COUNT} | tee answer.txt"),
        "Done.",
    ]
    sample, engine = await rollout(qwen3_tokenizer, script)

    assert "Write to `answer.txt`" in engine.requests[0].prompt
    assert "Your folder is /app." in engine.requests[0].prompt
    assert "<tool_response>\n3\n[exit code 0]\n</tool_response>" in engine.requests[1].prompt
    assert "10.0.2.5 26\n[exit code 0]" in engine.requests[2].prompt
    assert (sample.status, sample.reward) == (Status.COMPLETED, 1.0)
    scores = sample.metadata["rollhook_result"]["scores"]
    assert (scores["tests"], scores["commands"], scores["tests_timed_out"]) == (1.0, 2.0, 0.0)
    trained = [
        token
        for token, bit in zip(sample.tokens[-sample.response_length :], sample.loss_mask or [], strict=True)
        if bit
    ]
    assert trained == [token for turn in engine.sampled for token in turn.token_ids]


async def test_part_of_a_task_earns_part_of_the_reward(qwen3_tokenizer: Any) -> None:
    sample, _ = await rollout(qwen3_tokenizer, [call("bash", command="echo 10.0.2.5 > answer.txt"), "Done."])

    assert sample.reward == 0.5


async def test_out_of_turns_is_truncated_and_still_tested(qwen3_tokenizer: Any) -> None:
    spec = {**ROW, "limits": {"max_turns": 1}}
    sample, _ = await rollout(qwen3_tokenizer, [call("bash", command=f"{COUNT} > answer.txt")], spec)

    assert (sample.status, sample.reward) == (Status.TRUNCATED, 1.0)


async def test_who_blocks_the_terminal_is_told_and_scored(qwen3_tokenizer: Any) -> None:
    damage = "rm -f /tmp/.command; mkdir /tmp/.command"
    script = [call("bash", command=damage), call("bash", command="ls"), "Done."]
    sample, engine = await rollout(qwen3_tokenizer, script)

    assert "Error: the terminal cannot write /tmp/.command: Is a directory." in engine.requests[2].prompt
    assert (sample.status, sample.reward) == (Status.COMPLETED, 0.0)


async def test_keys_and_the_screen_are_tools_too(qwen3_tokenizer: Any) -> None:
    script = [
        call("send_keys", keys=["head -c 3 logs/access.log", "Enter"], wait_s=1),
        call("read_screen"),
        call("bash", command="exit 1", timeout_s=0),
        "Done.",
    ]
    sample, engine = await rollout(qwen3_tokenizer, script)

    assert "/app $ head -c 3 logs/access.log\n10." in engine.requests[1].prompt
    assert engine.requests[2].prompt.count("/app $ head -c 3 logs/access.log\n10.") == 2
    assert "Error: bash: timeout_s: 0 is less than or equal to the minimum of 0" in engine.requests[3].prompt
    assert (sample.status, sample.reward) == (Status.COMPLETED, 0.0)


async def test_a_command_while_a_program_runs_is_told_so(qwen3_tokenizer: Any) -> None:
    script = [call("send_keys", keys=["cat", "Enter"], wait_s=1), call("bash", command="ls"), "Done."]
    _, engine = await rollout(qwen3_tokenizer, script)

    assert "Error: a program runs in the terminal." in engine.requests[2].prompt


async def test_the_tools_alone_say_what_they_need(qwen3_tokenizer: Any) -> None:
    sample, _ = await rollout(qwen3_tokenizer, [call("bash", command="ls")], {"tools": "terminal/bash"})

    assert sample.status == Status.FAILED
    error = sample.metadata["rollhook_result"]["error"]
    assert (error["stage"], error["plugin"]) == ("tool", "terminal/bash")
    assert "this needs the environment terminal" in error["message"]


async def test_a_row_chooses_a_task_but_not_the_folder(qwen3_tokenizer: Any) -> None:
    absent, _ = await rollout(qwen3_tokenizer, [], {"environment": {"name": "terminal", "task": "nope"}})
    folder, _ = await rollout(qwen3_tokenizer, [], {"environment": {"name": "terminal", "tasks": "/etc"}})

    messages = [sample.metadata["rollhook_result"]["error"]["message"] for sample in (absent, folder)]
    assert "there is no task 'nope'" in messages[0]
    assert 'a row may not set "tasks" of terminal/terminal (it holds a path)' in messages[1]


def marked(number: str) -> list[str]:
    """Processes of this machine whose command line has `number`."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and number.encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
    return found


async def test_a_cancelled_rollout_leaves_no_process(qwen3_tokenizer: Any) -> None:
    number = str(uuid.uuid4().int % 10**9 + 10**9)
    command = f"trap '' INT TERM HUP; setsid sleep {number} & sleep {number}"
    task = asyncio.create_task(rollout(qwen3_tokenizer, [call("bash", command=command)]))
    async with asyncio.timeout(60):
        while len(marked(number)) < 2:
            await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait([task])

    assert marked(number) == []


async def test_an_image_without_a_backend_for_it_is_said(qwen3_tokenizer: Any, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "tasks" / "sum-sales", tmp_path / "t")
    (tmp_path / "t" / "task.toml").write_text("[environment]\ndocker_image = 'ghcr.io/x/y'")
    spec = {"environment": {"name": "terminal", "task": "t"}}
    sample, _ = await rollout(qwen3_tokenizer, [], spec, settings={"terminal": {"tasks": str(tmp_path)}})

    message = sample.metadata["rollhook_result"]["error"]["message"]
    assert (
        "the container image ghcr.io/x/y is needed, and the sandbox backend rollhook/bubblewrap has"
        in message
    )


async def test_the_example_rows_name_the_example_tasks(qwen3_tokenizer: Any) -> None:
    rows = [json.loads(line) for line in (EXAMPLES / "rows.jsonl").read_text("utf-8").splitlines()]
    tasks = [row["metadata"]["rollhook"]["environment"]["task"] for row in rows]

    assert sorted(tasks) == sorted(path.name for path in (EXAMPLES / "tasks").iterdir())
