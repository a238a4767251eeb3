"""One row in, certified Samples out, whatever happens on the way."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from rollhook import Sample, Status, run_rollout
from rollhook.generate import reward_samples
from rollhook.testing import Fault, Reply, ScriptedEngine, scripted_log_prob
from tests.unit import worlds
from tests.unit.worlds import error_of, row, running, runtime_tokens


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def test_one_answer_becomes_one_exact_sample(smollm2_tokenizer: Any) -> None:
    tokenizer = smollm2_tokenizer
    async with running(tokenizer, ["It is 4."]) as (runtime, engine):
        [sample] = await run_rollout(runtime, row(verifier="number"), {"temperature": 1.0})

    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2+2?"}], add_generation_prompt=True, return_dict=False
    )
    answer = [*tokenizer.encode("It is 4.", add_special_tokens=False), tokenizer.eos_token_id]
    assert sample.tokens == prompt + answer
    assert sample.loss_mask == [1] * len(answer)
    assert sample.rollout_log_probs == [scripted_log_prob(i, t) for i, t in enumerate(answer)]
    assert (sample.status, sample.reward, sample.rollout_id, sample.response_length) == (
        Status.COMPLETED,
        1.0,
        7,
        len(answer),
    )
    assert engine.requests[0].sampling["temperature"] == 1.0
    assert sample.metadata["rollhook_result"]["request_ids"] == [engine.requests[0].rid]


async def test_parallel_tool_calls_are_answered_in_order_and_masked(qwen3_tokenizer: Any) -> None:
    script = [call("echo", text="a") + "\n" + call("echo", text="b"), "a then b, 4"]
    async with running(qwen3_tokenizer, script) as (runtime, engine):
        [sample] = await run_rollout(runtime, row(tools="w/echo", verifier="w/contains"), {})

    assert error_of(sample) is None
    second = engine.requests[1]
    assert second.prompt.index("echo: a") < second.prompt.index("echo: b")
    assert second.input_ids == sample.tokens[: len(second.input_ids)]
    assert sum(sample.loss_mask or []) == runtime_tokens(engine)
    assert (sample.reward, sample.metadata["rollhook_result"]["turns"]) == (1.0, 2)


async def test_a_wrong_tool_name_and_wrong_arguments_are_answers_to_the_model(qwen3_tokenizer: Any) -> None:
    script = [call("ecko", text="a"), call("echo", txt="a"), "4"]
    async with running(qwen3_tokenizer, script) as (runtime, engine):
        [sample] = await run_rollout(runtime, row(tools="w/echo", verifier="w/contains"), {})

    assert "Error: there is no tool 'ecko'; the tools are: echo" in engine.requests[1].prompt
    assert "'text' is a required property" in engine.requests[2].prompt
    assert sample.status is Status.COMPLETED


async def test_an_environment_goes_on_in_the_open_turn(smollm2_tokenizer: Any) -> None:
    async with running(smollm2_tokenizer, ["one!", "two!", "stop"]) as (runtime, engine):
        [sample] = await run_rollout(runtime, row(environment="w"), {})

    assert engine.requests[0].sampling["stop"] == ["!"]
    assert engine.requests[1].prompt.endswith("count from 4<|im_end|>\n<|im_start|>assistant\none! more ")
    assert sample.response == "one! more two! more stop"
    masked = [
        t
        for t, bit in zip(sample.tokens[-sample.response_length :], sample.loss_mask or [], strict=True)
        if not bit
    ]
    assert smollm2_tokenizer.decode(masked) == " more  more "
    assert sample.metadata["rollhook_result"]["environment"] == {"reward": 1.0, "done": True, "info": {}}
    assert sample.reward == 1.0  # 0.25 + 0.25 + 0.5, the environment's own


async def test_environments_are_closed_whatever_happens(smollm2_tokenizer: Any) -> None:
    worlds.Counter.closed = 0
    async with running(smollm2_tokenizer, ["stop", "boom", Reply("one!", delay_s=60)]) as (runtime, engine):
        await run_rollout(runtime, row(environment="w"), {})
        await run_rollout(runtime, row(environment="w"), {})
        cancelled = asyncio.create_task(run_rollout(runtime, row(environment="w"), {}))
        while engine.in_flight == 0:
            await asyncio.sleep(0.01)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    assert worlds.Counter.closed == 3
    assert engine.in_flight == 0


@pytest.mark.parametrize(
    ("spec", "script", "error"),
    [
        ({"topology": "w/broken"}, ["4"], ("topology", "w/broken", "ValueError")),
        ({"environment": "w"}, ["boom"], ("environment", "w/counter", "RuntimeError")),
        ({"verifier": "nobody"}, [], ("resolve", None, "RowError")),
        (
            {"topology": "single"},
            [Reply("4", fault=Fault.missing_logprobs(None))],
            ("engine", None, "EngineProtocolError"),
        ),
        (
            {"topology": "single"},
            [Reply("4", fault=Fault.nan_logprob(None))],
            ("engine", None, "EngineProtocolError"),
        ),
        (
            {"topology": "single"},
            [Reply("4", fault=Fault.status(500, None))],
            ("engine", None, "EngineUnavailable"),
        ),
        (
            {"topology": "single"},
            [Reply("4", fault=Fault.status(400, None))],
            ("engine", None, "EngineRejected"),
        ),
    ],
)
async def test_a_fault_of_one_row_is_a_failed_sample_with_its_cause(
    smollm2_tokenizer: Any, spec: dict[str, Any], script: list[Any], error: tuple[str, str | None, str]
) -> None:
    async with running(smollm2_tokenizer, script) as (runtime, _):
        [sample] = await run_rollout(runtime, row(**spec), {})

    cause = error_of(sample)
    assert (cause["stage"], cause["plugin"], cause["type"]) == error
    assert (sample.status, sample.remove_sample, sample.reward) == (Status.FAILED, True, 0.0)
    assert not any(sample.loss_mask or [1])


async def test_a_crashing_tool_fails_the_rollout_by_name(qwen3_tokenizer: Any) -> None:
    async with running(qwen3_tokenizer, [call("echo", text="crash")]) as (runtime, _):
        [sample] = await run_rollout(runtime, row(tools="w/echo"), {})

    error = error_of(sample)
    assert re.fullmatch(r"tests/unit/worlds\.py:\d+ in call", error.pop("where"))
    assert error == {
        "stage": "tool",
        "plugin": "w/echo",
        "type": "OSError",
        "message": "w/echo: OSError: the disk is full",
    }


@pytest.mark.parametrize(("label", "cause"), [("hang", "TimeoutError"), ("raise", "LookupError")])
async def test_a_failing_verifier_fails_the_rollout_within_its_deadline(
    smollm2_tokenizer: Any, label: str, cause: str
) -> None:
    async with running(smollm2_tokenizer, ["4"], verifier_timeout_s=0.2) as (runtime, _):
        [sample] = await run_rollout(runtime, row(label=label, verifier="w/contains"), {})

    assert (error_of(sample)["stage"], error_of(sample)["type"]) == ("verifier", cause)
    assert sample.response == "4"  # kept for people to look at; nothing of it trains


async def test_a_500_that_passes_is_retried(smollm2_tokenizer: Any) -> None:
    async with running(smollm2_tokenizer, [Reply("4", fault=Fault.status(500))]) as (runtime, engine):
        [sample] = await run_rollout(runtime, row(verifier="number"), {})

    assert (sample.reward, len(engine.requests)) == (1.0, 2)


async def test_two_agents_are_two_siblings_that_run_at_once(smollm2_tokenizer: Any) -> None:
    def answer(request: Any) -> Reply:
        return Reply("4" if "You are right" in request.prompt else "5", delay_s=0.3)

    async with running(smollm2_tokenizer, answer) as (runtime, engine):
        samples = await run_rollout(runtime, row(topology="w/pair", verifier="number"), {})

    results = [s.metadata["rollhook_result"] for s in samples]
    assert [(r["role"], r["segment"], r["segments"]) for r in results] == [("left", 0, 2), ("right", 1, 2)]
    assert [(s.rollout_id, s.reward) for s in samples] == [(7, 1.0), (7, 1.0)]
    assert [s.response for s in samples] == ["5", "4"]
    assert engine.peak_in_flight == 2
    assert len({request.session for request in engine.requests}) == 1


async def test_untrained_agents_give_no_sample(smollm2_tokenizer: Any) -> None:
    async with running(smollm2_tokenizer, ["4", "good"]) as (runtime, _):
        samples = await run_rollout(runtime, row(topology="w/watched", verifier="number"), {})

    assert [s.metadata["rollhook_result"]["role"] for s in samples] == ["solver"]


async def test_a_role_of_another_model_speaks_its_tokens_and_never_trains(
    smollm2_tokenizer: Any, qwen3_tokenizer: Any
) -> None:
    async with (
        ScriptedEngine(qwen3_tokenizer, ["yes, 4"]) as judge,
        running(smollm2_tokenizer, ["four"], models={"judge": judge.url}) as (runtime, engine),
    ):
        [sample] = await run_rollout(runtime, row(topology="w/judged", verifier="number"), {})

    assert judge.requests[0].input_ids == qwen3_tokenizer.apply_chat_template(
        [{"role": "user", "content": "Judge: four"}], add_generation_prompt=True, return_dict=False
    )
    assert (sample.reward, sample.response) == (1.0, "four")
    assert sum(sample.loss_mask or []) == runtime_tokens(engine)


@pytest.mark.parametrize(
    ("topology", "models", "message"),
    [
        ("w/judged", {}, "agent 'judge' asks for the model 'judge'; beside the policy the run has: none"),
        ("w/judge-trained", {"judge": ""}, "agent 'judge' of the model 'judge' cannot train"),
    ],
)
async def test_a_model_the_run_lacks_or_may_not_train_fails_the_rollout(
    smollm2_tokenizer: Any, topology: str, models: dict[str, str], message: str
) -> None:
    async with ScriptedEngine(smollm2_tokenizer, []) as judge:
        urls = dict.fromkeys(models, judge.url)
        async with running(smollm2_tokenizer, ["4"], models=urls) as (runtime, _):
            [sample] = await run_rollout(runtime, row(topology=topology), {})

    assert message in error_of(sample)["message"]


async def test_each_role_gets_its_own_reward_and_evaluation_their_mean(smollm2_tokenizer: Any) -> None:
    async with running(smollm2_tokenizer, ["4"] * 4) as (runtime, _):
        samples = await run_rollout(runtime, row(topology="w/rewarding"), {})
        [evaluated] = await run_rollout(runtime, row(topology="w/rewarding"), {}, evaluation=True)

    assert [s.reward for s in samples] == [1.0, -0.5]
    assert evaluated.reward == 0.25


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        ("config", "w/misbehaved: ConfigError: no licence"),
        ("cancel", "a plugin raised CancelledError by itself"),
        ("hot", "agent 'hot' trains, so it samples at the run's temperature 1.0, not at 0.1"),
    ],
)
async def test_what_a_plugin_may_not_do_fails_its_rollout_only(
    smollm2_tokenizer: Any, deed: str, message: str
) -> None:
    async with running(smollm2_tokenizer, ["4"]) as (runtime, _):
        [sample] = await run_rollout(runtime, row(label=deed, topology="w/misbehaved"), {})

    assert message in error_of(sample)["message"]


async def test_a_topology_can_go_on_from_a_tools_error_and_cannot_change_the_row(
    qwen3_tokenizer: Any,
) -> None:
    sample = row(topology="w/misbehaved", tools="w/echo")
    async with running(qwen3_tokenizer, [call("echo", text="crash")]) as (runtime, _):
        [made] = await run_rollout(runtime, sample, {})

    assert (made.status, made.reward) == (Status.COMPLETED, 0.25)
    assert (
        made.metadata["rollhook"]
        == sample.metadata["rollhook"]
        == {"topology": "w/misbehaved", "tools": "w/echo"}
    )


@pytest.mark.parametrize("metadata", [None, "abc", 3])
async def test_metadata_that_is_no_mapping_fails_the_row(smollm2_tokenizer: Any, metadata: Any) -> None:
    async with running(smollm2_tokenizer, []) as (runtime, _):
        [sample] = await run_rollout(runtime, Sample(index=1, prompt="q", metadata=metadata), {})
        [scored] = await reward_samples(runtime, [Sample(index=1, metadata=metadata)])

    assert error_of(sample)["stage"] == "resolve"
    assert scored == 0.0


async def test_bare_samples_get_seeds_of_their_own(smollm2_tokenizer: Any) -> None:
    async with running(smollm2_tokenizer, ["4", "4"], seed=1) as (runtime, engine):
        for _ in range(2):
            bare = Sample(prompt="q", label="4", metadata={"rollhook": {"verifier": "number"}})
            await run_rollout(runtime, bare, {})

    first, second = (request.sampling["sampling_seed"] for request in engine.requests)
    assert first != second


async def test_evaluation_gives_one_sample_with_the_rollouts_reward(smollm2_tokenizer: Any) -> None:
    async with running(smollm2_tokenizer, ["4", "4"]) as (runtime, _):
        samples = await run_rollout(runtime, row(topology="w/pair", verifier="number"), {}, evaluation=True)

    assert [(s.reward, s.status) for s in samples] == [(1.0, Status.COMPLETED)]


async def test_return_shape_sample_refuses_topologies_that_fan_out(smollm2_tokenizer: Any) -> None:
    async with running(smollm2_tokenizer, ["4"], return_shape="sample") as (runtime, engine):
        [sample] = await run_rollout(runtime, row(topology="w/pair"), {})

    assert "set return_shape: list" in error_of(sample)["message"]
    assert engine.requests == []


async def test_tools_without_a_parser_fail_the_row_before_any_token(qwen3_tokenizer: Any) -> None:
    async with running(qwen3_tokenizer, ["4"], tool_parser=None) as (runtime, engine):
        [sample] = await run_rollout(runtime, row(tools="w/echo"), {})

    assert "set tool_parser (or --tool-parser)" in error_of(sample)["message"]
    assert engine.requests == []


async def test_the_trainers_abort_gives_back_what_was_sampled(smollm2_tokenizer: Any) -> None:
    async with running(smollm2_tokenizer, [Reply("one two three four", delay_s=60)]) as (runtime, engine):
        task = asyncio.create_task(run_rollout(runtime, row(verifier="number"), {}))
        while engine.in_flight == 0:
            await asyncio.sleep(0.01)
        await runtime.abort()
        [sample] = await task

    assert (sample.status, sample.reward, sample.remove_sample) == (Status.ABORTED, 0.0, False)


async def test_rows_that_name_different_things_run_together(qwen3_tokenizer: Any) -> None:
    def answer(request: Any) -> str:
        return "stop" if "count from" in request.prompt else "4"

    rows = [
        row(index=0, verifier="number"),
        row(index=1, environment="w", tools="w/echo"),
        row(index=2, topology="w/pair", verifier="w/contains"),
        row(index=3, topology="nowhere"),
    ]
    async with running(qwen3_tokenizer, answer) as (runtime, _):
        groups = await asyncio.gather(*(run_rollout(runtime, one, {}) for one in rows))

    assert [[(s.status.value, s.reward, s.rollout_id) for s in group] for group in groups] == [
        [("completed", 1.0, 0)],
        [("completed", 0.5, 1)],
        [("completed", 1.0, 2)] * 2,
        [("failed", 0.0, 3)],
    ]


async def test_the_row_is_not_written_to(smollm2_tokenizer: Any) -> None:
    sample = row(verifier="number")
    before = json.dumps(sample.to_dict())
    sampling = {"temperature": 0.5, "stop": "x"}
    async with running(smollm2_tokenizer, ["4"]) as (runtime, _):
        await run_rollout(runtime, sample, sampling)

    assert json.dumps(sample.to_dict()) == before
    assert sampling == {"temperature": 0.5, "stop": "x"}


async def test_without_an_index_siblings_share_a_random_id(smollm2_tokenizer: Any) -> None:
    sample = row(topology="w/pair", verifier="number")
    sample.index = None
    async with running(smollm2_tokenizer, ["4", "4"]) as (runtime, _):
        samples = await run_rollout(runtime, sample, {})

    ids = {s.rollout_id for s in samples}
    assert len(ids) == 1
    assert 0 <= (ids.pop() or -1) < 2**63


async def test_a_finished_samples_view_has_what_its_environment_said(smollm2_tokenizer: Any) -> None:
    async with running(smollm2_tokenizer, ["one!", "stop"]) as (runtime, _):
        [sample] = await run_rollout(runtime, row(environment="w"), {})
        sample.reward, sample.metadata["rollhook"] = None, {"verifier": "w/episode"}

        assert await reward_samples(runtime, [sample]) == [0.75]


async def test_a_finished_sample_is_scored_by_the_verifier_its_row_names(smollm2_tokenizer: Any) -> None:
    async with running(smollm2_tokenizer, []) as (runtime, _):
        done = Sample(prompt="q", response="so 4", label="4", metadata={"rollhook": {"verifier": "number"}})
        kept = Sample(reward=0.3)
        nobody = Sample(tokens=[1, 2], response_length=1, loss_mask=[1], metadata={"rollhook": "single"})

        assert await reward_samples(runtime, [done, kept, nobody]) == [1.0, 0.3, 0.0]

    assert (nobody.status, nobody.loss_mask) == (Status.FAILED, [0])
    assert "the row names none" in error_of(nobody)["message"]
