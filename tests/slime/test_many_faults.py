"""Two hundred rows of mixed plugins and faults at every stage: each is accounted for, and no call raises."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import rollhook.slime
from rollhook.sample import certify
from rollhook.testing import ScriptedEngine
from tests.slime.cases import PLUGINS, TASKS, Case, Model, Outcome, Rows, browser, plan, retool, terminal
from tests.slime.faults import MODULE, install_broken
from tests.slime.running import slime_run
from tests.slime.slime_types import SlimeSample

COUNT = 200
HELD = (None, "cancelled", "aborted")
FLAGS: dict[str, Any] = {"n_samples_per_prompt": 1, "rollout_max_response_len": 512}
PROGRAMS = {browser: (4, "chromium"), terminal: (6, "bwrap"), retool: (6, "bwrap")}


@pytest.fixture
def section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The run configuration; one of the installed plugins is broken."""
    monkeypatch.syspath_prepend(tmp_path)
    install_broken(tmp_path)
    corpus = PLUGINS / "search-r1" / "examples" / "corpus.jsonl"
    settings = {
        "search-r1": {"corpus": str(corpus), "cache": str(tmp_path / "index")},
        "terminal": {"tasks": str(TASKS)},
        "rollhook/bubblewrap": {"warm": 0},
    }
    return {
        "modules": [MODULE],
        "tool_parser": "qwen25",
        "retries": 1,
        "verifier_timeout_s": 10.0,
        "settings": settings,
    }


def outcome(samples: Sequence[Any]) -> Outcome:
    """What came of a rollout, in the form in which the plan foretells it."""
    result = samples[0].metadata["rollhook_result"]
    error = result["error"] and (result["error"]["stage"], result["error"]["plugin"], result["error"]["type"])
    statuses = sorted({sample.status.value for sample in samples})
    return Outcome("+".join(statuses), tuple(sorted(sample.reward for sample in samples)), error)


def by_row(samples: Iterable[Any]) -> dict[int, list[Any]]:
    """The siblings of each row, by its index."""
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for sample in samples:
        found[sample.index].append(sample)
    return dict(found)


def check_outcomes(cases: Sequence[Case], made: Mapping[int, Sequence[Any]]) -> None:
    """Each row came to what the plan says, in Samples that are whole."""
    got = {index: outcome(samples) for index, samples in made.items()}
    others = {
        f"row {index}, {cases[index].name}": (came, cases[index].expected)
        for index, came in got.items()
        if came != cases[index].expected
    }
    assert others == {}
    for samples in made.values():
        for sample in samples:
            certify(sample)


def check_tokens(model: Model, engine: ScriptedEngine, made: Mapping[int, Sequence[Any]]) -> None:
    """What the engine sampled for a rollout that did not fail trains once, with its log-probabilities."""
    requests = {request.rid: request for request in engine.requests}
    answered = Counter((tuple(one.token_ids), tuple(one.log_probs)) for one in engine.sampled)
    for index, samples in made.items():
        if samples[0].status in (SlimeSample.Status.FAILED, SlimeSample.Status.ABORTED):
            continue
        ids = {rid for sample in samples for rid in sample.metadata["rollhook_result"]["request_ids"]}
        answers = [answer for rid in ids for answer in model.turn_of(requests[rid])]
        assert Counter(answers) <= answered
        pairs = Counter(pair for answer in answers for pair in zip(*answer, strict=True))
        assert trained(samples) == pairs, f"{index}: {model.cases[index].name}"


def trained(samples: Sequence[Any]) -> Counter[tuple[int, float]]:
    """Ids under mask 1, each with its log-probability."""
    found: Counter[tuple[int, float]] = Counter()
    for sample in samples:
        response = sample.tokens[-sample.response_length :]
        told = zip(response, sample.rollout_log_probs, sample.loss_mask, strict=True)
        found.update((token, log_prob) for token, log_prob, bit in told if bit)
    return found


async def test_every_call_of_generate_and_reward_returns_what_the_row_came_to_or_was_cancelled(
    qwen3_tokenizer: Any, section: dict[str, Any]
) -> None:
    section["verifier_timeout_s"] = 25.0  # the first answer that retool scores starts a process
    here = {make: most for make, (most, program) in PROGRAMS.items() if shutil.which(program)}
    cases = plan(1, count=COUNT, heavy=here)
    model = Model(cases, qwen3_tokenizer)
    async with slime_run(qwen3_tokenizer, model, rollhook=section, **FLAGS) as (trainer, engine):
        groups = Rows(trainer.args, cases).get_samples(COUNT)
        running = [asyncio.create_task(trainer.generate_and_rm_group(group)) for group in groups]
        ends = {how: {running[at] for at, case in enumerate(cases) if case.held == how} for how in HELD}
        await asyncio.wait(ends[None])
        pending = {task for task in running if not task.done()}
        trainer.state.pendings = set(ends["cancelled"])
        await trainer.abort(0)
        async with asyncio.timeout(5):
            ended = await asyncio.gather(*running, return_exceptions=True)
    cancelled = [index for index, end in enumerate(ended) if isinstance(end, asyncio.CancelledError)]
    made = {index: end[0] for index, end in enumerate(ended) if isinstance(end, list)}

    assert len(cases) == COUNT
    assert pending == ends["cancelled"] | ends["aborted"]
    assert cancelled == [index for index, case in enumerate(cases) if case.held == "cancelled"]
    assert [end for end in ended if isinstance(end, Exception)] == []
    assert sorted([*cancelled, *made]) == list(range(COUNT))
    check_outcomes(cases, made)
    check_tokens(model, engine, made)
    batch = trainer.convert([[samples] for samples in made.values()])
    assert sorted(by_row(batch.samples)) == sorted(made)
    if missing := {program for make, (_, program) in PROGRAMS.items() if make not in here}:
        pytest.skip(f"passed, but without the rows that need what is not installed: {', '.join(missing)}")


async def test_every_row_is_in_one_batch_of_generate_rollout_though_each_call_aborts_what_is_late(
    qwen3_tokenizer: Any, section: dict[str, Any]
) -> None:
    cases = plan(2, count=COUNT, heavy={}, holding=False)
    model = Model(cases, qwen3_tokenizer)
    flags = {**FLAGS, "rollout_batch_size": 50, "over_sampling_batch_size": 60}
    async with slime_run(qwen3_tokenizer, model, rollhook=section, **flags) as (trainer, engine):
        trainer.source = Rows(trainer.args, cases)
        batches = [await trainer.rollout(rollhook.slime.generate_rollout, call) for call in range(4)]
    rows = [by_row(batch.samples) for batch in batches]
    made = {index: samples for batch in rows for index, samples in batch.items()}

    assert [len(batch) for batch in rows] == [50] * 4
    assert sorted(made) == list(range(COUNT))
    assert trainer.source.buffer == []
    assert [batch.metrics["rollhook/put_back_groups"] for batch in batches] == [10, 10, 10, 0]
    check_outcomes(cases, made)
    check_tokens(model, engine, made)


async def test_every_row_of_a_fully_async_run_is_trained_given_up_or_back(
    qwen3_tokenizer: Any, section: dict[str, Any]
) -> None:
    cases = plan(3, count=COUNT, heavy={}, holding=False)
    failing = {index for index, case in enumerate(cases) if case.expected.status == "failed"}
    model = Model(cases, qwen3_tokenizer)
    section["fully_async"] = {"group_retries": 1, "max_failed_groups": COUNT}
    flags = {**FLAGS, "rollout_batch_size": 10}
    async with slime_run(qwen3_tokenizer, model, rollhook=section, **flags) as (trainer, engine):
        trainer.source = Rows(trainer.args, cases)
        batches = []
        for call in range((COUNT - len(failing)) // 10):
            batches.append(await trainer.rollout(rollhook.slime.fully_async_rollout, call))
            engine.weight_version = str(call + 1)
    rows = [by_row(batch.samples) for batch in batches]
    made = {index: samples for batch in rows for index, samples in batch.items()}
    back = [row for group in trainer.source.buffer for row in group]
    given_up = sum(batch.metrics["rollhook/failed_groups"] for batch in batches)
    drawn = trainer.source.groups

    assert [len(batch) for batch in rows] == [10] * len(batches)
    assert len(made) == 10 * len(batches)
    assert not failing & set(made)
    lost = set(range(drawn)) - set(made) - {row.index for row in back}
    assert len(made) + len(back) + given_up == drawn
    assert len(lost) == given_up
    assert lost <= failing
    assert {row.status for row in back} <= {SlimeSample.Status.PENDING}
    check_outcomes(cases, made)
    check_tokens(model, engine, made)
