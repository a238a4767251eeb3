"""Credit: what siblings get, and what a policy-gradient step then weighs under each way to average a loss.

The losses here are the trainer's, stated anew: every trained token counts with its sample's advantage times a
coefficient, which is what the loss divides by.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollhook import Outcome, Plugins, Rollout, RunConfig, Runtime, TopologySpec, hookimpl, run_rollout
from rollhook.credit import Reward, applied, role_weight, share, split_reward
from rollhook.errors import CreditError
from rollhook.hookspecs import Credit, WholeCredit
from rollhook.sample import Sample, Status
from rollhook.segments import Segment
from rollhook.siblings import Origin, Part, merge_siblings, reward_later
from rollhook.slime import normalize_rewards
from rollhook.testing import ScriptedEngine
from tests.contracts.pages import ROOT, sections, table
from tests.unit.worlds import running

Turns = Sequence[int]
"""How many tokens each turn of one segment sampled."""
Plan = Mapping[str, Sequence[Turns]]
"""The segments of each role."""


def segment(role: str, turns: Turns, *, first: int = 0, context: int = 1) -> Segment:
    """One segment: sampled tokens numbered from `first`, and after each turn one that was not sampled."""
    tokens, mask = array("i", [900] * context), bytearray()
    for length in turns:
        tokens.extend([*range(first, first + length), 901])
        mask.extend([1] * length + [0])
        first += length
    return Segment(
        kind=role,
        role=role,
        tokens=tokens,
        prompt_length=context,
        loss_mask=mask,
        log_probs=array("d", [-0.5 if bit else 0.0 for bit in mask]),
        finish_reason="stop",
        weight_versions=["1"],
        request_ids=[],
        turns=len(turns),
        forks=[],
        cached_tokens=0,
        prompt_tokens=0,
    )


def parts_of(plan: Plan) -> list[Part]:
    """Segments whose prompts hold what their role said before; tokens are numbered role by role."""
    parts, first = [], 0
    for role, segments in plan.items():
        context = 1
        for turns in segments:
            parts.append(Part(segment(role, turns, first=first, context=context), Status.COMPLETED, ""))
            first += sum(turns)
            context += sum(turns) + len(turns)
    return parts


def siblings(rollout: int, plan: Plan, reward: Reward, *, group: int = 0) -> list[Sample]:
    parts = parts_of(plan)
    trained = sum(sum(part.segment.loss_mask) for part in parts)
    row = Sample(index=rollout, group_index=group, prompt="q")
    return merge_siblings(Origin(row, rollout, sampled_tokens=trained, trained_tokens=trained), parts, reward)


def rewards(made: Sequence[Sample]) -> list[Any]:
    return [sample.reward for sample in made]


def trained(sample: Sample) -> int:
    return sum(sample.loss_mask or ())


def test_each_credit_shares_one_reward_in_its_own_way() -> None:
    plan = {"solver": [[3], [1]], "critic": [[4]]}
    roles = {"solver": 1.0, "critic": 0.0}

    def given_by(credit: Credit) -> list[Any]:
        return rewards(siblings(1, plan, Reward(2.0, credit=credit, by_role=roles)))

    assert {credit: given_by(credit) for credit in get_args(Credit)} == {
        "broadcast": [2.0, 2.0, 2.0],
        "split": [0.75, 0.25, 1.0],
        "split_segments": [2.0 / 3, 2.0 / 3, 2.0 / 3],
        "roles": [1.0, 1.0, 0.0],
        "zero_sum": [0.5, 0.5, -0.5],
    }


def test_a_role_counts_by_its_weight_its_own_before_a_pattern() -> None:
    weights = {"solver_*": 0.5, "solver_2": 3.0}
    plan = {"solver_1": [[1]], "solver_2": [[1]], "judge": [[1]]}
    earned = dict.fromkeys(plan, 2.0)

    made = siblings(1, plan, Reward(credit="roles", by_role=earned, role_weights=weights))

    assert rewards(made) == [1.0, 6.0, 2.0]
    assert [role_weight(role, weights) for role in plan] == [0.5, 3.0, 1.0]
    assert made[1].metadata["rollhook_result"]["credit"] == {
        "credit": "roles",
        "earned": 2.0,
        "weight": 3.0,
    }


def test_a_contest_may_name_a_role_that_does_not_train() -> None:
    lost = Reward(credit="zero_sum", by_role={"policy": 0.0, "frozen": 1.0})

    alone = Reward(credit="zero_sum", by_role={"policy": 1.0})

    assert rewards(siblings(1, {"policy": [[2], [1]]}, lost)) == [-0.5, -0.5]
    with pytest.raises(CreditError, match="named one contestant: policy; put all of them into Outcome"):
        siblings(1, {"policy": [[1]]}, alone)


@pytest.mark.parametrize("credit", ["roles", "zero_sum"])
def test_a_trained_role_without_a_reward_is_named(credit: Credit) -> None:
    reward = Reward(credit=credit, by_role={"solver": 1.0})

    with pytest.raises(
        CreditError, match=f'"{credit}" but the topology gave no reward for: critic, judge; put'
    ):
        siblings(1, {"solver": [[1]], "judge": [[1]], "critic": [[1]]}, reward)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_finite_number_is_refused(value: float) -> None:
    with pytest.raises(CreditError, match=f"the rollout's reward is {value}; .* must give a finite number"):
        siblings(1, {"main": [[1]]}, Reward(value))
    with pytest.raises(CreditError, match=f"the reward of role 'main' is {value}; "):
        siblings(1, {"main": [[1]]}, Reward(credit="roles", by_role={"main": value}))


def test_splitting_over_nothing_trained_is_refused() -> None:
    with pytest.raises(CreditError, match="no segment of the rollout has a trained token"):
        split_reward(1.0, [0, 0])


def test_the_runs_credit_replaces_a_topologys_unless_that_rewards_roles() -> None:
    assert [applied(declared, "split") for declared in get_args(Credit)] == [
        "split",
        "split",
        "split",
        "roles",
        "zero_sum",
    ]
    assert [applied(declared, None) for declared in get_args(Credit)] == list(get_args(Credit))


def test_a_rollout_scored_after_its_end_is_shared_by_the_same_credit() -> None:
    made = siblings(1, {"main": [[3], [1]]}, Reward(credit="split"))
    unscored = rewards(made)

    later = [reward_later(sample, 2.0) for sample in made]

    assert (unscored, later) == ([None, None], [1.5, 0.5])
    assert [sample.metadata["rollhook_result"]["rollout_reward"] for sample in made] == [2.0, 2.0]
    assert reward_later(Sample(metadata=None), 2.0) == 2.0  # type: ignore[arg-type]  # a trainer may leave None


@given(st.floats(-10, 10), st.lists(st.integers(0, 500), min_size=1, max_size=8).filter(any))
def test_split_rewards_sum_to_the_whole(reward: float, lengths: list[int]) -> None:
    shares = split_reward(reward, lengths)

    assert sum(shares) == pytest.approx(reward)
    assert all(part == 0 for part, length in zip(shares, lengths, strict=True) if length == 0)


@given(st.dictionaries(st.sampled_from("abcd"), st.floats(-10, 10), min_size=2))
def test_what_a_contest_gives_its_roles_sums_to_zero(results: dict[str, float]) -> None:
    reward = Reward(credit="zero_sum", by_role=results)

    shares = share(reward, [segment(role, [1]) for role in results])

    assert math.fsum(part.earned or 0.0 for part in shares) == pytest.approx(0.0, abs=1e-12)


def row(topology: str, **rollhook: Any) -> Sample:
    said = {"topology": topology, **rollhook}
    return Sample(index=0, group_index=0, prompt="2+2?", label="4", metadata={"rollhook": said})


async def test_a_run_says_how_rewards_are_split_and_a_limit_changes_nothing_in_that(
    smollm2_tokenizer: Any,
) -> None:
    limited = {"verifier": "number", "limits": {"max_turns": 1}}
    async with running(smollm2_tokenizer, ["4"] * 5, credit="split_segments") as (runtime, _):
        pair = await run_rollout(runtime, row("w/pair", verifier="number"), {})
        [evaluated] = await run_rollout(runtime, row("w/pair", verifier="number"), {}, evaluation=True)
        [cut] = await run_rollout(runtime, row("w/stubborn", **limited), {})

    assert (rewards(pair), evaluated.reward, cut.reward) == ([0.5, 0.5], 1.0, 1.0)
    assert cut.metadata["rollhook_result"]["credit"]["credit"] == "broadcast"  # its roles have no rewards


async def test_a_run_weighs_roles_and_leaves_their_credit_alone(smollm2_tokenizer: Any) -> None:
    weights = {"lo*": 4.0}
    async with running(smollm2_tokenizer, ["4", "4"], credit="split", role_weights=weights) as (runtime, _):
        made = await run_rollout(runtime, row("w/rewarding"), {})

    assert rewards(made) == [1.0, -2.0]


class Match:
    """The policy against an opponent that does not train."""

    async def run(self, rollout: Rollout) -> Outcome:
        await rollout.agent("policy").turn(list(rollout.messages))
        await rollout.agent("frozen", trained=False).turn(list(rollout.messages))
        return Outcome(role_rewards={"policy": 1.0, "frozen": -1.0})


@hookimpl
def rollhook_topologies() -> list[TopologySpec]:
    return [
        TopologySpec(name="match", create=lambda config, rollout: Match(), credit="zero_sum", fan_out=False)
    ]


@pytest.mark.parametrize("return_shape", ["list", "sample"])
async def test_a_lone_trained_role_keeps_its_own_reward(return_shape: str, smollm2_tokenizer: Any) -> None:
    plugins = Plugins(entry_points=[])
    plugins.add("match", SimpleNamespace(rollhook_topologies=rollhook_topologies))
    async with ScriptedEngine(smollm2_tokenizer, ["4", "5"]) as engine:
        config = RunConfig.of({"engine": engine.url, "return_shape": return_shape}, where="the test")
        async with Runtime(config, plugins=plugins, tokenizer=smollm2_tokenizer) as runtime:
            [sample] = await run_rollout(runtime, row("match"), {})

    assert sample.reward == 1.0


async def test_a_rollout_that_one_sample_stands_for_is_not_split(smollm2_tokenizer: Any) -> None:
    config: dict[str, Any] = {"credit": "split", "return_shape": "sample"}
    async with running(smollm2_tokenizer, ["4"], **config) as (runtime, _):
        [sample] = await run_rollout(runtime, row("rollhook/single", verifier="number"), {})

    assert sample.metadata["rollhook_result"]["credit"]["credit"] == "broadcast"
    assert sample.reward == 1.0


# What a policy-gradient step weighs: each trained token counts advantage / divisor.

Divisors = Callable[[Sequence[Sample]], Sequence[float]]


def rollout_mean(batch: Sequence[Sample]) -> list[float]:
    """slime's default: the mean over all trained tokens of one rollout_id, then over rollouts."""
    tokens: dict[int | None, int] = defaultdict(int)
    for sample in batch:
        tokens[sample.rollout_id] += trained(sample)
    return [float(tokens[sample.rollout_id] * len(tokens)) for sample in batch]


def token_mean(batch: Sequence[Sample]) -> list[float]:
    """slime's --calculate-per-token-loss: the sum over tokens, over the number of tokens in the batch."""
    return [float(sum(trained(sample) for sample in batch))] * len(batch)


def sample_mean(batch: Sequence[Sample]) -> list[float]:
    """The mean over each sample's own tokens, summed over samples, over the number of rollouts."""
    rollouts = len({sample.rollout_id for sample in batch})
    return [float(trained(sample) * rollouts) for sample in batch]


LOSSES: dict[str, Divisors] = {"rollout": rollout_mean, "token": token_mean, "sample": sample_mean}

SOUND = {
    ("broadcast", "rollout"),
    ("broadcast", "token"),
    ("split", "sample"),
    ("split_segments", "sample"),
    ("roles", "rollout"),
    ("roles", "token"),
    ("zero_sum", "rollout"),
    ("zero_sum", "token"),
}
"""Credit and loss that go together."""

UNSOUND = sorted({(credit, loss) for credit in get_args(Credit) for loss in LOSSES} - SOUND)

FLAGS: dict[str, dict[str, Any]] = {
    "GRPO": {},
    "Dr. GRPO": {"grpo_std_normalization": False},
    "REINFORCE": {"advantage_estimator": "reinforce_plus_plus"},
}


def token_weights(batch: Sequence[Sample], loss: str, **args: Any) -> dict[tuple[Any, int], float]:
    """The weight of each trained token, by rollout and number."""
    _, advantages = normalize_rewards(SimpleNamespace(**args), batch)
    weights = {}
    for sample, advantage, divisor in zip(batch, advantages, LOSSES[loss](batch), strict=True):
        response = sample.tokens[-sample.response_length :]
        for token, bit in zip(response, sample.loss_mask or (), strict=True):
            if bit:
                weights[sample.rollout_id, token] = advantage / divisor
    return weights


def rollout_weights(batch: Sequence[Sample], loss: str, **args: Any) -> dict[Any, float]:
    """The total weight of each rollout."""
    totals: dict[Any, list[float]] = defaultdict(list)
    for (rollout, _), weight in token_weights(batch, loss, **args).items():
        totals[rollout].append(weight)
    return {rollout: math.fsum(weights) for rollout, weights in totals.items()}


def test_the_page_says_what_goes_together() -> None:
    page = sections(ROOT / "docs" / "credit.md")
    bold = {
        (credit, loss)
        for loss, row in zip(LOSSES, table(page["The losses"]), strict=True)
        for credit, cell in zip(get_args(WholeCredit), row[2:], strict=True)
        if cell.startswith("**")
    }
    by_role = {
        (credit, loss)
        for loss, row in zip(LOSSES, table(page["Which one"]), strict=True)
        for credit in get_args(Credit)
        if credit in row[3]
    }

    assert bold | by_role == SOUND
    assert [row[2] for row in table(page["Which one"])] == ["broadcast", "broadcast", "split"]


ROLES = ("white", "black")
turns_of_a_role = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@st.composite
def played(draw: st.DrawFn) -> tuple[dict[str, list[int]], dict[str, list[list[int]]], Reward]:
    """A rollout: each role's turns, those turns cut into segments anyhow, and what it earned."""
    whole = {role: draw(turns_of_a_role) for role in ROLES}
    cut = {}
    for role, turns in whole.items():
        segments = [[turns[0]]]
        for length in turns[1:]:
            if draw(st.booleans()):
                segments.append([length])
            else:
                segments[-1].append(length)
        cut[role] = segments
    by_role = {role: draw(st.sampled_from([-1.0, 0.0, 0.5, 1.0])) for role in ROLES}
    return (
        whole,
        cut,
        Reward(draw(st.sampled_from([0.0, 0.5, 1.0])), by_role=by_role, role_weights={"black": 2}),
    )


Played = tuple[dict[str, list[int]], dict[str, list[list[int]]], Reward]
groups = st.lists(played(), min_size=2, max_size=5)


def both_ways(group: Sequence[Played], credit: Credit) -> tuple[list[Sample], list[Sample]]:
    """The group's samples with one segment a role, and with the turns cut into several."""
    whole, cut = [], []
    for rollout, (turns, segments, earned) in enumerate(group):
        reward = replace(earned, credit=credit)
        whole += siblings(rollout, {role: [lengths] for role, lengths in turns.items()}, reward)
        cut += siblings(rollout, segments, reward)
    return whole, cut


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize(("credit", "loss"), sorted(SOUND))
@settings(max_examples=15, deadline=None)
@given(group=groups)
def test_cutting_a_trajectory_changes_no_rollouts_weight(
    credit: Credit, loss: str, flags: str, group: list[Played]
) -> None:
    whole, cut = both_ways(group, credit)

    expected = rollout_weights(whole, loss, **FLAGS[flags])

    assert rollout_weights(cut, loss, **FLAGS[flags]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("credit", "loss"), sorted(SOUND - {("split_segments", "sample")}))
@settings(max_examples=15, deadline=None)
@given(group=groups)
def test_cutting_a_trajectory_changes_no_tokens_weight(
    credit: Credit, loss: str, group: list[Played]
) -> None:
    whole, cut = both_ways(group, credit)

    assert token_weights(cut, loss) == pytest.approx(token_weights(whole, loss), abs=1e-9)


EARNED = (
    Reward(1.0, by_role={"white": 1.0, "black": 0.5}),
    Reward(0.0, by_role={"white": 0.0, "black": 0.0}),
)


def two_rollouts(credit: Credit, first: Plan) -> list[Sample]:
    """The first as planned; the second lost, in one segment."""
    won, lost = (replace(earned, credit=credit) for earned in EARNED)
    return [*siblings(0, first, won), *siblings(1, {"white": [[4]], "black": [[4]]}, lost)]


@pytest.mark.parametrize(("credit", "loss"), UNSOUND)
def test_the_other_credits_weigh_a_cut_trajectory_otherwise(credit: Credit, loss: str) -> None:
    whole = two_rollouts(credit, {"white": [[3, 1]], "black": [[2]]})
    cut = two_rollouts(credit, {"white": [[3], [1]], "black": [[2]]})
    before, after = (rollout_weights(batch, loss)[0] for batch in (whole, cut))

    assert abs(after - before) > 0.01


def test_an_even_split_moves_weight_between_tokens() -> None:
    whole = two_rollouts("split_segments", {"white": [[3, 1]], "black": [[2]]})
    cut = two_rollouts("split_segments", {"white": [[3], [1]], "black": [[2]]})
    before, after = (token_weights(batch, "sample")[0, 3] for batch in (whole, cut))

    assert abs(after) > abs(before)


@pytest.mark.parametrize("normalize_by", ["rollout", "agent"])
@pytest.mark.parametrize("credit", ["broadcast", "roles", "zero_sum"])
@settings(max_examples=15, deadline=None)
@given(group=groups)
def test_an_advantage_does_not_depend_on_the_number_of_siblings(
    credit: Credit, normalize_by: str, group: list[Played]
) -> None:
    args = SimpleNamespace(rollhook={"normalize_by": normalize_by})

    def by_role(batch: Sequence[Sample]) -> set[tuple[Any, ...]]:
        _, advantages = normalize_rewards(args, batch)
        return {
            (sample.rollout_id, sample.metadata["rollhook_result"]["role"], advantage)
            for sample, advantage in zip(batch, advantages, strict=True)
        }

    whole, cut = both_ways(group, credit)

    assert by_role(cut) == by_role(whole)


@pytest.mark.parametrize("credit", ["split", "split_segments"])
@settings(max_examples=15, deadline=None)
@given(group=groups)
def test_siblings_of_a_split_share_their_rollouts_advantage(credit: Credit, group: list[Played]) -> None:
    shared, _ = both_ways(group, "broadcast")
    _, cut = both_ways(group, credit)
    whole = {
        s.rollout_id: a for s, a in zip(shared, normalize_rewards(SimpleNamespace(), shared)[1], strict=True)
    }
    sums: dict[Any, float] = defaultdict(float)
    for sample, advantage in zip(cut, normalize_rewards(SimpleNamespace(), cut)[1], strict=True):
        sums[sample.rollout_id] += advantage

    assert sums == pytest.approx(whole)


def test_comparing_turn_by_turn_does_depend_on_where_a_trajectory_is_cut() -> None:
    args = {"rollhook": {"normalize_by": "role_turn"}}
    whole = two_rollouts("broadcast", {"white": [[3, 1]], "black": [[2]]})
    cut = two_rollouts("broadcast", {"white": [[3], [1]], "black": [[2]]})
    before, after = (token_weights(batch, "rollout", **args)[0, 3] for batch in (whole, cut))

    assert before > 0
    assert after == 0  # nobody else has a second turn as white to compare with
