"""Advantages: each rollout counts once among the rollouts of its prompt; a whole group is scored together."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollhook
from rollhook import ConfigError, Plugins, RunConfig, Runtime, Sample, VerifierSpec, hookimpl
from rollhook.errors import CreditError
from rollhook.generate import reward_samples
from rollhook.slime import normalize_rewards, reward_batch, shutdown
from rollhook.testing import ScriptedEngine
from tests.slime.samples import TrainerSample, failed, finished, sibling

NOTHING: Any = SimpleNamespace()


def advantages(samples: Sequence[Any], **args: Any) -> list[float]:
    return normalize_rewards(SimpleNamespace(**args), samples)[1]


def test_a_group_is_centred_and_scaled_as_slime_does_it() -> None:
    batch = [finished(i, reward) for i, reward in enumerate([1.0, 0.0, 0.0, 1.0])]
    deviation = math.sqrt(4 * 0.25 / 3)

    raw, scaled = normalize_rewards(NOTHING, batch)

    assert raw == [1.0, 0.0, 0.0, 1.0]
    assert scaled == [sign * 0.5 / (deviation + 1e-6) for sign in (1, -1, -1, 1)]
    assert advantages(batch, grpo_std_normalization=False) == [0.5, -0.5, -0.5, 0.5]


def test_groups_are_told_by_group_index_and_not_by_position() -> None:
    batch = [finished(0, 1.0, group=7), finished(1, 5.0, group=8), finished(2, 0.0, group=7)]
    batch += [finished(3, 3.0, group=8)]

    assert advantages(batch, grpo_std_normalization=False) == [0.5, 1.0, -0.5, -1.0]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"advantage_estimator": "gspo"}, [0.707, -0.707]),
        ({"advantage_estimator": "cispo"}, [0.707, -0.707]),
        ({"advantage_estimator": "reinforce_plus_plus_baseline"}, [1.0, -1.0]),
        ({"advantage_estimator": "reinforce_plus_plus"}, [3.0, 1.0]),
        ({"advantage_estimator": "ppo"}, [3.0, 1.0]),
        ({"rewards_normalization": False}, [3.0, 1.0]),
        ({"advantage_estimator": "grpo", "grpo_std_normalization": False}, [1.0, -1.0]),
    ],
)
def test_the_trainers_flags_decide_what_is_done(args: dict[str, Any], expected: list[float]) -> None:
    assert advantages([finished(0, 3.0), finished(1, 1.0)], **args) == pytest.approx(expected, abs=1e-3)


def test_siblings_share_their_rollouts_value_and_count_once() -> None:
    batch = [sibling(0, 1.0, segment=0), sibling(0, 1.0, segment=1), sibling(0, 1.0, segment=2)]
    batch += [sibling(1, 0.0)]

    assert advantages(batch, grpo_std_normalization=False) == [0.5, 0.5, 0.5, -0.5]


def test_removed_failed_and_aborted_samples_get_nothing_and_count_nowhere() -> None:
    aborted = finished(3, 0.0, status=TrainerSample.Status.ABORTED)
    removed = finished(4, 9.0, remove_sample=True)
    unscored = finished(5, None, remove_sample=True)
    batch = [finished(0, 3.0), failed(1), finished(2, 1.0), aborted, removed, unscored]

    raw, values = normalize_rewards(SimpleNamespace(grpo_std_normalization=False), batch)

    assert raw == [3.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert values == [1.0, 0.0, -1.0, 0.0, 0.0, 0.0]


def test_a_rollout_with_one_removed_sibling_still_counts_once() -> None:
    batch = [sibling(0, 1.0), sibling(0, 1.0, segment=1, remove_sample=True), sibling(1, 0.0)]

    assert advantages(batch, grpo_std_normalization=False) == [0.5, 0.0, -0.5]


@pytest.mark.parametrize("rewards", [[0.1], [0.1, 0.1, 0.1], [0.0, 0.0], []])
def test_a_group_of_one_or_of_equals_teaches_nothing(rewards: list[float]) -> None:
    batch = [finished(i, reward) for i, reward in enumerate(rewards)]

    assert normalize_rewards(NOTHING, batch) == (rewards, [0.0] * len(rewards))


def test_a_group_that_failed_but_for_one_teaches_nothing() -> None:
    assert advantages([failed(0), finished(1, 1.0), failed(2)]) == [0.0, 0.0, 0.0]


def test_named_rewards_are_read_by_the_reward_key() -> None:
    batch = [finished(0, {"right": 1, "form": 0.2}), finished(1, {"right": 0, "form": 0.9})]

    assert normalize_rewards(SimpleNamespace(reward_key="right", rewards_normalization=False), batch) == (
        [1.0, 0.0],
        [1.0, 0.0],
    )
    with pytest.raises(CreditError, match="rollout 0 has the rewards 'right', 'form'; set --reward-key"):
        normalize_rewards(NOTHING, batch)


def test_roles_are_compared_together_or_each_with_its_own() -> None:
    batch = [
        sibling(rollout, sign * result, role=role, credit="zero_sum")
        for rollout, result in enumerate([1.0, 1.0, 1.0, -1.0])
        for sign, role in ((1, "white"), (-1, "black"))
    ]
    by_agent = {"rollhook": {"normalize_by": "agent"}, "grpo_std_normalization": False}

    assert advantages(batch, grpo_std_normalization=False) == [1.0, -1.0] * 3 + [-1.0, 1.0]
    assert advantages(batch, **by_agent) == [0.5, -0.5] * 3 + [-1.5, 1.5]


def test_a_roles_turns_are_compared_with_the_same_turn_of_other_rollouts() -> None:
    batch = [
        sibling(0, 1.0, role="writer", segment=0, credit="roles"),
        sibling(0, 1.0, role="writer", segment=2, credit="roles"),
        sibling(1, 0.0, role="writer", segment=0, credit="roles"),
        sibling(1, 0.0, role="writer", segment=1, credit="roles"),
        sibling(2, 0.0, role="writer", segment=0, credit="roles"),
    ]
    args = {"rollhook": {"normalize_by": "role_turn"}, "grpo_std_normalization": False}

    first, second = 1 - 1 / 3, 0.5  # three rollouts have a first segment, two a second one
    assert advantages(batch, **args) == pytest.approx([first, second, -1 / 3, -0.5, -1 / 3])


def test_a_reward_that_was_replaced_after_the_rollout_counts_instead() -> None:
    batch = [sibling(0, 1.0), sibling(1, 0.0), sibling(2, 0.0, credit="split", weight=0.5)]
    batch[0].reward, batch[2].reward = 0.5, 1.0

    assert normalize_rewards(SimpleNamespace(rewards_normalization=False), batch) == (
        [0.5, 0.0, 1.0],
        [0.5, 0.0, 0.5],
    )


@pytest.mark.parametrize("reward", ["1.0", [1.0], np.array([1.0, 0.0]), {"a": None}, math.inf])
def test_a_reward_that_is_no_finite_number_is_refused_with_a_sentence(reward: Any) -> None:
    scored = sibling(0, 1.0)
    scored.reward = reward

    with pytest.raises(CreditError, match=r"the reward of rollout 0 is .* a finite number"):
        advantages([scored, finished(1, 0.0)], reward_key="a")


def test_a_scalar_of_numpy_is_a_number() -> None:
    batch = [finished(0, np.float32(3.0)), finished(1, np.array(1.0))]

    assert advantages(batch, advantage_estimator="ppo") == [3.0, 1.0]


def test_a_roles_weight_survives_the_division_by_its_deviation() -> None:
    batch = [
        sibling(rollout, earned, role=role, credit="roles", weight=weight)
        for rollout, earned in enumerate([1.0, 0.0])
        for role, weight in (("solver", 1.0), ("critic", 0.25))
    ]

    solver, critic, *_ = advantages(batch, rollhook={"normalize_by": "agent"})

    assert critic == 0.25 * solver > 0


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([finished(0, 1.0), finished(0, 0.0)], "rollout 0 was given the rewards 1.0 and 0.0: .* rollout_id"),
        ([finished(0, 1.0, group=1), finished(0, 1.0, group=2)], "rollout 0 is in the groups 1 and 2: give"),
        ([finished(3, 1.0, group=None)], "rollout 3 has no group_index"),
        ([finished(3, None)], "the reward of rollout 3 is None; name a verifier"),
        ([finished(3, math.nan)], "the reward of rollout 3 is nan; name a verifier"),
        (
            [finished(i, 1.0) for i in range(3)],
            "group 0 has 3 rollouts and --n-samples-per-prompt is 2: give",
        ),
    ],
)
def test_samples_that_contradict_each_other_are_refused(batch: list[Any], message: str) -> None:
    with pytest.raises(CreditError, match=message):
        normalize_rewards(SimpleNamespace(n_samples_per_prompt=2), batch)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"normalize_by": "agnet"}, "normalize_by: .*'rollout', 'agent' or 'role_turn'"),
        ({"credit": "splitt"}, "credit: .*'broadcast', 'split' or 'split_segments'"),
        ({"credit": "roles"}, "credit: .*'broadcast', 'split' or 'split_segments'"),
        ({"role_weights": {"judge": -1}}, '"judge": a weight is a finite number of at least 0, got -1'),
    ],
)
def test_a_typo_in_the_section_is_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        normalize_rewards(SimpleNamespace(rollhook=section), [])


rollouts = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(1, 3)),
    min_size=1,
    max_size=10,
)


@settings(deadline=None)
@given(rollouts=rollouts, more=st.integers(1, 3), data=st.data())
def test_order_duplicates_and_siblings_change_no_rollouts_value(
    rollouts: list[tuple[int, float, int]], more: int, data: st.DataObject
) -> None:
    def batch_of(extra: int) -> list[Any]:
        return [
            sibling(number, earned, group=group, segment=segment)
            for number, (group, earned, siblings) in enumerate(rollouts)
            for segment in range(siblings + (extra if number == 0 else 0))
        ]

    def values(batch: list[Any]) -> set[tuple[int, float]]:
        return {(s.rollout_id, value) for s, value in zip(batch, advantages(batch), strict=True)}

    batch = batch_of(0)
    shuffled = data.draw(st.permutations(batch + batch[: len(batch) // 2]))

    assert values(shuffled) == values(batch)
    assert values(batch_of(more)) == values(batch)


async def test_a_group_is_scored_together_and_what_has_a_reward_keeps_it(smollm2_tokenizer: Any) -> None:
    rows = [
        Sample(index=i, group_index=0, prompt="q", metadata={"rollhook": {"verifier": "majority"}})
        for i in range(3)
    ]
    async with ScriptedEngine(smollm2_tokenizer, ["4", "4", "5"]) as engine:
        host, port = engine.url.removeprefix("http://").split(":")
        args = SimpleNamespace(
            hf_checkpoint=smollm2_tokenizer.name_or_path,
            sglang_router_ip=host,
            sglang_router_port=int(port),
            group_rm=True,
            rollhook={"return_shape": "sample"},
        )
        group: list[Any] = [await rollhook.generate(args, row, {}) for row in rows]
        kept: Any = Sample(index=9, group_index=0, prompt="q", response="5", reward=0.25)
        rewards = await reward_batch(args, samples=[*group, kept])
        nothing = await reward_batch(args, samples=[])
        await shutdown()

    assert (rewards, nothing) == ([1.0, 1.0, 0.0, 0.25], [])
    assert [sample.reward for sample in group] == [None, None, None]  # the trainer writes them


def test_a_group_of_lists_is_refused_by_the_batch_reward() -> None:
    group: Any = [[finished(0, None)], [finished(1, None)]]

    with pytest.raises(ConfigError, match="--group-rm got several Samples of one rollout; drop the flag"):
        asyncio.run(reward_batch(NOTHING, group))


class Drifting:
    """A verifier that never says the same twice, as a sampled judge may not."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    async def score(self, view: Any) -> float:
        return float(next(self.numbers))


async def test_the_siblings_of_a_rollout_are_scored_once_and_share_by_their_credit() -> None:
    numbers = count(1)

    @hookimpl
    def rollhook_verifiers() -> list[VerifierSpec]:
        return [VerifierSpec(name="drifting", create=lambda config, rollout: Drifting(numbers))]

    plugins = Plugins(entry_points=[])
    plugins.add("drifting", SimpleNamespace(rollhook_verifiers=rollhook_verifiers))
    record = {"answer": "4", "rollout_reward": None}
    samples = [
        Sample(
            rollout_id=rollout,
            group_index=0,
            metadata={
                "rollhook": {"verifier": "drifting"},
                "rollhook_result": {
                    **record,
                    "credit": {"credit": "split", "earned": None, "weight": weight},
                },
            },
        )
        for rollout, weight in ((0, 0.75), (0, 0.25), (1, 1.0))
    ]
    async with Runtime(RunConfig(), plugins=plugins).scoring() as runtime:
        rewards = await reward_samples(runtime, samples)

    assert [sample.metadata["rollhook_result"].get("error") for sample in samples] == [None] * 3
    assert rewards == [0.75, 0.25, 2.0]
