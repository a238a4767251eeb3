"""A row in, its training Samples out: resolve -> open -> run -> verify -> merge.

Invariant: `run_rollout` returns at least one certified Sample for every row. A fault of the row is a FAILED
Sample; only a fault of the run (ConfigError) and cancellation leave as exceptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from statistics import fmean
from typing import Any

from rollhook.config import RunConfig
from rollhook.errors import ConfigError, LimitReached, RolloutAborted, RolloutError, RowError
from rollhook.hookspecs import TopologySpec
from rollhook.protocols import Outcome, Score
from rollhook.rollout import LiveRollout
from rollhook.runtime import Runtime, runtime_for
from rollhook.sample import Sample, rollout_id_of
from rollhook.scoring import score_samples
from rollhook.siblings import (
    Reward,
    aborted_siblings,
    failed_sample,
    longest_sibling,
    mark_failed,
    merge_siblings,
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
    runtime = await runtime_for(RunConfig.from_args(args))
    samples = await run_rollout(runtime, sample, sampling_params, evaluation=evaluation)
    return samples[0] if evaluation or runtime.config.return_shape == "sample" else samples


async def reward(args: Any, sample: Sample | Sequence[Sample]) -> Any:
    """Score finished Samples by the verifier their rows name: slime's `--custom-rm-path`.

    Takes one Sample and returns its reward, or a list (also an empty one) and returns a list. A reward
    that is already there is kept; where scoring fails the reward is 0.0 and the Sample becomes FAILED.
    Verifiers that see all answers to a prompt take those of the list.
    """
    runtime = await runtime_for(RunConfig.from_args(args))
    if isinstance(sample, Sequence):
        return await reward_samples(runtime, sample)
    return (await reward_samples(runtime, [sample]))[0]


async def reward_samples(runtime: Runtime, samples: Sequence[Sample]) -> list[Any]:
    """What `reward` returns for a list."""
    unscored = [sample for sample in samples if sample.reward is None]
    scores = iter(await score_samples(runtime, unscored))
    rewards = []
    for sample in samples:
        score = next(scores) if sample.reward is None else sample.reward
        if isinstance(score, RolloutError):
            mark_failed(sample, score)
            score = 0.0
        rewards.append(score.value if isinstance(score, Score) else score)
    return rewards


async def run_rollout(
    runtime: Runtime, sample: Sample, sampling: Mapping[str, Any], *, evaluation: bool = False
) -> list[Sample]:
    """The Samples of one rollout: siblings under one rollout_id, or exactly one where one must do.

    sampling: the run's parameters, laid over the configuration's. evaluation: one Sample comes back, with the
    rollout's whole reward. Raises ConfigError for a fault of the run.
    """
    rollout = LiveRollout(
        runtime=runtime,
        row=sample,
        rollout_id=rollout_id_of(sample),
        sampling={**runtime.config.sampling, **sampling},
    )
    one = evaluation or runtime.config.return_shape == "sample"
    rollout.event("rollout_started", index=sample.index)
    try:
        samples = await _attempt(rollout, evaluation=evaluation)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        fault = RolloutError("a plugin raised CancelledError by itself", cause_type="CancelledError")
        fault.__cause__ = error
        samples = [failed_sample(rollout.origin, fault, rollout.parts())]
    except RolloutAborted:
        samples = aborted_siblings(rollout.origin, rollout.parts())
    except RolloutError as error:
        samples = [failed_sample(rollout.origin, error, rollout.parts())]
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  the last line: a fault nobody foresaw fails one rollout only
        fault = RolloutError(f"{type(error).__name__}: {error}", cause_type=type(error).__name__)
        fault.__cause__ = error
        samples = [failed_sample(rollout.origin, fault, rollout.parts())]
    rollout.event("rollout_finished", status=samples[0].status.value, reward=samples[0].reward)
    return [longest_sibling(samples)] if one else samples


async def _attempt(rollout: LiveRollout, *, evaluation: bool) -> list[Sample]:
    """One try: what it sampled stays readable in `rollout` when it fails."""
    resolved = rollout.runtime.resolver.resolve(rollout.metadata)
    _refuse_fan_out(rollout.runtime, resolved, evaluation=evaluation)
    context = rollout.runtime.config.eval_max_context_tokens
    if evaluation and context is not None:
        limits = resolved.limits.model_copy(update={"max_context_tokens": context})
        resolved = replace(resolved, limits=limits)
    async with AsyncExitStack() as stack:
        outcome, limit = await _play(rollout, resolved, stack)
        if not rollout.origin.sampled_tokens:
            owner = f"{rollout.opening}: " if rollout.opening else ""
            why = limit or "the topology ended without a turn"
            raise RolloutError(f"{owner}nothing was sampled: {why}", plugin=rollout.opening)
        reward = await _judge(rollout, resolved, outcome, whole=evaluation or limit is not None)
    return merge_siblings(rollout.origin, rollout.parts(limit), reward)


async def _play(
    rollout: LiveRollout, resolved: Resolved, stack: AsyncExitStack
) -> tuple[Outcome, str | None]:
    """Open what the row names and run its topology; with the outcome, the limit that ended it, if one did."""
    clock = asyncio.timeout(resolved.limits.timeout_s)
    try:
        async with clock:
            rollout.deadline = clock.when()
            topology = await rollout.open(resolved, stack)
            return await topology.run(rollout), None
    except LimitReached as reached:
        return Outcome(), str(reached)
    except TimeoutError:
        if not clock.expired():
            raise
        return Outcome(), f"the rollout reached timeout_s ({resolved.limits.timeout_s:g} s)"


async def _judge(rollout: LiveRollout, resolved: Resolved, outcome: Outcome, *, whole: bool) -> Reward:
    """What the rollout earned: the topology's own reward, else the verifier's, else its roles' mean, else the
    environment's. whole: every sample gets all of it, whatever the credit: in evaluation, where one sample
    stands for all, and after a limit, where a topology could not reward its roles.
    """
    spec = resolved.topology.spec
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
    parts = score.parts if score else {}
    return Reward(
        value=score.value if score else None,
        credit="broadcast" if whole else spec.credit,
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
