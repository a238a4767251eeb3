"""Whole rollouts: a loaded plugin, a real chat template, a real engine wire, a real sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from rollhook import Plugins, RunConfig, Runtime, Sample, Status, View, run_rollout
from rollhook.testing import Reply, ScriptedEngine, scripted_log_prob
from rollhook_retool.config import RewardConfig
from rollhook_retool.protocol import NO_CODE, instruct
from rollhook_retool.reward import MathReward, open_reward

ENTRY_POINT = EntryPoint("retool", "rollhook_retool.hooks", "rollhook.plugins")
EXAMPLES = Path(__file__).parents[1] / "examples"
PROBLEM = "What is 2**100 mod 97?"
CODE = "Let me compute. <code>\n```python\nx = pow(2, 100, 97)\nprint(x)\n```\n</code>"
ANSWER = "So it is <answer>\n\\boxed{16}\n</answer>"
SETTINGS = {"rollhook/bubblewrap": {"warm": 0}, "retool": {"warm": 0}, "retool/code_interpreter": {"warm": 0}}


async def rollout(
    tokenizer: Any, script: Sequence[Reply | str], spec: Any = "retool", **config: Any
) -> tuple[Sample, ScriptedEngine]:
    row = Sample(index=0, prompt=PROBLEM, label="16", metadata={"rollhook": spec})
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


async def test_output_is_masked_and_what_was_sampled_trains(smollm2_tokenizer: Any) -> None:
    tokenizer = smollm2_tokenizer
    sample, engine = await rollout(tokenizer, [CODE + " junk", ANSWER])

    first, second = (turn.token_ids for turn in engine.sampled)
    seen = tokenizer.encode("\n\n<interpreter>\n16\n</interpreter>\n\n", add_special_tokens=False)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": instruct(PROBLEM)}], add_generation_prompt=True, return_dict=False
    )
    log_probs = [[scripted_log_prob(at, token) for at, token in enumerate(turn)] for turn in (first, second)]
    assert sample.tokens == [*prompt, *first, *seen, *second]
    assert sample.loss_mask == [1] * len(first) + [0] * len(seen) + [1] * len(second)
    assert sample.rollout_log_probs == [*log_probs[0], *[0.0] * len(seen), *log_probs[1]]
    assert engine.requests[0].sampling["stop"] == ["</code>"]
    assert "junk" not in sample.response
    assert (sample.status, sample.reward) == (Status.COMPLETED, 1.0)


async def test_state_stays_between_the_blocks_of_a_rollout(smollm2_tokenizer: Any) -> None:
    again = "<code>\nprint(x + 1)\n</code>"
    sample, _ = await rollout(smollm2_tokenizer, [CODE, again, ANSWER])

    assert "<interpreter>\n17\n</interpreter>" in sample.response


async def test_a_block_without_code_is_told_and_the_rollout_goes_on(smollm2_tokenizer: Any) -> None:
    sample, _ = await rollout(smollm2_tokenizer, ["hm </code>", ANSWER])

    assert f"<interpreter>\n{NO_CODE}\n</interpreter>" in sample.response.replace(
        "< code>", "<code>"
    ).replace("< /code>", "</code>")
    assert (sample.status, sample.reward) == (Status.COMPLETED, 1.0)


async def test_a_printed_answer_earns_nothing(smollm2_tokenizer: Any) -> None:
    prints = "<code>print('</interpreter> \\\\boxed{16}')</code>"
    sample, _ = await rollout(smollm2_tokenizer, [prints, "There it is."])

    assert "\\boxed{16}" in sample.response
    assert sample.reward == -1.0


async def test_out_of_turns_is_truncated_and_scored(smollm2_tokenizer: Any) -> None:
    spec = {"environment": "retool", "limits": {"max_turns": 1}}
    sample, _ = await rollout(smollm2_tokenizer, [CODE], spec)

    assert (sample.status, sample.reward) == (Status.TRUNCATED, -1.0)


def call(code: str) -> str:
    arguments = {"name": "code_interpreter", "arguments": {"code": code}}
    return f"<tool_call>\n{json.dumps(arguments)}\n</tool_call>"


async def test_the_tool_keeps_state_and_exact_strings(qwen3_tokenizer: Any) -> None:
    spec = {"tools": "retool/code_interpreter", "verifier": "retool"}
    script = [call("s = '''a\n  b'''\nt = 'c\\nd'"), call("print(s, t)"), ANSWER]
    sample, engine = await rollout(qwen3_tokenizer, script, spec)

    assert "<tool_response>\na\n  b c\nd\n</tool_response>" in engine.requests[2].prompt
    assert '"name": "code_interpreter"' in engine.requests[0].prompt
    assert (sample.status, sample.reward) == (Status.COMPLETED, 1.0)


async def test_rows_may_lower_time_but_not_choose_packages(smollm2_tokenizer: Any) -> None:
    spec = {"environment": {"name": "retool", "packages": ["torch"]}}
    sample, _ = await rollout(smollm2_tokenizer, ["x"], spec)

    error = sample.metadata["rollhook_result"]["error"]["message"]
    assert 'a row may not set "packages" of retool/retool (it is marked run-only)' in error


async def test_the_loop_is_free_while_code_runs(smollm2_tokenizer: Any) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticking = asyncio.create_task(tick())
    sleeps = "<code>\nimport time\nbefore = time.monotonic()\ntime.sleep(0.5)\n</code>"
    sample, _ = await rollout(smollm2_tokenizer, [sleeps, ANSWER])
    ticking.cancel()

    assert sample.status == Status.COMPLETED
    assert ticks >= 20  # of 100 that fit; a blocked loop gives none


@pytest.mark.asyncio(loop_scope="module")
async def test_the_example_labels_are_right_and_others_are_wrong(runtime: Runtime) -> None:
    rows = [json.loads(line) for line in (EXAMPLES / "problems.jsonl").read_text("utf-8").splitlines()]
    rollout: Any = None
    async with open_reward(RewardConfig(), runtime) as opened:
        verifier = MathReward(opened, rollout)
        right = [
            await verifier.score(View("", row["label"], [], f"\\boxed{{{row['label']}}}", {})) for row in rows
        ]
        wrong = [await verifier.score(View("", row["label"], [], "\\boxed{-7/13}", {})) for row in rows]

    assert len(rows) >= 20
    assert {row["metadata"]["rollhook"] for row in rows} == {"retool"}
    assert {score.value for score in right} == {1.0}
    assert {score.value for score in wrong} == {-1.0}
