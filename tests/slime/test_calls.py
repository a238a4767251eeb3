"""slime calls `rollhook.generate`: what it hands over, and what may come back."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections import Counter
from typing import Any

import pytest
import yaml

import rollhook
from rollhook import ConfigError
from rollhook.runtime import loops_with_runtimes
from tests.slime.running import NUMBER, PAIR, questions, row, slime_run
from tests.slime.slime_types import Args, SlimeSample, SlimeStatus

Flags = dict[str, Any]


# How it calls


def test_generate_has_the_parameters_that_slime_names() -> None:
    parameters = inspect.signature(rollhook.generate).parameters

    assert list(parameters) == ["args", "sample", "sampling_params", "evaluation"]


async def test_a_samples_own_generate_function_is_called(smollm2_tokenizer: Any) -> None:
    flags: Flags = {"custom_generate_function_path": "nowhere.generate"}
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, _):
        made = await trainer.generate_and_rm(row(generate_function_path="rollhook.generate"), {})

    assert [sample.reward for sample in made] == [1.0]


async def test_one_slot_is_enough(smollm2_tokenizer: Any) -> None:
    """Nothing that a rollout waits for needs a second slot: not its siblings, not its reward."""
    flags: Flags = {"sglang_server_concurrency": 1, "rows": questions(9, PAIR)}
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, _):
        batch = await trainer.stock_rollout(0)

    assert len(batch.samples) == 8


async def test_args_and_sampling_parameters_stay_as_they_were(smollm2_tokenizer: Any) -> None:
    sampling = {"temperature": 1.0, "stop": ["x"], "custom_params": {"a": 1}}
    before = copy.deepcopy(sampling)
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        flags = copy.deepcopy(vars(trainer.args))
        await asyncio.gather(*(trainer.generate_and_rm(row(), sampling) for _ in range(3)))
        await rollhook.generate(trainer.args, row(), sampling, evaluation=True)

        assert (vars(trainer.args), sampling) == (flags, before)


async def test_bare_args_are_enough(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        bare = Args()
        for name in ("sglang_router_ip", "sglang_router_port", "hf_checkpoint"):
            vars(bare)[name] = getattr(trainer.args, name)
        vars(bare)["rollout_max_context_len"] = None
        made: Any = await rollhook.generate(bare, row(), {})

    assert [(one.status, one.reward) for one in made] == [(SlimeStatus.COMPLETED, 1.0)]


async def test_args_that_cannot_be_hashed_are_enough(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        with pytest.raises(TypeError, match="unhashable"):
            hash(trainer.args)
        assert await rollhook.generate(trainer.args, row(), {})


async def test_an_evaluation_sets_no_session(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, engine):
        made: Any = await rollhook.generate(trainer.args, row(), {}, evaluation=True)

        assert made.session_id is None
        assert engine.requests[0].session


async def test_every_form_of_prompt_is_rendered(smollm2_tokenizer: Any) -> None:
    numpy = pytest.importorskip("numpy")
    messages = [{"role": "user", "content": "2 + 2?"}]
    async with slime_run(smollm2_tokenizer) as (trainer, engine):
        for prompt in ("2 + 2?", messages, numpy.array(messages, dtype=object)):
            await trainer.generate_and_rm(row(prompt), {})

        assert len({request.prompt for request in engine.requests}) == 1


async def test_tools_of_the_data_set_do_no_harm(smollm2_tokenizer: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        [made] = await trainer.generate_and_rm(row(metadata={**NUMBER, "tools": tools}), {})

    assert made.metadata["tools"] == tools


async def test_a_label_may_be_a_mapping(smollm2_tokenizer: Any) -> None:
    metadata = {"rollhook": {"verifier": "w/contains"}}
    async with slime_run(smollm2_tokenizer, lambda request: "{'answer': 4}") as (trainer, _):
        [made] = await trainer.generate_and_rm(row(label={"answer": 4}, metadata=metadata), {})

    assert made.reward == 1.0


async def test_the_section_of_the_yaml_file_configures_the_run(smollm2_tokenizer: Any) -> None:
    section = yaml.safe_load("rollhook:\n  return_shape: sample\n  default: {verifier: number}\n")
    async with slime_run(smollm2_tokenizer, **section) as (trainer, _):
        made = await trainer.generate_and_rm(row(metadata={}), {})

    assert (type(made), made.reward) == (SlimeSample, 1.0)


# What may be returned


@pytest.mark.parametrize("shape", ["list", "sample"])
async def test_a_batch_has_one_shape(smollm2_tokenizer: Any, shape: str) -> None:
    """Whatever the rows do: `convert` refuses mixed shapes and everything that is not aligned."""
    metadata = [
        NUMBER,
        {"rollhook": {"topology": "w/broken"}},
        {"rollhook": "nobody/at-all"},
        {"rollhook": {"environment": "w"}},
    ]
    rows = [(f"Question {n}: 2 + 2?", "4", one) for n, one in enumerate(metadata)]
    flags: Flags = {"rollout_batch_size": 4, "rollhook": {"return_shape": shape}}
    async with slime_run(smollm2_tokenizer, lambda request: "4 stop", rows, **flags) as (trainer, _):
        batch = await trainer.stock_rollout(0)

    statuses = Counter(sample.status for sample in batch.samples)
    assert statuses == {SlimeStatus.COMPLETED: 4, SlimeStatus.FAILED: 4}


async def test_a_row_that_cannot_run_still_returns_a_sample(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        [made] = await trainer.generate_and_rm(row(metadata={"rollhook": "nobody/at-all"}), {})

    assert (made.tokens, made.response_length, made.loss_mask) == ([0, 0], 1, [0])
    assert (made.rollout_log_probs, made.remove_sample) == ([0.0], True)


async def test_an_evaluation_returns_one_sample(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        made = await trainer.generate_and_rm(row(metadata=PAIR), {}, evaluation=True)

    assert (type(made), made.reward) == (SlimeSample, 1.0)


async def test_siblings_share_a_rollout_id_that_is_their_index_or_their_own(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        by_index = await trainer.generate_and_rm(row(metadata=PAIR), {})
        own = await trainer.generate_and_rm(row(metadata=PAIR, rollout_id=99), {})

    assert [[sample.rollout_id for sample in made] for made in (by_index, own)] == [[7, 7], [99, 99]]


@pytest.mark.parametrize(
    "flags",
    [
        {"group_rm": True},
        {"partial_rollout": True},
        {"log_passrate": True},
        {"rollout_function_path": "slime.rollout.fully_async_rollout.generate_rollout_fully_async"},
        {"dynamic_sampling_filter_path": "slime.rollout.filter_hub.dynamic_sampling_filters.nonzero_std"},
    ],
)
async def test_what_slime_cannot_do_with_lists_is_refused_before_any_token(
    smollm2_tokenizer: Any, flags: Flags
) -> None:
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, engine):
        with pytest.raises(ConfigError, match="return_shape: sample"):
            await trainer.generate_and_rm(row(), {})

        assert engine.requests == []


async def test_a_fault_of_the_run_stops_the_first_call(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer, rollhook={"plugins": ["nobody"]}) as (trainer, _):
        with pytest.raises(ConfigError, match="nobody"):
            await trainer.generate_and_rm(row(), {})
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        [made] = await trainer.generate_and_rm(row(metadata={"rollhook": "nobody"}), {})

    assert made.status is SlimeStatus.FAILED


async def test_two_event_loops_have_a_session_each(smollm2_tokenizer: Any) -> None:
    async def elsewhere() -> Any:
        made = await rollhook.generate(trainer.args, row(), {}, evaluation=True)
        await rollhook.runtime.close_runtimes()
        return made

    async with slime_run(smollm2_tokenizer) as (trainer, _):
        here, there = await asyncio.gather(
            trainer.generate_and_rm(row(), {}), asyncio.to_thread(asyncio.run, elsewhere())
        )
        assert len(loops_with_runtimes()) == 1

    assert (here[0].reward, there.reward) == (1.0, 1.0)
