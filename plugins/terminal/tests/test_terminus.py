"""The text protocol: answers as they are read, and whole rollouts in real sandboxes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from rollhook import Plugins, RunConfig, Runtime, Sample, Status, run_rollout
from rollhook.testing import Reply, ScriptedEngine
from rollhook_terminal.terminus import Answer, Command, read_answer

ENTRY_POINT = EntryPoint("terminal", "rollhook_terminal.hooks", "rollhook.plugins")
TASKS = Path(__file__).parents[1] / "examples" / "tasks"
SPEC = {"environment": {"name": "terminal/terminus", "task": "find-offender"}}
COUNT = "awk '$NF >= 500 { n[$1]++ } END { for (a in n) print a, n[a] }' logs/* | sort -k2,2nr | head -1"


def answer(*commands: tuple[str, float], done: bool = False) -> str:
    told = [{"keystrokes": keys, "duration": seconds} for keys, seconds in commands]
    return json.dumps({"analysis": "a", "plan": "p", "commands": told, "task_complete": done})


async def rollout(
    tokenizer: Any, script: Sequence[Reply | str], **config: Any
) -> tuple[Sample, ScriptedEngine]:
    spec = {"environment": {**SPEC["environment"], **config}}
    row = Sample(index=0, prompt="x", metadata={"rollhook": spec})
    async with ScriptedEngine(tokenizer, script) as engine:
        settings: dict[str, Any] = {
            "terminal/terminus": {"tasks": str(TASKS)},
            "rollhook/bubblewrap": {"warm": 0},
        }
        run = RunConfig(engine=engine.url, retries=0, settings=settings)
        plugins = Plugins(entry_points=[ENTRY_POINT])
        async with Runtime(run, plugins=plugins, tokenizer=tokenizer) as runtime:
            [sample] = await run_rollout(runtime, row, {"temperature": 1.0})
    return sample, engine


def last_message(prompt: str) -> str:
    return prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]


async def test_a_task_is_done_by_keystrokes_and_scored_by_its_tests(qwen3_tokenizer: Any) -> None:
    script = [
        "I look first.\n```json\n" + answer(("ls logs | wc -l\n", 10)) + "\n```",
        answer((f"{COUNT} > answer.txt\n", 10), ("cat answer.txt\n", 10)),
        answer(done=True),
        answer(done=True),
    ]
    sample, engine = await rollout(qwen3_tokenizer, script)

    first, second, third, fourth = (request.prompt for request in engine.requests)
    assert "Write to `answer.txt`" in first
    assert last_message(first).endswith("Terminal:\n/app $")
    assert last_message(second) == "New terminal output:\nls logs | wc -l\n3\n/app $ "
    assert "10.0.2.5 26\n/app $ " in last_message(third)
    assert "Is the task complete?" in last_message(fourth)
    assert (sample.status, sample.reward) == (Status.COMPLETED, 1.0)


async def test_what_the_terminal_shows_is_masked_and_every_answer_trains(qwen3_tokenizer: Any) -> None:
    script = [answer(("pwd\n", 10)), "no JSON", answer(done=True)]
    sample, engine = await rollout(qwen3_tokenizer, script, confirm=False)

    mask = sample.loss_mask or []
    response = sample.tokens[-sample.response_length :]
    trained = [token for token, bit in zip(response, mask, strict=True) if bit]
    assert trained == [token for turn in engine.sampled for token in turn.token_ids]
    masked = qwen3_tokenizer.decode([token for token, bit in zip(response, mask, strict=True) if not bit])
    assert "pwd\n/app\n/app $ " in masked
    assert "Your answer could not be used" in masked
    assert sample.reward == 0.0


async def test_a_broken_answer_is_corrected_and_the_rollout_goes_on(qwen3_tokenizer: Any) -> None:
    script = [
        "Let me see.",
        '{"analysis": "a", "commands": "ls"}',
        '{"analysis": "a", "plan": "b", "commands": [{"keystrokes": "ls"',
        answer(("ls\n", 10)),
        answer(done=True),
    ]
    sample, engine = await rollout(qwen3_tokenizer, script, confirm=False)

    assert last_message(engine.requests[1].prompt) == (
        "Your answer could not be used: there is no JSON object in it, or it is not valid JSON\n\n"
        "Answer with one JSON object as described."
    )
    assert "plan: field required; commands: input should be a valid list" in engine.requests[2].prompt
    assert "there is no JSON object" in last_message(engine.requests[3].prompt)
    assert "logs" in last_message(engine.requests[4].prompt)
    assert sample.status == Status.COMPLETED


async def test_completion_that_is_taken_back_goes_on(qwen3_tokenizer: Any) -> None:
    script = [
        answer(done=True),
        answer((f"{COUNT} > answer.txt\n", 10)),
        answer(done=True),
        answer(done=True),
    ]
    sample, engine = await rollout(qwen3_tokenizer, script)

    assert (len(engine.requests), sample.reward) == (4, 1.0)


async def test_programs_are_driven_by_keys_and_waiting(qwen3_tokenizer: Any) -> None:
    script = [
        answer(("cat\n", 0.5), ("echo me\n", 0.5)),
        answer(("C-c", 0.5), ("sleep 0.4; echo a''wake\n", 0.0)),
        answer(("", 2.0)),
        answer(done=True),
    ]
    _, engine = await rollout(qwen3_tokenizer, script, confirm=False)

    assert "echo me\necho me" in last_message(engine.requests[1].prompt)
    assert "^C" in last_message(engine.requests[2].prompt)
    assert "awake\n/app $ " in last_message(engine.requests[3].prompt)


async def test_who_blocks_the_terminal_is_told_and_scored(qwen3_tokenizer: Any) -> None:
    script = [answer(("mkdir /tmp/.shell; exit\n", 1)), answer(("ls\n", 1)), answer(done=True)]
    sample, engine = await rollout(qwen3_tokenizer, script, confirm=False)

    last = last_message(engine.requests[2].prompt)
    assert last == "Error: the terminal cannot write /tmp/.shell: Is a directory."
    assert (sample.status, sample.reward) == (Status.COMPLETED, 0.0)


async def test_out_of_turns_is_truncated_and_still_tested(qwen3_tokenizer: Any) -> None:
    row = {**SPEC, "limits": {"max_turns": 1}}
    async with ScriptedEngine(qwen3_tokenizer, [answer((f"{COUNT} > answer.txt\n", 10))]) as engine:
        settings: dict[str, Any] = {"terminal/terminus": {"tasks": str(TASKS)}}
        run = RunConfig(engine=engine.url, settings=settings)
        plugins = Plugins(entry_points=[ENTRY_POINT])
        async with Runtime(run, plugins=plugins, tokenizer=qwen3_tokenizer) as runtime:
            [sample] = await run_rollout(runtime, Sample(index=0, prompt="x", metadata={"rollhook": row}), {})

    assert (sample.status, sample.reward) == (Status.TRUNCATED, 1.0)


@pytest.mark.parametrize(
    ("text", "commands", "done"),
    [
        (answer(("ls\n", 0.1)), [Command(keystrokes="ls\n", duration=0.1)], False),
        ("{curly} text " + answer(done=True) + " {more}", [], True),
        (
            '{"analysis":"","plan":"","commands":[{"keystrokes":"a\nb\n"}]}',
            [Command(keystrokes="a\nb\n", duration=1.0)],
            False,
        ),
        ('{"analysis":"","plan":"","commands":[],"x":{}}', [], False),
    ],
)
def test_an_answer_is_read_wherever_it_stands(text: str, commands: list[Command], done: bool) -> None:
    read = read_answer(text)

    assert (read.commands, read.task_complete) == (commands, done)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is no JSON object"),
        ("{" * 10_000, "there is no JSON object"),
        ('{"a":' * 2000, "there is no JSON object"),
        ('{"analysis":"","plan":"","commands":[{"duration":1}]}', "commands.0.keystrokes: field required"),
        ('{"analysis":"","plan":"","commands":[{"keystrokes":"","duration":-1}]}', "commands.0.duration: "),
        ('{"analysis":"","plan":"","commands":[{"keystrokes":"","duration":NaN}]}', "finite number"),
        (
            '{"analysis":1,"plan":"","commands":[],"task_complete":"yes"}',
            "analysis: input should be a valid str",
        ),
    ],
)
def test_what_is_wrong_with_an_answer_is_said(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_answer(text)


def test_an_answer_may_leave_task_complete_out() -> None:
    assert Answer(analysis="", plan="", commands=[]).task_complete is False
