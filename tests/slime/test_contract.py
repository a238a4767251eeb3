"""Every sentence of slime's contract that binds rollhook, through the stand-in of slime's calling side.

Under each sentence stands the test that holds it, in this file unless it names another.

How it calls
- generate's first parameters are args, sample, sampling_params; evaluation goes by keyword:
  test_calls.py::test_generate_has_the_parameters_that_slime_names
- sample.generate_function_path beats the run's:
  test_calls.py::test_a_samples_own_generate_function_is_called
- a semaphore is held for the whole of a call:
  test_calls.py::test_one_slot_is_enough
- sampling_params and args are never changed:
  test_calls.py::test_args_and_sampling_parameters_stay_as_they_were
- args may be bare:
  test_calls.py::test_bare_args_are_enough
- args cannot be hashed:
  test_calls.py::test_args_that_cannot_be_hashed_are_enough
- session_id survives a requeue and routes:
  test_partial.py::test_the_routing_key_survives_a_requeue_and_is_fresh_where_there_is_none
- evaluation never sets session_id:
  test_calls.py::test_an_evaluation_sets_no_session
- a prompt is text, messages, or a numpy array of messages:
  test_calls.py::test_every_form_of_prompt_is_rendered
- metadata["tools"] may come from the data set:
  test_calls.py::test_tools_of_the_data_set_do_no_harm
- a label may be a mapping:
  test_calls.py::test_a_label_may_be_a_mapping
- the YAML's keys are attributes of args:
  test_calls.py::test_the_section_of_the_yaml_file_configures_the_run

Args that matter
- rollout_temperature is the trainer's:
  ../unit/test_config.py::test_a_temperature_that_the_trainer_does_not_know_is_refused
- rollout_max_context_len may be None:
  test_calls.py::test_bare_args_are_enough
- models by name:
  test_models_by_role.py::test_where_a_model_is_the_trainer_knows_best
- the router's policy must give affinity:
  test_gateway.py::test_a_policy_without_affinity_is_seen_at_the_start

What may be returned
- every rollout of a batch has one shape:
  test_calls.py::test_a_batch_has_one_shape
- a list of one is legal:
  test_calls.py::test_a_batch_has_one_shape
- never an empty list or None:
  test_calls.py::test_a_row_that_cannot_run_still_returns_a_sample
- one Sample in evaluation:
  test_calls.py::test_an_evaluation_returns_one_sample
- siblings share a rollout_id, unique in the batch:
  test_calls.py::test_siblings_share_a_rollout_id_that_is_their_index_or_their_own
- what crashes on lists is refused before any token:
  test_calls.py::test_what_slime_cannot_do_with_lists_is_refused_before_any_token
- faults of the run leave the first call, faults of a row do not:
  test_calls.py::test_a_fault_of_the_run_stops_the_first_call
- evaluation and training may run on different loops:
  test_calls.py::test_two_event_loops_have_a_session_each

Invariants of a Sample
- tokens, mask and log-probabilities are aligned:
  test_calls.py::test_a_batch_has_one_shape
- the placeholder of nothing usable:
  test_calls.py::test_a_row_that_cannot_run_still_returns_a_sample
- FAILED is removed, masked, and rewarded 0.0:
  test_failed_rollouts_are_not_trained
- top-p sets:
  test_passing_through.py::test_top_p_sets_stand_behind_sampled_tokens_and_nothing_behind_the_others
- routed experts:
  test_passing_through.py::test_the_last_answer_of_a_chain_tells_every_tokens_experts
- length is TRUNCATED, stop is COMPLETED:
  test_finish_reasons_become_statuses
- abort is ABORTED:
  test_abort.py::test_the_turn_that_was_being_sampled_is_given_back_in_part
- what re-enters finished is not generated again:
  test_a_finished_sample_is_not_generated_again
- ABORTED has a reward, and comes only when slime aborts:
  test_an_abort_ends_every_pending_call
- an engine's own abort is none:
  ../unit/test_interruptions.py::test_a_weight_update_in_the_middle_of_a_turn_is_no_abort
- a retried sample starts clean:
  test_a_retried_sample_starts_clean

Rewards
- the reward function takes one Sample, a list, an empty list:
  test_the_reward_function_takes_one_a_list_and_none
- it is async:
  test_the_reward_function_takes_one_a_list_and_none
- as many rewards as samples:
  test_the_reward_function_takes_one_a_list_and_none
- a prefilled reward is kept:
  test_a_reward_that_is_there_is_kept
- groups are normalised by group_index, siblings share:
  test_uneven_fan_out_is_normalised_by_rollout
- the full reward goes to each sibling:
  test_siblings_get_the_whole_reward
- group_rm scores whole groups:
  test_a_group_is_scored_together
- global_batch_size counts rollouts:
  test_a_global_batch_counts_rollouts
- the dynamic filter takes lists:
  test_generate_rollout.py::test_rollhooks_own_filter_works_on_lists

Abort and partial rollout
- all pending calls return at once:
  test_an_abort_ends_every_pending_call
- whatever is busy:
  test_abort.py::test_abort_returns_wherever_a_plugin_is_busy
- slime's flag is watched:
  test_abort.py::test_slimes_own_abort_is_seen_and_its_reset_lifts_it
- kept tokens are resumed:
  test_what_was_aborted_is_resumed_by_the_next_rollout
- kept tokens are masked when slime says so:
  test_partial.py::test_masked_kept_tokens_do_not_train_and_the_rest_does

Rollout functions
- they take args, rollout_id, data_source, evaluation and return slime's outputs:
  test_rollout_functions_have_slimes_parameters_and_outputs
- slime's own fully asynchronous worker takes single Samples:
  test_slimes_own_fully_asynchronous_worker_takes_single_samples
- a requeued group is whole:
  test_generate_rollout.py::test_groups_that_are_not_needed_end_at_once_and_go_back_as_they_came
- their metrics are numbers that the docs name:
  test_metrics_are_numbers_with_documented_names
- evaluation runs beside the fully asynchronous one:
  test_fully_async.py::test_an_evaluation_runs_beside_it_and_from_other_event_loops
- staleness is bounded:
  ../unit/test_continuous.py::test_staleness_never_exceeds_the_maximum_whatever_the_durations
- failed groups are put back:
  test_fully_async.py::test_a_failed_group_goes_back_and_is_tried_again
- failures reach the caller:
  test_fully_async.py::test_failures_reach_the_caller_with_their_causes_and_lose_no_row
- the slowest rollout holds up nobody:
  test_fully_async.py::test_the_slowest_rollout_does_not_hold_up_a_batch_and_ends_when_it_is_too_old
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rollhook
from rollhook.slime import fully_async_rollout, generate_rollout
from rollhook.testing import Reply, ScriptedRequest
from tests.contracts.pages import ROOT, first_column, sections
from tests.slime.running import NUMBER, PAIR, question_of, questions, row, slime_run
from tests.slime.slime_types import RolloutFnTrainOutput, SlimeStatus

Flags = dict[str, Any]
HERE = Path(__file__)
SENTENCES = re.findall(r"^- (.+):\n  (\S+)$", __doc__ or "", flags=re.MULTILINE)
FUNCTIONS = [generate_rollout, fully_async_rollout]


def test_every_sentence_is_read() -> None:
    assert len(SENTENCES) == (__doc__ or "").count("\n- ")


@pytest.mark.parametrize(("sentence", "name"), SENTENCES)
def test_every_sentence_names_a_test_that_is_there(sentence: str, name: str) -> None:
    file, _, test = name.rpartition("::")
    tree = ast.parse((HERE.parent / (file or HERE.name)).read_text(encoding="utf-8"))
    there = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]

    assert test in there


# Invariants of a Sample


async def test_failed_rollouts_are_not_trained(smollm2_tokenizer: Any) -> None:
    rows = questions(9, {"rollhook": {"topology": "w/broken"}})
    async with slime_run(smollm2_tokenizer, rows=rows) as (trainer, _):
        batch = await trainer.stock_rollout(0)

    assert {sample.status for sample in batch.samples} == {SlimeStatus.FAILED}
    assert (batch.trained_tokens, set(batch.rewards)) == (0, {0.0})


async def test_finish_reasons_become_statuses(smollm2_tokenizer: Any) -> None:
    replies = [Reply("4"), Reply("4", finish="length")]
    async with slime_run(smollm2_tokenizer, replies) as (trainer, _):
        made = [await trainer.generate_and_rm(row(), {}) for _ in replies]

    assert [sample.status for [sample] in made] == [SlimeStatus.COMPLETED, SlimeStatus.TRUNCATED]


async def test_a_finished_sample_is_not_generated_again(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer, rollhook={"return_shape": "sample"}) as (trainer, engine):
        made = await trainer.generate_and_rm(row(), {})
        again = await trainer.generate_and_rm(made, {})

        assert again is made
        assert len(engine.requests) == 1


async def test_a_retried_sample_starts_clean(smollm2_tokenizer: Any) -> None:
    stale = row(
        tokens=[1, 2, 3],
        response="old",
        response_length=2,
        loss_mask=[1, 1],
        rollout_log_probs=[-9.0, -9.0],
        reward=0.5,
        weight_versions=["1"],
        remove_sample=True,
        status=SlimeStatus.ABORTED,
        session_id="same",
    )
    async with slime_run(smollm2_tokenizer) as (trainer, engine):
        [made] = await trainer.generate_and_rm(stale, {})

    assert (made.reward, made.remove_sample, made.weight_versions) == (1.0, False, ["0"])
    assert "old" not in made.response
    assert -9.0 not in made.rollout_log_probs
    assert made.session_id == engine.requests[0].session == "same"


# Rewards


async def test_the_reward_function_takes_one_a_list_and_none(smollm2_tokenizer: Any) -> None:
    assert inspect.iscoroutinefunction(rollhook.reward)
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        one, other = row(response="4"), row(response="5")

        assert await rollhook.reward(trainer.args, one) == 1.0
        assert await rollhook.reward(trainer.args, [row(response="4"), other]) == [1.0, 0.0]
        assert await rollhook.reward(trainer.args, []) == []


async def test_a_reward_that_is_there_is_kept(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        assert await rollhook.reward(trainer.args, [row(response="4", reward=0.3)]) == [0.3]


async def test_uneven_fan_out_is_normalised_by_rollout(smollm2_tokenizer: Any) -> None:
    def script(request: ScriptedRequest) -> str:
        right = "left" not in request.prompt and question_of(request) % 2 == 0
        return "4" if right or request.turn else "5"

    rows = [(f"Question {n}: 2 + 2?", "4", PAIR if n % 2 else NUMBER) for n in range(4)]
    flags: Flags = {
        "n_samples_per_prompt": 3,
        "custom_reward_post_process_path": "rollhook.slime.normalize_rewards",
        "grpo_std_normalization": False,
    }
    async with slime_run(smollm2_tokenizer, script, rows, **flags) as (trainer, _):
        batch = await trainer.stock_rollout(0)
        by_rollout: dict[int, set[float]] = {}
        by_group: dict[int, float] = {}
        for sample, advantage in zip(batch.samples, batch.rewards, strict=True):
            by_rollout.setdefault(sample.rollout_id, set()).add(advantage)
        for sample in {sample.rollout_id: sample for sample in batch.samples}.values():
            [advantage] = by_rollout[sample.rollout_id]
            by_group[sample.group_index] = by_group.get(sample.group_index, 0.0) + advantage

    assert len(batch.samples) == 3 + 6
    assert all(len(values) == 1 for values in by_rollout.values())
    assert all(abs(total) < 1e-9 for total in by_group.values())


async def test_siblings_get_the_whole_reward(smollm2_tokenizer: Any) -> None:
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        made = await trainer.generate_and_rm(row(metadata=PAIR), {})

    assert [sample.reward for sample in made] == [1.0, 1.0]


async def test_a_group_is_scored_together(smollm2_tokenizer: Any) -> None:
    flags: Flags = {
        "group_rm": True,
        "custom_rm_path": "rollhook.slime.reward_batch",
        "rollhook": {"return_shape": "sample"},
        "n_samples_per_prompt": 3,
    }
    answers = iter(["4", "4", "5"] * 9)
    rows = questions(1, {"rollhook": "single"})
    rows = [(prompt, label, {"rollhook": {"verifier": "majority"}}) for prompt, label, _ in rows]
    async with slime_run(smollm2_tokenizer, lambda request: next(answers), rows, **flags) as (trainer, _):
        [group] = trainer.source.get_samples(1)
        made = await trainer.generate_and_rm_group(group)

    assert sorted(sample.reward for sample in made) == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("function", FUNCTIONS)
async def test_a_global_batch_counts_rollouts(smollm2_tokenizer: Any, function: Any) -> None:
    flags: Flags = {"global_batch_size": 4, "rows": questions(9, PAIR)}
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, _):
        batch = await trainer.rollout(function, 0)

    assert len({sample.rollout_id for sample in batch.samples}) == 4
    assert len(batch.samples) == 8


# Abort and partial rollout


@pytest.mark.parametrize("partial", [False, True])
async def test_an_abort_ends_every_pending_call(qwen3_tokenizer: Any, partial: bool) -> None:
    """One rollout waits for a tool that never answers, one for the engine; `abort` waits for both."""
    hang = '<tool_call>\n{"name": "echo", "arguments": {"text": "hang"}}\n</tool_call>'

    def script(request: ScriptedRequest) -> Reply:
        return [Reply(hang), Reply("4 for sure", delay_s=60.0), Reply("4")][min(question_of(request), 2)]

    rows = [
        (f"Question {n}: 2 + 2?", "4", {"rollhook": {"tools": "w/echo", "verifier": "number"}})
        for n in range(4)
    ]
    flags: Flags = {
        "over_sampling_batch_size": 4,
        "partial_rollout": partial,
        "rollhook": {"return_shape": "sample"},
        "sglang_tool_call_parser": "qwen25",
    }
    async with slime_run(qwen3_tokenizer, script, rows, **flags) as (trainer, engine):
        batch = await trainer.stock_rollout(0)
        assert engine.in_flight == 0

    assert {sample.group_index for sample in batch.samples} == {2, 3}
    assert {s.status for group in trainer.source.returned for s in group} == (
        {SlimeStatus.ABORTED} if partial else set()
    )
    assert {s.reward for group in trainer.source.returned for s in group} == ({0.0} if partial else set())


async def test_what_was_aborted_is_resumed_by_the_next_rollout(smollm2_tokenizer: Any) -> None:
    delays = {0: 60.0}

    def script(request: ScriptedRequest) -> Reply:
        return Reply("4 is what I say", delay_s=delays.get(question_of(request), 0.0))

    flags: Flags = {
        "rollout_batch_size": 1,
        "over_sampling_batch_size": 2,
        "partial_rollout": True,
        "rollhook": {"return_shape": "sample"},
    }
    async with slime_run(smollm2_tokenizer, script, **flags) as (trainer, _):
        await trainer.stock_rollout(4)
        delays = {2: 60.0}
        batch = await trainer.stock_rollout(5)

    assert {(s.group_index, s.status) for s in batch.samples} == {(0, SlimeStatus.COMPLETED)}


# Rollout functions


async def test_slimes_own_fully_asynchronous_worker_takes_single_samples(smollm2_tokenizer: Any) -> None:
    flags: Flags = {
        "rollhook": {"return_shape": "sample"},
        "rollout_function_path": "slime.rollout.fully_async_rollout.generate_rollout_fully_async",
    }
    async with slime_run(smollm2_tokenizer, **flags) as (trainer, _):
        batches = await trainer.stock_fully_async(3)

    trained = [sample for batch in batches for sample in batch.samples]
    assert Counter(sample.index for sample in trained) == dict.fromkeys((s.index for s in trained), 1)
    assert (len(trained), trainer.source.unaccounted(trained)) == (12, set())


@pytest.mark.parametrize("function", FUNCTIONS)
async def test_rollout_functions_have_slimes_parameters_and_outputs(
    smollm2_tokenizer: Any, function: Any
) -> None:
    parameters = inspect.signature(function).parameters
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        output = await asyncio.to_thread(function, trainer.args, 0, trainer.source)

    assert list(parameters) == ["args", "rollout_id", "data_source", "evaluation"]
    assert parameters["evaluation"].default is False
    assert not inspect.iscoroutinefunction(function)
    assert type(output) is RolloutFnTrainOutput


@pytest.mark.parametrize("function", FUNCTIONS)
async def test_metrics_are_numbers_with_documented_names(smollm2_tokenizer: Any, function: Any) -> None:
    named = first_column(sections(ROOT / "docs" / "interface.md")["Metrics of rollout functions"])
    async with slime_run(smollm2_tokenizer) as (trainer, _):
        batch = await trainer.rollout(function, 0)

    assert set(batch.metrics) <= set(named)
    assert all(isinstance(value, int | float) for value in batch.metrics.values())
