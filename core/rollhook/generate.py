"""A row in, its training Samples out: resolve -> open -> run -> verify -> merge.

Invariant: `run_rollout` returns at least one certified Sample for every row. A fault of the row is a FAILED
Sample; only a fault of the run (ConfigError) and cancellation leave as exceptions.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from statistics import fmean
from typing import Any

from rollhook.aborts import abort_flag, unless
from rollhook.config import RunConfig
from rollhook.credit import BY_ROLE, Reward, applied
from rollhook.errors import ConfigError, LimitReached, RolloutAborted, RolloutError, RowError, raised_at
from rollhook.hookspecs import Credit, TopologySpec
from rollhook.protocols import Outcome, Score
from rollhook.replay import Replay
from rollhook.resuming import Kept, read_kept
from rollhook.rollout import LiveRollout
from rollhook.runtime import Runtime, runtime_for
from rollhook.sample import Sample, Status, rollout_id_of
from rollhook.scoring import score_samples
from rollhook.siblings import (
    Origin,
    aborted_siblings,
    failed_sample,
    kept_sample,
    longest_sibling,
    mark_aborted,
    mark_failed,
    masked_sample,
    merge_siblings,
    result_of,
    reward_later,
)
from rollhook.spec import Resolved


async def generate(
    args: Any, sample: Sample, sampling_params: Mapping[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Run one row and return what a trainer learns from: slime's `--custom-generate-function-path`.

    args: the trainer's namespace; any field may be missing; never written to.
    sampling_params: the trainer's sampling; never written to.
    Returns a list of sibling Samples, or one Sample under `return_shape: sample` and in evaluation.
    Raises ConfigError, before any token, when the run cannot work as configured.
    """
    config = RunConfig.from_args(args)
    try:
        runtime = await _runtime(config, args)
    except RolloutAborted:
        samples = [_not_begun(config, sample, evaluation=evaluation)]
    else:
        samples = await run_rollout(runtime, sample, sampling_params, evaluation=evaluation)
    return samples[0] if evaluation or config.return_shape == "sample" else samples


async def reward(args: Any, sample: Sample | Sequence[Sample]) -> Any:
    """Score finished Samples by the verifier their rows name: slime's `--custom-rm-path`.

    Takes one Sample and returns its reward, or a list (also an empty one) and returns a list. A reward
    that is already there is kept; where scoring fails the reward is 0.0 and the Sample becomes FAILED.
    Verifiers that see all answers to a prompt take those of the list.
    """
    samples = sample if isinstance(sample, Sequence) else [sample]
    try:
        runtime = await _runtime(RunConfig.from_args(args), args)
    except RolloutAborted:
        rewards = _aborted_rewards(samples)
    else:
        rewards = await reward_samples(runtime, samples)
    return rewards if samples is sample else rewards[0]


async def _runtime(config: RunConfig, args: Any) -> Runtime:
    """The Runtime for a trainer's args. Where slime runs in this process, it aborts when slime does.

    Raises RolloutAborted when slime aborts while it opens; the opening goes on, for the next call.
    """
    flag = abort_flag(sys.modules, args)
    runtime = await unless(flag, runtime_for(config))
    if flag is not None:
        runtime.aborts.watch(flag)
    return runtime


async def reward_samples(runtime: Runtime, samples: Sequence[Sample]) -> list[Any]:
    """What `reward` returns for a list. Siblings are scored once, and share the score by their credit.

    Samples whose scoring the trainer aborts become ABORTED, with reward 0.0.
    """
    unscored: dict[Hashable, Sample] = {}
    for sample in samples:
        if sample.reward is None:
            unscored.setdefault(_answer(sample), sample)
    try:
        scored = await runtime.aborts.run(score_samples(runtime, list(unscored.values())))
    except RolloutAborted:
        return _aborted_rewards(samples)
    scores = dict(zip(unscored, scored, strict=True))
    rewards = []
    for sample in samples:
        score = scores[_answer(sample)] if sample.reward is None else sample.reward
        if isinstance(score, RolloutError):
            mark_failed(sample, score)
            score = 0.0
        rewards.append(reward_later(sample, score.value) if isinstance(score, Score) else score)
    return rewards


def _aborted_rewards(samples: Sequence[Sample]) -> list[Any]:
    return [mark_aborted(sample) if sample.reward is None else sample.reward for sample in samples]


def _answer(sample: Sample) -> Hashable:
    """Equal for siblings that stand for one recorded answer; a Sample without a record stands for itself."""
    answer = result_of(sample).get("answer")
    if not isinstance(answer, str) or sample.rollout_id is None:
        return id(sample)
    return (sample.group_index, sample.rollout_id, answer)


async def run_rollout(
    runtime: Runtime, sample: Sample, sampling: Mapping[str, Any], *, evaluation: bool = False
) -> list[Sample]:
    """The Samples of one rollout: siblings under one rollout_id, or exactly one where one must do.

    sampling: the run's parameters, laid over the configuration's. evaluation: one Sample comes back, with the
    rollout's whole reward. Raises ConfigError for a fault of the run.
    """
    config = runtime.config
    one = evaluation or config.return_shape == "sample"
    if _is_finished(sample) and not evaluation:
        masked = config.partial_rollout and config.mask_kept_tokens
        return [masked_sample(sample) if masked else sample]
    rollout = LiveRollout(
        runtime=runtime,
        row=sample,
        rollout_id=rollout_id_of(sample),
        sampling={**config.sampling, **sampling},
        kept=_kept(config, sample, evaluation=evaluation),
        evaluation=evaluation,
    )
    rollout.event("rollout_started", index=sample.index)
    samples = await _settle(rollout)
    rollout.event("rollout_finished", status=samples[0].status.value, reward=samples[0].reward)
    return [longest_sibling(samples)] if one else samples


def _kept(config: RunConfig, sample: Sample, *, evaluation: bool) -> Kept | None:
    """What the rollout of `sample` goes on from; None when it begins."""
    if evaluation or not config.partial_rollout or config.return_shape == "list":
        return None
    return read_kept(sample, config.replay, masked=config.mask_kept_tokens)


def _not_begun(config: RunConfig, sample: Sample, *, evaluation: bool) -> Sample:
    """The ABORTED Sample of a rollout that ended before it began: as it came, or empty."""
    replay = Replay() if evaluation else config.replay
    origin = Origin(sample, rollout_id_of(sample), replay=replay)
    if _kept(config, sample, evaluation=evaluation) is not None:
        return kept_sample(origin)
    return aborted_siblings(origin, [])[0]


def _is_finished(sample: Sample) -> bool:
    """Whether this is what an earlier call made, come back with its group."""
    done = sample.status.value in (Status.COMPLETED.value, Status.TRUNCATED.value)
    return done and bool(result_of(sample))


async def _settle(rollout: LiveRollout) -> list[Sample]:
    """What becomes of the rollout: its Samples, ABORTED ones, or a FAILED one."""
    aborts = rollout.runtime.aborts
    try:
        samples = await aborts.run(_attempt(rollout, evaluation=rollout.evaluation))
    except ConfigError:
        raise
    except RolloutAborted:
        return _aborted(rollout)
    except Exception as error:  # noqa: BLE001  the last line: a fault nobody foresaw fails one rollout only
        if rollout.aborted or aborts.in_force:  # what a plugin makes of its interruption is no fault
            return _aborted(rollout)
        fault = error
        if not isinstance(fault, RolloutError):
            name = type(error).__name__
            fault = RolloutError(f"{name}: {error}", cause_type=name, where=raised_at(error))
            fault.__cause__ = error
        return [failed_sample(rollout.origin, fault, rollout.parts())]
    return _aborted(rollout) if rollout.aborted else samples


def _aborted(rollout: LiveRollout) -> list[Sample]:
    if rollout.kept is not None and rollout.kept.waiting:
        return [kept_sample(rollout.origin)]
    return aborted_siblings(rollout.origin, rollout.parts())


async def _attempt(rollout: LiveRollout, *, evaluation: bool) -> list[Sample]:
    """One try: what it sampled stays readable in `rollout` when it fails."""
    resolved = rollout.runtime.resolver.resolve(rollout.metadata)
    _refuse_fan_out(rollout.runtime, resolved, evaluation=evaluation)
    context = rollout.runtime.config.eval_max_context_tokens
    if evaluation and context is not None:
        limits = resolved.limits.model_copy(update={"max_context_tokens": context})
        resolved = replace(resolved, limits=limits)
    async with AsyncExitStack() as stack:
        try:
            outcome, limit = await _play(rollout, resolved, stack)
            if not rollout.origin.sampled_tokens:
                owner = f"{rollout.opening}: " if rollout.opening else ""
                why = _limit_reached(limit, resolved) if limit else "the topology ended without a turn"
                raise RolloutError(f"{owner}nothing was sampled: {why}", plugin=rollout.opening)
            credit = _credit(rollout, resolved, cut=limit is not None)
            reward = await _judge(rollout, resolved, outcome, credit)
        finally:
            rollout.runtime.aborts.closing()
    return merge_siblings(rollout.origin, rollout.parts(limit), reward)


async def _play(
    rollout: LiveRollout, resolved: Resolved, stack: AsyncExitStack
) -> tuple[Outcome, str | None]:
    """Open what the row names and run its topology; with the outcome, the limit that ended it (its name)."""
    clock = asyncio.timeout(resolved.limits.timeout_s)
    try:
        async with clock:
            rollout.deadline = clock.when()
            topology = await rollout.open(resolved, stack)
            return await topology.run(rollout), None
    except LimitReached as reached:
        limit = reached.limit
    except TimeoutError:
        if not clock.expired():
            raise
        limit = "timeout_s"
    return _cut_short(rollout, resolved), limit


def _limit_reached(limit: str, resolved: Resolved) -> str:
    seconds = f" ({resolved.limits.timeout_s:g} s)" if limit == "timeout_s" else ""
    return f"{LimitReached(limit)}{seconds}"


def _cut_short(rollout: LiveRollout, resolved: Resolved) -> Outcome:
    """What a rollout came to that a limit ended. A lone agent's last turn is its answer. Of several agents
    none had the last word: there is no answer, and where somebody was to score one, it earned 0.0.
    """
    spec = resolved.topology.spec
    assert isinstance(spec, TopologySpec)
    alone = sum(agent.turns > 0 for agent in rollout.agents) == 1
    by_role = spec.credit in BY_ROLE
    if alone and (rollout.verifiers or not by_role):
        return Outcome()
    return Outcome(response="", reward=Score(0.0) if rollout.verifiers or by_role else None)


def _credit(rollout: LiveRollout, resolved: Resolved, *, cut: bool) -> Credit:
    """The rollout's credit. Every sample gets the whole reward in evaluation; where one sample stands for the
    rollout, instead of a part; and where a limit cut the rollout before its topology could reward its roles.
    """
    spec, config = resolved.topology.spec, rollout.runtime.config
    assert isinstance(spec, TopologySpec)
    credit = applied(spec.credit, config.credit)
    lacking = cut if credit in BY_ROLE else config.return_shape == "sample"
    return "broadcast" if rollout.evaluation or lacking else credit


async def _judge(rollout: LiveRollout, resolved: Resolved, outcome: Outcome, credit: Credit) -> Reward:
    """What the rollout earned: the topology's own reward, else the verifier's, else its roles' mean, else the
    environment's; None when nobody scored it yet.
    """
    spec, config = resolved.topology.spec, rollout.runtime.config
    assert isinstance(spec, TopologySpec)
    score: Score | None
    if isinstance(outcome.reward, Score):
        score = outcome.reward
    elif rollout.verifiers:
        score = await rollout.verify(outcome.response)
    elif outcome.role_rewards:
        score = Score(fmean(outcome.role_rewards.values()))
    else:
        earned = rollout.environment.result.reward if rollout.environment else None
        score = None if earned is None else Score(earned)
    weights = {**config.role_weights, **spec.role_weights, **config.role_weights}  # the run's come first
    parts = score.parts if score else {}
    return Reward(
        value=score.value if score else None,
        credit=credit,
        role_weights=weights,
        by_role=outcome.role_rewards,
        scores={**parts, **outcome.scores},
        answer=rollout.answer(outcome.response),
    )


def _refuse_fan_out(runtime: Runtime, resolved: Resolved, *, evaluation: bool) -> None:
    spec = resolved.topology.spec
    if runtime.config.return_shape == "sample" and not evaluation:
        assert isinstance(spec, TopologySpec)
        if spec.fan_out:
            raise RowError(
                f"topology: {resolved.topology.name} makes several samples a rollout, but the run says "
                "return_shape: sample; set return_shape: list",
            )
