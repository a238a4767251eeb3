"""Whole debates: a loaded plugin, a real chat template, a real engine wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from rollhook import (
    Plugins,
    RowError,
    RunConfig,
    Runtime,
    Sample,
    Status,
    VerifierSpec,
    View,
    hookimpl,
    run_rollout,
)
from rollhook.testing import Fault, Reply, ScriptedEngine
from rollhook.testing.replies import ScriptedRequest

ENTRY_POINT = EntryPoint("debate", "rollhook_debate.hooks", "rollhook.plugins")
QUESTION = "What is 2 + 2?"

Script = Callable[[ScriptedRequest], Reply | str] | Sequence[Reply | str]


@asynccontextmanager
async def run_of(tokenizer: Any, script: Script) -> AsyncIterator[tuple[Runtime, ScriptedEngine]]:
    async with ScriptedEngine(tokenizer, script) as engine:
        config = RunConfig(engine=engine.url, retries=0, seed=1)
        plugins = Plugins(entry_points=[ENTRY_POINT])
        plugins.add("world", SimpleNamespace(rollhook_verifiers=rollhook_verifiers))
        async with Runtime(config, plugins=plugins, tokenizer=tokenizer) as runtime:
            yield runtime, engine


async def debate(
    tokenizer: Any,
    script: Script,
    *,
    verifier: str | None = "number",
    label: str = "4",
    prompt: Any = QUESTION,
    **said: Any,
) -> tuple[list[Sample], ScriptedEngine]:
    """One rollout. said: configuration of the debate."""
    row: dict[str, Any] = {"topology": {"name": "debate", **said}}
    if verifier is not None:
        row["verifier"] = verifier
    sample = Sample(index=5, prompt=prompt, label=label, metadata={"rollhook": row})
    async with run_of(tokenizer, script) as (runtime, engine):
        return await run_rollout(runtime, sample, {"temperature": 1.0}), engine


def by_round(*rounds: Sequence[str]) -> Callable[[ScriptedRequest], str]:
    """A script that knows an agent by what it said: rounds[r][a] is what agent a says in round r."""
    waiting = list(rounds[0])

    def reply(request: ScriptedRequest) -> str:
        own = [turn.split("<|im_end|>")[0] for turn in request.prompt.split("<|im_start|>assistant\n")[1:-1]]
        if not own:
            return waiting.pop(0)
        agent = next(a for a, said in enumerate(zip(*rounds, strict=True)) if list(said)[: len(own)] == own)
        return rounds[len(own)][agent]

    return reply


def result(sample: Sample) -> dict[str, Any]:
    found: dict[str, Any] = sample.metadata["rollhook_result"]
    return found


def last_user_message(request: ScriptedRequest) -> str:
    return request.prompt.rsplit("<|im_start|>user\n", 1)[1].split("<|im_end|>")[0]


async def test_each_agent_is_one_segment_with_its_role_and_the_votes_reward(smollm2_tokenizer: Any) -> None:
    script = by_round(["I say 3", "It is 4", "So 5"], ["now 4", "still 4", "5 again"])
    samples, engine = await debate(smollm2_tokenizer, script)

    assert [result(sample)["role"] for sample in samples] == ["agent_1", "agent_2", "agent_3"]
    assert [sample.reward for sample in samples] == [1.0, 1.0, 1.0]
    assert [sample.rollout_id for sample in samples] == [5, 5, 5]
    assert [result(sample)["turns"] for sample in samples] == [2, 2, 2]
    assert result(samples[0])["scores"] == {"vote": 1.0, "single": pytest.approx(1 / 3)}
    assert sum(sum(sample.loss_mask or []) for sample in samples) == sum(
        len(turn.token_ids) for turn in engine.sampled
    )


async def test_a_later_round_shows_the_other_answers_and_the_question_again(smollm2_tokenizer: Any) -> None:
    script = by_round(["I say 3", "It is 4", "So 5"], ["now 4", "still 4", "5 again"])
    _, engine = await debate(smollm2_tokenizer, script)

    first, later = engine.requests[:3], engine.requests[3:]
    assert [last_user_message(request) for request in first] == [QUESTION] * 3
    of_the_first = next(last_user_message(r) for r in later if "assistant\nI say 3" in r.prompt)
    assert "It is 4" in of_the_first
    assert "So 5" in of_the_first
    assert "I say 3" not in of_the_first
    assert of_the_first.index("It is 4") < of_the_first.index("So 5")
    assert all(QUESTION in last_user_message(request) for request in later)


async def test_the_agents_of_a_round_speak_at_once_and_rounds_do_not_overlap(smollm2_tokenizer: Any) -> None:
    samples, engine = await debate(
        smollm2_tokenizer, lambda request: Reply("4", delay_s=0.2), agents=4, rounds=3
    )

    assert engine.peak_in_flight == 4
    assert len(engine.requests) == 12
    assert len(samples) == 4


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        (["4", "4", "5"], 1.0),
        (["5", "4", "4"], 1.0),
        (["none", "of us", "knows"], 0.0),
        (["no idea", "hm", "4"], 1.0),
    ],
)
async def test_the_reward_is_the_votes(smollm2_tokenizer: Any, answers: list[str], reward: float) -> None:
    samples, _ = await debate(smollm2_tokenizer, answers, rounds=1)

    assert [sample.reward for sample in samples] == [reward] * 3


async def test_a_tie_goes_to_the_earliest_agent(smollm2_tokenizer: Any) -> None:
    """Which agent is served which reply is up to the network; agent_1's own reply decides."""
    samples, _ = await debate(smollm2_tokenizer, ["4", "5", "6"], rounds=1)

    assert result(samples[0])["scores"]["vote"] == float(samples[0].response.startswith("4"))


async def test_an_answer_that_cannot_be_read_is_never_right(smollm2_tokenizer: Any) -> None:
    """Its text alone would match the label exactly."""
    samples, _ = await debate(
        smollm2_tokenizer, ["yes"] * 3, rounds=1, verifier="exact_match", label="yes", extractor="number"
    )

    assert [sample.reward for sample in samples] == [0.0, 0.0, 0.0]
    assert result(samples[0])["scores"] == {"vote": 0.0, "single": 0.0}


async def test_the_voted_answer_fits_verifiers_of_whole_answers(smollm2_tokenizer: Any) -> None:
    said = ["Perhaps.\nAnswer: Yes", "I think\nyes.", "No"]
    samples, _ = await debate(
        smollm2_tokenizer, said, rounds=1, verifier="exact_match", label="yes", extractor="text"
    )

    assert result(samples[0])["scores"] == {"vote": 1.0, "single": pytest.approx(2 / 3)}


async def test_without_a_verifier_the_reward_is_left_to_the_run(smollm2_tokenizer: Any) -> None:
    for said in ("4", "none"):
        samples, _ = await debate(smollm2_tokenizer, [said] * 2, agents=2, rounds=1, verifier=None)

        assert [sample.reward for sample in samples] == [None, None]


async def test_one_agent_looks_again_at_its_own_answer(smollm2_tokenizer: Any) -> None:
    samples, engine = await debate(smollm2_tokenizer, ["5", "4"], agents=1)

    assert len(samples) == 1
    assert samples[0].reward == 1.0
    assert last_user_message(engine.requests[1]).endswith(QUESTION)


async def test_the_answer_format_stands_behind_the_question_in_every_round(smollm2_tokenizer: Any) -> None:
    _, engine = await debate(
        smollm2_tokenizer, ["4"] * 4, agents=2, answer_format="End with: The answer is N."
    )

    for request in engine.requests:
        assert last_user_message(request).endswith(f"{QUESTION}\n\nEnd with: The answer is N.")


async def test_examples_before_the_question_stay_and_only_the_question_is_repeated(
    smollm2_tokenizer: Any,
) -> None:
    prompt = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
    ]
    _, engine = await debate(smollm2_tokenizer, ["4"] * 4, agents=2, prompt=prompt)

    assert all(request.prompt.startswith("<|im_start|>system\nBe brief.") for request in engine.requests)
    assert [request.prompt.count("1 + 1?") for request in engine.requests] == [1] * 4


async def test_an_engine_that_fails_one_agent_fails_the_rollout_with_the_engines_cause(
    smollm2_tokenizer: Any,
) -> None:
    script: list[Reply | str] = [
        "4",
        Reply("4", fault=Fault.status(400, times=None)),
        Reply("4", delay_s=5.0),
    ]
    samples, _ = await debate(smollm2_tokenizer, script)

    [sample] = samples
    error = result(sample)["error"]
    assert (sample.status, sample.reward, sample.remove_sample) == (Status.FAILED, 0.0, True)
    assert (error["stage"], error["type"]) == ("engine", "EngineRejected")


async def test_an_agent_that_a_limit_silences_stands_by_its_last_answer(smollm2_tokenizer: Any) -> None:
    roles = {"agent": {"max_turns": 2}}
    script = by_round(["3", "4", "4"], ["4", "4", "5"])
    samples, engine = await debate(smollm2_tokenizer, script, rounds=4, roles=roles)

    assert len(engine.requests) == 6
    assert [(sample.reward, sample.status) for sample in samples] == [(1.0, Status.TRUNCATED)] * 3
    assert result(samples[0])["scores"] == {"vote": 1.0, "single": pytest.approx(2 / 3)}


class Unasked:
    async def score(self, view: View) -> float:
        raise AssertionError("nobody should ask")


@hookimpl
def rollhook_verifiers() -> list[VerifierSpec]:
    return [VerifierSpec(name="unasked", create=lambda config, rollout: Unasked())]


async def test_where_nobody_can_be_read_no_verifier_is_asked(smollm2_tokenizer: Any) -> None:
    samples, _ = await debate(smollm2_tokenizer, ["no idea"] * 3, rounds=1, verifier="world/unasked")

    assert [(sample.reward, sample.status) for sample in samples] == [(0.0, Status.COMPLETED)] * 3


async def test_a_judge_decides_in_place_of_the_vote_and_shares_the_reward(smollm2_tokenizer: Any) -> None:
    def script(request: ScriptedRequest) -> str:
        return "It is 4" if "Judge which is right" in request.prompt else "It is 5"

    samples, engine = await debate(smollm2_tokenizer, script, rounds=1, decide="judge")

    assert [result(sample)["role"] for sample in samples] == ["agent_1", "agent_2", "agent_3", "judge"]
    assert [sample.reward for sample in samples] == [1.0] * 4
    assert result(samples[0])["scores"] == {"vote": 0.0, "judge": 1.0, "single": 0.0}
    case = last_user_message(engine.requests[-1])
    assert case.count("It is 5") == 3
    assert case.endswith(QUESTION)


async def test_a_judge_whose_ruling_cannot_be_read_is_never_right(smollm2_tokenizer: Any) -> None:
    def script(request: ScriptedRequest) -> str:
        return "Who knows" if "Judge which is right" in request.prompt else "4"

    samples, _ = await debate(smollm2_tokenizer, script, rounds=1, decide="judge")

    assert [sample.reward for sample in samples] == [0.0] * 4
    assert result(samples[0])["scores"] == {"vote": 1.0, "judge": 0.0, "single": 1.0}


async def test_an_untrained_judge_gives_no_sample_and_where_it_fails_the_vote_decides(
    smollm2_tokenizer: Any,
) -> None:
    def script(request: ScriptedRequest) -> Reply | str:
        broken = Reply("5", fault=Fault.status(400, times=None))
        return broken if "Judge which is right" in request.prompt else "4"

    roles = {"judge": {"trained": False, "sampling": {"temperature": 0.0}}}
    samples, _ = await debate(smollm2_tokenizer, script, rounds=1, decide="judge", roles=roles)

    assert [(result(sample)["role"], sample.reward) for sample in samples] == [
        ("agent_1", 1.0),
        ("agent_2", 1.0),
        ("agent_3", 1.0),
    ]


async def test_a_debate_may_end_with_the_first_round_of_one_opinion(smollm2_tokenizer: Any) -> None:
    script = by_round(["3", "4", "4"], ["4", "is 4", "4.0"], ["5", "5", "5"])
    samples, engine = await debate(smollm2_tokenizer, script, rounds=3, stop_on_agreement=True)

    assert len(engine.requests) == 6
    assert result(samples[0])["scores"] == {"vote": 1.0, "single": pytest.approx(2 / 3), "rounds": 2.0}


async def test_in_evaluation_one_sample_carries_the_votes_reward(smollm2_tokenizer: Any) -> None:
    row = {"topology": {"name": "debate", "rounds": 1}, "verifier": "number"}
    sample = Sample(index=0, prompt=QUESTION, label="4", metadata={"rollhook": row})
    async with run_of(smollm2_tokenizer, ["4", "4", "5"]) as (runtime, _):
        samples = await run_rollout(runtime, sample, {}, evaluation=True)

    assert [made.reward for made in samples] == [1.0]


@pytest.mark.parametrize(
    ("key", "value"),
    [("agents", 0), ("agents", 17), ("rounds", 0), ("rounds", 9), ("extractor", "vibes"), ("agent", 3)],
)
async def test_a_row_is_held_to_the_bounds(smollm2_tokenizer: Any, key: str, value: Any) -> None:
    async with run_of(smollm2_tokenizer, []) as (runtime, _):
        with pytest.raises(RowError, match=rf"topology\.{key}"):
            runtime.resolver.resolve({"rollhook": {"topology": {"name": "debate", key: value}}})
