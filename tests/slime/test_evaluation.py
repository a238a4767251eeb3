"""Evaluation through both rollout functions: one Sample a rollout, nothing of training touched."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rollhook import ConfigError
from rollhook.slime import fully_async_rollout, generate_rollout
from rollhook.testing import Reply, ScriptedRequest
from tests.slime.running import NUMBER, PAIR, slime_run
from tests.slime.slime_types import EvalSet, SlimeStatus

Flags = dict[str, Any]
FUNCTIONS = pytest.mark.parametrize("function", [generate_rollout, fully_async_rollout])


def eval_set(directory: Path, prompts: list[str], name: str = "exam", **fields: Any) -> EvalSet:
    """A data set of these prompts, right answer 4."""
    path = directory / f"{name}.jsonl"
    rows = [{"prompt": prompt, "label": "4", "metadata": NUMBER} for prompt in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return EvalSet(**{"name": name, "path": str(path), **fields})


@FUNCTIONS
async def test_every_data_set_is_reported_with_rewards_truncation_and_samples(
    smollm2_tokenizer: Any, tmp_path: Path, function: Any
) -> None:
    def script(request: ScriptedRequest) -> Reply:
        return Reply("4" if "right" in request.prompt else "5 and on and on", finish="stop")

    sets = [
        eval_set(tmp_path, ["right", "wrong"], "one", n_samples_per_eval_prompt=2),
        eval_set(tmp_path, ["right"], "two", max_response_len=1),
    ]
    async with slime_run(smollm2_tokenizer, script, eval_datasets=sets) as (trainer, _):
        report = await trainer.evaluate(function, 3)

    assert {name: data["rewards"] for name, data in report.items()} == {
        "one": [1.0, 1.0, 0.0, 0.0],
        "two": [1.0],
    }
    assert {name: data["truncated"] for name, data in report.items()} == {"one": [False] * 4, "two": [True]}
    assert [sample.index for sample in report["one"]["samples"]] == [0, 1, 2, 3]


async def test_a_data_set_samples_by_its_own_parameters(smollm2_tokenizer: Any, tmp_path: Path) -> None:
    own = {
        "temperature": 0.0,
        "top_p": 0.9,
        "top_k": 5,
        "max_response_len": 7,
        "min_new_tokens": 1,
        "stop": ["!"],
    }
    sets = [eval_set(tmp_path, ["a"], "one", **own), eval_set(tmp_path, ["b"], "two")]
    flags: Flags = {"eval_datasets": sets, "eval_temperature": 0.6}
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, engine):
        await trainer.evaluate(generate_rollout, 0)
        await trainer.rollout(generate_rollout, 0)
        sent = {r.prompt.split("user\n")[1][0]: r.sampling for r in engine.requests}

    assert {
        key: sent["a"][key] for key in ("temperature", "top_p", "top_k", "max_new_tokens", "min_new_tokens")
    } == {
        "temperature": 0.0,
        "top_p": 0.9,
        "top_k": 5,
        "max_new_tokens": 7,
        "min_new_tokens": 1,
    }
    assert "!" in sent["a"]["stop"]
    assert sent["b"]["temperature"] == 0.6
    assert sent["Q"]["temperature"] == 1.0


async def test_fan_out_and_failures_are_one_sample_a_rollout(smollm2_tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "exam.jsonl"
    broken = {"rollhook": {"topology": "w/broken"}}
    lines = [{"prompt": "q", "label": "4", "metadata": metadata} for metadata in (PAIR, broken)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    async with slime_run(smollm2_tokenizer, eval_datasets=[EvalSet("exam", str(path))]) as (trainer, _):
        report = await trainer.evaluate(generate_rollout, 0)

    assert report["exam"]["rewards"] == [1.0, 0.0]
    assert [sample.status for sample in report["exam"]["samples"]] == [
        SlimeStatus.COMPLETED,
        SlimeStatus.FAILED,
    ]


async def test_columns_slices_and_overrides_are_as_the_data_set_says(
    smollm2_tokenizer: Any, tmp_path: Path
) -> None:
    path = tmp_path / "exam.jsonl"
    rows = [{"q": f"ask {n}", "a": "4", "meta": {"note": n}} for n in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = [
        EvalSet(
            "exam",
            f"{path}@[1:3]",
            input_key="q",
            label_key="a",
            metadata_key="meta",
            metadata_overrides=dict(NUMBER),
        )
    ]
    async with slime_run(smollm2_tokenizer, eval_datasets=sets) as (trainer, _):
        report = await trainer.evaluate(generate_rollout, 0)

    assert [s.prompt for s in report["exam"]["samples"]] == ["ask 1", "ask 2"]
    assert [s.metadata["note"] for s in report["exam"]["samples"]] == [1, 2]
    assert report["exam"]["rewards"] == [1.0, 1.0]


async def named_rewards(args: Any, sample: Any) -> dict[str, float]:
    return {"exact": 0.25, "style": 9.0}


async def test_a_data_set_may_have_a_reward_function_and_a_key_of_it(
    smollm2_tokenizer: Any, tmp_path: Path
) -> None:
    path = "tests.slime.test_evaluation.named_rewards"
    sets = [
        eval_set(tmp_path, ["a"], metadata_overrides={"rollhook": "single"}, custom_rm_path=path),
        eval_set(tmp_path, ["a"], "other"),
    ]
    flags: Flags = {"eval_datasets": sets, "eval_reward_key": "exact"}
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, _):
        report = await trainer.evaluate(generate_rollout, 0)

    assert (report["exam"]["rewards"], report["other"]["rewards"]) == ([0.25], [1.0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": "/nowhere.jsonl"}, "no such file"),
        ({"input_key": "question"}, "evaluation 'exam': .*line 1: no such key"),
        ({"custom_generate_function_path": "mine.generate"}, r"not mine\.generate"),
        ({"custom_rm_path": "mine.reward"}, "No module named 'mine'"),
        ({"name": ""}, "lacks a name or a path"),
    ],
)
async def test_a_data_set_that_cannot_be_run_is_refused_before_any_token(
    smollm2_tokenizer: Any, tmp_path: Path, fields: Flags, message: str
) -> None:
    sets = [eval_set(tmp_path, ["a"], "good"), eval_set(tmp_path, ["a"])]
    vars(sets[1]).update(fields)
    async with slime_run(smollm2_tokenizer, eval_datasets=sets) as (trainer, engine):
        with pytest.raises(ConfigError, match=message):
            await asyncio.to_thread(generate_rollout, trainer.args, 0, trainer.source, evaluation=True)

        assert engine.requests == []


async def test_an_evaluation_without_data_sets_reports_nothing(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        assert await trainer.evaluate(generate_rollout, 0) == {}


async def test_an_abort_of_training_rollouts_does_not_end_an_evaluation(
    smollm2_tokenizer: Any, tmp_path: Path
) -> None:
    """A pause for new weights aborts what runs on the loop; the evaluation's rollouts run again."""
    from rollhook.slime import pause_rollouts, resume_rollouts

    delay = [60.0]

    def script(request: ScriptedRequest) -> Reply:
        return Reply("4 is the answer", delay_s=delay[0])

    flags: Flags = {
        "eval_datasets": [eval_set(tmp_path, ["Exam"])],
        "rollhook": {"fully_async": {"on_pause": "abort"}},
    }
    async with slime_run(smollm2_tokenizer, script, **flags) as (trainer, engine):
        training = asyncio.create_task(trainer.rollout(fully_async_rollout, 0))
        evaluation = asyncio.create_task(trainer.evaluate(fully_async_rollout, 0))
        async with asyncio.timeout(20):
            while sum("Exam" in request.prompt for request in engine.requests) == 0 or engine.in_flight < 5:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(pause_rollouts)
        delay[0] = 0.0
        await asyncio.to_thread(resume_rollouts)
        report = await evaluation
        await training

    assert report["exam"]["rewards"] == [1.0]
    assert report["exam"]["samples"][0].status is SlimeStatus.COMPLETED
